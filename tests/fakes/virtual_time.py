"""An event loop whose clock jumps to the next timer, and a wall clock that stands still.

So a test of time-outs takes no time. A loop with nothing left to do fails instead of hanging.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: tells how long it would have waited."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everything waits and nothing will ever happen"
            self._jump(timeout)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that starts at 0 s and skips all waiting."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        return self._now_s

    def _jump(self, seconds: float) -> None:
        self._now_s += seconds


def in_virtual_time(
    test: Callable[Arguments, Coroutine[object, object, Result]],
) -> Callable[Arguments, Result]:
    """Run an async test on a loop of its own that skips all waiting."""

    @functools.wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(test(*args, **kwargs))

    return run


async def let_others_run(rounds: int = 10) -> None:
    """Give every task that is ready `rounds` turns."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class FakeClock:
    """A wall clock that a test sets."""

    def __init__(self, tick: timedelta = timedelta()) -> None:
        """Start at noon; every reading takes a tick."""
        self.now = datetime(2030, 1, 1, 12, tzinfo=UTC)
        self._tick = tick
        self._moved_s = 0.0

    def __call__(self) -> datetime:
        self.now += self._tick
        return self.now

    def elapsed_s(self) -> float:
        return self.now.timestamp() - self._moved_s

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def move(self, seconds: float) -> None:
        """Set the clock forwards, or backwards, while no time passes."""
        self.advance(seconds)
        self._moved_s += seconds
