"""OpenTelemetry spans of calls, from existing measurements.

Spans contain no text, audio or pictures, and of session ids only the hash. The SDK is imported only
if tracing is configured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from config import install_command

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, SpanContext

INSTALL: Final = f"telemetry.endpoint needs OpenTelemetry's SDK: {install_command('telemetry')}"
PATH: Final = "/v1/traces"  # source: OTLP 1.5, section "OTLP/HTTP request"
TRACE_BYTES: Final = 16  # source: W3C Trace Context, section 3.2.2.3
SPAN_BYTES: Final = 8  # source: W3C Trace Context, section 3.2.2.4
WAITING_MAX: Final = 8_192  # queued spans; ours: 15 s of 64 speaking sessions
BATCH_MAX: Final = 512  # spans per request to the collector
BATCH_PERIOD_MS: Final = 2_000
SEND_LIMIT_S: Final = 5.0  # for one request to the collector, including retries
CLOSE_LIMIT_S: Final = 2.0  # to send the last spans, which an unreachable collector never accepts
NS_PER_S: Final = 1_000_000_000

Attributes = Mapping[str, str | int | float | bool]


def call_ids(session_id: str, secret: str) -> SpanContext:
    """Return the ids of a call, which gateway and worker derive in the same way.

    The secret distinguishes calls with the same session id.
    """
    from opentelemetry.trace import SpanContext, TraceFlags

    trace = sha256(session_id.encode()).digest()[:TRACE_BYTES]
    span = sha256(f"{session_id}\n{secret}".encode()).digest()[:SPAN_BYTES]
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int.from_bytes(trace), int.from_bytes(span), True, sampled)


class Tracing:
    """Exports one program's spans to a collector, on a thread of the SDK.

    Overflow: of more than `WAITING_MAX` queued spans the oldest are dropped, and the SDK logs it.
    """

    def __init__(self, program: str, name: str, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class Ids(RandomIdGenerator):
            """Random ids, except for the span of a call."""

            call: SpanContext | None = None

            def generate_trace_id(self) -> int:
                return self.call.trace_id if self.call else super().generate_trace_id()

            def generate_span_id(self) -> int:
                return self.call.span_id if self.call else super().generate_span_id()

        self.ids = Ids()
        resource = {"service.name": f"minicpmo-live-{program}", "service.instance.id": name}
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(resource),
            shutdown_on_exit=False,  # it would wait for an unreachable collector
            id_generator=self.ids,
        )
        batches = BatchSpanProcessor(
            exporter,
            max_queue_size=WAITING_MAX,
            schedule_delay_millis=BATCH_PERIOD_MS,
            max_export_batch_size=BATCH_MAX,
        )
        provider.add_span_processor(batches)
        self._provider = provider
        self.tracer = provider.get_tracer("minicpmo-live")

    def call(self, session_id: str, secret: str) -> CallTrace:
        return CallTrace(self, call_ids(session_id, secret))

    def close(self) -> None:
        """Send the queued spans, for `CLOSE_LIMIT_S` at most."""
        ending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        ending.start()
        ending.join(CLOSE_LIMIT_S)


class CallTrace:
    """Writes the spans of one call; times are the event loop's."""

    def __init__(self, tracing: Tracing, ids: SpanContext) -> None:
        from opentelemetry.trace import NonRecordingSpan

        self._tracing = tracing
        self._ids = ids
        self._call = NonRecordingSpan(ids)
        self._unix_ns = time.time_ns() - time.monotonic_ns()  # Unix time at the loop's zero

    def begin(
        self, name: str, at_s: float, parent: Span | None = None, *, stands_for_call: bool = False
    ) -> Span:
        """Begin a span below `parent` or the call, or the span of the call with its ids."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = Context() if stands_for_call else set_span_in_context(parent or self._call)
        # Spans are begun only on the event loop.
        self._tracing.ids.call = self._ids if stands_for_call else None
        return self._tracing.tracer.start_span(name, context, start_time=self._ns(at_s))

    def end(self, span: Span, at_s: float, attributes: Attributes | None = None) -> None:
        span.set_attributes(attributes or {})
        span.end(self._ns(at_s))

    def write(
        self,
        name: str,
        began_s: float,
        ended_s: float,
        parent: Span | None = None,
        attributes: Attributes | None = None,
    ) -> Span:
        """Write a finished span as a child of `parent` or of the call."""
        span = self.begin(name, began_s, parent)
        self.end(span, ended_s, attributes)
        return span

    def _ns(self, at_s: float) -> int:
        return self._unix_ns + round(at_s * NS_PER_S)


def open_tracing(endpoint: str, program: str, name: str) -> Tracing | None:
    """Return a program's tracing, None without a configured collector.

    The exporter's headers come from OpenTelemetry's environment variables. Raises `ValueError` if
    the SDK is not installed.
    """
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        url = f"{endpoint.rstrip('/')}{PATH}"
        return Tracing(program, name, OTLPSpanExporter(url, timeout=SEND_LIMIT_S))
    except ImportError as error:
        raise ValueError(INSTALL) from error
