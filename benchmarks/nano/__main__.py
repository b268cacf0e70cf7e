"""Measures the gates of the embedded model: `python -m benchmarks.nano`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.nano import report
from benchmarks.nano.gates import Area, Figure
from benchmarks.nano.measure import Measurement, Sizes
from config import load_settings

NOT_REACHED = 1  # exit code
OUT = Path("data/nano_gates")


def main(
    checkpoint: Annotated[
        Path | None, typer.Option(help="Default: that of the data folder.")
    ] = None,
    gate: Annotated[list[Area] | None, typer.Option(help="Only these; repeatable.")] = None,
    scale: Annotated[float, typer.Option(help="Share of the cases; 1 is the full run.")] = 1.0,
    out: Annotated[
        Path, typer.Option(help="Folder for packages, the audio sheet and figures.")
    ] = OUT,
    threads: Annotated[int, typer.Option(help="Of the model.")] = 2,
    into: Annotated[
        Path | None, typer.Option("--report", help="Report to update with the figures.")
    ] = None,
) -> None:
    """Measure the gates; the exit code is 1 if one is not reached."""
    if into and scale < 1:
        raise typer.BadParameter("--report needs a full run: omit --scale")
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(threads)
    folder = checkpoint or load_settings().service.data_dir / "nano"
    measurement = Measurement(folder, out, Sizes().scaled(scale))
    console, figures = Console(), []
    for figure in measurement.figures(gate or list(Area)):
        figures.append(figure)
        mark = "reached" if figure.is_reached else "NOT REACHED"
        console.print(f"{mark:>12}  {escape(_line(figure))}", soft_wrap=True)
        if into:
            today = datetime.now(UTC).date()
            report.add(into, folder, [figure], today, report.current_commit())
    console.print(_table(figures))
    if measurement.samples:
        console.print(f"audio sheet: {report.write_sheet(measurement.samples, out / 'sheet')}")
    rows = [
        {"gate": f.gate.area, "metric": f.gate.metric, "limit": f.gate.limit, "value": f.value}
        | {"n": f.n, "is_reached": f.is_reached, "note": f.note}
        for f in figures
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "figures.json").write_text(json.dumps(rows, indent=1), encoding="utf8")
    if not all(figure.is_reached for figure in figures):
        raise typer.Exit(NOT_REACHED)


def _line(figure: Figure) -> str:
    note = f"  {figure.note}" if figure.note else ""
    return f"{figure.gate.metric}: {_value(figure)} of {figure.n}{note}"


def _table(figures: list[Figure]) -> Table:
    table = Table("gate", "metric", "measured", "wanted", "cases", "")
    for figure in figures:
        gate = figure.gate
        style = "green" if figure.is_reached else "bold red"
        mark = "reached" if figure.is_reached else "NOT REACHED"
        cells = (gate.area.value, gate.metric, _value(figure), gate.wanted, str(figure.n))
        table.add_row(*cells, f"[{style}]{mark}[/]")
    return table


def _value(figure: Figure) -> str:
    return "–" if figure.value is None else figure.gate.shown(figure.value)


if __name__ == "__main__":
    typer.run(main)
