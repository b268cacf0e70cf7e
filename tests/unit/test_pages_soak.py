"""Gaps and verdicts of the long conversation in a browser."""

from __future__ import annotations

from benchmarks.pages_soak import (
    MOST_GROWN_BYTES,
    SETTLING_S,
    GapMeter,
    PageMemory,
    Reports,
    verdicts_of,
)

LOUD, QUIET = 0.1, 0.0
MINUTES = 30.0


def blocks(*parts: tuple[int, float]) -> list[tuple[float, float]]:
    """Return blocks of 10 ms: (how many, how loud) of each part, one after another."""
    levels = [level for count, level in parts for _ in range(count)]
    return [(10.0 * index, level) for index, level in enumerate(levels)]


def test_silence_is_a_gap_within_a_turn_only() -> None:
    meter = GapMeter()
    meter.add(blocks((300, LOUD), (200, QUIET), (100, LOUD), (5, QUIET), (100, LOUD)))
    assert meter.gaps_ms == [(6_050.0, 50.0)]
    assert meter.audible_ms == 5_000.0


def test_gap_across_two_readings_is_found() -> None:
    meter = GapMeter()
    everything = blocks((100, LOUD), (10, QUIET), (100, LOUD))
    meter.add(everything[:105])
    meter.add(everything[105:])
    assert [length_ms for _, length_ms in meter.gaps_ms] == [100.0]


def test_reported_gaps_count_after_the_warm_up() -> None:
    reports = Reports()
    reports('{"type": "audio_chunk"}')
    reports('{"type": "client_diagnostic", "metrics": {"event": "gap", "gaps": [{"gap_ms": 9}]}}')
    reports('{"type": "client_diagnostic", "metrics": {"event": "summary"}}')
    ((at_s, _), _) = reports.received
    assert reports.gaps_after(at_s) == [{"gap_ms": 9}]
    assert reports.gaps_after(at_s + 1) == []


def failed(samples: list[PageMemory], audible_ms: float = 1_000_000) -> list[str]:
    """Return the conditions that are not met."""
    meter = GapMeter(audible_ms=audible_ms)
    verdicts = verdicts_of(samples, meter, Reports(), SETTLING_S, MINUTES)
    return [verdict.name for verdict in verdicts if not verdict.passed]


def test_memory_may_grow_during_the_warm_up_only() -> None:
    flat = [
        PageMemory(minute, 4_000_000 if minute > 5 else 1_000_000, 900, 0) for minute in range(30)
    ]
    assert failed(flat) == []
    growing = [
        PageMemory(minute, minute * MOST_GROWN_BYTES, 40 * minute, 0) for minute in range(30)
    ]
    assert failed(growing) == ["heap", "nodes"]


def test_silent_output_fails() -> None:
    assert failed([PageMemory(1, 1, 1, 0)], audible_ms=0) == ["sound"]
