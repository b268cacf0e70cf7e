"""Metrics, logs, spans and client diagnostics of a client's socket; purely observational."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from typing import Final

import structlog

from core.errors import CloseCode, ErrorCode, InvalidSessionIdError, QueueCancelledError
from core.metrics import GatewayMetrics
from core.protocols import events
from core.protocols.queueing import QueueingPhase
from core.schemas.limits import MIB
from core.telemetry import CallTrace, Tracing
from gateway_modules.web.limits import TokenBucket
from gateway_modules.web.messages import Text
from recording.names import check_recording_id
from recording.objects import RecordingStore
from settings.sections import LimitSettings

# Near the end of a `result`, after its audio, which is not parsed.
UNIT_MS: Final = re.compile(r'"wall_clock_ms"\s*:\s*(\d{1,9}(?:\.\d{1,9})?)')
END_CHARS: Final = 512  # more than the fields after the audio take
FLUSH_BYTES: Final = MIB  # counted here before the metrics are updated


class CallSpans:
    """Writes the gateway's spans of a call; a call that never requested a worker has none."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing
        self._trace: CallTrace | None = None
        self._relay_s: float | None = None  # when the worker was connected

    def named(self, session_id: str, secret: str) -> None:
        if self._tracing is not None and self._trace is None:
            self._trace = self._tracing.call(session_id, secret)

    def waited(self, began_s: float, ended_s: float, outcome: str) -> None:
        if self._trace is not None:
            self._trace.write("queue", began_s, ended_s, attributes={"outcome": outcome})

    def relaying(self, at_s: float) -> None:
        self._relay_s = at_s

    def relayed(self, at_s: float) -> None:
        if self._trace is not None and self._relay_s is not None:
            self._trace.write("relay", self._relay_s, at_s)
        self._relay_s = None

    def ended(self, began_s: float, ended_s: float, mode: str, close_code: int | None) -> None:
        self.relayed(ended_s)
        if self._trace is not None:
            call = self._trace.begin("call", began_s, stands_for_call=True)
            closed = {} if close_code is None else {"close_code": close_code}
            self._trace.end(call, ended_s, {"mode": mode, **closed})


class RelayTelemetry:
    """Metrics, logs and spans of one relay; the logging context adds the session's id."""

    def __init__(self, metrics: GatewayMetrics, mode: str, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._mode = mode
        self._log = structlog.get_logger("relay")
        self._clock = asyncio.get_running_loop().time
        self._opened_s = self._clock()
        self._queued_s: float | None = None
        self._up_bytes = 0
        self._down_bytes = 0
        self._close: tuple[int, str] | None = None
        self._spans = CallSpans(tracing)

    def opened(self) -> None:
        self._metrics.session_opened(self._mode)
        self._log.info("client connected", mode=self._mode)

    def closed(self) -> None:
        duration_s = self._clock() - self._opened_s
        self._flush()
        self._waited("gone")
        self._metrics.session_closed(self._mode, duration_s)
        code, reason = self._close or (None, "client left")
        self._spans.ended(self._opened_s, self._clock(), self._mode, code)
        self._log.info(
            "client done", mode=self._mode, duration_s=round(duration_s, 3), code=code, why=reason
        )

    def closing(self, code: CloseCode, reason: str) -> None:
        self._close = (int(code), reason)

    def queued(self, session_id: str, secret: str) -> None:
        self._spans.named(session_id, secret)
        if self._queued_s is None:
            self._queued_s = self._clock()

    def saw(self, event: events.Event, phase: QueueingPhase) -> None:
        match event:
            case events.Assigned(worker_id):
                self._log.info("worker assigned", worker_id=worker_id)
            case events.WorkerConnected():
                self._waited("assigned")
                self._spans.relaying(self._clock())
            case events.TurnEnded():
                self._spans.relayed(self._clock())
            case events.WorkerFailed():
                self._waited("refused")
                self._spans.relayed(self._clock())
            case events.QueueRefused(error):
                is_cancelled = isinstance(error, QueueCancelledError)
                self._waited("cancelled" if is_cancelled else "refused")
            case events.RawMessage("stop") | events.RawMessage("close") | events.Disconnected():
                if phase is QueueingPhase.WAITING:
                    self._waited("gone")

    def error(self, code: ErrorCode) -> None:
        self._metrics.error(code)
        self._log.warning("error sent", error_code=code.value)

    def worker_error(self, text: str) -> None:
        try:
            code = ErrorCode(json.loads(text).get("code", ErrorCode.INTERNAL))
        except (ValueError, AttributeError, RecursionError):
            code = ErrorCode.INTERNAL
        self._metrics.error(code)
        self._log.warning("worker sent an error", error_code=code.value)

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

    def _waited(self, outcome: str) -> None:
        if self._queued_s is not None:
            now_s = self._clock()
            self._metrics.waited(self._mode, now_s - self._queued_s, outcome)
            self._spans.waited(self._queued_s, now_s, outcome)
            self._queued_s = None

    def _flush(self) -> None:
        self._metrics.relayed(self._mode, up_bytes=self._up_bytes, down_bytes=self._down_bytes)
        self._up_bytes = self._down_bytes = 0


class DiagnosticsFile:
    """A session's `client_diagnostic` messages; those beyond the limits are dropped and counted."""

    def __init__(self, recordings: RecordingStore, limits: LimitSettings) -> None:
        """Messages are dropped until `begin` names the recording."""
        clock = asyncio.get_running_loop().time
        per_s = limits.diagnostics_per_s
        self.dropped = 0
        self._recordings = recordings
        self._limits = limits
        self._left_bytes = limits.diagnostic_session_bytes
        self._rate = TokenBucket(max(per_s, 1.0), per_s, clock) if per_s > 0 else None
        self._recording_id: str | None = None

    def begin(self, recording_session_id: str) -> None:
        with suppress(InvalidSessionIdError):
            self._recording_id = check_recording_id(recording_session_id)

    async def keep(self, message: str) -> bool:
        """Write one message, or drop it; return whether it was written."""
        line = message.replace("\n", " ").replace("\r", " ").encode() + b"\n"
        recording_id = self._recording_id
        is_small = len(line) <= min(self._limits.diagnostic_bytes, self._left_bytes)
        if recording_id is None or not is_small or self._rate is None or not self._rate.take():
            self.dropped += 1
            return False
        self._left_bytes -= len(line)
        try:
            await asyncio.to_thread(self._recordings.append_diagnostic, recording_id, line)
        except OSError as error:  # no recording or a full disk must not end the session
            structlog.get_logger("diagnostics").warning("dropped", reason=str(error))
            self._recording_id = None
            return False
        return True
