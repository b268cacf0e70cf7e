"""Spans: where they are sent, what they are called, and what they never hold up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from benchmarks.launched import free_ports
from core.errors import GenerationFailedError
from core.protocols.duplex import TABLE, DuplexMachine
from core.protocols.events import (
    EngineFailed,
    Event,
    FinalizeDone,
    Opened,
    PrefillDone,
    Received,
    StepDone,
)
from core.protocols.machine import SessionIds
from core.schemas.duplex import AudioChunk, Prepare
from core.schemas.duplex_calls import DuplexGenerateResult
from core.serving.observers import TraceObserver
from core.telemetry import BATCH_MAX, INSTALL, WAITING_MAX, Tracing, call_ids, open_tracing
from settings.sections import TelemetrySettings
from tests.fakes.scenes import DUPLEX, Scene, audio
from tests.source_tree import ROOT
from tests.unit.test_observers import watch
from worker import UNUSABLE, cli

export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

CHUNK = AudioChunk(audio=audio(1_000))
RESULT = DuplexGenerateResult(
    is_listen=False,
    text="words",
    cost_llm_ms=200,
    cost_read_ms=50,
    cost_tts_ms=30,
    cost_token2wav_ms=20,
)


def spans_of(*events: tuple[Event, float], secret: str = "") -> list[Any]:
    """The spans of a duplex session, each event so long after the one before."""
    exporter = memory.InMemorySpanExporter()
    tracing = Tracing("worker", "worker_0", exporter)
    observer = TraceObserver(tracing.call("id_1", secret), "omni_duplex", is_root=not secret)
    watch(Scene(DuplexMachine(SessionIds("id_1")), TABLE, DUPLEX), observer, *events)
    tracing.close()
    return list(exporter.get_finished_spans())


def below(parent: Any, spans: Sequence[Any]) -> list[Any]:
    return [span for span in spans if span.parent and span.parent.span_id == parent.context.span_id]


def lengths_ms(spans: Sequence[Any]) -> dict[str, int]:
    return {span.name: round((span.end_time - span.start_time) / 1e6) for span in spans}


def test_the_parts_of_a_unit_are_as_long_as_they_were_measured() -> None:
    spans = spans_of(
        (Opened(), 0.0),
        (Received(Prepare()), 0.0),
        (PrefillDone(), 0.1),
        (Received(CHUNK), 1.0),
        (StepDone(RESULT), 0.5),
        # This one waits until the first is closed.
        (Received(CHUNK), 0.0),
        (FinalizeDone(finalize_ms=40), 0.04),
        (StepDone(RESULT.model_copy(update={"prefill_ms": 60})), 0.4),
        (EngineFailed(GenerationFailedError()), 0.0),
    )
    units = [span for span in spans if span.name == "unit"]
    assert [lengths_ms(below(unit, spans)) for unit in units] == [
        {"queue": 0, "encode": 0, "prefill": 50, "generate": 150, "speech": 50, "send": 250},
        {"queue": 40, "encode": 60, "prefill": 50, "generate": 150, "speech": 50, "send": 90},
    ]
    [session] = [span for span in spans if span.name == "session"]
    assert session.parent is None and session.attributes["error.type"] == "generation_failed"
    assert {unit.parent.span_id for unit in units} == {session.context.span_id}
    assert "words" not in "".join(span.to_json() for span in spans)


def test_costs_never_reach_beyond_their_unit() -> None:
    """Costs and the loop's clock are measured in different places."""
    spans = spans_of(
        (Opened(), 0.0),
        (Received(Prepare()), 0.0),
        (PrefillDone(), 0.1),
        (Received(CHUNK), 1.0),
        (StepDone(RESULT), 0.1),
    )
    [unit] = [span for span in spans if span.name == "unit"]
    parts = below(unit, spans)
    assert lengths_ms(parts)["generate"] == 50
    assert max(part.end_time for part in parts) == unit.end_time


def test_behind_a_gateway_the_call_span_is_the_gateways() -> None:
    [session] = spans_of((Opened(), 0.0), secret="s" * 32)
    ids = call_ids("id_1", "s" * 32)
    assert (session.context.trace_id, session.parent.span_id) == (ids.trace_id, ids.span_id)
    assert session.context.span_id != ids.span_id


def test_calls_of_one_id_have_spans_of_their_own() -> None:
    one, other = call_ids("id_1", "a" * 32), call_ids("id_1", "b" * 32)
    assert one.trace_id == other.trace_id and one.span_id != other.span_id


def test_spans_are_dropped_while_the_collector_is_unreachable() -> None:
    went, arrived = threading.Event(), list[Any]()

    class Slow(export.SpanExporter):  # type: ignore[misc, name-defined]
        def export(self, spans: Sequence[Any]) -> Any:
            went.wait()
            arrived.extend(spans)
            return export.SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            """Nothing is held."""

    tracing = Tracing("worker", "worker_0", Slow())
    trace = tracing.call("id_1", "")
    count = WAITING_MAX + 4 * BATCH_MAX
    for number in range(count):
        trace.write(f"{number}", 0.0, 1.0)
    went.set()
    tracing.close()
    assert WAITING_MAX <= len(arrived) <= WAITING_MAX + 2 * BATCH_MAX
    assert arrived[-1].name == f"{count - 1}", "the oldest are dropped"


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracing("", "worker", "worker_0") is None
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match="OpenTelemetry") as error:
        open_tracing("http://localhost:4318", "worker", "worker_0")
    assert str(error.value) == INSTALL
    assert INSTALL.endswith(": scripts/setup.sh telemetry")  # of a clone


def test_a_worker_without_the_sdk_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: 0)  # this process keeps its own
    monkeypatch.setenv("OMNI_TELEMETRY_ENDPOINT", "http://localhost:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    done = CliRunner().invoke(cli, ["--backend", "fake", "--port", str(free_ports(1))])
    assert (done.exit_code, done.stderr.strip()) == (UNUSABLE, INSTALL)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://collector", "http://", "http:// a"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="endpoint"):
        TelemetrySettings(endpoint=endpoint)


def test_the_sdk_is_imported_only_when_tracing_is_configured(tmp_path: Path) -> None:
    program = (
        "import sys, gateway, worker\n"
        "from config import Settings\n"
        f"settings = Settings.model_validate({{'service': {{'data_dir': {str(tmp_path)!r}}}}})\n"
        "gateway.create_app(settings), worker.create_app(settings, None)\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry.') and '.sdk' in m])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"
