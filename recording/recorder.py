"""Recorders: the base class of the recorders of sessions, and the threads that write for them.

No call of a session waits for the disk, and no problem of the disk affects the session.
"""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from core.errors import OmniError, RecordingStoppedError
from core.files import append, atomic_write
from core.schemas.common import MS_PER_S
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, MIB, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.queue import RequestType
from recording import folder, media, names, records
from recording.media import Picture, Sound
from recording.recovery import mark_ready, write_checkpoint, write_results

logger: Final = logging.getLogger(__name__)

WRITER_THREADS: Final = 4  # source: docs/specification/service.md#5.6
BACKLOG_BYTES: Final = 256 * MIB  # some twenty minutes of one duplex session
RESERVE_BYTES: Final = 16 * MIB  # of the backlog, for the timeline, which must not be lost
MAX_FINALIZATIONS: Final = 256
MAX_REPLAYS: Final = 64
PROCESS_LIMIT_S: Final = 300.0  # above the child's own limit for the video
KEPT_MESSAGE_CHARS: Final = 2_000
PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]
NO_REPLAY: Final = frozenset({RequestType.CHAT, RequestType.STREAMING})
DISK_TEXT: Final = "The recording was stopped: the disk could not be written."
LOW_DISK_TEXT: Final = "The recording was stopped: the disk is nearly full."
BACKLOG_TEXT: Final = "The recording was stopped: the disk is too slow."


class ReplayProcess:
    """Runs `python -m recording.replay FOLDER`, one at a time, at low priority."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def make(self, folder: Path) -> None:
        """Make the replay of a recording; blocks until the child exits. Failures are logged."""
        with self._lock:
            if self._is_stopped:
                return
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "recording.replay", str(folder.resolve())],
                cwd=PROJECT_FOLDER,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        try:
            _, message = child.communicate(timeout=PROCESS_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            _, message = child.communicate()
        with self._lock:
            self._child = None
        if child.returncode != 0:
            tail = message[-KEPT_MESSAGE_CHARS:]
            logger.warning("no replay of %s (%d): %s", folder.name, child.returncode, tail)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.terminate()


class RecorderThreads:
    """The recorders' threads in a process: four write, one finalizes, one makes replays.

    Each recording has one of the writing threads, so its files are written in order. Finalizing
    takes longer, hence it has a thread of its own.

    Overflow: of the bytes that wait to be written, the last `reserve_bytes` are for vital jobs, and
    no job is taken beyond `backlog_bytes`; beyond `MAX_FINALIZATIONS` pending ones a recording is
    left for recovery; beyond `MAX_REPLAYS` pending ones a replay is not made.
    """

    def __init__(
        self,
        replays: ReplayProcess | None = None,
        *,
        backlog_bytes: int = BACKLOG_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self._replays = replays
        self._lock = threading.Lock()
        self._free_bytes, self._reserve_bytes = backlog_bytes, reserve_bytes
        self._writers = [ThreadPoolExecutor(1, "recording-write") for _ in range(WRITER_THREADS)]
        self._turns = itertools.cycle(self._writers)
        self._finalizer = ThreadPoolExecutor(1, "recording-finalize")
        self._merger = ThreadPoolExecutor(1, "recording-replay")
        self._finalizer_room = threading.BoundedSemaphore(MAX_FINALIZATIONS)
        self._merger_room = threading.BoundedSemaphore(MAX_REPLAYS)

    def next_writer(self) -> ThreadPoolExecutor:
        return next(self._turns)  # atomic

    def take(self, size_bytes: int, *, is_vital: bool) -> bool:
        """Reserve bytes of the backlog for a job; False if it is full."""
        with self._lock:
            is_taken = size_bytes <= self._free_bytes - (0 if is_vital else self._reserve_bytes)
            self._free_bytes -= size_bytes if is_taken else 0
        return is_taken

    def release(self, size_bytes: int) -> None:
        with self._lock:
            self._free_bytes += size_bytes

    def finalize(self, work: Callable[[], None]) -> Future[None] | None:
        """Finalize a recording whose files are written; None if too many wait."""
        return _submit_bounded(self._finalizer, self._finalizer_room, work)

    def replay(self, place: Path, min_free_gb: float) -> Future[None] | None:
        """Make a replay if the disk has room then; None if too many wait, or none are made."""
        replays = self._replays
        if replays is None:
            return None

        def make() -> None:
            try:
                folder.check_room(place, min_free_gb)
            except folder.LowDiskError as error:
                logger.warning("no replay of %s: %s", place.name, error)
            else:
                replays.make(place)

        return _submit_bounded(self._merger, self._merger_room, make)

    def close(self) -> None:
        """Write and finalize what is pending, then end the threads; blocks.

        Unfinished replays are cancelled; recordings are complete without them.
        """
        for executor in (*self._writers, self._finalizer):
            executor.shutdown()
        if self._replays is not None:
            self._replays.stop()
        self._merger.shutdown(cancel_futures=True)


def _submit_bounded(
    executor: ThreadPoolExecutor, room: threading.BoundedSemaphore, work: Callable[[], None]
) -> Future[None] | None:
    if not room.acquire(blocking=False):
        return None
    future = executor.submit(work)
    future.add_done_callback(lambda _: room.release())
    return future


@dataclass(frozen=True)
class RecorderOptions:
    threads: RecorderThreads
    # Called at most once, when the recording stops early, usually on a writing thread: use
    # `call_soon_threadsafe`.
    on_warning: Callable[[RecordingStoppedError], None] | None = None
    min_free_gb: float = 0.0  # the recording stops when less of the disk is free, GB; 0: never
    owner_secret: str | None = None  # entitles to comment, replace and delete
    monotonic_s: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = partial(datetime.now, UTC)


class SessionRecorder:
    """Records one session into `<data folder>/sessions/<session id>/`.

    All methods belong to the thread of the session's loop; none of them waits.

    Overflow: while the process's backlog is full, files are left out and counted in `meta.json`;
    when not even the timeline fits, or a write fails, the recording stops with one warning.
    """

    def __init__(
        self,
        session_id: str,
        app_type: RequestType | str,
        worker_id: str,
        config_snapshot: Mapping[str, Any] | None,
        data_dir: Path | str,
        options: RecorderOptions,
    ) -> None:
        """Begin; the threads write the folder, its lock and `meta.json`.

        The id comes from `generate_session_id` or `generate_recording_id`; its folder must not
        exist. Audio in the settings, plain JSON, is not stored.
        """
        self.session_id = session_id
        self.folder = names.recording_folder(data_dir, session_id)
        kind = RequestType(app_type)  # of its older name DUPLEX, which may have pictures
        self._app_type = RequestType.OMNI_DUPLEX if kind is RequestType.DUPLEX else kind
        self._options = options
        self._started_s = options.monotonic_s()
        self._problem: str | None = None  # why it is incomplete
        self._files_left_out = 0
        self._writer = options.threads.next_writer()
        self._stopped = threading.Lock()  # taken once, by what stops the recording
        self._lock: folder.RecordingLock | None = None  # once the folder exists
        self._ended: Future[records.Meta | None] | None = None
        started = options.now()
        opening = partial(self._open, worker_id, started, dict(config_snapshot or {}))
        self._submit(opening, 0, is_vital=True)

    @property
    def is_recording(self) -> bool:
        return self._ended is None and not self._stopped.locked()

    def elapsed_ms(self) -> float:
        return MS_PER_S * (self._options.monotonic_s() - self._started_s)

    def save_user_audio(
        self, index: int, sound: Sound, *, extra: int = 0, is_wav: bool = False
    ) -> str | None:
        """Write the user's audio of a chunk or turn, 16 kHz; `extra` numbers further pieces.

        `is_wav`: the sound is a WAV file that we made, of any rate. Returns the file's name within
        the folder; None if it is left out.
        """
        name = names.user_audio(index, extra)
        return self._save_sound(name, sound, INPUT_SAMPLE_RATE_HZ, is_wav=is_wav)

    def save_ai_audio_turn(self, turn: int, wav: Sound) -> str | None:
        """Write the model's audio of a whole turn, a WAV file."""
        return self._save_sound(names.turn_audio(turn), wav, OUTPUT_SAMPLE_RATE_HZ, is_wav=True)

    def save_user_frame(self, index: int, picture: Picture, *, extra: int = 0) -> str | None:
        """Write a camera picture of a chunk unchanged; None also if it is not a picture."""
        return self._save_picture(names.user_frame(index, extra), picture)

    def record_event(self, kind: str) -> None:
        """Record a pause, resume, interrupt, force_listen or warning."""
        event = records.TimelineEvent(ts_ms=self.elapsed_ms(), type=kind)
        self._add_line(records.EventLine(event=event))

    def record_words(
        self, kind: str, text: str, ts_ms: float, duration_ms: int = 0, turn: int | None = None
    ) -> None:
        """Record words of the user, at `ts_ms` of the sent audio.

        The kind is `user_transcript` for speech, `text_added` for typed text.
        """
        length_ms = duration_ms or None
        event = records.TimelineEvent(
            ts_ms=ts_ms, type=kind, text=text, duration_ms=length_ms, turn_index=turn
        )
        self._add_line(records.EventLine(event=event))

    def record_diagnostic(self, diagnostic: str) -> None:
        """Append JSON of the client's measurements to a file of their own."""
        line = diagnostic.encode() + b"\n"
        self._submit(partial(append, self.folder / names.DIAGNOSTICS_FILE, line), len(line))

    def checkpoint(self) -> None:
        """Write a preliminary `recording.json` while the session continues."""
        self._submit(partial(write_checkpoint, self.folder), 0)

    def note_end(self, end_reason: records.EndReason) -> records.EndLine:
        """Record a possible end of the session, valid unless another turn follows; return it."""
        line = self._ending(end_reason)
        self._add_line(line)
        return line

    def finalize(
        self, end: records.EndReason | str | records.EndLine = records.EndReason.STOPPED
    ) -> Future[records.Meta | None]:
        """End the recording; returns at once, idempotent.

        The future resolves to the final `meta.json` when that, `recording.json` and the replay are
        written; to None if the disk refused, so that `recover_session` has to finish it later.
        """
        if self._ended is None:
            self._before_end()
            self._ended = Future()
            line = end if isinstance(end, records.EndLine) else self._ending(records.EndReason(end))
            # Also of a stopped recording; after all its other jobs.
            if not self._queue(partial(self._hand_over, line), 0):
                self._ended.set_result(None)
        return self._ended

    def _before_end(self) -> None:
        """Hook for subclasses: write pending entries."""

    def _add_line(self, line: records.Line) -> None:
        encoded = records.encode_line(line)
        write = partial(append, self.folder / names.TIMELINE_FILE, encoded)
        if not self._submit(write, len(encoded), is_vital=True) and self._ended is None:
            self._stop(BACKLOG_TEXT)

    def _save_sound(
        self, name: str, sound: Sound, rate_hz: int, *, is_wav: bool = False
    ) -> str | None:
        def encode() -> bytes:
            body = media.encode_pcm16(sound, rate_hz, is_wav=is_wav)
            return folder.wav_header(rate_hz, 1, len(body)) + body

        return self._save_file(name, encode, len(sound))

    def _save_picture(self, stem: str, picture: Picture) -> str | None:
        suffix = media.picture_suffix(picture)
        return self._save_content(f"{stem}.{suffix}", picture) if suffix else None

    def _save_content(self, name: str, content: Picture) -> str | None:
        return self._save_file(name, partial(media.content_bytes, content), len(content))

    def _save_file(self, name: str, encode: Callable[[], bytes], size_bytes: int) -> str | None:
        def write() -> None:
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, encode())

        return self._save(name, write, size_bytes)

    def _save(self, name: str, write: Callable[[], None], size_bytes: int) -> str | None:
        if self._submit(write, size_bytes):
            return name
        self._files_left_out += self.is_recording
        return None

    def _submit(self, work: Callable[[], None], size_bytes: int, *, is_vital: bool = False) -> bool:
        """Queue a job, which may raise OSError or one of our errors; False if it was refused."""
        is_taken = self.is_recording and self._options.threads.take(size_bytes, is_vital=is_vital)
        return is_taken and self._queue(partial(self._attempt, work, size_bytes), size_bytes)

    def _queue(self, work: Callable[[], None], size_bytes: int) -> bool:
        def check(job: Future[None]) -> None:
            self._options.threads.release(size_bytes)
            if (error := job.exception()) is not None:
                logger.error("a part of the recording was not written", exc_info=error)

        try:
            self._writer.submit(work).add_done_callback(check)
        except RuntimeError:  # the threads are closed
            self._options.threads.release(size_bytes)
            self._stopped.acquire(blocking=False)
            return False
        return True

    def _attempt(self, work: Callable[[], None], size_bytes: int) -> None:
        """Work unless the recording was stopped, or a write would fill the disk."""
        try:
            if not self._stopped.locked():
                if size_bytes:
                    folder.check_room(self.folder, self._options.min_free_gb)
                work()
        except OSError as error:
            is_low = isinstance(error, folder.LowDiskError)
            if self._stop(LOW_DISK_TEXT if is_low else DISK_TEXT):
                logger.warning("recording %s stopped: %s", self.session_id, error)
        except OmniError as error:
            logger.info("omitted from the recording: %s", error)

    def _open(self, worker_id: str, started: datetime, settings: dict[str, Any]) -> None:
        """Create the folder, which must not exist; on a writing thread."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        folder.check_room(self.folder.parent, self._options.min_free_gb)
        self.folder.mkdir()
        self._lock = folder.RecordingLock(self.folder)
        if self._options.owner_secret is not None:
            folder.write_owner(self.folder, self._options.owner_secret)
        known: dict[str, Any] = {  # Any: the fields of a record
            "session_id": self.session_id,
            "app_type": self._app_type,
            "worker_id": worker_id,
            "config": media.without_media(settings),
        }
        line = records.SessionLine(start_ts=started, **known)
        append(self.folder / names.TIMELINE_FILE, records.encode_line(line))
        meta = records.Meta(created_at=started, title=records.title_of(started), **known)
        folder.write_meta(self.folder, meta)

    def _stop(self, problem: str) -> bool:
        """Drop what is not written yet, with one warning; any thread. False if stopped before."""
        is_first = self._stopped.acquire(blocking=False)
        if is_first:
            self._problem = problem
            if self._options.on_warning is not None:
                self._options.on_warning(RecordingStoppedError(problem))
        return is_first

    def _ending(self, reason: records.EndReason) -> records.EndLine:
        duration_s = self.elapsed_ms() / MS_PER_S
        ended_at = self._options.now()
        return records.EndLine(end_reason=reason, ended_at=ended_at, duration_s=duration_s)

    def _hand_over(self, line: records.EndLine) -> None:
        """Finalize the recording; on its writing thread, when all its files are written."""
        is_ours = self._lock is not None  # else the folder belongs to another recording
        ending = self._options.threads.finalize(partial(self._end, line)) if is_ours else None
        if ending is None:
            self._close(None)
        else:
            ending.add_done_callback(self._check_ending)

    def _end(self, line: records.EndLine) -> None:
        """Write the results, then have the replay made; on the finalizing thread."""
        known = {"problem": self._problem, "files_left_out": self._files_left_out or None}
        line = line.model_copy(update=known)
        # The newline protects this line from one torn by a full disk.
        append(self.folder / names.TIMELINE_FILE, b"\n" + records.encode_line(line))
        write_results(self.folder)
        threads, min_free_gb = self._options.threads, self._options.min_free_gb
        is_replayed = self._app_type not in NO_REPLAY
        replay = threads.replay(self.folder, min_free_gb) if is_replayed else None
        if replay is None:
            self._close(mark_ready(self.folder))
        else:
            replay.add_done_callback(self._complete)

    def _check_ending(self, ending: Future[None]) -> None:
        if (error := ending.exception()) is not None:
            logger.warning("recording %s is left for recovery", self.session_id, exc_info=error)
            self._close(None)

    def _complete(self, replay: Future[None]) -> None:
        if not replay.cancelled() and (error := replay.exception()):
            logger.error("recording %s has no replay", self.session_id, exc_info=error)
        try:
            meta = mark_ready(self.folder)
        except OSError as error:
            logger.warning("recording %s is left for recovery: %s", self.session_id, error)
            meta = None
        self._close(meta)

    def _close(self, meta: records.Meta | None) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        assert self._ended is not None
        self._ended.set_result(meta)
