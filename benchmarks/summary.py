"""Statistics of a benchmark: percentiles, memory growth, tables, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import pydantic_core
import typer

MS_PER_S = 1_000.0
BYTES_PER_GB = 1e9
BYTES_PER_MIB = 2**20
GROWTH_TOLERANCE_BYTES = 2 * BYTES_PER_MIB  # block rounding of allocators
EXIT_FAILED = 1
EXIT_REFUSED = 2

PARTS = (
    "picture",
    "encode_audio",
    "encode_vision",
    "prefill",
    "decision",
    "decode",
    "tts",
    "token2wav",
    "host",
)
"""Stages of an answer that follow each other."""
STAGES = (*PARTS, "first_audio", "answer", "finalize", "unit", "prefetch")
"""Stages in the order of a unit. `picture` prepares pictures on the CPU, `host` is what else the
CPU does between requests; `first_audio` and `answer` are the times from complete input to the first
sound and to the result; `unit` is all of that; `prefetch` came before the unit's sound was
complete."""


@dataclass(frozen=True)
class Spread:
    p50: float
    p95: float
    p99: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread; ValueError if there are no values."""
        longest = max(values)
        p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
        return cls(p50, p95, p99, longest, len(values))

    def cells(self, digits: int) -> list[str]:
        return [f"{value:.{digits}f}" for value in (self.p50, self.p95, self.p99, self.max)]


@dataclass(frozen=True)
class Memory:
    """Memory after a unit, in bytes."""

    allocated: int  # tensors on a GPU, the conversation's caches on a CPU; must not grow
    reserved: int  # held by the allocator; equals `allocated` on a CPU
    peak: int  # most allocated during the unit; equals `allocated` on a CPU
    device: int  # in use on the whole GPU, including other programs; 0 on a CPU
    session: int  # the conversation's caches
    process: int  # resident memory of the process, 0 if unknown


@dataclass(frozen=True)
class Unit:
    index: int  # from 0, without warm-up
    kind: str  # "listen" ("listen, cut" if it interrupted a turn), "speak" or "speak, end"
    stages_ms: Mapping[str, float]  # milliseconds by name of `STAGES`
    memory: Memory  # after the unit
    cache_tokens: int  # KV cache length of the language model after the unit
    text_tokens: int = 0  # spoken text ids
    speech_codes: int = 0  # generated speech codes
    samples: int = 0  # samples of speech at 24 kHz


@dataclass(frozen=True)
class Verdict:
    name: str
    passed: bool
    text: str


@dataclass(frozen=True)
class ScenarioResult:
    name: str
    units: Sequence[Unit]
    # Lower bounds in milliseconds by kind of unit and stage, if known.
    floors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    most_spread: float | None = None  # limit of 99th percentile per median, if any

    def as_record(self) -> dict[str, object]:
        return {
            "name": self.name,
            "floors_ms": self.floors,
            "summary_ms": stage_spreads(self.units),
            "memory_growth_bytes": growth(self.units),
            "units": self.units,
        }


@dataclass(frozen=True)
class Run:
    options: Mapping[str, object]
    machine: Mapping[str, object]  # versions and device
    build: Mapping[str, float]  # seconds, parameters and bytes of the model
    rates: Mapping[str, float] = field(default_factory=dict)  # of the device
    scenarios: Sequence[ScenarioResult] = ()  # single conversations
    preparing_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by kind
    loads: Sequence[Mapping[str, object]] = ()  # concurrent conversations, a record for each number

    def as_record(self, verdicts: Sequence[Verdict]) -> dict[str, object]:
        return {
            **vars(self),
            "scenarios": [scenario.as_record() for scenario in self.scenarios],
            "verdicts": verdicts,
        }


def by_kind(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(unit.kind, []).append(unit)
    return dict(sorted(groups.items()))


def stage_spreads(units: Sequence[Unit]) -> dict[str, dict[str, Spread]]:
    return {
        kind: {
            stage: Spread.of([unit.stages_ms[stage] for unit in group])
            for stage in STAGES
            if stage in group[0].stages_ms
        }
        for kind, group in by_kind(units).items()
    }


def growth(units: Sequence[Unit]) -> dict[str, int]:
    """Return the memory growth in bytes by kind of unit.

    It is the maximum after units of the later half minus that of the earlier half, within one kind,
    because the kinds differ in memory. Kinds with fewer than two units are omitted.
    """
    grown = {}
    for kind, group in by_kind(units).items():
        held = [unit.memory.allocated for unit in group]
        half = len(held) // 2
        if half:
            grown[kind] = max(held[half:]) - max(held[:half])
    return grown


def judge(run: Run, *, most_build_s: float | None) -> list[Verdict]:
    """Check the conditions that do not depend on the machine's speed."""
    verdicts = []
    for scenario in run.scenarios:
        grown = growth(scenario.units)
        listed = ", ".join(f"{kind} {n / BYTES_PER_MIB:+.2f} MiB" for kind, n in grown.items())
        is_steady = all(n <= GROWTH_TOLERANCE_BYTES for n in grown.values())
        name = f"no growth from unit to unit, {scenario.name}"
        verdicts.append(Verdict(name, is_steady, listed or "too few units"))
    for scenario in run.scenarios:
        if (limit := scenario.most_spread) is not None:
            answers = {kind: each["answer"] for kind, each in stage_spreads(scenario.units).items()}
            found = {kind: spread.p99 / spread.p50 for kind, spread in answers.items()}
            listed = ", ".join(f"{kind} {value:.2f}" for kind, value in found.items())
            name = f"99th percentile per median, {scenario.name}"
            is_narrow = max(found.values()) <= limit
            verdicts.append(Verdict(name, is_narrow, f"{listed}, at most {limit:g}"))
    if most_build_s is not None:
        seconds = run.build["seconds"]
        text = f"{seconds:.1f} s, less than {most_build_s:g}"
        verdicts.append(Verdict("build", seconds < most_build_s, text))
    return verdicts


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        print(f"{'ok  ' if verdict.passed else 'FAIL'}  {verdict.name}: {verdict.text}")


def exit_unless_met(verdicts: Sequence[Verdict]) -> None:
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


def write_json(path: Path | None, record: Mapping[str, object]) -> None:
    """Write a record, if there is a path; it may contain dataclasses."""
    if path is not None:
        path.write_bytes(pydantic_core.to_json(record, indent=1, fallback=str) + b"\n")


def stage_table(scenario: ScenarioResult) -> str:
    tables = []
    for kind, stages in stage_spreads(scenario.units).items():
        rows = []
        for stage, spread in stages.items():
            floor = scenario.floors.get(kind, {}).get(stage)
            least = ["", ""] if not floor else [f"{floor:.2f}", f"{spread.p50 / floor:.2f}"]
            rows.append([stage, *spread.cells(2), *least])
        count = len(by_kind(scenario.units)[kind])
        header = [f"{kind} ({count}), ms", "p50", "p95", "p99", "max", "floor", "p50/floor"]
        tables.append(format_table(header, rows))
    return "\n\n".join(tables)


def memory_table(units: Sequence[Unit]) -> str:
    """Return memory after the first and last unit of each kind as text, in GB."""
    header = ["unit", "kind", "tokens", *(each.name for each in fields(Memory))]
    rows = []
    for group in by_kind(units).values():
        for unit in group[:: max(1, len(group) - 1)]:
            cells = [f"{size / BYTES_PER_GB:.4f}" for size in vars(unit.memory).values()]
            rows.append([str(unit.index), unit.kind, str(unit.cache_tokens), *cells])
    return format_table(header, rows)


def spread_table(name: str, found: Mapping[str, Sequence[float]]) -> str:
    """Return a table with a line per kind; `name` is the quantity and its unit."""
    rows = []
    for kind, values in found.items():
        rows.append([kind, str(len(values)), *Spread.of(values).cells(2)])
    return format_table([name, "count", "p50", "p95", "p99", "max"], rows)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
