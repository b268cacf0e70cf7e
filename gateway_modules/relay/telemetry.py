"""Metrics, logs, spans and client diagnostics of a client's socket, and the load of the last hour.

Purely observational.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
from pydantic import Field, ValidationError

from core.errors import CloseCode, ErrorCode, OmniError, QueueCancelledError
from core.metrics import GatewayMetrics
from core.schemas.common import WireModel
from core.schemas.limits import MIB
from core.schemas.queue import ErrorMessage, RequestType
from core.schemas.worker import WorkerStatus
from core.telemetry import CallTrace, Tracing
from gateway_modules.queue.worker_pool import WorkerPool
from gateway_modules.web.limits import TokenBucket
from gateway_modules.web.messages import Text, parts_of
from settings.sections import LimitSettings

# Near the end of a `result`, after its audio, which is not parsed.
UNIT_MS: Final = re.compile(r'"wall_clock_ms"\s*:\s*(\d{1,9}(?:\.\d{1,9})?)')
END_CHARS: Final = 512  # more than the fields after the audio take
FLUSH_BYTES: Final = MIB  # counted here before the metrics are updated


class RelayTelemetry:
    """Metrics, logs and spans of one relay; the logging context adds the session's id.

    A call that never requested a worker has no spans.
    """

    def __init__(self, metrics: GatewayMetrics, mode: str, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._mode = mode
        self._log = structlog.get_logger("relay")
        self._clock = asyncio.get_running_loop().time
        self._opened_s = self._clock()
        self._queued_s: float | None = None
        self._up_bytes = 0
        self._down_bytes = 0
        self._close: tuple[int | None, str] = None, "client left"
        self._tracing = tracing
        self._trace: CallTrace | None = None
        self._relay_s: float | None = None  # when the worker was connected

    def opened(self) -> None:
        self._metrics.session_opened(self._mode)
        self._log.info("client connected", mode=self._mode)

    def closed(self) -> None:
        now_s, (code, reason) = self._clock(), self._close
        duration_s = now_s - self._opened_s
        self._flush()
        self.waited("gone")
        self._metrics.session_closed(self._mode, duration_s)
        self.relayed()
        if self._trace is not None:
            call = self._trace.begin("call", self._opened_s, stands_for_call=True)
            closed = {} if code is None else {"close_code": code}
            self._trace.end(call, now_s, {"mode": self._mode, **closed})
        self._log.info(
            "client done", mode=self._mode, duration_s=round(duration_s, 3), code=code, why=reason
        )

    def closing(self, code: CloseCode, reason: str) -> None:
        self._close = (int(code), reason)

    def queued(self, session_id: str, secret: str) -> None:
        if self._tracing is not None and self._trace is None:
            self._trace = self._tracing.call(session_id, secret)
        if self._queued_s is None:
            self._queued_s = self._clock()

    def assigned(self, worker_id: str) -> None:
        self._log.info("worker assigned", worker_id=worker_id)

    def connected(self) -> None:
        self.waited("assigned")
        self._relay_s = self._clock()

    def failed(self, error: OmniError) -> None:
        """A request was refused, or its worker failed."""
        self.waited(outcome_of(error))
        self.relayed()

    def relayed(self) -> None:
        if self._trace is not None and self._relay_s is not None:
            self._trace.write("relay", self._relay_s, self._clock())
        self._relay_s = None

    def error(self, code: ErrorCode, event: str = "error sent") -> None:
        self._metrics.error(code)
        self._log.warning(event, error_code=code.value)

    def worker_error(self, text: str) -> None:
        try:
            code = ErrorMessage.model_validate_json(text).code
        except ValidationError:
            code = ErrorCode.INTERNAL
        self.error(code, "worker sent an error")

    def passed_up(self, size_bytes: int) -> None:
        self._up_bytes += size_bytes
        if self._up_bytes >= FLUSH_BYTES:
            self._flush()

    def passed_down(self, text: str | Text) -> None:
        self._down_bytes += len(text)
        end = text[-END_CHARS:]
        unit = UNIT_MS.search(end if isinstance(end, str) else bytes(end).decode(errors="ignore"))
        if unit is not None:
            self._metrics.unit(self._mode, float(unit[1]))
        if self._down_bytes >= FLUSH_BYTES:
            self._flush()

    def waited(self, outcome: str) -> None:
        """A wait in the queue is over, if there was one."""
        if self._queued_s is not None:
            now_s = self._clock()
            self._metrics.waited(self._mode, now_s - self._queued_s, outcome)
            if self._trace is not None:
                self._trace.write("queue", self._queued_s, now_s, attributes={"outcome": outcome})
            self._queued_s = None

    def _flush(self) -> None:
        self._metrics.relayed(self._mode, up_bytes=self._up_bytes, down_bytes=self._down_bytes)
        self._up_bytes = self._down_bytes = 0


def outcome_of(error: OmniError) -> str:
    """Return how a wait in the queue ended, for `GatewayMetrics.waited`."""
    return "cancelled" if isinstance(error, QueueCancelledError) else "refused"


@dataclass
class DiagnosticsLimit:
    """The limits of a session's `client_diagnostic` messages; those beyond are dropped."""

    limits: LimitSettings

    def __post_init__(self) -> None:
        clock, per_s = asyncio.get_running_loop().time, self.limits.diagnostics_per_s
        self._left_bytes = self.limits.diagnostic_session_bytes
        self._rate = TokenBucket(max(per_s, 1.0), per_s, clock) if per_s > 0 else None

    def admits(self, message: str) -> bool:
        size_bytes = sum(len(part.encode()) for part in parts_of(message))
        is_small = size_bytes <= min(self.limits.diagnostic_bytes, self._left_bytes)
        if not is_small or self._rate is None or not self._rate.take():
            return False
        self._left_bytes -= size_bytes
        return True


PERIOD_S: Final = 10.0  # workers are polled twice as often
POINTS: Final = 360  # an hour
MEDIAN: Final = 0.5
TAIL: Final = 0.99

Value = float | None
Point = tuple[float, dict[str, Value]]
"""A Unix time, s, and values by name."""


class History(WireModel):
    """Answer to `GET /api/admin/history`: columns of equal length."""

    period_s: float = Field(description="Time between two points, s.")
    t: list[float] = Field(description="Times, Unix seconds, oldest first.")
    series: dict[str, list[Value]] = Field(
        description="By name: sessions.<mode>, queue.length, queue.oldest_wait_s, unit.p50_ms, "
        "unit.p99_ms, unit.count, refused.count, vram_used_mb.<worker>; null where not known."
    )


@dataclass(eq=False)
class Trends:
    """Samples of the last hour, ten seconds apart, in memory."""

    pool: WorkerPool
    metrics: GatewayMetrics
    clock: Callable[[], float] = time.time
    period_s: float = PERIOD_S
    points: deque[Point] = field(default_factory=partial(deque, maxlen=POINTS))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.period_s)
            try:
                self.take()
            except Exception:  # the next sample must come in any case
                structlog.get_logger("trends").exception("sample_failed")

    def take(self) -> None:
        units_ms = self.metrics.take_units()
        queue = self.pool.get_queue_status()
        modes = Counter(task.request_type for task in queue.running_tasks)
        values: dict[str, Value] = {f"sessions.{mode.value}": modes[mode] for mode in RequestType}
        values |= {
            "queue.length": queue.queue_length,
            "queue.oldest_wait_s": max((item.wait_elapsed_s for item in queue.items), default=0.0),
            "unit.p50_ms": quantile(units_ms, MEDIAN),
            "unit.p99_ms": quantile(units_ms, TAIL),
            "unit.count": len(units_ms),
            "refused.count": self.metrics.take_refused(),
        }
        for worker in self.pool.workers.values():
            latest = worker.service.latest
            is_there = latest is not None and worker.status is not WorkerStatus.OFFLINE
            used_mb = latest.vram_used_mb if latest is not None and is_there else None
            values[f"vram_used_mb.{worker.worker_id}"] = used_mb
        self.points.append((round(self.clock(), 1), values))

    def history(self) -> History:
        names = dict.fromkeys(name for _, values in self.points for name in values)
        return History(
            period_s=self.period_s,
            t=[time_s for time_s, _ in self.points],
            series={name: [values.get(name) for _, values in self.points] for name in names},
        )


def quantile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    rank = max(1, math.ceil(share * len(values)))
    return round(sorted(values)[rank - 1], 1)
