"""Runs the cleanup in the background of a program: soon after its start, then once a day."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from recording.cleanup import CleanupReport, cleanup_sessions, is_limited

logger: Final = logging.getLogger(__name__)

# Source: service specification, section 5.7.
FIRST_RUN_S: Final = 60.0
INTERVAL_S: Final = 24 * 3_600.0


async def run_cleanup(
    data_dir: Path | str,
    retention_days: float,
    max_storage_gb: float,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    on_report: Callable[[CleanupReport], None] | None = None,
) -> None:
    """Clean up after a minute and then every 24 hours, until cancelled.

    Cleaning runs in a thread. When the data folder cannot be read, that is logged and the next day
    tries again. The caller owns the task.

    Args:
        data_dir: The data folder.
        retention_days: Oldest age kept, days; -1 or 0 for no limit.
        max_storage_gb: Most space taken, GB; -1 or 0 for no limit.
        sleep: Waits for so many seconds.
        on_report: Told what each run did.

    Returns:
        At once if there is no limit.
    """
    if not is_limited(retention_days, max_storage_gb):
        return
    await sleep(FIRST_RUN_S)
    clean = partial(cleanup_sessions, data_dir, retention_days, max_storage_gb)
    while True:
        try:
            report = await asyncio.to_thread(clean)
        except OSError as error:
            logger.warning("cleanup of recordings failed: %s", error)
        else:
            logger.info("cleanup of recordings: %s", report.to_json())
            if on_report is not None:
                on_report(report)
        await sleep(INTERVAL_S)
