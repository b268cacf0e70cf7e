"""When a dead program is started again."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervisor import Pace, Restarts

PACE = Pace(first_delay_s=1, longest_delay_s=10, stable_s=60, max_failures=6, retry_s=30)


def middle(delays: list[float]) -> list[float]:
    steps = [1, 2, 4, 8, 10, 30]
    return [min(steps, key=lambda step: abs(step - delay)) for delay in delays]


def test_waits_double_up_to_the_longest_and_then_it_is_tried_now_and_then_for_ever() -> None:
    restarts = Restarts(PACE, Random(0))
    delays = [restarts.next_delay_s(0) for _ in range(6)]
    assert middle(delays) == [1, 2, 4, 8, 10, 10] and not restarts.are_too_many
    delays = [restarts.next_delay_s(0) for _ in range(20)]
    assert middle(delays) == [30] * 20 and restarts.are_too_many
    assert middle([restarts.next_delay_s(60)]) == [1] and not restarts.are_too_many


def test_a_program_that_was_well_for_long_starts_anew() -> None:
    restarts = Restarts(PACE, Random(0))
    delays = [restarts.next_delay_s(healthy_s) for healthy_s in (0, 0, 0, 60, 59)]
    assert middle(delays) == [1, 2, 4, 1, 2]


@given(seed=st.integers(), healthy_s=st.lists(st.floats(0, 1_000), min_size=1, max_size=30))
def test_jitter_stays_within_its_bounds(seed: int, healthy_s: list[float]) -> None:
    jittered, exact = Restarts(PACE, Random(seed)), Restarts(replace(PACE, jitter=0))
    for one_s in healthy_s:
        found, expected = jittered.next_delay_s(one_s), exact.next_delay_s(one_s)
        assert 0.8 * expected <= found <= 1.2 * expected


def test_programs_that_died_together_do_not_come_back_together() -> None:
    delays = {Restarts(PACE).next_delay_s(0) for _ in range(20)}
    assert len(delays) > 1


def test_a_restart_somebody_asked_for_is_no_failure() -> None:
    restarts = Restarts(Pace(first_delay_s=1, jitter=0, max_failures=1))
    for _ in range(10):
        restarts.total += 1
    assert restarts.total == 10
    assert restarts.next_delay_s(0) == 1 and not restarts.are_too_many
