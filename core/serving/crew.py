"""Threads for what blocks: views of the model, looks ahead, and hearing. Never the event loop.

Whatever goes wrong there comes back as one of our errors.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import structlog

from core.errors import GenerationFailedError, OmniError
from core.serving.engine import GivenUpError

T = TypeVar("T")

SPARE_THREADS: Final = 2  # beside one per slot: a session that ends while the next one begins
HEARING_THREADS: Final = 2  # a chunk of sound takes milliseconds


class Crew:
    """A bounded number of threads; what waits for one is bounded by the sessions there are.

    Attributes:
        failures: how often something failed that nobody expected.
    """

    def __init__(self, slots: int) -> None:
        """Start no thread yet.

        Args:
            slots: Sessions at once.
        """
        self.failures = 0
        self._callers = ThreadPoolExecutor(slots + SPARE_THREADS, "call")
        self._looking = ThreadPoolExecutor(slots, "look")
        self._hearing = ThreadPoolExecutor(HEARING_THREADS, "hear")
        self._log = structlog.stdlib.get_logger("crew")

    async def call(self, work: Callable[[], T]) -> T:
        """Run a call of a view.

        Raises:
            OmniError: It failed.
            GivenUpError: It was given up.
        """
        return await self._run(self._callers, work)

    async def look(self, work: Callable[[], T]) -> T:
        """Look at a picture, where it keeps no call waiting; raises as `call`."""
        return await self._run(self._looking, work)

    async def hear(self, work: Callable[[], T]) -> T:
        """Run detection; raises as `call`."""
        return await self._run(self._hearing, work)

    def close(self) -> None:
        """End the threads as soon as they are done; does not wait for them."""
        self._callers.shutdown(wait=False, cancel_futures=True)
        self._looking.shutdown(wait=False, cancel_futures=True)
        self._hearing.shutdown(wait=False, cancel_futures=True)

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        try:
            return await loop.run_in_executor(pool, lambda: context.run(work))
        except (OmniError, GivenUpError):
            raise
        except Exception as error:
            self.failures += 1
            self._log.exception("model_call_failed")
            raise GenerationFailedError() from error
