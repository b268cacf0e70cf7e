"""Base of the recorders: folder, timeline, media files, and finalization.

Calls return at once; threads do the writing. Problems of the disk never affect the session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from core.errors import RecordingStoppedError
from core.files import append, atomic_write
from core.schemas.common import MS_PER_S
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.queue import RequestType
from recording import folder, jobs, media, names, records
from recording.media import Picture, Sound
from recording.recovery import mark_ready, write_checkpoint, write_results

logger: Final = logging.getLogger(__name__)

FLUSH_LIMIT_S: Final = 60.0  # how long an ending waits for a slow disk
NO_REPLAY: Final = frozenset({RequestType.CHAT, RequestType.STREAMING})
DISK_TEXT: Final = "The recording was stopped: the disk could not be written."
LOW_DISK_TEXT: Final = "The recording was stopped: the disk is nearly full."
BACKLOG_TEXT: Final = "The recording was stopped: the disk is too slow."


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
        options: jobs.RecorderOptions,
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
        self._started_s = options.clock.monotonic_s()
        self._problem: str | None = None  # why it is incomplete
        self._files_left_out = 0
        self._jobs = jobs.RecordingJobs(options.threads, self._on_disk_error)
        self._lock: folder.RecordingLock | None = None  # once the folder exists
        self._ended: Future[records.Meta | None] | None = None
        started = options.clock.now()
        opening = partial(self._open, worker_id, started, dict(config_snapshot or {}))
        self._jobs.submit(opening, 0, is_vital=True)

    @property
    def is_recording(self) -> bool:
        return self._ended is None and not self._jobs.is_stopped

    def elapsed_ms(self) -> float:
        return MS_PER_S * (self._options.clock.monotonic_s() - self._started_s)

    def save_user_audio(self, index: int, sound: Sound, *, extra: int = 0) -> str | None:
        """Write the user's audio of a chunk or turn, 16 kHz; `extra` numbers further pieces.

        Returns the file's name within the folder; None if it is left out.
        """
        return self._save_sound(names.user_audio(index, extra), sound, INPUT_SAMPLE_RATE_HZ)

    def save_ai_audio_turn(self, turn: int, sound: Sound) -> str | None:
        """Write the model's audio of a whole turn, 24 kHz."""
        return self._save_sound(names.turn_audio(turn), sound, OUTPUT_SAMPLE_RATE_HZ)

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

    def checkpoint(self) -> None:
        """Write a preliminary `recording.json` while the session continues."""
        self._jobs.submit(lambda: write_checkpoint(self.folder), 0)

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
            ending = self._options.threads.finalize(lambda: self._end(line))
            if ending is None:  # pending jobs are still written; recovery does the rest
                self._resolve(None)
            else:
                ending.add_done_callback(self._check_ending)
        return self._ended

    def _before_end(self) -> None:
        """Hook for subclasses: write pending entries."""

    def _add_line(self, line: records.Line) -> None:
        path = self.folder / names.TIMELINE_FILE
        encoded = records.encode_line(line)
        write = partial(self._in_room, partial(append, path, encoded))
        if not self._jobs.submit(write, len(encoded), is_vital=True):
            self._stop(BACKLOG_TEXT)

    def _save_sound(self, name: str, sound: Sound, rate_hz: int) -> str | None:
        def write() -> None:
            body = media.encode_pcm16(sound, rate_hz)
            atomic_write(self.folder / name, folder.wav_header(rate_hz, 1, len(body)) + body)

        return self._save(name, write, len(sound))

    def _save_picture(self, stem: str, picture: Picture) -> str | None:
        suffix = media.picture_suffix(picture)
        return self._save_content(f"{stem}.{suffix}", picture) if suffix else None

    def _save_content(self, name: str, content: Picture) -> str | None:
        def write() -> None:
            atomic_write(self.folder / name, media.content_bytes(content))

        return self._save(name, write, len(content))

    def _save(self, name: str, write: Callable[[], None], size_bytes: int) -> str | None:
        if self._jobs.submit(partial(self._in_room, write), size_bytes):
            return name
        self._files_left_out += not self._jobs.is_stopped
        return None

    def _in_room(self, write: Callable[[], None]) -> None:
        """Write unless the disk is nearly full; on a writing thread."""
        folder.check_room(self.folder.parent, self._options.min_free_gb)
        write()

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

    def _on_disk_error(self, error: OSError) -> None:
        is_low = isinstance(error, folder.LowDiskError)
        if self._stop(LOW_DISK_TEXT if is_low else DISK_TEXT):
            logger.warning("recording %s stopped: %s", self.session_id, error)

    def _stop(self, problem: str) -> bool:
        """Stop with one warning; on any thread. Returns False if it was stopped before."""
        is_first = self._jobs.stop()
        if is_first:
            self._problem = problem
            if self._options.on_warning is not None:
                self._options.on_warning(RecordingStoppedError(problem))
        return is_first

    def _ending(self, reason: records.EndReason) -> records.EndLine:
        duration_s = self.elapsed_ms() / MS_PER_S
        ended_at = self._options.clock.now()
        return records.EndLine(end_reason=reason, ended_at=ended_at, duration_s=duration_s)

    def _end(self, line: records.EndLine) -> None:
        """Write the results, then have the replay made; on the finalizing thread."""
        if not self._jobs.wait_idle(FLUSH_LIMIT_S):
            self._problem = self._problem or BACKLOG_TEXT
        self._jobs.stop()
        if self._lock is None:  # the folder belongs to another recording
            self._resolve(None)
            return
        known = {"problem": self._problem, "files_left_out": self._files_left_out or None}
        line = line.model_copy(update=known)
        # The newline protects this line from one torn by a full disk.
        append(self.folder / names.TIMELINE_FILE, b"\n" + records.encode_line(line))
        write_results(self.folder)
        is_replayed = self._app_type not in NO_REPLAY
        replay = self._options.threads.replay(self.folder) if is_replayed else None
        if replay is None:
            self._complete()
        else:
            replay.add_done_callback(self._complete)

    def _check_ending(self, ending: Future[None]) -> None:
        if (error := ending.exception()) is not None:
            logger.warning("recording %s is left for recovery", self.session_id, exc_info=error)
            self._close(None)

    def _complete(self, replay: Future[None] | None = None) -> None:
        if replay is not None and not replay.cancelled() and (error := replay.exception()):
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
        self._resolve(meta)

    def _resolve(self, meta: records.Meta | None) -> None:
        assert self._ended is not None
        self._ended.set_result(meta)
