"""Where one session's blocking work runs: on the worker's threads, its media in other processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from core.engine import WorkCancelledError
from core.errors import GenerationFailedError, OmniError
from core.media import Media, MediaContent, read_media
from core.media_process import MediaProcesses
from core.serving.media import SessionMedia
from core.serving.thread_pools import Pool, ThreadPools

T = TypeVar("T")


class SessionThreads:
    """The `Threads` of one session's view.

    Attributes:
        cancelled: set while work that is under way has no use; it ends where it asks.
    """

    def __init__(self, pools: ThreadPools, media: MediaProcesses | None) -> None:
        """Create them.

        Args:
            pools: the worker's thread pools.
            media: decode pictures and videos; None decodes on the thread that asks.
        """
        self.cancelled = threading.Event()
        self._pools = pools
        self._media = media
        self._leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread.

        Cancelled, this still waits until the thread has ended or is left behind.

        Raises:
            OmniError: it failed; an unexpected failure is a `GenerationFailedError`.
            WorkCancelledError: the session has ended without it.
        """
        return await self._run(self._pools.calls, work)

    async def hear(self, work: Callable[[], T]) -> T:
        """Run speech detection on a thread of its own; raises as `run`."""
        return await self._run(self._pools.hearing, work)

    def leave(self) -> None:
        """Wait for no thread any more: the one under way hangs."""
        if not self._leaving.done():
            self._leaving.set_result(None)

    def read_media(self, items: Sequence[MediaContent]) -> list[Media]:
        """Decode the pictures and videos of one request; blocks. Raises as `SessionMedia`."""
        if self._media is None:
            return read_media(items)
        return SessionMedia(self._media, self.cancelled.is_set)(items)

    async def _run(self, pool: Pool, work: Callable[[], T]) -> T:
        if self._leaving.done():
            raise WorkCancelledError
        job = pool.submit(work)
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

    async def _wait(self, pool: Pool, job: Future[T], done: asyncio.Future[T]) -> bool:
        """Wait until a job is done or left behind; return whether the caller was cancelled."""
        was_cancelled = False
        waiting: set[asyncio.Future[Any]] = {done, self._leaving}
        while not done.done():
            if self._leaving.done() and self._leaving in waiting:
                if self._pools.leave(job, pool):
                    done.cancel()
                    raise asyncio.CancelledError if was_cancelled else WorkCancelledError
                waiting = {done}  # too many were left behind: this one is waited for
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                was_cancelled = True
        return was_cancelled
