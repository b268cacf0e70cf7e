"""Pure: which waiting request gets which free slot.

Strictly first come, first served over all types; the cache only decides *where* the head goes.
Never awaits, reads a clock or changes what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

NEVER_S = float("-inf")


@dataclass(frozen=True)
class WaitingRequest:
    """What routing needs to know of a request.

    Attributes:
        ticket_id: Its place in the queue.
        is_streaming: It can use a cache that holds its history.
        history_hash: The history it continues; empty means none and never hits.
    """

    ticket_id: str
    is_streaming: bool = False
    history_hash: str = ""


@dataclass(frozen=True)
class FreeSlot:
    """Room for one session on a worker that may take it now.

    Attributes:
        worker_id: The worker.
        slot_index: Which of its slots.
        running: Sessions that worker serves already.
        cached_hash: History the slot's cache holds.
        last_cache_used_s: When that was last used, s on any clock; None counts as long ago.
    """

    worker_id: str
    slot_index: int = 0
    running: int = 0
    cached_hash: str | None = None
    last_cache_used_s: float | None = None


class Assignment(NamedTuple):
    """Who gets which slot, and whether its cache is worth keeping."""

    ticket_id: str
    worker_id: str
    slot_index: int
    is_cache_hit: bool


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
    return min(
        free,
        key=lambda slot: (
            slot.cached_hash is not None,
            NEVER_S if slot.cached_hash is None else _used_s(slot),
            slot.running,
        ),
        default=None,
    )


def route(request: WaitingRequest, free: Sequence[FreeSlot]) -> FreeSlot | None:
    """Choose a slot for one request in four steps.

    For streaming: (1) the slot that holds its history, (2) a slot without a cache, (3) the slot
    whose cache was used longest ago, (4) none: wait. Others start at step 2.

    Args:
        request: Who asks.
        free: Slots that may be given away.

    Returns:
        One of `free`, or None if there is none.

    Source: docs/specification/service.md#3.4.
    """
    hit = route_by_history(request.history_hash, free) if request.is_streaming else None
    return hit or route_to_spare(free)


def assign(queue: Iterable[WaitingRequest], free: Sequence[FreeSlot]) -> list[Assignment]:
    """Give free slots to the head of the queue until either runs out.

    Args:
        queue: Waiting requests, next first.
        free: Slots that may be given away, each listed once.

    Returns:
        Assignments in queue order; they always cover a prefix of the queue.
    """
    remaining = list(free)
    assignments: list[Assignment] = []
    for request in queue:
        slot = route(request, remaining)
        if slot is None:
            break
        is_hit = (
            request.is_streaming
            and bool(request.history_hash)
            and slot.cached_hash == request.history_hash
        )
        assignments.append(Assignment(request.ticket_id, slot.worker_id, slot.slot_index, is_hit))
        remaining = [
            replace(other, running=other.running + 1)
            if other.worker_id == slot.worker_id
            else other
            for other in remaining
            if other is not slot
        ]
    return assignments
