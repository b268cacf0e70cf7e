"""Makes `recording.json` out of the timeline and the files that are whole.

The same steps serve a session that ended well and one whose process was killed; files no line
tells of are put where their names say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from core.schemas.queue import RequestType
from recording import names
from recording.folder import WavShape, is_whole_mp4, is_whole_picture, newest_change_s, readable_wav
from recording.records import (
    DUPLEX_TYPES,
    Chunk,
    ChunkResult,
    DuplexRecording,
    Meta,
    Recording,
    Settings,
    TextInput,
    Turn,
    TurnInput,
    TurnOutput,
    TurnRecording,
    VoiceInput,
)
from recording.timeline import Timeline


@dataclass(frozen=True)
class Identity:
    session_id: str
    app_type: RequestType
    worker_id: str
    start_ts: datetime
    config: Settings


class MediaFiles:
    """The media of one recording: which exist, which are whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sound = cache(self._look_at_sound)

    def sound(self, name: str | None) -> WavShape | None:
        """Return a sound file's shape, repaired if truncated; None if it is unusable."""
        return self._sound(name) if name is not None else None

    def picture(self, name: str | None) -> str | None:
        """Return the name of a picture that is whole, else None."""
        path = self._path(name)
        return name if path is not None and is_whole_picture(path) else None

    def video(self, name: str | None) -> str | None:
        """Return the name of a video that is not empty, else None."""
        path = self._path(name)
        return name if path is not None and path.stat().st_size > 0 else None

    def numbered(self, subfolder: str, pattern: re.Pattern[str]) -> dict[tuple[int, ...], str]:
        """Return the files whose names match, by the numbers in them."""
        try:
            found = sorted(os.listdir(self._folder / subfolder))
        except OSError:
            return {}
        matches = [match for name in found if (match := pattern.fullmatch(name))]
        return {
            tuple(int(number) for number in match.groups()): f"{subfolder}/{match.string}"
            for match in matches
        }

    def _look_at_sound(self, name: str) -> WavShape | None:
        path = self._path(name)
        return readable_wav(path) if path is not None else None

    def _path(self, name: str | None) -> Path | None:
        if name is None or names.MEDIA_NAME.fullmatch(name) is None:
            return None
        path = self._folder / name
        return path if path.is_file() and not path.is_symlink() else None


def identify(
    folder: Path, timeline: Timeline, meta: Meta | None, recording: Recording | None
) -> Identity:
    """Find out what session a folder holds.

    The timeline is preferred, then `meta.json`, then `recording.json`; the files' names come last.
    """
    if timeline.session is not None:
        line = timeline.session
        return Identity(
            folder.name, line.app_type, line.worker_id, line.start_ts, dict(timeline.config)
        )
    if meta is not None:
        config = meta.config | timeline.config
        return Identity(folder.name, meta.app_type, meta.worker_id, meta.created_at, config)
    if recording is not None:
        if isinstance(recording, TurnRecording):
            app_type: RequestType = recording.mode
        else:
            app_type = _guess_type(folder, timeline)
        return Identity(
            folder.name, app_type, recording.worker_id, recording.start_ts, recording.config
        )
    started = datetime.fromtimestamp(newest_change_s(folder), UTC)
    return Identity(folder.name, _guess_type(folder, timeline), "", started, dict(timeline.config))


def build_recording(folder: Path, timeline: Timeline, identity: Identity) -> Recording:
    """Build `recording.json`; truncated WAV files in the folder are repaired."""
    media = MediaFiles(folder)
    replay = names.REPLAY_SOUND_FILE if readable_wav(folder / names.REPLAY_SOUND_FILE) else None
    video = names.REPLAY_VIDEO_FILE if is_whole_mp4(folder / names.REPLAY_VIDEO_FILE) else None
    subtitles = names.REPLAY_SUBTITLES_FILE
    has_subtitles = video is not None and (folder / subtitles).is_file()
    common = {
        "session_id": identity.session_id,
        "worker_id": identity.worker_id,
        "start_ts": identity.start_ts,
        "config": identity.config,
        "events": tuple(timeline.events),
        "merged_replay": replay,
        "merged_replay_video": video,
        "merged_replay_subtitles": subtitles if has_subtitles else None,
    }
    if identity.app_type in DUPLEX_TYPES:
        return DuplexRecording.model_validate(common | {"chunks": _chunks(timeline, media)})
    turns = _turns(timeline, media, identity.app_type)
    return TurnRecording.model_validate(common | {"mode": identity.app_type, "turns": turns})


def length(recording: Recording | None) -> int:
    match recording:
        case DuplexRecording():
            return len(recording.chunks)
        case TurnRecording():
            return len(recording.turns)
        case None:
            return 0


def _guess_type(folder: Path, timeline: Timeline) -> RequestType:
    media = MediaFiles(folder)
    if timeline.chunks or media.numbered(names.AI_AUDIO, names.UNIT_AUDIO_NAME):
        frames = media.numbered(names.USER_FRAMES, names.USER_FRAME_NAME)
        return RequestType.OMNI_DUPLEX if frames else RequestType.AUDIO_DUPLEX
    if media.numbered(names.USER_FRAMES, names.USER_FRAME_NAME):
        return RequestType.OMNI_DUPLEX
    is_text = any(isinstance(start.input, TextInput) for start in timeline.starts.values())
    return RequestType.STREAMING if is_text else RequestType.HALF_DUPLEX_AUDIO


def _chunks(timeline: Timeline, media: MediaFiles) -> tuple[Chunk, ...]:
    heard = media.numbered(names.USER_AUDIO, names.USER_AUDIO_NAME)
    seen = media.numbered(names.USER_FRAMES, names.USER_FRAME_NAME)
    spoken = media.numbered(names.AI_AUDIO, names.UNIT_AUDIO_NAME)
    spoken_at = {index: (turn, name) for (turn, index), name in spoken.items()}
    indices = {*timeline.chunks, *(index for (index,) in (*heard, *seen)), *spoken_at}
    built = []
    for index in sorted(indices):
        chunk = timeline.chunks.get(index, Chunk(index=index))
        result = chunk.result
        if index in spoken_at and result is None:
            turn, name = spoken_at[index]
            result = ChunkResult(mode="SPEAK", ai_audio=name, turn=turn)
        user_audio = chunk.user_audio or heard.get((index,))
        sound = media.sound(user_audio)
        known = {
            "user_audio": user_audio if sound else None,
            "user_audio_duration_ms": sound.duration_ms if sound else None,
            "user_frame": media.picture(chunk.user_frame or seen.get((index,))),
            "extra_frames": _whole(chunk.extra_frames, media),
            "result": _with_sound(result, media) if result else None,
        }
        built.append(chunk.model_copy(update=known))
    return tuple(built)


def _with_sound(result: ChunkResult, media: MediaFiles) -> ChunkResult:
    sound = media.sound(result.ai_audio)
    known = {
        "ai_audio": result.ai_audio if sound else None,
        "ai_audio_duration_ms": sound.duration_ms if sound else None,
    }
    return result.model_copy(update=known)


def _whole(pictures: Iterable[str] | None, media: MediaFiles) -> tuple[str, ...] | None:
    kept = tuple(name for name in pictures or () if media.picture(name))
    return kept or None


def _turns(timeline: Timeline, media: MediaFiles, app_type: RequestType) -> tuple[Turn, ...]:
    heard = media.numbered(names.USER_AUDIO, names.USER_AUDIO_NAME)
    spoken = media.numbered(names.AI_AUDIO, names.TURN_AUDIO_NAME)
    on_disk = {index for (index,) in (*heard, *spoken)}
    words = {event.turn_index: event.text for event in timeline.events if event.text}
    turns = []
    for index in sorted({*timeline.starts, *timeline.texts, *timeline.ends, *on_disk}):
        start, end = timeline.starts.get(index), timeline.ends.get(index)
        if start is not None:
            said: TurnInput | None = _checked(start.input, media)
        else:
            said = _found(heard.get((index,)), media, app_type)
        if said is not None and index in words:
            said = said.model_copy(update={"transcript": words[index]})
        answer_name = spoken.get((index,))
        answer = media.sound(answer_name)
        output = TurnOutput(
            text=timeline.reply(index),
            audio=answer_name if answer else None,
            audio_duration_ms=answer.duration_ms if answer else None,
        )
        turn = Turn(
            turn_index=index,
            request_ts_ms=start.request_ts_ms if start else None,
            input=said,
            output=output,
        )
        if end is not None:
            known = {"timing": end.timing, "interrupted": end.interrupted}
            turn = turn.model_copy(update=known)
        turns.append(turn)
    return tuple(turns)


def _checked(said: TurnInput, media: MediaFiles) -> TurnInput:
    """Remove from a turn's input the files that are unusable."""
    sound = media.sound(said.audio)
    audio = said.audio if sound else None
    if isinstance(said, VoiceInput):
        duration_ms = sound.duration_ms if sound else said.duration_ms
        return said.model_copy(update={"audio": audio, "duration_ms": duration_ms})
    more = tuple(name for name in said.more_audio or () if media.sound(name))
    videos = tuple(name for name in said.videos or () if media.video(name))
    known = {
        "audio": audio,
        "more_audio": more or None,
        "images": _whole(said.images, media),
        "videos": videos or None,
    }
    return said.model_copy(update=known)


def _found(name: str | None, media: MediaFiles, app_type: RequestType) -> TurnInput | None:
    """Make a turn's input of a sound file that no line names."""
    sound = media.sound(name)
    if sound is None:
        return None
    if app_type is RequestType.HALF_DUPLEX_AUDIO:
        return VoiceInput(duration_ms=sound.duration_ms, audio=name)
    return TextInput(audio=name)
