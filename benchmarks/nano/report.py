"""Report of the gates' figures at full size, for the weights in the repository."""

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
    """One figure of the report; fields as in `Figure`."""

    model_config = ConfigDict(frozen=True)

    metric: str
    value: float
    n: int
    limit: str
    day: date
    commit: str
    judge: str = ""


class Report(BaseModel):
    """Figures of one set of weights, identified by the SHA-256 of its file of checksums."""

    model_config = ConfigDict(frozen=True)

    weights: str
    figures: tuple[Measured, ...] = ()

    def by_metric(self) -> dict[str, Measured]:
        return {figure.metric: figure for figure in self.figures}


def weights_of(folder: Path) -> str:
    return hashlib.sha256((folder / SUMS_FILE).read_bytes()).hexdigest()


def read(path: Path) -> Report:
    return Report.model_validate_json(path.read_text(encoding="utf8"))


def add(path: Path, checkpoint: Path, figures: Sequence[Figure], day: date, commit: str) -> None:
    """Update a report with measured figures; those of other weights are dropped."""
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
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
