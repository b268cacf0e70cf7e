"""How many of our files the units of a conversation pass on a worker, from chunk to result."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from starlette.testclient import TestClient

from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint
from tests.service.model_talks import model_backend
from tests.service.workers import SECOND, settings_for, speech, wire
from tests.source_tree import ROOT
from worker import create_app

FILES_MAX = 65
"""As measured; it is more than a reader can follow, and may only fall."""

UNITS = 12
PACKAGES = tuple(str(ROOT / name) for name in ("core", "MiniCPMO45", "worker.py"))


class Trace:
    """The files that any thread entered while it was on."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Take note of a call."""
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            self.files.add(frame.f_code.co_filename)


@contextmanager
def tracing() -> Iterator[Trace]:
    """Trace every thread that is started inside the block."""
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace)
    try:
        yield trace
    finally:
        threading.setprofile(before)


def files_of_units(folder: Path) -> int:
    """Return how many files units enter, from the first chunk to the last result."""
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
                start = second % 8 * SECOND
                sound = wire(speech()[start : start + SECOND])
                talk.send_json({"type": "audio_chunk", "audio": sound})
                result = talk.receive_json()
                assert result["type"] == "result", result
                listened.add(result["is_listen"])
            trace.is_on = False
    assert listened == {True, False}, "the model listened and spoke"
    return len(trace.files)


def test_a_unit_passes_no_more_files_than_a_reader_may_have_to_open(tmp_path: Path) -> None:
    assert files_of_units(tmp_path) <= FILES_MAX
