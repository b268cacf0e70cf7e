"""Plots results of `benchmarks.duplex`: `python -m benchmarks.plot all.json all.svg`.

Left: time of a unit's stages and their lower bounds; right: latency by concurrent conversations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.summary import PARTS

SIZE_INCHES = (12.0, 5.0)
BAR_HEIGHT = 0.38
UNIT_MS = 1_000.0

# Any: a parsed JSON document, whose fields `summary.Run.as_record` names.
Record = dict[str, Any]


def draw(record: Record) -> Figure:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_stages(left, record["scenarios"])
    _draw_loads(right, record["loads"])
    machine = record["machine"]
    device = machine.get("device_name", machine["device"])
    figure.suptitle(f"{device}, torch {machine['torch']}")
    return figure


def _draw_stages(axes: Axes, scenarios: list[Record]) -> None:
    bars = [
        (f"{scenario['name']}: {kind}", stages, scenario["floors_ms"].get(kind, {}))
        for scenario in scenarios
        for kind, stages in scenario["summary_ms"].items()
    ]
    colours = matplotlib.color_sequences["tab10"]
    for row, (_, stages, floors) in enumerate(bars):
        at_ms = least_ms = 0.0
        for stage, colour in zip(PARTS, colours, strict=False):
            width_ms = stages.get(stage, {}).get("p50", 0.0)
            label = stage if row == 0 else None
            axes.barh(row, width_ms, BAR_HEIGHT, left=at_ms, color=colour, label=label)
            axes.barh(
                row + BAR_HEIGHT, floors.get(stage, 0.0), BAR_HEIGHT, left=least_ms, color=colour
            )
            at_ms += width_ms
            least_ms += floors.get(stage, 0.0)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.set_xlabel("ms, median; below each, the floor")
    axes.invert_yaxis()
    axes.legend(fontsize="small")


def _draw_loads(axes: Axes, results: list[Record]) -> None:
    for name in dict.fromkeys(result["name"] for result in results):
        found = [result for result in results if result["name"] == name]
        sessions = [result["sessions"] for result in found]
        for share, style in (("p50", "--"), ("p99", "-")):
            times_ms = [result["latency_ms"][share] for result in found]
            axes.plot(sessions, times_ms, style, marker="o", label=f"{name}, {share}")
    axes.axhline(UNIT_MS, color="red", linewidth=1)
    axes.set_xlabel("sessions")
    axes.set_ylabel("ms from input complete to answer")
    if results:
        axes.legend(fontsize="small")


def main(
    measured: Annotated[Path, typer.Argument(help="What --json of benchmarks.duplex wrote.")],
    picture: Annotated[Path, typer.Argument(help="SVG, PNG or PDF, by its ending.")],
) -> None:
    draw(json.loads(measured.read_text(encoding="utf8"))).savefig(picture)


if __name__ == "__main__":
    typer.run(main)
