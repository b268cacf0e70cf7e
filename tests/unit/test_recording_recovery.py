"""Whatever byte a recorder dies at, what it wrote can be read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from core.errors import SessionInUseError
from recording import names
from recording.folder import (
    RecordingLock,
    is_live,
    is_whole_mp4,
    read_meta,
    read_recording,
    readable_wav,
    wav_header,
)
from recording.listing import delete_recording
from recording.recorder import ReplayProcess
from recording.records import DuplexRecording, EndReason, Recording, Status, TurnRecording
from recording.recovery import needs_recovery, recover_all, recover_session
from recording.replay import build_replay
from tests.source_tree import ROOT
from tests.unit.recordings import (
    duplex_of,
    end,
    level,
    listen,
    make_bench,
    record_duplex,
    record_turns,
    recording_of,
    speak,
    timeline_bytes,
    turns_of,
    wait_until,
)


class ReplayInThread(ReplayProcess):
    """Makes replays on the thread that asks; for programs without a session to disturb."""

    def make(self, folder: Path) -> None:
        build_replay(folder)


@pytest.fixture(scope="module", autouse=True)
def _no_power_cuts() -> Iterator[None]:
    """Do not wait for the disk itself: hundreds of copies would take a minute."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A duplex and a half-duplex recording, complete with replays."""
    bench = make_bench(tmp_path_factory.mktemp("finished"), ReplayInThread())
    sound = level(0.2, 12_000)
    results = [listen(), speak("one ", sound), speak("two", sound, ends=True), listen()]
    end(record_duplex(bench, "dx", results))
    end(record_turns(bench, "hdx", 2))
    yield {name: bench.folder(name) for name in ("dx", "hdx")}
    bench.threads.close()


def as_if_killed(folder: Path, *, keeps_results: bool = False) -> Path:
    """Copy a recording to look as it would without its end."""
    copy = Path(tempfile.mkdtemp(dir=folder.parents[1])) / names.SESSIONS_FOLDER / folder.name
    shutil.copytree(folder, copy)
    if not keeps_results:
        for name in (names.RECORDING_FILE, names.REPLAY_SOUND_FILE, names.REPLAY_VIDEO_FILE):
            (copy / name).unlink(missing_ok=True)
        meta = read_meta(folder)
        assert meta is not None
        early = meta.model_copy(update={"status": Status.RECORDING, "ended_at": None})
        (copy / names.META_FILE).write_text(early.to_json())
    (copy / names.LOCK_FILE).touch()
    return copy


def cut(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


def files_named_in(recording: Recording) -> Iterator[str]:
    if recording.merged_replay:
        yield recording.merged_replay
    if isinstance(recording, DuplexRecording):
        for chunk in recording.chunks:
            speech = chunk.result.ai_audio if chunk.result else None
            known = (chunk.user_audio, chunk.user_frame, *(chunk.extra_frames or ()), speech)
            yield from (name for name in known if name)
    else:
        for turn in recording.turns:
            audio = turn.input.audio if turn.input else None
            yield from (name for name in (audio, turn.output.audio) if name)


def check_readable(folder: Path) -> Recording:
    """Recover, then open everything the recording names with readers that are not ours."""
    meta = recover_session(folder)
    assert meta.status in {"ready", "failed"} and meta == read_meta(folder)
    assert not (folder / names.LOCK_FILE).exists() and not list(folder.rglob("*.tmp"))
    recording = recording_of(folder)
    for name in files_named_in(recording):
        if name.endswith(".wav"):
            with wave.open(str(folder / name)) as file:
                frames = file.getnframes()
                whole = frames * file.getnchannels() * 2
                assert frames > 0 and len(file.readframes(frames)) == whole
        else:
            with Image.open(folder / name) as picture:
                picture.load()
    assert recover_session(folder) == meta, "a second time changes nothing"
    return recording


@given(st.data())
def test_a_truncated_timeline_yields_the_complete_chunks(
    finished: dict[str, Path], data: st.DataObject
) -> None:
    folder = as_if_killed(finished["dx"])
    timeline = folder / names.TIMELINE_FILE
    size_bytes = data.draw(st.integers(0, timeline.stat().st_size))
    cut(timeline, size_bytes)
    lines = (finished["dx"] / names.TIMELINE_FILE).read_bytes()[:size_bytes].count(b"\n")
    recording = check_readable(folder)
    assert isinstance(recording, DuplexRecording)
    full = duplex_of(finished["dx"])
    assert len(recording.chunks) == 4, "the files tell of the rest"
    answered = [chunk for chunk in recording.chunks if chunk.receive_ts_ms is not None]
    assert len(answered) >= min(lines - 1, 4), "the first line is the session's"
    for chunk in answered:
        assert chunk == full.chunks[chunk.index]
    assert [chunk.user_audio for chunk in recording.chunks] == [
        chunk.user_audio for chunk in full.chunks
    ]
    shutil.rmtree(folder.parents[1])


@given(st.data())
def test_truncated_files_leave_a_readable_recording(
    finished: dict[str, Path], data: st.DataObject
) -> None:
    folder = finished[data.draw(st.sampled_from(["dx", "hdx"]))]
    copy = as_if_killed(folder, keeps_results=data.draw(st.booleans()))
    paths = sorted(path for path in copy.rglob("*") if path.is_file())
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=8, unique=True)):
        cut(path, data.draw(st.integers(0, path.stat().st_size)))
    recording = check_readable(copy)
    assert recording.session_id == folder.name
    shutil.rmtree(copy.parents[1])


@given(st.data())
def test_any_damage_to_a_timeline_is_tolerated(
    finished: dict[str, Path], data: st.DataObject
) -> None:
    folder = as_if_killed(finished["hdx"])
    timeline = folder / names.TIMELINE_FILE
    content = bytearray(timeline.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    timeline.write_bytes(content)
    check_readable(folder)
    shutil.rmtree(folder.parents[1])


def test_truncated_audio_is_repaired(finished: dict[str, Path]) -> None:
    folder = as_if_killed(finished["hdx"])
    path = folder / "ai_audio/turn_1.wav"
    cut(path, 44 + 2 * 9_000 + 1)
    turn = turns_of_recovered(folder).turns[1]
    assert turn.output.audio_duration_ms == 375
    shape = readable_wav(path)
    assert shape is not None and (shape.samples, path.stat().st_size) == (9_000, 44 + 18_000)


def turns_of_recovered(folder: Path) -> TurnRecording:
    recover_session(folder)
    return turns_of(folder)


def test_audio_being_appended_has_its_current_length(tmp_path: Path) -> None:
    path = tmp_path / "turn.wav"
    path.write_bytes(wav_header(24_000, 1, 400) + b"\1\2" * 300)  # 200 told, 300 there
    shape = readable_wav(path)
    assert shape is not None and shape.samples == 300
    for damage in (b"", b"RIFF", b"x" * 100, wav_header(24_000, 1, 400)):
        path.write_bytes(damage)
        assert readable_wav(path) is None
    assert readable_wav(tmp_path / "none.wav") is None


def test_a_cut_off_turn_retains_the_streamed_text(finished: dict[str, Path]) -> None:
    folder = as_if_killed(finished["hdx"])
    timeline = folder / names.TIMELINE_FILE
    lines = timeline.read_bytes().splitlines(keepends=True)
    # Session, then per turn: start, two texts, end.
    timeline.write_bytes(b"".join(lines[:7]) + lines[7][:20])
    turns = turns_of_recovered(folder).turns
    assert [turn.output.text for turn in turns] == ["0.0 0.1 ", "1.0 "]
    assert turns[1].timing.elapsed_ms is None
    meta = read_meta(folder)
    assert meta is not None
    before = read_meta(finished["hdx"])
    assert before is not None and meta.created_at == before.created_at
    assert meta.end_reason is EndReason.ERROR
    assert meta.problem is not None and meta.size_bytes is not None


def test_without_timeline_and_meta_the_files_are_still_found(finished: dict[str, Path]) -> None:
    for name, kind in (("dx", "omni_duplex"), ("hdx", "half_duplex_audio")):
        folder = as_if_killed(finished[name])
        (folder / names.TIMELINE_FILE).unlink()
        (folder / names.META_FILE).write_text("{")
        meta = recover_session(folder)
        assert (meta.app_type, meta.status, meta.session_id) == (kind, "ready", name)
        assert list(files_named_in(recording_of(folder)))


def test_a_complete_recording_is_not_replaced_by_a_worse_one(finished: dict[str, Path]) -> None:
    folder = as_if_killed(finished["dx"], keeps_results=True)
    (folder / names.META_FILE).unlink()
    cut(folder / names.TIMELINE_FILE, 0)
    recover_session(folder)
    assert recording_of(folder) == recording_of(finished["dx"])
    turns = as_if_killed(finished["hdx"], keeps_results=True)
    cut(turns / names.TIMELINE_FILE, 900)
    recover_session(turns)
    assert recording_of(turns) == recording_of(finished["hdx"])
    before, after = read_meta(finished["hdx"]), read_meta(turns)
    assert before is not None and after is not None
    assert after == before.model_copy(update={"size_bytes": after.size_bytes})


def test_an_end_lost_from_the_timeline_is_taken_from_meta_json(
    finished: dict[str, Path],
) -> None:
    folder = as_if_killed(finished["dx"], keeps_results=True)
    before = read_meta(folder)
    timeline = folder / names.TIMELINE_FILE
    *kept, last = timeline.read_bytes().splitlines(keepends=True)
    timeline.write_bytes(b"".join(kept) + last[:-5])
    after = recover_session(folder)
    assert before is not None and before.end_reason is not None
    assert (after.end_reason, after.ended_at) == (before.end_reason, before.ended_at)
    assert after.duration_s == before.duration_s


def test_an_empty_folder_becomes_a_failed_recording(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert recover_session(folder).status == "failed"
    assert not needs_recovery(folder)


def test_a_recording_deleted_during_its_recovery_stays_deleted(
    finished: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = as_if_killed(finished["dx"])
    # Called when the lock is removed and the timeline is read.
    monkeypatch.setattr("recording.recovery.read_recording", delete_recording)
    assert recover_all(folder.parents[1]) == []
    assert not list(folder.parent.iterdir())


def test_complete_replays_are_named_again(finished: dict[str, Path]) -> None:
    film = finished["dx"] / names.REPLAY_VIDEO_FILE
    assert is_whole_mp4(film)
    folder = as_if_killed(finished["dx"], keeps_results=True)
    (folder / names.RECORDING_FILE).unlink()
    recover_session(folder)
    recording = recording_of(folder)
    assert recording.merged_replay and recording.merged_replay_video
    cut(folder / names.REPLAY_VIDEO_FILE, film.stat().st_size - 1)
    (folder / names.RECORDING_FILE).unlink()
    recover_session(folder)
    assert recording_of(folder).merged_replay_video is None


def test_a_comment_being_written_is_not_removed(finished: dict[str, Path]) -> None:
    folder = as_if_killed(finished["dx"])
    (folder / ".comment.txt.x1.tmp").write_text("Good.")
    (folder / ".recording.json.x2.tmp").write_text("{")
    (folder / "user_audio/.000.wav.x3.tmp").write_bytes(b"RIFF")
    recover_session(folder)
    assert [path.name for path in folder.rglob("*.tmp")] == [".comment.txt.x1.tmp"]


# Locks


def test_a_recording_is_live_while_its_lock_is_held(tmp_path: Path) -> None:
    assert not is_live(tmp_path)
    lock = RecordingLock(tmp_path)
    assert is_live(tmp_path) and is_live(tmp_path), "two that look do not disturb each other"
    with pytest.raises(SessionInUseError):
        recover_session(tmp_path)
    lock.release()
    assert not is_live(tmp_path) and list(tmp_path.iterdir()) == []
    (tmp_path / names.LOCK_FILE).touch()
    assert not is_live(tmp_path), "a file alone, without its process, is no lock"


def test_a_lock_is_valid_across_process_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_process(pid: int, _: int) -> None:
        raise ProcessLookupError(pid)

    lock = RecordingLock(tmp_path)
    # Another container on the machine has another table of processes.
    monkeypatch.setattr(os, "kill", no_such_process)
    assert is_live(tmp_path)
    lock.release()


def test_all_recordings_of_a_killed_process_are_recovered(finished: dict[str, Path]) -> None:
    folder = as_if_killed(finished["dx"])
    root = folder.parent
    shutil.copytree(as_if_killed(finished["hdx"]), root / "hdx")
    shutil.copytree(finished["dx"], root / "done")
    shutil.copytree(as_if_killed(finished["dx"]), root / "live")
    (root / "live" / names.LOCK_FILE).unlink()
    lock = RecordingLock(root / "live")
    (root / "stray").mkdir()
    assert recover_all(root.parent) == ["dx", "hdx"]
    assert recover_all(root.parent) == []
    assert read_recording(root / "live") is None
    lock.release()


WRITER = """
import sys
import numpy as np
from core.schemas.duplex import Result
from recording.recorder import RecorderOptions, RecorderThreads
from session_recorder import DuplexSessionRecorder
options = RecorderOptions(RecorderThreads())
recorder = DuplexSessionRecorder("killed", "audio_duplex", "0", {}, sys.argv[1], options)
for index in range(100_000):
    recorder.record_input(index, np.full(1_600, 0.1, np.float32).tobytes())
    recorder.record_result(index, Result(is_listen=False, text=str(index)))
    print(index, flush=True)
    sys.stdin.readline()
"""


def test_a_process_that_is_killed_leaves_a_readable_recording(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        for _ in range(20):
            child.stdout.readline()
            child.stdin.write("\n")
            child.stdin.flush()
        folder = names.recording_folder(tmp_path, "killed")
        wait_until(lambda: timeline_bytes(folder).count(b"\n") > 2)  # some chunks are written
        assert is_live(folder)
        child.send_signal(signal.SIGKILL)
    assert not is_live(folder)
    assert recover_all(tmp_path) == ["killed"]
    recording = check_readable(folder)
    assert isinstance(recording, DuplexRecording) and recording.chunks
    for chunk in recording.chunks:
        assert chunk.result is None or chunk.result.text == str(chunk.index)
