"""Whatever the disk does and whoever else records, the session never notices."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core.audio import encode_wire_audio
from core.errors import ErrorCode, RecordingStoppedError
from recording import recorder as recorders_module
from recording import recovery
from recording.folder import is_live, read_meta
from recording.recorder import RecorderOptions, RecorderThreads, ReplayProcess, SessionRecorder
from recording.records import DuplexRecording, Meta
from recording.recovery import needs_recovery, recover_session
from tests.unit.recordings import (
    WAIT_S,
    Bench,
    Gate,
    duplex_of,
    end,
    level,
    level_pcm,
    listen,
    make_bench,
    pcm,
    record_duplex,
    recording_of,
    speak,
    timeline_bytes,
    wait_until,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path)
    yield bench
    bench.threads.close()


def test_a_full_disk_stops_the_recording_and_warns_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record_duplex(bench, "dx", [listen(), speak("kept", level(0.1, 24_000))])
    wait_until(lambda: b"kept" in timeline_bytes(bench.folder("dx")))
    real, room = os.write, itertools.count()

    def write(descriptor: int, content: bytes) -> int:
        if next(room) == 0:  # the disk fills up in the middle of a write
            return real(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        for index in range(2, 40):
            recorder.record_input(index, level_pcm(0.1, 16_000))
            recorder.record_result(index, listen())
        wait_until(lambda: bench.warnings and not recorder.is_recording)
        recorder.record_event("pause")
    [warning] = bench.warnings
    assert isinstance(warning, RecordingStoppedError)
    assert warning.code is ErrorCode.RECORDING_STOPPED
    meta = end(recorder)  # by now there is room again
    assert meta.problem == str(warning) and meta.status == "ready"
    chunks = duplex_of(bench.folder("dx")).chunks
    assert chunks[1].result is not None and chunks[1].result.text == "kept"
    assert not list(bench.folder("dx").rglob("*.tmp"))


def test_a_recording_on_a_full_disk_can_be_recovered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record_duplex(bench, "dx", [listen(), speak("kept")])
    wait_until(lambda: b"kept" in timeline_bytes(bench.folder("dx")))

    def refuse(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        assert recorder.finalize().result(WAIT_S) is None
    assert not is_live(bench.folder("dx"))
    assert b"kept" in timeline_bytes(bench.folder("dx"))


def test_a_nearly_full_disk_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(tmp_path, min_free_gb=2.0)
    free = [3 * 10**9]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    recorder = record_duplex(bench, "dx", [speak("kept")])
    wait_until(lambda: b"kept" in timeline_bytes(bench.folder("dx")))
    free[0] = 2 * 10**9 - 1
    recorder.record_input(1, level_pcm(0.1, 16_000))
    wait_until(lambda: bench.warnings and not recorder.is_recording)
    assert [str(warning) for warning in bench.warnings] == [
        "The recording was stopped: the disk is nearly full."
    ]
    meta = end(recorder)  # its few last words still fit
    assert (meta.status, meta.problem) == ("ready", str(bench.warnings[0]))
    assert record_duplex(bench, "next", []).finalize().result(WAIT_S) is None
    assert len(bench.warnings) == 2 and not bench.folder("next").exists()
    bench.threads.close()


def test_no_replay_is_made_on_a_nearly_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Noted(ReplayProcess):
        """Makes no replays, and notes which were requested."""

        def make(self, folder: Path) -> None:
            made.append(folder.name)

    bench = make_bench(tmp_path, Noted(), min_free_gb=2.0)
    free = [3 * 10**9]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    end(record_duplex(bench, "before", [speak("kept")]))
    recorder = record_duplex(bench, "dx", [speak("kept")])
    wait_until(lambda: b"kept" in timeline_bytes(bench.folder("dx")))
    free[0] = 2 * 10**9 - 1
    assert end(recorder).status == "ready"
    assert made == ["before"]
    bench.threads.close()


@dataclass
class FailingDisk:
    """Stands for the calls that change a disk: some work, all that follow fail."""

    error: int
    works: int
    calls: Iterator[int] = field(default_factory=itertools.count)

    def patch(self, patched: pytest.MonkeyPatch) -> None:
        for name in ("open", "write", "replace", "mkdir", "fsync"):
            patched.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        # Any: a system call, whichever it is.
        def call(*args: Any, **options: Any) -> Any:
            if next(self.calls) >= self.works:
                raise OSError(self.error, os.strerror(self.error))
            return real(*args, **options)

        return call


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_failure_of_any_write_affects_no_session_and_tears_no_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds would take seconds
    for works in itertools.count():
        name = f"dx{works}"
        warned = len(bench.warnings)
        with monkeypatch.context() as patched:
            FailingDisk(error, works).patch(patched)
            recorder = record_duplex(bench, name, [listen(), speak("said", level(0.1, 2_400))])
            ended = recorder.finalize().result(WAIT_S)
        assert len(bench.warnings) - warned <= 1, "told at most once"
        if ended is not None and ended.problem is None:
            break  # this time it went well to the end
        folder = bench.folder(name)
        if not folder.exists() or not any(folder.iterdir()):
            continue
        if needs_recovery(folder):
            recover_session(folder)  # the disk is well again
        assert not is_live(folder) and not list(folder.rglob("*.tmp"))
        meta = read_meta(folder)
        assert meta is not None and meta.is_over
        recording = recording_of(folder)
        for chunk in recording.chunks if isinstance(recording, DuplexRecording) else ():
            if chunk.user_audio is not None:
                assert len(pcm(folder / chunk.user_audio)[1]) == 16_000
    assert len(bench.warnings) > 10, "most of the calls come while the talk goes on"


def test_a_slow_disk_delays_no_session(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(os.write)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", gate)
        recorder = record_duplex(bench, "dx", [speak(str(i), level(0.1, 24_000)) for i in range(9)])
        ended = recorder.finalize()
        assert gate.reached.wait(WAIT_S)
        # Everything above returned although not one byte has reached the disk.
        assert not ended.done()
        assert recorder.finalize() is ended
        gate.opened.set()
        meta = ended.result(WAIT_S)
    assert meta is not None and meta.problem is None
    texts = [chunk.result.text for chunk in duplex_of(bench.folder("dx")).chunks if chunk.result]
    assert texts == [str(i) for i in range(9)]


def test_files_a_slow_disk_cannot_take_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three seconds of sound as arrays and some lines fit.
    bench = Bench(tmp_path, RecorderThreads(backlog_bytes=3 * 64_000 + 8_000, reserve_bytes=4_000))
    gate = Gate(os.write)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", gate)
        recorder = bench.duplex()
        for index in range(5):
            recorder.record_input(index, level_pcm(0.1, 16_000))
            recorder.record_result(index, listen())
        gate.opened.set()
        meta = end(recorder)
    bench.threads.close()
    assert meta.files_left_out == 2 and meta.problem is None
    chunks = duplex_of(bench.folder("dx")).chunks
    assert [chunk.index for chunk in chunks if chunk.user_audio] == [0, 1, 2]
    assert len(chunks) == 5 and bench.warnings == []


def test_a_timeline_that_does_not_fit_stops_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, RecorderThreads(backlog_bytes=2_000, reserve_bytes=2_000))
    gate = Gate(os.write)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", gate)
        recorder = bench.duplex()
        assert gate.reached.wait(WAIT_S)
        for _ in range(50):
            recorder.record_event("pause")
        assert len(bench.warnings) == 1 and not recorder.is_recording
        gate.opened.set()
        assert end(recorder).problem == str(bench.warnings[0])
    bench.threads.close()


def test_an_existing_folder_is_not_overwritten(bench: Bench) -> None:
    end(record_duplex(bench, "dx", [speak("first")]))
    before = {path: path.read_bytes() for path in bench.folder("dx").rglob("*") if path.is_file()}
    second = record_duplex(bench, "dx", [speak("second")])
    assert second.finalize().result(WAIT_S) is None
    assert len(bench.warnings) == 1
    after = {path: path.read_bytes() for path in bench.folder("dx").rglob("*") if path.is_file()}
    assert after == before


def test_a_failing_warning_callback_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("not a folder")

    def closed(_: Exception) -> None:
        raise RuntimeError("the event loop is closed")

    options = RecorderOptions(RecorderThreads(), closed)
    recorder = SessionRecorder("dx", "audio_duplex", "0", None, tmp_path, options)
    assert recorder.finalize().result(WAIT_S) is None


@pytest.mark.parametrize("count", [10])
def test_many_recorders_share_the_threads(bench: Bench, count: int) -> None:
    recorders = [bench.duplex(f"dx{number}", "audio_duplex") for number in range(count)]
    for index in range(20):
        for number, recorder in enumerate(recorders):
            sound = encode_wire_audio(level(number / 100, 1_600))
            recorder.record_input(index, sound)
            recorder.record_result(index, speak(f"{number}.{index}"))
    ended = [recorder.finalize() for recorder in recorders]
    assert all(one.result(WAIT_S) for one in ended)
    for number in range(count):
        folder = bench.folder(f"dx{number}")
        chunks = duplex_of(folder).chunks
        texts = [chunk.result.text for chunk in chunks if chunk.result]
        assert texts == [f"{number}.{index}" for index in range(20)]
        assert set(pcm(folder / "user_audio/019.wav")[1]) == {round(number / 100 * 32_767)}
        assert not is_live(folder)


def test_what_follows_the_end_is_ignored(bench: Bench) -> None:
    recorder = record_duplex(bench, "dx", [listen()])
    assert end(recorder).status == "ready"
    before = timeline_bytes(bench.folder("dx"))
    recorder.record_event("pause")
    recorder.record_input(1, level_pcm(0.1, 1_600))
    assert not recorder.is_recording and timeline_bytes(bench.folder("dx")) == before


def test_a_recording_that_too_many_others_precede_is_left_for_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorders_module, "MAX_FINALIZATIONS", 1)
    bench, reached, opened = make_bench(tmp_path), threading.Event(), threading.Event()
    real = recovery.write_results

    def write_results(folder: Path) -> Meta:
        reached.set()
        assert opened.wait(WAIT_S)
        return real(folder)

    monkeypatch.setattr(recorders_module, "write_results", write_results)
    first = record_duplex(bench, "first", [listen()]).finalize()
    assert reached.wait(WAIT_S)
    second = record_duplex(bench, "second", [speak("kept")]).finalize()
    assert second.result(WAIT_S) is None
    folder = bench.folder("second")
    assert b"kept" in timeline_bytes(folder)
    assert not is_live(folder) and needs_recovery(folder)
    opened.set()
    assert first.result(WAIT_S) is not None
    assert recover_session(folder).status == "ready"
    bench.threads.close()


def test_closing_the_threads_finishes_pending_finalizations(tmp_path: Path) -> None:
    class Never(ReplayProcess):
        """Makes replays that are given up."""

        def make(self, folder: Path) -> None:
            raise AssertionError("given up before it began")

    bench = make_bench(tmp_path, Never())
    ended = [record_duplex(bench, f"dx{i}", [listen()]).finalize() for i in range(3)]
    bench.threads.close()
    assert all(one.done() for one in ended)
    for number in range(3):
        meta = read_meta(bench.folder(f"dx{number}"))
        assert meta is not None and meta.status == "ready"
    late = bench.duplex("late")
    late.record_event("pause")
    assert late.finalize().result(WAIT_S) is None
