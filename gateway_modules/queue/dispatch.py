"""Pure: which free slot the request at the head of the queue gets.

Strictly first come, first served over all types; the cache only decides *where* the head goes.
Never awaits, reads a clock or changes what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

NEVER_S = float("-inf")


class FreeSlot(NamedTuple):
    """Room for one session on a worker that may take it now.

    Attributes:
        worker_id: The worker.
        running: Sessions that worker serves already.
        cached_hash: History the slot's cache holds.
        last_cache_used_s: When that was last used, s on any clock; None counts as long ago.
    """

    worker_id: str
    running: int = 0
    cached_hash: str | None = None
    last_cache_used_s: float | None = None


def _used_s(slot: FreeSlot) -> float:
    return NEVER_S if slot.last_cache_used_s is None else slot.last_cache_used_s


def route_by_history(history_hash: str, free: Sequence[FreeSlot]) -> FreeSlot | None:
    """Return the slot whose cache holds this history, the freshest of several; else None."""
    hits = [slot for slot in free if history_hash and slot.cached_hash == history_hash]
    return max(hits, key=_used_s, default=None)


def route_to_spare(free: Sequence[FreeSlot]) -> FreeSlot | None:
    """Return a slot without a cache, else the one whose cache was used longest ago.

    Among equals the worker that serves fewest sessions wins, then the order given.
    """
    without = [slot for slot in free if slot.cached_hash is None]
    if without:
        return min(without, key=attrgetter("running"))
    return min(free, key=lambda slot: (_used_s(slot), slot.running), default=None)


def route(history_hash: str, free: Sequence[FreeSlot]) -> FreeSlot | None:
    """Choose a slot for one request.

    In this order: (1) the slot that holds its history, (2) a slot without a cache, (3) the slot
    whose cache was used longest ago, (4) none: wait.

    Args:
        history_hash: The history it continues; "" for a request that can use no cache.
        free: Slots that may be given away. Of one worker's slots (2) and (3) choose the one worth
            least and (1) a hit, so no others of it are needed here.

    Source: docs/specification/service.md#3.4.
    """
    return route_by_history(history_hash, free) or route_to_spare(free)
