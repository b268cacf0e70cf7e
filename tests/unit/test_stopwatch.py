"""Stages of a call, on a clock that is wound by hand."""

from __future__ import annotations

from MiniCPMO45.modes.speech import Stopwatch


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_laps_add_up_by_stage_and_the_total_is_all_time() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for stage, seconds in (("llm", 2.0), ("tts", 3.0), ("llm", 4.0)):
        clock.now += seconds
        watch.lap(stage)
    clock.now += 5.0
    assert (watch.seconds["llm"], watch.seconds["tts"], watch.seconds["never"]) == (6.0, 3.0, 0.0)
    assert watch.total() == 14.0
