"""What the long conversation in a browser counts as a gap, and when it is content."""

from __future__ import annotations

from benchmarks.pages_soak import MOST_GROWN_BYTES, SETTLING_S, Ear, Look, Reports, verdicts_of

LOUD, QUIET = 0.1, 0.0
MINUTES = 30.0


def pieces(*parts: tuple[int, float]) -> list[tuple[float, float]]:
    """Return pieces of 10 ms: (how many, how loud) of each part, one after another."""
    levels = [level for count, level in parts for _ in range(count)]
    return [(10.0 * index, level) for index, level in enumerate(levels)]


def test_silence_within_a_turn_is_a_gap_and_a_pause_between_turns_is_none() -> None:
    ear = Ear()
    ear.hear(pieces((300, LOUD), (200, QUIET), (100, LOUD), (5, QUIET), (100, LOUD)))
    assert ear.gaps_ms == [(6_050.0, 50.0)]
    assert ear.audible_ms == 5_000.0


def test_a_gap_across_two_looks_at_the_meter_is_found() -> None:
    ear = Ear()
    everything = pieces((100, LOUD), (10, QUIET), (100, LOUD))
    ear.hear(everything[:105])
    ear.hear(everything[105:])
    assert [length_ms for _, length_ms in ear.gaps_ms] == [100.0]


def test_gaps_the_page_reports_count_after_it_has_settled() -> None:
    reports = Reports()
    reports('{"type": "audio_chunk"}')
    reports('{"type": "client_diagnostic", "metrics": {"event": "gap", "gaps": [{"gap_ms": 9}]}}')
    reports('{"type": "client_diagnostic", "metrics": {"event": "summary"}}')
    ((at_s, _), _) = reports.told
    assert reports.gaps_after(at_s) == [{"gap_ms": 9}]
    assert reports.gaps_after(at_s + 1) == []


def failed(looks: list[Look], audible_ms: float = 1_000_000) -> list[str]:
    """Return the conditions that are not met."""
    ear = Ear(audible_ms=audible_ms)
    verdicts = verdicts_of(looks, ear, Reports(), SETTLING_S, MINUTES)
    return [verdict.name for verdict in verdicts if not verdict.passed]


def test_memory_may_rise_in_the_beginning_and_not_later() -> None:
    flat = [Look(minute, 4_000_000 if minute > 5 else 1_000_000, 900, 0) for minute in range(30)]
    assert failed(flat) == []
    growing = [Look(minute, minute * MOST_GROWN_BYTES, 40 * minute, 0) for minute in range(30)]
    assert failed(growing) == ["heap", "nodes"]


def test_silence_is_no_success() -> None:
    assert failed([Look(1, 1, 1, 0)], audible_ms=0) == ["sound"]
