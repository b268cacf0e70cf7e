"""Who is answered in a round: everybody at first; under load some wait a little for company.

A pass over many conversations costs little more than one over a single one, so under load it pays
to wait for those that will soon ask the same. Pure: knows kinds and times, no tensors, no threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from MiniCPMO45.steps import DrawCodes, EncodeImages, EncodeStream, Vocode

ENOUGH: Final[dict[type, int]] = {EncodeStream: 16, EncodeImages: 16, DrawCodes: 48, Vocode: 24}
"""Kinds worth waiting for, and the number of requests that more would hardly make cheaper."""

COMPANY_MIN: Final = 4  # ours: fewer conversations under way than that, and nobody waits
WAIT_PER_COMPANION_S: Final = 0.02  # ours, like the next: best over loads from 16 to 128 sessions
LONGEST_WAIT_S: Final = 0.2  # where a card was simulated; few stages wait, so a unit stays in time
PATIENCE_S: Final = 2.0  # ours: when work that nobody hears live counts as due


@dataclass(frozen=True)
class Asking:
    """One conversation's request.

    Attributes:
        kind: of the request.
        since_s: when it was asked.
        due_s: when the unit it belongs to must be done; None if nobody listens live.
    """

    kind: type
    since_s: float
    due_s: float | None = None

    @property
    def order(self) -> float:
        """Sorts requests: whose is due first."""
        return self.since_s + PATIENCE_S if self.due_s is None else self.due_s


def chosen(asking: Sequence[Asking], now_s: float) -> list[int]:
    """Return who is answered now, as indices, whose is due first in front; at least one.

    Args:
        asking: at least one request.
        now_s: the time, on the same clock as the requests'.
    """
    by_kind: dict[type, list[int]] = {}
    for index in sorted(range(len(asking)), key=lambda index: asking[index].order):
        by_kind.setdefault(asking[index].kind, []).append(index)
    wait_s = min(LONGEST_WAIT_S, WAIT_PER_COMPANION_S * (len(asking) - COMPANY_MIN))
    going = [
        indices
        for kind, indices in by_kind.items()
        if not _waits(kind, [asking[index] for index in indices], now_s, wait_s)
    ]
    if not going:  # the device never idles; the others gather on meanwhile
        going = [next(iter(by_kind.values()))]
    return [index for indices in going for index in indices]


def _waits(kind: type, asking: Sequence[Asking], now_s: float, wait_s: float) -> bool:
    """Say whether these requests, all of one kind, wait for more of it."""
    enough = ENOUGH.get(kind)
    if enough is None or len(asking) >= enough or wait_s <= 0.0:
        return False
    return all(now_s < each.since_s + wait_s for each in asking)
