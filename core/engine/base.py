"""What a conversation needs of an engine: `await engine.run(steps)`, and streams of values."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from core.errors import ShuttingDownError

if TYPE_CHECKING:  # they import the tensor library, which a worker without a model does not need
    from core.engine.passes import PassRunner, Task
    from MiniCPMO45.steps import Steps

T = TypeVar("T")


class BaseEngine(ABC):
    """Runs the steps of conversations."""

    async def run(self, steps: Steps[T], *, due_s: float | None = None) -> T:
        """Run steps to their end and return the result; what they emit is dropped.

        Args:
            steps: see `MiniCPMO45.steps`.
            due_s: when they must be done, `time.monotonic`; None if nobody listens live.

        Raises:
            GenerationFailedError: Too much is waiting, or a pass broke.
            ShuttingDownError: The engine was closed.
            Exception: whatever the steps raise.
        """
        stream = self.stream(steps, due_s=due_s)
        async for _ in stream:
            pass
        return stream.result

    def stream(self, steps: Steps[T], *, due_s: float | None = None) -> Stream[T]:
        """Run steps, yielding what they emit; arguments and errors as of `run`.

        They begin when the first value is asked for, and pause at each value until the next is
        asked for. Close the stream if it is left before its end.
        """
        return Stream(self, self.passes.begin(steps, due_s))

    @abstractmethod
    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` between two passes; it runs even if the caller is cancelled."""

    @abstractmethod
    async def free(self, work: Callable[[], object]) -> None:
        """Run `work` that frees something, however much is waiting."""

    @abstractmethod
    def resume(self, task: Task[Any]) -> Future[None]:
        """Let a task take part in passes until it pauses."""

    @property
    @abstractmethod
    def passes(self) -> PassRunner:
        """What answers the tasks' requests."""


class Stream(AsyncIterator[Any], Generic[T]):
    """What steps emit, one value after the other. Any: each capability has a type of its own.

    Attributes:
        result: what the steps returned; set when the stream is exhausted.
    """

    result: T

    def __init__(self, engine: BaseEngine, task: Task[T]) -> None:
        """Create a stream of a task that has not begun."""
        self._engine = engine
        self._task = task

    async def __anext__(self) -> Any:
        """Return the next value; raises as `BaseEngine.run`."""
        if self._task.has_ended:
            raise StopAsyncIteration
        try:
            await self._resume()
        except BaseException:
            await self.aclose()  # cancelled once more, it leaves that to the engine
            raise
        value = self._task.take()
        if not self._task.has_ended:
            return value
        self.result = value
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the steps before their next request is answered; harmless when they have ended."""
        if not self._task.has_ended:
            with suppress(ShuttingDownError):  # then nothing runs them any more
                await self._engine.free(self._task.close)

    async def _resume(self) -> None:
        done = self._engine.resume(self._task)
        if not done.done():  # it is on the engine's own thread
            await asyncio.shield(asyncio.wrap_future(done))
        elif error := done.exception():
            raise error


def run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing but an engine whose thread this is.

    Raises:
        RuntimeError: it waits for something else; and whatever it raises.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("The coroutine waits for something that needs an event loop.")
