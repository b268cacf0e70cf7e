"""Figures of the cascade and their limits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table


@dataclass
class Report:
    """Figures with their limits, and the answers."""

    # By name; shares from 0 to 1, times in seconds.
    figures: dict[str, float] = field(default_factory=dict)
    # By name: the limit, and whether it is an upper one.
    limits: dict[str, tuple[float, bool]] = field(default_factory=dict)
    cases: dict[str, int] = field(default_factory=dict)  # by name: number of cases
    answers: list[tuple[str, str]] = field(default_factory=list)  # questions and answers
    points: dict[str, int] = field(default_factory=dict)  # of open questions

    def add(self, name: str, figure: float, limit: float, cases: int, *, is_most: bool) -> None:
        self.figures[name] = round(figure, 4)
        self.limits[name] = limit, is_most
        self.cases[name] = cases

    def is_reached(self, name: str) -> bool:
        limit, is_most = self.limits[name]
        return self.figures[name] <= limit if is_most else self.figures[name] >= limit

    def table(self) -> Table:
        table = Table("gate", "limit", "measured", "cases", "")
        for name, figure in self.figures.items():
            limit, is_most = self.limits[name]
            mark = "reached" if self.is_reached(name) else "NOT REACHED"
            sign, cases = "≤" if is_most else "≥", self.cases[name]
            table.add_row(name, f"{sign} {limit:g}", f"{figure:g}", f"{cases}", mark)
        return table

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self), indent=1, ensure_ascii=False), encoding="utf8")
