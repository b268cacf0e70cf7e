"""Cleans recordings up in the background of a program, so that they cannot fill its disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import Final

from recording.cleanup import cleanup_sessions

logger: Final = logging.getLogger(__name__)

FIRST_RUN_S: Final = 60.0  # source: docs/specification/service.md#5.7
LEAST_PAUSE_S: Final = 60.0  # many sessions that end together cost one cleanup
LONGEST_PAUSE_S: Final = 3_600.0  # how long what a full disk left unfinished waits


class CleanupSchedule:
    """Cleans up soon after the start, after sessions have ended, and every hour."""

    def __init__(self, data_dir: Path, retention_days: float, max_storage_gb: float) -> None:
        """Do nothing yet; the limits are those of `cleanup_sessions`."""
        self._clean = partial(cleanup_sessions, data_dir, retention_days, max_storage_gb)
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Say that a session has ended: clean up within a minute."""
        self._requested.set()

    async def run(self) -> None:
        """Clean up in a thread, again and again, until cancelled. The caller owns the task."""
        await asyncio.sleep(FIRST_RUN_S)
        while True:
            self._requested.clear()
            try:
                report = await asyncio.to_thread(self._clean)
            except Exception:  # whatever is wrong with one run, the disk needs the next one
                logger.exception("cleanup of recordings failed")
            else:
                level = logging.INFO if report.deleted or report.recovered else logging.DEBUG
                logger.log(level, "cleanup of recordings: %s", report.to_json())
            await asyncio.sleep(LEAST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_PAUSE_S - LEAST_PAUSE_S):
                    await self._requested.wait()
