"""Async tests without a plug-in."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Coroutine
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


def in_loop(
    test: Callable[Arguments, Coroutine[object, object, None]],
) -> Callable[Arguments, None]:
    """Run an async test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:12]}"
