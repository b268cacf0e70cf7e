"""Which request gets which slot: order of arrival decides who, the cache decides where."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gateway_modules.queue.scheduling import NEVER_S, slot_rank


class FreeSlot(NamedTuple):
    """A free slot and the number of sessions on its worker."""

    worker_id: str
    running: int = 0
    cached_hash: str | None = None
    last_used_s: float = NEVER_S


EMPTY = FreeSlot("empty")
OLD = FreeSlot("old", cached_hash="x", last_used_s=1.0)
NEW = FreeSlot("new", cached_hash="y", last_used_s=2.0)
MINE = FreeSlot("mine", cached_hash="mine", last_used_s=3.0)


def route(history_hash: str, free: list[FreeSlot]) -> FreeSlot:
    return min(
        free,
        key=lambda one: slot_rank(history_hash, one.cached_hash, one.last_used_s, one.running),
    )


def test_streaming_goes_to_the_worker_that_holds_its_history() -> None:
    assert route("mine", [EMPTY, OLD, MINE]) is MINE


def test_streaming_without_a_hit_spares_every_cache() -> None:
    assert route("mine", [NEW, OLD, EMPTY]) is EMPTY


def test_streaming_evicts_the_least_recently_used_cache() -> None:
    assert route("mine", [NEW, OLD]) is OLD


def test_a_cache_never_used_counts_as_oldest() -> None:
    never = FreeSlot("never", cached_hash="z")
    assert route("mine", [OLD, never, NEW]) is never
    assert route("mine", [never, EMPTY]) is EMPTY


def test_others_spare_caches_and_evict_the_oldest() -> None:
    assert route("", [MINE, NEW, EMPTY]) is EMPTY
    assert route("", [MINE, NEW, OLD]) is OLD


def test_an_empty_history_never_hits() -> None:
    odd = FreeSlot("odd", cached_hash="")
    assert route("", [odd, EMPTY]) is EMPTY


def test_of_several_hits_the_most_recent_wins() -> None:
    stale = FreeSlot("stale", cached_hash="mine", last_used_s=0.5)
    assert route("mine", [stale, MINE]) is MINE


def test_among_equals_the_least_loaded_worker_wins_then_the_first() -> None:
    loaded, idle, other = FreeSlot("a", running=2), FreeSlot("b"), FreeSlot("c")
    assert route("", [loaded, idle, other]) is idle


hashes = st.sampled_from(["", "a", "b", "c"])
slots = st.lists(
    st.builds(
        FreeSlot,
        worker_id=st.sampled_from(["w", "x", "y"]),
        running=st.integers(0, 3),
        cached_hash=st.none() | hashes,
        last_used_s=st.just(NEVER_S) | st.integers(0, 5).map(float),
    ),
    min_size=1,
    max_size=8,
)


@given(hashes, slots)
def test_a_hit_precedes_an_empty_cache_which_precedes_the_oldest(
    history_hash: str, free: list[FreeSlot]
) -> None:
    chosen = route(history_hash, free)
    hits = [slot for slot in free if history_hash and slot.cached_hash == history_hash]
    if hits:
        assert chosen in hits
    elif any(slot.cached_hash is None for slot in free):
        assert chosen.cached_hash is None
    else:
        assert chosen.last_used_s == min(slot.last_used_s for slot in free)
