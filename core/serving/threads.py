"""A worker's threads for blocking calls, and the decoding of media in other processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import structlog

from core.engine import WorkCancelledError
from core.errors import PictureError
from core.media import FACTS, Media, MediaContent, from_bytes
from core.media_process import MediaProcesses

T = TypeVar("T")


def decode_media(
    processes: MediaProcesses, items: Sequence[MediaContent], is_cancelled: Callable[[], bool]
) -> list[Media]:
    """Decode the pictures and videos of one request in another process; blocks.

    Raises `PictureError`, `AudioError`, or `WorkCancelledError` once `is_cancelled`.
    """

    def check() -> None:
        if is_cancelled():
            raise WorkCancelledError

    facts, blobs = processes.run(
        "media",
        [item.model_dump(exclude={"data"}) for item in items],
        [item.data.encode() for item in items],
        problem=PictureError,
        check=check,
    )
    try:
        return from_bytes(FACTS.validate_python(facts), blobs)
    except ValueError as error:
        raise PictureError("It could not be decoded.") from error


CALLS: Final = "call"  # pool for blocking calls of sessions
DETECTION: Final = "detect"  # pool for voice activity detection
SPARE_THREADS: Final = 2  # beyond one per slot: one session may end while the next one begins
DETECTION_THREADS: Final = 2  # a chunk of audio takes milliseconds
HANGING_MAX: Final = 8  # ours: abandoned calls that still run; more keep their sessions


class ThreadPools:
    """A worker's thread pools; the number of sessions bounds the calls that wait for a thread.

    Threads held by abandoned calls are not counted.

    Attributes:
        failures: unexpected failures since the device was last checked.
        pools: `CALLS` and `DETECTION`.
    """

    def __init__(self, slots: int) -> None:
        self.failures = 0
        self._sizes = {CALLS: slots + SPARE_THREADS, DETECTION: DETECTION_THREADS}
        self.pools = {name: ThreadPoolExecutor(size, name) for name, size in self._sizes.items()}
        self._abandoned: list[Future[Any]] = []  # their sessions have ended without them
        self._log = structlog.stdlib.get_logger("thread_pools")

    def abandon(self, pool: str, job: Future[T]) -> bool:
        """Abandon a call on one of the pools; one that has not begun is cancelled.

        The pool gets new threads, and its old ones finish their queue. Overflow: beyond
        `HANGING_MAX` this returns False, and the call keeps its session and slot until it ends.
        """
        if job.cancel():
            return True
        self._abandoned = [each for each in self._abandoned if not each.done()]
        keeps_slot = len(self._abandoned) >= HANGING_MAX
        if not keeps_slot:
            self._abandoned.append(job)
            self.pools[pool].shutdown(wait=False)
            self.pools[pool] = ThreadPoolExecutor(self._sizes[pool], pool)
        self._log.error("call_hangs", abandoned=len(self._abandoned), keeps_slot=keeps_slot)
        return not keeps_slot

    def failed(self) -> None:
        self.failures += 1
        self._log.exception("model_call_failed")

    def close(self) -> None:
        """End the threads after their current calls, without waiting for them."""
        for pool in self.pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
