"""Waiting for something that tells nobody when it happens, such as the end of a process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


async def until(is_true: Callable[[], bool], look_s: float, limit_s: float = math.inf) -> bool:
    """Look again and again.

    Args:
        is_true: what to wait for.
        look_s: time between looks, s.
        limit_s: longest wait, s.

    Returns:
        Whether it came true in time.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while True:
        if is_true():
            return True
        if loop.time() > deadline_s:
            return False
        await asyncio.sleep(look_s)
