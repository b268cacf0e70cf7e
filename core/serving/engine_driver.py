"""Runs the steps of blocking views on the engine; such a view runs on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from core.engine.engine import Engine
from core.engine.passes import never

T = TypeVar("T")


def _at_no_time() -> float | None:
    return None


class EngineDriver:
    """A `Driver` for the views of one session."""

    def __init__(
        self,
        engine: Engine,
        is_cancelled: Callable[[], bool] = never,
        due_s: Callable[[], float | None] = _at_no_time,
    ) -> None:
        """Drive by an engine.

        Args:
            engine: its model is loaded before the first use.
            is_cancelled: asked before each forward pass; when true, the work ends there.
            due_s: asked when work begins: when it must be done, on the engine's clock.
        """
        self._engine = engine
        self._is_cancelled = is_cancelled
        self._due_s = due_s

    def run(self, steps: Generator[Any, Any, T]) -> T:
        """Run to the end and return the result; what is emitted on the way is dropped.

        Raises:
            WorkCancelledError: The work was cancelled.
        """
        stream = self.stream(steps)
        while True:
            try:
                next(stream)
            except StopIteration as end:
                result: T = end.value
                return result

    def stream(self, steps: Generator[Any, Any, T]) -> Generator[Any, None, T]:
        """Run, yielding what is emitted; the result is the generator's return value.

        Raises:
            WorkCancelledError: The work was cancelled.
        """
        task = self._engine.passes.begin(steps, self._due_s(), self._is_cancelled)
        try:
            while True:
                self._engine.resume(task).result()
                value = task.take()
                if task.has_ended:
                    result: T = value
                    return result
                yield value
        finally:
            if not task.has_ended:
                self._engine.run_here(task.close)
