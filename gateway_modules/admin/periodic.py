"""What a gateway does now and then: it takes a sample for charts, and cleans up recordings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from core.metrics import GatewayMetrics
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_pool import WorkerPool
from recording.listing import CleanupReport

logger: Final = logging.getLogger(__name__)

PERIOD_S: Final = 10.0  # workers are polled twice as often
POINTS: Final = 360  # an hour
MEDIAN: Final = 0.5
TAIL: Final = 0.99

FIRST_RUN_S: Final = 60.0  # source: docs/specification/service.md#5.7
LEAST_PAUSE_S: Final = 60.0  # many sessions that end together cost one cleanup
LONGEST_PAUSE_S: Final = 3_600.0  # how long what a full disk left unfinished waits

Value = float | None


class History(WireModel):
    """Answer to `GET /api/admin/history`: columns of equal length, as charts want them."""

    period_s: float = Field(description="Time between two points, s.")
    t: list[float] = Field(description="Times, Unix seconds, oldest first.")
    series: dict[str, list[Value]] = Field(
        description="By name: sessions.<mode>, queue.length, queue.oldest_wait_s, unit.p50_ms, "
        "unit.p99_ms, unit.count, refused.count, vram_used_mb.<worker>; null where not known."
    )


@dataclass(frozen=True)
class _Point:
    time_s: float
    values: dict[str, Value]


class Trends:
    """The last hour in points ten seconds apart, in memory; nothing says who spoke or about what.

    Overflow: the oldest of more than 360 points is dropped.
    """

    def __init__(
        self,
        pool: WorkerPool,
        metrics: GatewayMetrics,
        clock: Callable[[], float] = time.time,
        period_s: float = PERIOD_S,
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._period_s = period_s
        self._points: deque[_Point] = deque(maxlen=POINTS)
        self._refused_before = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            self.take()

    def take(self) -> None:
        units_ms = self._metrics.take_units()
        refused = self._metrics.refused
        queue = self._pool.get_queue_status()
        modes = Counter(task.request_type for task in queue.running_tasks)
        values: dict[str, Value] = {f"sessions.{mode.value}": modes[mode] for mode in RequestType}
        values |= {
            "queue.length": queue.queue_length,
            "queue.oldest_wait_s": max((item.wait_elapsed_s for item in queue.items), default=0.0),
            "unit.p50_ms": quantile(units_ms, MEDIAN),
            "unit.p99_ms": quantile(units_ms, TAIL),
            "unit.count": len(units_ms),
            "refused.count": refused - self._refused_before,
        }
        self._refused_before = refused
        for worker in self._pool.workers.values():
            latest = worker.service.latest
            is_there = latest is not None and worker.status is not WorkerStatus.OFFLINE
            used_mb = latest.vram_used_mb if latest is not None and is_there else None
            values[f"vram_used_mb.{worker.worker_id}"] = used_mb
        self._points.append(_Point(round(self._clock(), 1), values))

    def history(self) -> History:
        names = dict.fromkeys(name for point in self._points for name in point.values)
        return History(
            period_s=self._period_s,
            t=[point.time_s for point in self._points],
            series={name: [point.values.get(name) for point in self._points] for name in names},
        )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank quantile, `share` from 0 to 1; None without values."""
    if not values:
        return None
    rank = max(1, math.ceil(share * len(values)))
    return round(sorted(values)[rank - 1], 1)


class CleanupSchedule:
    """Runs soon after the start, after sessions have ended, and every hour."""

    def __init__(self, clean: Callable[[], CleanupReport]) -> None:
        self._clean = clean
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Run within a minute: a session has ended."""
        self._requested.set()

    async def run(self) -> None:
        """Clean up in a thread, repeatedly, until cancelled. The caller owns the task."""
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
