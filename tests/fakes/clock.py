"""What tests of time see of the event loop: when it is at rest, and which timers are left."""

from __future__ import annotations

import asyncio
from typing import Any

TURNS_TO_SETTLE = 40  # of the event loop; more than any chain of wake-ups in these tests
IDLE_TURNS = 3  # in a turn after an idle one, sockets and timers that are due may make work ready


async def settle() -> None:
    """Let the event loop run until nothing is left that could run."""
    loop: Any = asyncio.get_running_loop()  # Any: no public method says what is ready
    idle_turns = 0
    for _ in range(TURNS_TO_SETTLE):
        await asyncio.sleep(0)
        idle_turns = 0 if loop._ready else idle_turns + 1
        if idle_turns == IDLE_TURNS:
            return


def timers_left() -> int:
    loop: Any = asyncio.get_running_loop()  # Any: no public method says so
    return sum(not handle.cancelled() for handle in loop._scheduled)
