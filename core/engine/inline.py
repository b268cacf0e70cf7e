"""An engine without a thread, for scripts and tests: steps run alone, on the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from core.engine.base import BaseEngine
from core.engine.passes import PassRunner, Task
from MiniCPMO45.steps import Answers

T = TypeVar("T")


class InlineEngine(BaseEngine):
    """Runs steps on the calling thread, one conversation at a time."""

    def __init__(self, executor: Answers) -> None:
        """Create an engine over an executor."""
        self._passes = PassRunner(executor)

    @property
    def passes(self) -> PassRunner:
        """What answers the tasks' requests."""
        return self._passes

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work`."""
        return work()

    async def free(self, work: Callable[[], object]) -> None:
        """Run `work`."""
        work()

    def resume(self, task: Task[Any]) -> Future[None]:
        """Run passes until the task pauses."""
        return self._passes.run_alone(task)
