"""The pure part of a benchmark: percentiles, growth of memory, tables, verdicts.

Knows nothing of tensors or devices; numbers go in, text and plain records come out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

BYTES_PER_GB = 1e9
BYTES_PER_MIB = 2**20
GROWTH_TOLERANCE_BYTES = 2 * BYTES_PER_MIB  # block rounding of allocators

STAGES = (
    "vision_process",
    "vision_embed",
    "audio_process",
    "audio_embed",
    "feed",
    "prefill",
    "llm",
    "tts_prep",
    "tts",
    "token2wav",
    "generate",
    "finalize",
    "answer",
    "unit",
)
"""Stages in the order of a unit; `prefill`, `generate`, `answer` (both) and `unit` are totals."""


@dataclass(frozen=True)
class Spread:
    """Median, 95th percentile and maximum of some measurements, in their unit."""

    p50: float
    p95: float
    max: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Describe at least one value."""
        return cls(percentile(values, 50), percentile(values, 95), max(values), len(values))


@dataclass(frozen=True)
class Memory:
    """Memory after a unit, in bytes.

    Attributes:
        allocated: what must not grow; tensors on a GPU, the conversation's caches on a CPU.
        reserved: what the allocator holds; equals `allocated` on a CPU.
        peak: most that was allocated during the unit; equals `allocated` on a CPU.
        device: what the whole GPU has in use, contexts and other programs included; 0 on a CPU.
        session: the conversation's caches.
        process: resident memory of the process, 0 where the system does not tell.
    """

    allocated: int
    reserved: int
    peak: int
    device: int
    session: int
    process: int


@dataclass(frozen=True)
class Unit:
    """One measured unit.

    Attributes:
        index: from 0, without warm-up.
        kind: what the unit did: "listen" ("listen, cut" where that ended a running turn first),
            "speak" or "speak, end".
        stages_ms: milliseconds by name of `STAGES`.
        memory: after the unit.
        cache_tokens: length of the language model's cache after the unit.
        text_tokens: spoken text ids.
        speech_codes: speech codes drawn.
        samples: samples of speech at 24 kHz.
    """

    index: int
    kind: str
    stages_ms: Mapping[str, float]
    memory: Memory
    cache_tokens: int
    text_tokens: int = 0
    speech_codes: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Verdict:
    """One condition of a run."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True)
class Run:
    """A whole measurement, ready to become JSON.

    Attributes:
        options: what was asked for.
        machine: versions and device.
        build: seconds, parameters and bytes of what was built.
        units: every measured unit.
    """

    options: Mapping[str, object]
    machine: Mapping[str, object]
    build: Mapping[str, float]
    units: Sequence[Unit] = field(default_factory=tuple)

    def as_record(self, verdicts: Sequence[Verdict]) -> dict[str, object]:
        """Return everything as plain dictionaries and lists."""
        spreads = {
            kind: {stage: asdict(spread) for stage, spread in stages.items()}
            for kind, stages in stage_spreads(self.units).items()
        }
        return {
            "options": dict(self.options),
            "machine": dict(self.machine),
            "build": dict(self.build),
            "summary_ms": spreads,
            "memory_growth_bytes": growth(self.units),
            "verdicts": [asdict(verdict) for verdict in verdicts],
            "units": [asdict(unit) for unit in self.units],
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile with linear interpolation between neighbours.

    Args:
        values: at least one, in any order.
        percent: 0 to 100.

    Raises:
        ValueError: there are no values, or `percent` is out of range.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(values)} values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def by_kind(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    """Group units by kind, kinds in order of their names."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(unit.kind, []).append(unit)
    return dict(sorted(groups.items()))


def stage_spreads(units: Sequence[Unit]) -> dict[str, dict[str, Spread]]:
    """Describe every stage of every kind, in milliseconds."""
    return {
        kind: {
            stage: Spread.of([unit.stages_ms[stage] for unit in group])
            for stage in STAGES
            if stage in group[0].stages_ms
        }
        for kind, group in by_kind(units).items()
    }


def growth(units: Sequence[Unit]) -> dict[str, int]:
    """Return by how many bytes memory after a unit grew, kind by kind.

    Units of a kind are compared with each other because a unit that leaves speech behind holds
    more than one that does not: the most held in the later half minus the most in the earlier.

    Args:
        units: in order; kinds with fewer than two units are left out.
    """
    grown = {}
    for kind, group in by_kind(units).items():
        held = [unit.memory.allocated for unit in group]
        half = len(held) // 2
        if half:
            grown[kind] = max(held[half:]) - max(held[:half])
    return grown


def judge(run: Run, *, most_bytes: float | None, most_build_s: float | None) -> list[Verdict]:
    """Check the conditions that do not depend on the machine's speed.

    Args:
        run: the measurement.
        most_bytes: limit of the memory in use; None for no limit.
        most_build_s: limit of the build's seconds; None for no limit.
    """
    grown = growth(run.units)
    listed = ", ".join(f"{kind} {n / BYTES_PER_MIB:+.2f} MiB" for kind, n in grown.items())
    verdicts = [
        Verdict(
            "no growth from unit to unit",
            all(n <= GROWTH_TOLERANCE_BYTES for n in grown.values()),
            listed or "too few units",
        )
    ]
    if most_bytes is not None:
        used = max(max(unit.memory.reserved, unit.memory.device) for unit in run.units)
        text = f"{used / BYTES_PER_GB:.2f} GB in use, at most {most_bytes / BYTES_PER_GB:g}"
        verdicts.append(Verdict("memory", used <= most_bytes, text))
    if most_build_s is not None:
        seconds = run.build["seconds"]
        text = f"{seconds:.1f} s, less than {most_build_s:g}"
        verdicts.append(Verdict("build", seconds < most_build_s, text))
    return verdicts


def stage_table(units: Sequence[Unit]) -> str:
    """Return milliseconds per stage and kind as a table of plain text."""
    spreads = stage_spreads(units)
    counts = {kind: len(group) for kind, group in by_kind(units).items()}
    header = ["milliseconds"]
    for kind in spreads:
        header += [f"{kind} ({counts[kind]}): p50", "p95", "max"]
    rows = []
    for stage in STAGES:
        row = [stage]
        for stages in spreads.values():
            spread = stages.get(stage)
            values = () if spread is None else (spread.p50, spread.p95, spread.max)
            row += [f"{value:.2f}" for value in values] or ["", "", ""]
        rows.append(row)
    return format_table(header, rows)


def memory_table(units: Sequence[Unit]) -> str:
    """Return memory after each unit as a table of plain text, in GB."""
    sizes = [each.name for each in fields(Memory)]
    header = ["unit", "kind", "tokens", *sizes]
    rows = []
    for unit in units:
        held = asdict(unit.memory)
        cells = [f"{held[name] / BYTES_PER_GB:.4f}" for name in sizes]
        rows.append([str(unit.index), unit.kind, str(unit.cache_tokens), *cells])
    return format_table(header, rows)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right.

    Args:
        header: column names.
        rows: as many cells each.
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
