"""Where one session's blocking work runs: on the worker's threads, its media in other processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from core.engine import WorkCancelledError
from core.errors import OmniError
from core.media import Media, MediaContent, read_media
from core.media_process import MediaProcesses
from core.serving.media import SessionMedia
from core.serving.thread_pools import SessionCalls, ThreadPools

T = TypeVar("T")


class SessionThreads:
    """The `Threads` of one session's view.

    Attributes:
        cancelled: set while work that is under way has no use; it ends where it asks.
    """

    def __init__(self, threads: ThreadPools, media: MediaProcesses | None) -> None:
        """Create them.

        Args:
            threads: the worker's threads.
            media: decode pictures and videos; None decodes on the thread that asks.
        """
        self.cancelled = threading.Event()
        self._calls = SessionCalls(threads)
        self._media = media

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread.

        Cancelled, this still waits until the thread has ended or is left behind.

        Raises:
            OmniError: it failed.
            WorkCancelledError: the session has ended without it.
        """
        call = asyncio.ensure_future(self._calls.call(work))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            while not call.done():
                with suppress(asyncio.CancelledError, OmniError, WorkCancelledError):
                    await asyncio.shield(call)
            raise

    async def hear(self, work: Callable[[], T]) -> T:
        """Run speech detection on a thread of its own; raises as `run`."""
        return await self._calls.hear(work)

    def leave(self) -> None:
        """Wait for no thread any more: the one under way hangs."""
        self._calls.leave()

    def read_media(self, items: Sequence[MediaContent]) -> list[Media]:
        """Decode the pictures and videos of one request; blocks. Raises as `SessionMedia`."""
        if self._media is None:
            return read_media(items)
        return SessionMedia(self._media, self.cancelled.is_set)(items)
