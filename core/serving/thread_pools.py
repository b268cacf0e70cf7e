"""Thread pools for blocking calls: decoding, and detection of speech.

An unexpected failure comes back as one of our errors. A call that hangs is left behind when its
session has ended: it keeps its thread and nothing else.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import structlog

T = TypeVar("T")

SPARE_THREADS: Final = 2  # beyond one per slot: a session that ends while the next one begins
HEARING_THREADS: Final = 2  # a chunk of sound takes milliseconds
HANGING_MAX: Final = 8  # ours: calls left behind that still run; further ones keep their sessions


class Pool:
    """A bounded number of threads, beyond those that calls left behind still hold."""

    def __init__(self, size: int, name: str) -> None:
        """Start no thread yet."""
        self._size = size
        self._name = name
        self._threads = ThreadPoolExecutor(size, name)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on a thread, in the context of the caller."""
        return self._threads.submit(contextvars.copy_context().run, work)

    def renew(self) -> None:
        """Go on with fresh threads, because one of them hangs; what waits for the old is done."""
        self._threads.shutdown(wait=False)
        self._threads = ThreadPoolExecutor(self._size, self._name)

    def close(self) -> None:
        """End the threads as soon as they are done; does not wait for them."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class ThreadPools:
    """A worker's thread pools; what waits for a thread is bounded by the sessions there are.

    Attributes:
        failures: unexpected failures since the device was last checked.
        calls: for blocking calls of a session.
        hearing: for voice activity detection.
    """

    def __init__(self, slots: int) -> None:
        """Start no thread yet.

        Args:
            slots: Sessions at once.
        """
        self.failures = 0
        self.calls = Pool(slots + SPARE_THREADS, "call")
        self.hearing = Pool(HEARING_THREADS, "hear")
        self._left: list[Future[Any]] = []  # calls whose session has ended without them
        self._log = structlog.stdlib.get_logger("thread_pools")

    def leave(self, job: Future[T], pool: Pool) -> bool:
        """Leave a call behind, unless too many that were left behind still run.

        Overflow: beyond `HANGING_MAX` a call keeps its session, and that its slot, until it ends.

        Args:
            job: The call; one that has not begun is cancelled.
            pool: Where it runs.
        """
        if job.cancel():
            return True
        self._left = [each for each in self._left if not each.done()]
        if len(self._left) >= HANGING_MAX:
            self._log.error("call_hangs", left_behind=len(self._left), keeps_slot=True)
            return False
        self._left.append(job)
        self._log.error("call_hangs", left_behind=len(self._left), keeps_slot=False)
        pool.renew()
        return True

    def failed(self) -> None:
        """Count and log the failure that is being handled."""
        self.failures += 1
        self._log.exception("model_call_failed")

    def close(self) -> None:
        """End the threads as soon as they are done; does not wait for them."""
        for pool in (self.calls, self.hearing):
            pool.close()
