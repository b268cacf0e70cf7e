"""What a run leaves: figures at full size for the weights in the repository, and audio."""

from __future__ import annotations

import html
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import BaseModel

from benchmarks.nano.gates import GATES, Figure
from config import PROJECT_ROOT
from core.audio import FloatArray, encode_wav
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.sums import SUMS_FILE, file_sha256

REPORT = PROJECT_ROOT / "docs" / "nano-figures.json"
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>nano: spoken replies</title>
<style>body {{ font: 16px system-ui; margin: 2rem }} td {{ padding: .3rem 1rem .3rem 0 }}</style>
<h1>nano: spoken replies</h1>
<table><tr><th>question<th>reply<th>transcript of Whisper tiny.en<th></tr>
{rows}
</table></html>
"""
ROW = '<tr><td>{question}<td>{text}<td>{transcript}<td><audio controls src="{file}"></audio></tr>'


class Measured(BaseModel, frozen=True):
    """One figure of the report; fields as in `Figure`."""

    metric: str
    value: float
    n: int
    limit: str
    day: date
    commit: str
    judge: str = ""


class Report(BaseModel, frozen=True):
    """Figures of one set of weights, identified by the SHA-256 of its file of checksums."""

    weights: str
    figures: tuple[Measured, ...] = ()

    def by_metric(self) -> dict[str, Measured]:
        return {figure.metric: figure for figure in self.figures}


def weights_of(folder: Path) -> str:
    return file_sha256(folder / SUMS_FILE)


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


@dataclass(frozen=True, eq=False)
class Sample:
    """Question, text, transcript and audio (float32 at 24 kHz) of a reply."""

    question: str
    text: str
    transcript: str
    sound: FloatArray


def write_sheet(samples: Sequence[Sample], folder: Path) -> Path:
    """Write a WAV file per sample and the page; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, each in enumerate(samples, start=1):
        file = f"{number:03d}.wav"
        (folder / file).write_bytes(encode_wav(each.sound, OUTPUT_SAMPLE_RATE_HZ))
        words = {
            name: html.escape(text) for name, text in vars(each).items() if isinstance(text, str)
        }
        rows.append(ROW.format(file=file, **words))
    page = folder / "index.html"
    page.write_text(PAGE.format(rows="\n".join(rows)), encoding="utf8")
    return page
