"""The figures of the gates at full size, kept in the repository with the weights they belong to."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.nano.gates import GATES, Figure
from config import PROJECT_ROOT
from core.sums import SUMS_FILE

REPORT = PROJECT_ROOT / "docs" / "nano-figures.json"


class Measured(BaseModel):
    """One figure of the report.

    Attributes:
        metric: of the gate.
        value: the figure.
        n: how many cases stand behind it.
        limit: what was wanted, for people.
        day: when it was measured.
        commit: of the code that measured it.
        judge: the model and the program that judged sound; empty where nothing had to be judged.
    """

    model_config = ConfigDict(frozen=True)

    metric: str
    value: float
    n: int
    limit: str
    day: date
    commit: str
    judge: str = ""


class Report(BaseModel):
    """What was measured of one set of weights.

    Attributes:
        weights: SHA-256 of the file that holds the sums of all weight files.
        figures: in the order of the gates.
    """

    model_config = ConfigDict(frozen=True)

    weights: str
    figures: tuple[Measured, ...] = ()

    def by_metric(self) -> dict[str, Measured]:
        """Return the figures by their gate's metric."""
        return {figure.metric: figure for figure in self.figures}


def weights_of(folder: Path) -> str:
    """Return what identifies the weights of a checkpoint folder."""
    return hashlib.sha256((folder / SUMS_FILE).read_bytes()).hexdigest()


def read(path: Path) -> Report:
    """Read a report."""
    return Report.model_validate_json(path.read_text(encoding="utf8"))


def add(path: Path, checkpoint: Path, figures: Sequence[Figure], day: date, commit: str) -> None:
    """Write figures into a report; those of other weights are dropped, others stay.

    Args:
        path: of the report, which need not exist.
        checkpoint: the folder that was measured.
        figures: at full size; those that could not be measured are left out.
        day: of the measurement.
        commit: of the code that measured.
    """
    report = Report(weights=weights_of(checkpoint))
    if path.exists() and (earlier := read(path)).weights == report.weights:
        report = earlier
    found = report.by_metric()
    for figure in figures:
        if figure.value is not None:
            found[figure.gate.metric] = Measured(
                metric=figure.gate.metric,
                value=round(figure.value, 4),
                n=figure.n,
                limit=figure.gate.wanted,
                day=day,
                commit=commit,
                judge=figure.judge,
            )
    ordered = tuple(found[gate.metric] for gate in GATES if gate.metric in found)
    text = report.model_copy(update={"figures": ordered}).model_dump_json(indent=1)
    path.write_text(text + "\n", encoding="utf8")


def current_commit() -> str:
    """Return the abbreviated commit of the working tree."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
