"""Counts every suspension of every task, and does something at a chosen one."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Generator
from typing import Any


class Awaits:
    """Installs itself as a loop's task factory.

    Attributes:
        count: suspensions seen so far, over all tasks made since.
        places: for each, the coroutine that was suspended.
    """

    def __init__(self, at: int | None = None, act: Callable[[], object] | None = None) -> None:
        """Do `act` when suspension number `at` is reached."""
        self.count = 0
        self.places: list[str] = []
        self._at = at
        self._act = act

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count in every task the loop makes from now on."""
        # Any: the signature differs between versions of Python.
        loop.set_task_factory(self._make)  # type: ignore[arg-type]

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: types.CoroutineType[Any, Any, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(self._run(coroutine), loop=loop, **options)
        task.add_done_callback(lambda _: coroutine.close())  # cancelled before it began
        return task

    async def _run(self, coroutine: types.CoroutineType[Any, Any, Any]) -> Any:
        return await self._counted(coroutine)  # a task takes nothing but a true coroutine

    @types.coroutine
    def _counted(self, coroutine: types.CoroutineType[Any, Any, Any]) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                awaited = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as done:
                return done.value
            self._tick(coroutine)
            error = None
            try:
                yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:
                error = thrown

    def _tick(self, coroutine: types.CoroutineType[Any, Any, Any]) -> None:
        number = self.count
        self.count += 1
        self.places.append(coroutine.__qualname__)
        if number == self._at and self._act is not None:
            self._act()
