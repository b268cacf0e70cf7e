"""Which request gets which slot: order of arrival decides who, the cache decides where."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_modules.queue.worker_connection import NEVER_S, slot_rank


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
STALE = FreeSlot("stale", cached_hash="mine", last_used_s=0.5)
NEVER = FreeSlot("never", cached_hash="z")
FREE = FreeSlot("b")


def route(history_hash: str, free: list[FreeSlot]) -> FreeSlot:
    return min(
        free,
        key=lambda one: slot_rank(history_hash, one.cached_hash, one.last_used_s, one.running),
    )


@pytest.mark.parametrize(
    ("history_hash", "free", "chosen"),
    [
        pytest.param("mine", [EMPTY, OLD, MINE], MINE, id="the worker that holds its history"),
        pytest.param("mine", [STALE, MINE], MINE, id="of several hits the most recent"),
        pytest.param("mine", [NEW, OLD, EMPTY], EMPTY, id="every cache is spared"),
        pytest.param("mine", [NEVER, EMPTY], EMPTY, id="also one never used"),
        pytest.param("mine", [NEW, OLD], OLD, id="the least recently used is evicted"),
        pytest.param("mine", [OLD, NEVER, NEW], NEVER, id="one never used counts as oldest"),
        pytest.param("", [MINE, NEW, EMPTY], EMPTY, id="others spare caches"),
        pytest.param("", [MINE, NEW, OLD], OLD, id="others evict the oldest"),
        pytest.param("", [FreeSlot("odd", cached_hash=""), EMPTY], EMPTY, id="no history, no hit"),
        pytest.param("", [FreeSlot("a", running=2), FREE, FreeSlot("c")], FREE, id="least load"),
    ],
)
def test_a_request_gets_the_best_slot(
    history_hash: str, free: list[FreeSlot], chosen: FreeSlot
) -> None:
    assert route(history_hash, free) is chosen


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
