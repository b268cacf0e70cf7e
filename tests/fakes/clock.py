"""A clock that moves only when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

TURNS_TO_SETTLE = 40  # of the event loop; more than any chain of wake-ups in these tests


@dataclass(eq=False)
class Call:
    """A call that is to come."""

    due_s: float
    callback: Callable[[], None]
    calls: list[Call] = field(repr=False)

    def cancel(self) -> None:
        """Forget it."""
        if self in self.calls:
            self.calls.remove(self)


class ManualScheduler:
    """A `Scheduler` whose time is a number."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._calls: list[Call] = []

    def now_s(self) -> float:
        """The time."""
        return self._now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Call:
        """Note a call."""
        call = Call(self._now_s + delay_s, callback, self._calls)
        self._calls.append(call)
        return call

    @property
    def waiting(self) -> int:
        """How many calls are to come."""
        return len(self._calls)

    async def advance(self, delay_s: float) -> None:
        """Let time pass, call by call, and the event loop come to rest after each."""
        end_s = self._now_s + delay_s
        await settle()
        while due := [call for call in self._calls if call.due_s <= end_s]:
            first = min(due, key=lambda call: call.due_s)
            first.cancel()
            self._now_s = max(self._now_s, first.due_s)
            first.callback()
            await settle()
        self._now_s = end_s


async def settle() -> None:
    """Let the event loop run until nothing is left that could run."""
    for _ in range(TURNS_TO_SETTLE):
        await asyncio.sleep(0)
