"""Carries out the views' steps on the engine's thread, side by side with other sessions'."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from core.processors.rounds import Course, Emitted, GivenUp, Raised, Returned
from core.serving.engine import Engine, GivenUpError

T = TypeVar("T")


def _never() -> bool:
    return False


def _at_no_time() -> float | None:
    return None


class EngineDriver:
    """A `Driver` for the views of one session; they block, so they run on threads of their own."""

    def __init__(
        self,
        engine: Engine,
        is_given_up: Callable[[], bool] = _never,
        due_s: Callable[[], float | None] = _at_no_time,
    ) -> None:
        """Drive by an engine.

        Args:
            engine: it must have its rounds before the first use.
            is_given_up: asked before each forward pass; when true, the work ends there.
            due_s: asked when work begins: when it must be done, on the rounds' clock.
        """
        self._engine = engine
        self._is_given_up = is_given_up
        self._due_s = due_s

    def run(self, steps: Generator[Any, Any, T]) -> T:
        """Run to the end and return the result; what is emitted on the way is dropped.

        Raises:
            GivenUpError: The work was given up.
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
            GivenUpError: The work was given up.
        """
        course = Course(steps, self._is_given_up, self._due_s())
        try:
            while True:
                self._engine.drive(course)
                match course.outcome:
                    case Emitted(value):
                        yield value
                    case Returned(value):
                        result: T = value
                        return result
                    case Raised(error):
                        raise error
                    case GivenUp() | None:
                        raise GivenUpError
        finally:
            if not course.has_ended:
                self._engine.run_here(course.close)
