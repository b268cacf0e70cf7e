"""A chat's recording stays open for the next turn, and the wait is not recorded."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from config import Settings
from core.errors import RecordingStoppedError
from core.metrics import WorkerMetrics, new_registry
from core.schemas.queue import RequestType
from core.serving.fake_backend import FakeBackend
from core.serving.recording_observer import StreamingRecording
from core.serving.recordings import OPEN_LIMIT_S, OpenRecording, Recordings
from core.serving.runtime import WorkerRuntime
from core.serving.session_kinds import SessionBuilder
from core.serving.session_server import SessionServer
from core.serving.slots import Owner
from recording.folder import read_meta
from recording.records import EndReason, TextInput
from recording.recovery import recover_session
from tests.fakes.virtual_time import in_virtual_time
from tests.system.loops import in_loop
from tests.unit.recordings import START, Bench, make_bench, timeline_bytes, wait_until

OWNER = Owner("stm", RequestType.STREAMING, secret="0" * 32)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path)
    yield bench
    bench.threads.close()


def say(bench: Bench, recording: OpenRecording, lasts_s: float) -> None:
    if recording.recorder is None:
        recording.recorder = bench.turns(recording.recording_id)
    recording.recorder.start_turn(next(recording.turns), 0, TextInput(text="Hello"))
    bench.time.seconds += lasts_s
    recording.recorder.end_turn(text="Hi")


@in_virtual_time
async def test_a_chat_recording_ends_with_its_last_socket(bench: Bench) -> None:
    recordings = Recordings(bench.data_dir, "0", bench.threads)
    recording = recordings.resume(OWNER)
    say(bench, recording, 2)
    recordings.suspend(recording, EndReason.STOPPED)
    bench.time.seconds += 20
    assert recordings.resume(OWNER) is recording
    say(bench, recording, 3)
    recordings.suspend(recording, EndReason.DISCONNECT)
    bench.time.seconds += OPEN_LIMIT_S
    await asyncio.sleep(OPEN_LIMIT_S + 1)
    assert recording.recorder is not None
    meta = recording.recorder.finalize().result()
    assert meta is not None
    assert (meta.duration_s, meta.end_reason) == (25, EndReason.DISCONNECT)
    assert meta.ended_at == START + timedelta(seconds=25)


@in_virtual_time
async def test_a_socket_without_a_turn_leaves_the_recording_as_it_was(bench: Bench) -> None:
    recordings = Recordings(bench.data_dir, "0", bench.threads)
    recording = recordings.resume(OWNER)
    say(bench, recording, 2)
    recordings.suspend(recording, EndReason.DISCONNECT)
    bench.time.seconds += 20
    # The client stops its next turn before the reply, or closes the socket.
    without_turn = StreamingRecording(
        lambda snapshot: bench.turns("none"), recordings, recordings.resume(OWNER)
    )
    await without_turn.close()
    bench.time.seconds += OPEN_LIMIT_S
    await asyncio.sleep(OPEN_LIMIT_S + 1)
    assert recording.recorder is not None and not recording.recorder.is_recording
    meta = recording.recorder.finalize().result()
    assert meta is not None
    assert (meta.duration_s, meta.end_reason) == (2, EndReason.DISCONNECT)


@in_virtual_time
async def test_the_present_socket_is_told_that_the_recording_stopped(bench: Bench) -> None:
    recordings = Recordings(bench.data_dir, "0", bench.threads)
    recording, told = recordings.resume(OWNER), list[str]()
    options = recordings.open(cast(Any, lambda *given: given[-1]), recording, {})
    recording.on_stopped = lambda problem: told.append("first")
    say(bench, recording, 2)
    recordings.suspend(recording, EndReason.STOPPED)
    recordings.resume(OWNER).on_stopped = lambda problem: told.append("second")
    options.on_warning(RecordingStoppedError())
    await asyncio.sleep(0)
    assert told == ["second"]


@in_virtual_time
async def test_a_turn_after_a_full_disk_begins_another_recording(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    recordings = Recordings(bench.data_dir, "0", bench.threads)
    recording = recordings.resume(OWNER)
    say(bench, recording, 2)
    recorder = recording.recorder
    assert recorder is not None
    wait_until(lambda: b"turn_end" in timeline_bytes(recorder.folder))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        recordings.suspend(recording, EndReason.STOPPED)
        wait_until(lambda: not recorder.is_recording)
    following = recordings.resume(OWNER)
    assert following.recording_id != recording.recording_id and following.recorder is None
    meta = recorder.finalize().result()
    assert meta is not None and meta.problem == str(bench.warnings[0])
    assert meta.end_reason is EndReason.STOPPED


@pytest.mark.parametrize("goes_on", [False, True])
@in_virtual_time
async def test_a_worker_killed_between_turns_loses_no_recording(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    recordings = Recordings(bench.data_dir, "0", bench.threads)
    recording = recordings.resume(OWNER)
    say(bench, recording, 2)
    recordings.suspend(recording, EndReason.DISCONNECT)
    folder = bench.folder(recording.recording_id)
    if goes_on:
        say(bench, recordings.resume(OWNER), 1)
    last = b'"turn_end","turn_index":1' if goes_on else b'"line":"end"'
    wait_until(lambda: last in timeline_bytes(folder))
    with monkeypatch.context() as patched:
        patched.setattr("recording.recovery.is_live", lambda _: False)
        meta = recover_session(folder)
    assert read_meta(folder) == meta
    expected = EndReason.ERROR if goes_on else EndReason.DISCONNECT
    assert (meta.end_reason, meta.problem is not None) == (expected, goes_on)


@in_loop
async def test_a_folder_that_cannot_be_recovered_does_not_prevent_uploads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with it: the worker starts, and other recordings reach the store."""

    def fail(data_dir: Path) -> list[str]:
        raise ValueError("the timeline has impossible times")

    class Uploads:
        is_started = False

        def start(self) -> None:
            self.is_started = True

    monkeypatch.setattr("core.serving.recordings.recover_all", fail)
    uploads: Any = Uploads()
    recordings = Recordings(bench.data_dir, "0", bench.threads, uploader=uploads)
    runtime = WorkerRuntime(FakeBackend, 1)
    metrics = WorkerMetrics(new_registry(), "worker_0")
    await SessionServer(SessionBuilder(runtime, Settings(), metrics, recordings, None)).recover()
    assert uploads.is_started
    runtime.close()
