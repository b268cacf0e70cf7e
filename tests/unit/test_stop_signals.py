"""One death of a parent is one request to end, however many signals the kernel makes of it."""

from __future__ import annotations

from core.stop_signals import StopSignals


def test_signals_close_together_are_one_request_and_a_later_one_hurries() -> None:
    signals = StopSignals()
    assert [signals.is_hurry(at_s) for at_s in (100.0, 100.0, 100.9)] == [False] * 3
    assert signals.is_hurry(101.0)
