"""A collector of spans on loopback: takes OTLP over HTTP, and keeps what it was sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What has arrived.

    Attributes:
        endpoint: where it listens.
        bodies: requests as they came.
        services: names of the programs that sent spans.
        spans: all of them.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.bodies: list[bytes] = []
        self.services: set[str] = set()
        self.spans: list[Span] = []

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.services.add(about["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        """The spans of a name, in the order in which they began."""
        return sorted(
            (span for span in self.spans if span.name == name),
            key=lambda span: span.start_time_unix_nano,
        )

    def parts(self, parent: Span) -> list[str]:
        return [span.name for span in self.spans if span.parent_span_id == parent.span_id]


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_packed = self.headers.get("Content-Encoding") == "gzip"
            collector.take(self.path, gzip.decompress(body) if is_packed else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="collector")
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
