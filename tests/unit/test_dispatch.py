"""Which request gets which slot: order of arrival decides who, the cache decides where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway_modules.queue.dispatch import Assignment, FreeSlot, WaitingRequest, assign, route

STREAMING = WaitingRequest("t", is_streaming=True, history_hash="mine")
CHAT = WaitingRequest("t")

EMPTY = FreeSlot("empty")
OLD = FreeSlot("old", cached_hash="x", last_cache_used_s=1.0)
NEW = FreeSlot("new", cached_hash="y", last_cache_used_s=2.0)
MINE = FreeSlot("mine", cached_hash="mine", last_cache_used_s=3.0)


def test_streaming_goes_to_the_worker_that_holds_its_history() -> None:
    assert route(STREAMING, [EMPTY, OLD, MINE]) is MINE


def test_streaming_without_a_hit_spares_every_cache() -> None:
    assert route(STREAMING, [NEW, OLD, EMPTY]) is EMPTY


def test_streaming_evicts_the_cache_used_longest_ago() -> None:
    assert route(STREAMING, [NEW, OLD]) is OLD


def test_a_cache_never_used_counts_as_oldest() -> None:
    never = FreeSlot("never", cached_hash="z")
    assert route(STREAMING, [OLD, never, NEW]) is never
    assert route(STREAMING, [never, EMPTY]) is EMPTY


def test_without_a_free_slot_everybody_waits() -> None:
    assert route(STREAMING, []) is None
    assert assign([STREAMING, CHAT], []) == []


def test_others_spare_caches_and_evict_the_oldest() -> None:
    assert route(CHAT, [MINE, NEW, EMPTY]) is EMPTY
    assert route(CHAT, [MINE, NEW, OLD]) is OLD


def test_others_never_hit() -> None:
    chat = WaitingRequest("t", history_hash="mine")
    assert route(chat, [EMPTY, MINE]) is EMPTY
    assert not assign([chat], [MINE])[0].is_cache_hit


def test_an_empty_history_never_hits() -> None:
    odd = FreeSlot("odd", cached_hash="")
    request = WaitingRequest("t", is_streaming=True)
    assert route(request, [odd, EMPTY]) is EMPTY
    assert not assign([request], [odd])[0].is_cache_hit


def test_of_several_hits_the_freshest_wins() -> None:
    stale = FreeSlot("stale", cached_hash="mine", last_cache_used_s=0.5)
    assert route(STREAMING, [stale, MINE]) is MINE


def test_among_equals_the_least_loaded_worker_wins_then_the_first() -> None:
    loaded, idle, other = FreeSlot("a", running=2), FreeSlot("b"), FreeSlot("c")
    assert route(CHAT, [loaded, idle, other]) is idle


def test_sessions_spread_over_workers() -> None:
    free = [FreeSlot("a", 0), FreeSlot("a", 1), FreeSlot("b", 0), FreeSlot("b", 1)]
    requests = [WaitingRequest(str(number)) for number in range(4)]
    assert [one.worker_id for one in assign(requests, free)] == ["a", "b", "a", "b"]


def test_a_slot_taken_by_the_head_is_gone_for_the_next() -> None:
    second = WaitingRequest("u", is_streaming=True, history_hash="mine")
    assert assign([STREAMING, second], [MINE, EMPTY]) == [
        Assignment("t", "mine", 0, is_cache_hit=True),
        Assignment("u", "empty", 0, is_cache_hit=False),
    ]


hashes = st.sampled_from(["", "a", "b", "c"])
requests = st.lists(st.builds(WaitingRequest, st.just(""), st.booleans(), hashes), max_size=8)
slots = st.lists(
    st.builds(
        FreeSlot,
        worker_id=st.sampled_from(["w", "x", "y"]),
        running=st.integers(0, 3),
        cached_hash=st.none() | hashes,
        last_cache_used_s=st.none() | st.integers(0, 5).map(float),
    ),
    max_size=8,
)


@given(requests, slots)
def test_nobody_overtakes_and_no_slot_is_used_twice(
    waiting: list[WaitingRequest], free: list[FreeSlot]
) -> None:
    queue = [
        WaitingRequest(f"t{number}", one.is_streaming, one.history_hash)
        for number, one in enumerate(waiting)
    ]
    numbered = [
        FreeSlot(one.worker_id, number, one.running, one.cached_hash, one.last_cache_used_s)
        for number, one in enumerate(free)
    ]
    before = list(numbered)
    given_away = assign(queue, numbered)
    assert numbered == before
    assert [one.ticket_id for one in given_away] == [
        one.ticket_id for one in queue[: len(given_away)]
    ]
    assert len(given_away) == min(len(queue), len(free))
    indices = [one.slot_index for one in given_away]
    assert len(set(indices)) == len(indices)

    left = dict(enumerate(numbered))
    for request, one in zip(queue, given_away, strict=False):
        chosen = left[one.slot_index]
        could_hit = request.is_streaming and any(
            request.history_hash and slot.cached_hash == request.history_hash
            for slot in left.values()
        )
        assert one.is_cache_hit == could_hit
        if could_hit:
            assert chosen.cached_hash == request.history_hash
        elif any(slot.cached_hash is None for slot in left.values()):
            assert chosen.cached_hash is None
        else:
            used = [slot.last_cache_used_s or float("-inf") for slot in left.values()]
            assert (chosen.last_cache_used_s or float("-inf")) <= min(used)
        del left[one.slot_index]
