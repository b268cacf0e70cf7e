"""How many of our files and classes the units of a conversation pass on a worker."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest
from starlette.testclient import TestClient

from core.serving import runtime
from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint
from tests.service.model_talks import model_backend
from tests.service.workers import settings_for, spoken
from tests.source_tree import ROOT
from worker import create_app

FILES_MAX = 40
NAMES_MAX = 9
"""As measured; they may only fall."""

UNITS = 12
PACKAGES = tuple(str(ROOT / name) for name in ("core", "MiniCPMO45", "worker.py"))
MODEL = str(ROOT / "MiniCPMO45" / "model")
BORDERS = {
    "Inbox.read",
    "Inbox.put",
    "SessionMachine.handle",
    "SessionHandler.perform",
    "Engine.resume",
    "DuplexCapability.streaming_prefill",
}
"""Where a chunk goes on in another task, thread or generator."""


class Trace:
    """What any thread entered while it was on.

    Attributes:
        files: of ours.
        names: classes of ours that a chunk crosses, in order, until a module of the model computes:
            those on the stack where it changes the task, the thread or the generator, and in the
            first `forward`.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.names: dict[str, None] = {}
        self.is_on = False
        self._has_computed = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.is_on or event != "call" or not _is_ours(frame):
            return
        self.files.add(frame.f_code.co_filename)
        code = frame.f_code
        computes = code.co_name == "forward" and code.co_filename.startswith(MODEL)
        if not self._has_computed and (computes or frame.f_code.co_qualname in BORDERS):
            self.names |= dict.fromkeys(reversed(list(_classes(frame))))
            self._has_computed = computes


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGES)


def _classes(frame: FrameType | None) -> Iterator[str]:
    """The classes on the stack, the innermost first."""
    while frame is not None:
        if _is_ours(frame) and "self" in frame.f_locals:
            yield type(frame.f_locals["self"]).__name__
        frame = frame.f_back


@contextmanager
def tracing() -> Iterator[Trace]:
    """Trace every thread that is started inside the block."""
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace)
    try:
        yield trace
    finally:
        threading.setprofile(before)


def trace_units(folder: Path) -> Trace:
    """Return what units enter, from the first chunk to the last result."""
    write_tiny_checkpoint(folder / "toy")
    settings = settings_for(folder, recording={"enabled": False})
    app = create_app(settings, lambda: model_backend(folder / "toy", seed=1, warms_up=False))
    listened: set[bool] = set()
    with tracing() as trace, TestClient(app) as client:
        while not client.get("/health").json()["model_loaded"]:
            pass
        # Leaving cancels the handler, which says so after it has released the session.
        url = "ws://localhost/ws/duplex?session_id=adx_trace"
        with suppress(CancelledError), client.websocket_connect(url) as talk:
            talk.send_json({"type": "prepare", "config": {"force_listen_count": 0}})
            assert talk.receive_json()["type"] == "prepared"
            trace.is_on = True
            for second in range(UNITS):
                talk.send_json({"type": "audio_chunk", "audio": spoken(second % 8)})
                result = talk.receive_json()
                assert result["type"] == "result", result
                listened.add(result["is_listen"])
            trace.is_on = False
    assert listened == {True, False}, "the model listened and spoke"
    return trace


def test_a_unit_passes_no_more_files_and_names_than_a_reader_may_have_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "RELIEF_S", 3_600.0)  # what runs beside units is not on their way
    trace = trace_units(tmp_path)
    assert len(trace.files) <= FILES_MAX
    assert len(trace.names) <= NAMES_MAX, " → ".join(trace.names)
