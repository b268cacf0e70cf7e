"""Thread pools for blocking calls: decoding and voice activity detection.

An unexpected failure becomes a project error. A call that hangs is abandoned when its session has
ended: it keeps its thread and nothing else. Pictures and videos are decoded in other processes.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import structlog

from core.engine import WorkCancelledError
from core.errors import GenerationFailedError, OmniError, PictureError
from core.media import FACTS, Media, MediaContent, from_bytes, read_media
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
    """

    def __init__(self, slots: int) -> None:
        self.failures = 0
        self._sizes = {CALLS: slots + SPARE_THREADS, DETECTION: DETECTION_THREADS}
        self._pools = {name: ThreadPoolExecutor(size, name) for name, size in self._sizes.items()}
        self._abandoned: list[Future[Any]] = []  # their sessions have ended without them
        self._log = structlog.stdlib.get_logger("thread_pools")

    def submit(self, pool: str, work: Callable[[], T]) -> Future[T]:
        """Run `work` on a thread of a pool, in the caller's context."""
        return self._pools[pool].submit(contextvars.copy_context().run, work)

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
            self._pools[pool].shutdown(wait=False)
            self._pools[pool] = ThreadPoolExecutor(self._sizes[pool], pool)
        self._log.error("call_hangs", abandoned=len(self._abandoned), keeps_slot=keeps_slot)
        return not keeps_slot

    def failed(self) -> None:
        self.failures += 1
        self._log.exception("model_call_failed")

    def close(self) -> None:
        """End the threads after their current calls, without waiting for them."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class SessionThreads:
    """The `Threads` of one session's view.

    Attributes:
        cancelled: set to cancel the work under way, which polls it.
    """

    def __init__(self, pools: ThreadPools, media: MediaProcesses | None) -> None:
        """Without `media`, pictures are decoded on the calling thread."""
        self.cancelled = threading.Event()
        self._pools = pools
        self._media = media
        self._abandoning: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, work: Callable[[], T], pool: str = CALLS) -> T:
        """Run `work` on a thread; if cancelled, wait until it has ended or is abandoned.

        Raises:
            OmniError: it failed; an unexpected failure is a `GenerationFailedError`.
            WorkCancelledError: it was abandoned.
        """
        if self._abandoning.done():
            raise WorkCancelledError
        job = self._pools.submit(pool, work)
        done = asyncio.wrap_future(job)
        was_cancelled = await self._wait(pool, job, done)
        try:
            result = done.result()
        except (OmniError, WorkCancelledError):
            if not was_cancelled:
                raise
        except Exception as error:
            self._pools.failed()
            if not was_cancelled:
                raise GenerationFailedError() from error
        else:
            if not was_cancelled:
                return result
        raise asyncio.CancelledError

    def abandon(self) -> None:
        """Stop waiting for the call under way, which hangs."""
        if not self._abandoning.done():
            self._abandoning.set_result(None)

    def read_media(self, items: Sequence[MediaContent]) -> list[Media]:
        """Decode the pictures and videos of one request; blocks. Raises as `decode_media`."""
        if self._media is None:
            return read_media(items)
        return decode_media(self._media, items, self.cancelled.is_set)

    async def _wait(self, pool: str, job: Future[T], done: asyncio.Future[T]) -> bool:
        """Wait until a job is done or abandoned; return whether the caller was cancelled."""
        was_cancelled = False
        waiting: set[asyncio.Future[Any]] = {done, self._abandoning}
        while not done.done():
            if self._abandoning.done() and self._abandoning in waiting:
                if self._pools.abandon(pool, job):
                    done.cancel()
                    raise asyncio.CancelledError if was_cancelled else WorkCancelledError
                waiting = {done}  # too many calls were abandoned
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                was_cancelled = True
        return was_cancelled
