"""How many seats a cluster should have: numbers in, names out."""

from __future__ import annotations

import random

import pytest

from launcher.run_folder import Phase
from launcher.scaling import DOWN_AFTER_S, SETTLE_S, Bounds, Decision, PostStatus, Scaling


def seat(name: str, sessions: int = 0, slots: int | None = None, node: str = "") -> PostStatus:
    return PostStatus(name, Phase.READY, node, sessions=sessions, slots=slots)


def seats(*sessions: int, slots: int | None = 10) -> list[PostStatus]:
    return [seat(f"seat_{number}", each, slots) for number, each in enumerate(sessions)]


@pytest.mark.parametrize(
    ("text", "least", "most"), [("1", 1, 1), ("12", 12, 12), ("4:64", 4, 64), ("3:3", 3, 3)]
)
def test_bounds_are_a_number_or_two(text: str, least: int, most: int) -> None:
    assert Bounds.parse(text) == Bounds(least, most)


@pytest.mark.parametrize("text", ["", "0", "-1", "4:", ":4", "9:3", "0:3", "1001", "1:2:3", "x"])
def test_other_bounds_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="--workers"):
        Bounds.parse(text)


@pytest.mark.parametrize(
    ("bounds", "loads", "waiting", "want"),
    [
        ("1:9", seats(), 0, 1),  # nothing is known: the least
        ("4:9", seats(), 50, 4),
        ("1:9", seats(0), 0, 1),  # the spare one is there already
        ("1:9", seats(1), 0, 2),
        ("1:9", seats(10), 0, 2),
        ("1:9", seats(10), 1, 3),
        ("1:9", seats(10, 10), 25, 6),
        ("1:4", seats(10, 10), 25, 4),  # never more than the most
        ("5", seats(10, 10), 99, 5),
        ("3:9", seats(0, 0, 0, 0), 0, 3),  # never fewer than the least
        ("1:9", [*seats(10, 10), seat("seat_2")], 0, 3),  # one that loads counts for nothing
    ],
)
def test_as_many_as_people_need_and_one_more(
    bounds: str, loads: list[PostStatus], waiting: int, want: int
) -> None:
    assert Scaling(Bounds.parse(bounds)).wanted(loads, waiting) == want


def test_places_are_the_median_so_that_one_slow_seat_decides_nothing() -> None:
    loads = [seat("seat_0", 20, 20), seat("seat_1", 20, 20), seat("seat_2", 1, 1)]
    assert Scaling(Bounds(1, 99)).wanted(loads, 0) == 4  # ceil(41 / 20) + 1


def test_missing_seats_are_made_at_once_under_free_names() -> None:
    scaling = Scaling(Bounds(3, 9))
    assert scaling.decide([], 0, 0.0).create == ("seat_0", "seat_1", "seat_2")
    there = [seat("seat_0"), seat("seat_2")]
    assert scaling.decide(there, 0, 1.0).create == ("seat_1",)


def test_nobody_leaves_before_there_were_too_many_for_long() -> None:
    scaling = Scaling(Bounds(1, 9))
    there = seats(3, 0, 1)
    assert not scaling.decide(there, 0, 0.0).draining
    assert not scaling.decide(there, 0, DOWN_AFTER_S - 1).draining
    assert not scaling.decide(there, 20, DOWN_AFTER_S).draining  # the need is back, for a moment
    assert not scaling.decide(there, 0, DOWN_AFTER_S + 1).draining  # the time begins anew
    late = scaling.decide(there, 0, 2 * DOWN_AFTER_S + 1)
    assert late.draining == {"seat_1"}  # the one with the fewest sessions


def test_more_than_the_most_leave_at_once() -> None:
    now = Scaling(Bounds(1, 2)).decide(seats(8, 2, 1), 0, 0.0)
    assert now.draining == {"seat_2"} and not now.end


def test_a_seat_ends_only_when_it_serves_nobody() -> None:
    scaling = Scaling(Bounds(1, 2))
    busy = seats(8, 2, 1)
    scaling.decide(busy, 0, 0.0)
    assert not scaling.decide(busy, 0, 2 * DOWN_AFTER_S).end  # its session is not over
    empty = seats(8, 2, 0)
    assert scaling.decide(empty, 0, 2 * DOWN_AFTER_S + 1).end == ("seat_2",)


def test_what_was_assigned_before_may_arrive_before_a_seat_ends() -> None:
    scaling = Scaling(Bounds(1, 2))
    idle = seats(5, 5, 0)
    assert scaling.decide(idle, 0, 0.0).draining == {"seat_2"}
    assert not scaling.decide(idle, 0, SETTLE_S - 1).end
    assert scaling.decide(idle, 0, SETTLE_S).end == ("seat_2",)


def test_a_leaving_seat_stays_when_the_need_returns() -> None:
    scaling = Scaling(Bounds(1, 9))
    there = seats(2, 2, 1)
    scaling.decide(there, 0, 0.0)
    assert scaling.decide(there, 0, DOWN_AFTER_S).draining == {"seat_2"}
    again = scaling.decide(there, 30, DOWN_AFTER_S + 1)
    assert not again.draining
    assert again.create == ("seat_3", "seat_4")  # five wanted, and no new one in place of it


def test_seats_of_a_machine_that_goes_are_replaced_and_do_not_return() -> None:
    scaling = Scaling(Bounds(2, 9))
    there = [seat("seat_0", 1, 10), seat("seat_1", 1, 10, "going")]
    now = scaling.decide(there, 0, 0.0, ["going"])
    assert now.draining == {"seat_1"} and now.create == ("seat_2",) and not now.end
    more = scaling.decide([*there, seat("seat_2", 0, 10)], 40, 1.0, ["going"])
    assert more.draining == {"seat_1"}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_seat_that_talks_is_ended(seed: int) -> None:
    chance = random.Random(seed)
    scaling = Scaling(Bounds(2, 12))
    there: dict[str, PostStatus] = {}
    now_s = 0.0
    for _ in range(300):
        now_s += chance.choice([0.5, 30.0, 700.0])
        decision: Decision = scaling.decide(
            list(there.values()), chance.choice([0, 0, 5]), now_s, ["going"]
        )
        staying = there.keys() - decision.draining
        assert 2 <= decision.want <= 12
        assert len(staying) + len(decision.create) >= decision.want
        assert all(there[name].sessions == 0 for name in decision.end)
        assert set(decision.end) <= decision.draining
        assert not there.keys() & set(decision.create)
        there = {name: seat for name, seat in there.items() if name not in decision.end}
        there |= {name: seat(name) for name in decision.create}
        for name in there:
            sessions = chance.choice([0, 0, 1, 4])
            node = "going" if chance.random() < 0.02 else ""
            there[name] = seat(name, sessions, chance.choice([None, 4, 4]), node)
