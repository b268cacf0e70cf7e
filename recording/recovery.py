"""Finishes a recording on disk: after its session, or for a process that was killed.

Derives `recording.json` and `meta.json` from the timeline and the complete media files; files not
in the timeline are placed by their names. Needs only the folder; idempotent and crash-safe.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from core.errors import SessionInUseError
from core.files import UNFINISHED_SUFFIX, locked
from core.schemas.queue import RequestType
from recording import names
from recording.folder import (
    content_size_bytes,
    is_live,
    is_whole_mp4,
    is_whole_picture,
    newest_change_s,
    read_meta,
    read_recording,
    readable_wav,
    remove_lock,
    write_meta,
    write_recording,
)
from recording.names import TIMELINE_FILE
from recording.records import (
    DUPLEX_TYPES,
    Chunk,
    ChunkResult,
    DuplexRecording,
    EndLine,
    EndReason,
    Meta,
    Recording,
    Status,
    TextInput,
    Timeline,
    Turn,
    TurnInput,
    TurnOutput,
    TurnRecording,
    TurnTiming,
    VoiceInput,
    read_timeline,
    title_of,
)

logger: Final = logging.getLogger(__name__)

KILLED_TEXT: Final = "The program writing it ended before the session did."
# Ours: an older temporary file is no longer being written.
ABANDONED_AGE: Final = timedelta(days=1)
END_FIELDS: Final = frozenset({"end_reason", "ended_at", "duration_s", "problem", "files_left_out"})


def write_results(folder: Path) -> Meta:
    """Write `recording.json`, then `meta.json` with status finalizing; return the latter.

    No other writer may be active. After an OSError the earlier files remain.
    """
    timeline = read_timeline(folder / TIMELINE_FILE)
    before, written = read_meta(folder), read_recording(folder)
    meta = identify(folder, timeline, before, written)
    if written is not None:  # the timeline may have been damaged since
        timeline.complete_from(written)
    built = build_recording(folder, timeline, meta)
    if written is not None and built.merged_replay is not None:
        built = built.model_copy(update={"merged_replay_timing": written.merged_replay_timing})
    write_recording(folder, built)
    end: EndLine | Meta | None = timeline.end
    if end is None and before is not None and before.ended_at is not None:
        end = before  # the timeline has lost it
    end = end or _presumed_end(folder, meta.created_at)
    meta = meta.model_copy(update={name: value for name, value in end if name in END_FIELDS})
    write_meta(folder, meta)
    return meta


def write_checkpoint(folder: Path) -> None:
    """Write a preliminary `recording.json`; no other writer may be active."""
    timeline = read_timeline(folder / TIMELINE_FILE)
    meta = identify(folder, timeline, read_meta(folder), None)
    write_recording(folder, build_recording(folder, timeline, meta))


def mark_ready(folder: Path) -> Meta | None:
    """Set the final status and size: failed if a cut-off session has no content."""
    _remove_unfinished(folder)
    meta = read_meta(folder)
    if meta is not None:
        match read_recording(folder):
            case DuplexRecording(chunks=entries) | TurnRecording(turns=entries) if entries:
                is_lost = False
            case _:
                is_lost = meta.problem is not None
        known = {
            "status": Status.FAILED if is_lost else Status.READY,
            "size_bytes": content_size_bytes(folder),
        }
        meta = meta.model_copy(update=known)
        write_meta(folder, meta)
    return meta


def needs_recovery(folder: Path) -> bool:
    """Whether a folder holds an unfinished recording without a writer."""
    known = (TIMELINE_FILE, names.META_FILE, names.LOCK_FILE)
    if not any((folder / name).exists() for name in known):
        return False
    meta = read_meta(folder)
    is_complete = meta is not None and meta.is_over and (folder / names.RECORDING_FILE).exists()
    return not is_complete and not is_live(folder)


def recover_session(folder: Path) -> Meta:
    """Finish a recording whose process was killed at any moment.

    Repairs truncated audio, and rewrites `recording.json` and `meta.json`; a complete recording is
    unchanged. SessionInUseError while it is still being written.
    """
    if is_live(folder):
        raise SessionInUseError("This recording is still being written.")
    remove_lock(folder)
    meta = write_results(folder)
    return mark_ready(folder) or meta


def recover_all(data_dir: Path | str, now: datetime | None = None) -> list[str]:
    """Recover all recordings left unfinished by a killed process or a full disk; return their ids.

    Abandoned temporary files are removed from the others, too. Called by workers at start, by
    cleanups and by uploaders, under a lock. Failures are logged and skipped.
    """
    now = now or datetime.now(UTC)
    place = Path(data_dir) / names.SESSIONS_FOLDER
    recovered: list[str] = []
    if not place.is_dir():
        return recovered
    with locked(place):
        for folder in names.recording_folders(data_dir):
            if not needs_recovery(folder):
                remove_abandoned(folder, now)
                continue
            try:
                recover_session(folder)
            except (OSError, SessionInUseError) as error:
                logger.warning("recording %s could not be recovered: %s", folder.name, error)
            else:
                recovered.append(folder.name)
    return recovered


def _presumed_end(folder: Path, created: datetime) -> EndLine:
    """Take the time of the last write as the end of a killed session."""
    last_s = newest_change_s(folder)
    with suppress(OSError):
        last_s = (folder / TIMELINE_FILE).stat().st_mtime
    ended_at = max(created, datetime.fromtimestamp(last_s, UTC))
    duration_s = (ended_at - created).total_seconds()
    return EndLine(
        end_reason=EndReason.ERROR, ended_at=ended_at, duration_s=duration_s, problem=KILLED_TEXT
    )


def _remove_unfinished(folder: Path) -> None:
    """Remove temporary files of recorder and replay, but not of what a client is adding."""
    for path in folder.rglob(f".*{UNFINISHED_SUFFIX}"):
        if not path.name.startswith((f".{names.COMMENT_FILE}", f".{names.UPLOAD_STEM}")):
            with suppress(OSError):
                path.unlink()


def remove_abandoned(folder: Path, now: datetime) -> None:
    """Remove temporary files of clients' uploads and comments that a crash has cut off."""
    oldest_s = (now - ABANDONED_AGE).timestamp()
    for path in folder.glob(f".*{UNFINISHED_SUFFIX}"):
        with suppress(OSError):
            if path.lstat().st_mtime < oldest_s:
                path.unlink()


class MediaFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sound(self, name: str | None) -> tuple[str | None, int | None]:
        """Return a sound's name and duration, ms, after repairing a truncated file."""
        path = self._path(name)
        shape = readable_wav(path) if path is not None else None
        return (name, shape.duration_ms) if name and shape else (None, None)

    def whole(
        self, names: Iterable[str | None] | None, is_whole: Callable[[Path], object]
    ) -> tuple[str, ...] | None:
        found = ((name, self._path(name)) for name in names or ())
        return tuple(name for name, path in found if name and path and is_whole(path)) or None

    def numbered(self, subfolder: str, pattern: re.Pattern[str]) -> dict[int, str]:
        """Return the names in a subfolder by the last number in them."""
        try:
            found = sorted(os.listdir(self._folder / subfolder))
        except OSError:
            return {}
        matches = filter(None, map(pattern.fullmatch, found))
        return {int(match.groups()[-1]): f"{subfolder}/{match.string}" for match in matches}

    def _path(self, name: str | None) -> Path | None:
        if name is None or names.MEDIA_NAME.fullmatch(name) is None:
            return None
        path = self._folder / name
        return path if path.is_file() and not path.is_symlink() else None


def identify(
    folder: Path, timeline: Timeline, meta: Meta | None, recording: Recording | None
) -> Meta:
    """Build `meta.json` but for the end, of timeline, `meta.json`, `recording.json` or names."""
    if (line := timeline.session) is not None:
        known = line.app_type, line.worker_id, line.start_ts, line.config
    elif meta is not None:
        known = meta.app_type, meta.worker_id, meta.created_at, meta.config
    elif recording is not None:
        is_duplex = isinstance(recording, DuplexRecording)
        kind = _guess_type(folder, timeline) if is_duplex else RequestType(recording.mode)
        known = kind, recording.worker_id, recording.start_ts, recording.config
    else:
        changed_at = datetime.fromtimestamp(newest_change_s(folder), UTC)
        known = _guess_type(folder, timeline), "", changed_at, {}
    app_type, worker_id, created_at, config = known
    return Meta(
        session_id=folder.name,
        app_type=app_type,
        created_at=created_at,
        worker_id=worker_id,
        title=title_of(created_at),
        config=config,
        status=Status.FINALIZING,
    )


def build_recording(folder: Path, timeline: Timeline, meta: Meta) -> Recording:
    """Build `recording.json`; truncated WAV files in the folder are repaired."""
    media = MediaFiles(folder)
    replay = names.REPLAY_SOUND_FILE if readable_wav(folder / names.REPLAY_SOUND_FILE) else None
    video = names.REPLAY_VIDEO_FILE if is_whole_mp4(folder / names.REPLAY_VIDEO_FILE) else None
    subtitles = names.REPLAY_SUBTITLES_FILE
    has_subtitles = video is not None and (folder / subtitles).is_file()
    common = {
        "session_id": meta.session_id,
        "worker_id": meta.worker_id,
        "start_ts": meta.created_at,
        "config": meta.config,
        "events": tuple(timeline.events),
        "merged_replay": replay,
        "merged_replay_video": video,
        "merged_replay_subtitles": subtitles if has_subtitles else None,
    }
    if meta.app_type in DUPLEX_TYPES:
        return DuplexRecording.model_validate(common | {"chunks": _chunks(timeline, media)})
    turns = _turns(timeline, media, meta.app_type)
    return TurnRecording.model_validate(common | {"mode": meta.app_type, "turns": turns})


def _guess_type(folder: Path, timeline: Timeline) -> RequestType:
    media = MediaFiles(folder)
    if media.numbered(names.USER_FRAMES, names.USER_FRAME_NAME):
        return RequestType.OMNI_DUPLEX
    if timeline.chunks or media.numbered(names.AI_AUDIO, names.UNIT_AUDIO_NAME):
        return RequestType.AUDIO_DUPLEX
    is_text = any(isinstance(start.input, TextInput) for start in timeline.starts.values())
    return RequestType.STREAMING if is_text else RequestType.HALF_DUPLEX_AUDIO


def _chunks(timeline: Timeline, media: MediaFiles) -> tuple[Chunk, ...]:
    user_sounds = media.numbered(names.USER_AUDIO, names.USER_AUDIO_NAME)
    frames = media.numbered(names.USER_FRAMES, names.USER_FRAME_NAME)
    model_sounds = media.numbered(names.AI_AUDIO, names.UNIT_AUDIO_NAME)
    built = []
    for index in sorted({*timeline.chunks, *user_sounds, *frames, *model_sounds}):
        chunk = timeline.chunks.get(index, Chunk(index=index))
        result = chunk.result
        if result is None and (name := model_sounds.get(index)):
            turn = names.UNIT_AUDIO_NAME.search(name)
            result = ChunkResult(mode="SPEAK", ai_audio=name, turn=int(turn[1]) if turn else None)
        if result is not None:
            audio, duration_ms = media.sound(result.ai_audio)
            known = {"ai_audio": audio, "ai_audio_duration_ms": duration_ms}
            result = result.model_copy(update=known)
        audio, duration_ms = media.sound(chunk.user_audio or user_sounds.get(index))
        pictures = media.whole([chunk.user_frame or frames.get(index)], is_whole_picture)
        found = {
            "user_audio": audio,
            "user_audio_duration_ms": duration_ms,
            "user_frame": pictures[0] if pictures else None,
            "extra_frames": media.whole(chunk.extra_frames, is_whole_picture),
            "result": result,
        }
        built.append(chunk.model_copy(update=found))
    return tuple(built)


def _turns(timeline: Timeline, media: MediaFiles, app_type: RequestType) -> tuple[Turn, ...]:
    user_sounds = media.numbered(names.USER_AUDIO, names.USER_AUDIO_NAME)
    model_sounds = media.numbered(names.AI_AUDIO, names.TURN_AUDIO_NAME)
    transcripts = {event.turn_index: event.text for event in timeline.events if event.text}
    indices = {*timeline.starts, *timeline.texts, *timeline.ends, *user_sounds, *model_sounds}
    kind = VoiceInput if app_type is RequestType.HALF_DUPLEX_AUDIO else TextInput
    turns = []
    for index in sorted(indices):
        start, end = timeline.starts.get(index), timeline.ends.get(index)
        user_input: TurnInput | None = start.input if start else None
        if start is None and (name := media.sound(user_sounds.get(index))[0]):
            user_input = kind(audio=name)
        if user_input is not None:
            user_input = _checked(user_input, media)
            if index in transcripts:
                user_input = user_input.model_copy(update={"transcript": transcripts[index]})
        audio, duration_ms = media.sound(model_sounds.get(index))
        output = TurnOutput(text=timeline.reply(index), audio=audio, audio_duration_ms=duration_ms)
        turn = Turn(
            turn_index=index,
            request_ts_ms=start.request_ts_ms if start else None,
            input=user_input,
            output=output,
            timing=end.timing if end else TurnTiming(),
            interrupted=end.interrupted if end else None,
        )
        turns.append(turn)
    return tuple(turns)


def _checked(user_input: TurnInput, media: MediaFiles) -> TurnInput:
    """Return an input with those of its files that are complete."""
    audio, duration_ms = media.sound(user_input.audio)
    if isinstance(user_input, VoiceInput):
        duration_ms = user_input.duration_ms if duration_ms is None else duration_ms
        return user_input.model_copy(update={"audio": audio, "duration_ms": duration_ms})
    known = {
        "audio": audio,
        "more_audio": media.whole(user_input.more_audio, readable_wav),
        "images": media.whole(user_input.images, is_whole_picture),
        "videos": media.whole(user_input.videos, lambda path: path.stat().st_size),
    }
    return user_input.model_copy(update=known)
