"""Recorders of sessions: duplex by chunks, all others by turns.

Observers: their methods return at once; threads do the writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core.files import atomic_write
from core.schemas.common import AudioContent, ImageContent, Message, TextContent, VideoContent
from core.schemas.duplex import Result
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.queue import RequestType
from recording import media, names
from recording.folder import append_sound, wav_header
from recording.jobs import Backlog, Clock, RecorderOptions, RecorderThreads
from recording.media import Picture, Sound
from recording.names import generate_recording_id, generate_session_id
from recording.recorder import SessionRecorder
from recording.records import (
    Chunk,
    ChunkLine,
    ChunkResult,
    ChunkTiming,
    EndReason,
    TextInput,
    TextLine,
    TurnEndLine,
    TurnInput,
    TurnStartLine,
    TurnTiming,
    VoiceInput,
)

__all__ = [
    "Backlog",
    "Clock",
    "DuplexSessionRecorder",
    "EndReason",
    "RecorderOptions",
    "RecorderThreads",
    "SessionRecorder",
    "TextInput",
    "TurnBasedSessionRecorder",
    "TurnTiming",
    "VoiceInput",
    "generate_recording_id",
    "generate_session_id",
]

# Far above what a session lets wait; an input beyond it is written without its result.
MAX_OPEN_INPUTS: Final = 64


class DuplexSessionRecorder(SessionRecorder):
    """Records a duplex session: one entry per chunk of user input.

    Either `record_input` when a chunk's unit starts and `record_result` when it ends, or the
    `save_…` methods and `record_chunk` for both at once.
    """

    def __init__(
        self,
        session_id: str,
        app_type: RequestType | str,
        worker_id: str,
        config_snapshot: Mapping[str, Any] | None,
        data_dir: Path | str,
        options: RecorderOptions | None = None,
    ) -> None:
        """Begin; see `SessionRecorder`."""
        super().__init__(session_id, app_type, worker_id, config_snapshot, data_dir, options)
        self._inputs: dict[int, Chunk] = {}  # at most MAX_OPEN_INPUTS; the oldest goes first
        self._turn_index = 0
        self._is_speaking = False

    @property
    def turn_index(self) -> int:
        """Number of the speaking turn; incremented when a turn ends or is interrupted."""
        return self._turn_index

    def record_input(
        self,
        index: int,
        sound: Sound,
        frames: Sequence[Picture] = (),
        *,
        receive_ts_ms: float | None = None,
    ) -> None:
        """Record a chunk's audio, 16 kHz, and pictures; indices increase.

        `receive_ts_ms` is the time since the session's start, by default now.
        """
        at_ms = self.elapsed_ms() if receive_ts_ms is None else receive_ts_ms
        audio, pictures = self.save_user_audio(index, sound), list[str]()
        for frame in frames:
            name = self.save_user_frame(index, frame, extra=len(pictures))
            if name is not None:
                pictures.append(name)
        self._inputs[index] = Chunk(
            index=index,
            receive_ts_ms=at_ms,
            user_audio=audio,
            user_frame=pictures[0] if pictures else None,
            extra_frames=tuple(pictures[1:]) or None,
        )
        if len(self._inputs) > MAX_OPEN_INPUTS:
            self._write_unanswered(next(iter(self._inputs)))

    def record_result(self, index: int, result: Result, sound: Sound | None = None) -> None:
        """Record a chunk's result; earlier open chunks remain without one.

        `sound` is the unit's complete audio where part of it was sent ahead of the result.
        """
        for earlier in [number for number in self._inputs if number < index]:
            self._write_unanswered(earlier)
        chunk = self._inputs.pop(index, None)
        if chunk is None:
            chunk = Chunk(index=index, receive_ts_ms=self.elapsed_ms())
        self._begin_result(result)
        speech = None
        said = result.audio_data if sound is None else sound
        if not result.is_listen and len(said):
            speech = self.save_ai_audio(self.turn_index, index, said)
        self._write_answered(chunk, result, None, speech)

    def record_chunk(
        self,
        index: int,
        receive_ts_ms: float,
        result: Result | Mapping[str, Any],
        prefill_ms: float | None = None,
        user_audio_rel: str | None = None,
        user_frame_rel: str | None = None,
        ai_audio_rel: str | None = None,
        ai_audio_samples: int = 0,
    ) -> None:
        """Record a chunk and its result, whose files were passed to the `save_…` methods.

        The result may be given as a mapping, in which None means absent. File names are those
        returned by the `save_…` methods; `ai_audio_samples`, at 24 kHz, is preliminary until the
        file's own length is known.

        Raises:
            pydantic.ValidationError: The fields are not those of a result.
        """
        if isinstance(result, Mapping):
            given = {key: value for key, value in result.items() if value is not None}
            result = Result.model_validate(given)
        self._begin_result(result)
        chunk = Chunk(
            index=index,
            receive_ts_ms=receive_ts_ms,
            user_audio=user_audio_rel,
            user_frame=user_frame_rel,
        )
        duration_ms = round(1_000 * ai_audio_samples / OUTPUT_SAMPLE_RATE_HZ) or None
        self._write_answered(chunk, result, prefill_ms, ai_audio_rel, duration_ms)

    def _before_end(self) -> None:
        for index in list(self._inputs):
            self._write_unanswered(index)

    def _begin_result(self, result: Result) -> None:
        """End an interrupted turn before this result."""
        if result.barge_in and self._is_speaking:
            self._next_turn()

    def _next_turn(self) -> None:
        self._turn_index += 1
        self._is_speaking = False

    def _write_unanswered(self, index: int) -> None:
        self._add_line(ChunkLine(chunk=self._inputs.pop(index)))

    def _write_answered(
        self,
        chunk: Chunk,
        result: Result,
        prefill_ms: float | None,
        speech: str | None,
        duration_ms: int | None = None,
    ) -> None:
        costs = {name.removeprefix("cost_"): value for name, value in result}
        if prefill_ms is not None:
            costs["prefill_ms"] = prefill_ms
        said = ChunkResult(
            mode="LISTEN" if result.is_listen else "SPEAK",
            timing=ChunkTiming.model_validate(costs),
            barge_in=result.barge_in or None,
            ai_audio_duration_ms=duration_ms,
        )
        if not result.is_listen:
            spoken = {
                "text": result.text,
                "ai_audio": speech,
                "end_of_turn": result.end_of_turn or None,
                "turn": self.turn_index,
            }
            said = said.model_copy(update=spoken)
        self._add_line(ChunkLine(chunk=chunk.model_copy(update={"result": said})))
        if not result.is_listen:
            self._is_speaking = True
            if result.end_of_turn:
                self._next_turn()


@dataclass
class _Voice:
    """The growing audio file of a reply; used only by jobs `in_order`."""

    name: str
    size_bytes: int = 0


@dataclass
class _OpenTurn:
    index: int
    request_ts_ms: float
    voice: _Voice
    first_audio_ms: float | None = None


class TurnBasedSessionRecorder(SessionRecorder):
    """Records a chat, streaming or half-duplex session: one entry per turn.

    A turn is `start_turn` (or one of its two variants), any number of `add_streaming_chunk`, and
    `end_turn`. Streamed content is retained even without the end.
    """

    _open_turn: _OpenTurn | None = None
    _images = 0
    _videos = 0

    def next_image_index(self) -> int:
        """Return an unused number for `save_user_image`."""
        self._images += 1
        return self._images - 1

    def next_video_index(self) -> int:
        """Return an unused number for `save_user_video`."""
        self._videos += 1
        return self._videos - 1

    def start_turn(self, turn_index: int, request_ts_ms: float, input_summary: TurnInput) -> None:
        """Record the user's input, whose files were passed to the `save_…` methods.

        Turns are numbered from 0; `request_ts_ms` is the time of the request since the session's
        start.
        """
        self._open_turn = _OpenTurn(turn_index, request_ts_ms, _Voice(names.turn_audio(turn_index)))
        self._add_line(
            TurnStartLine(turn_index=turn_index, request_ts_ms=request_ts_ms, input=input_summary)
        )

    def start_voice_turn(
        self, turn_index: int, sound: Sound, *, request_ts_ms: float | None = None
    ) -> None:
        """Record the user's speech between two endpoints, 16 kHz; by default requested now."""
        at_ms = self.elapsed_ms() if request_ts_ms is None else request_ts_ms
        duration_ms = round(1_000 * media.count_samples(sound) / INPUT_SAMPLE_RATE_HZ)
        name = self.save_user_audio(turn_index, sound)
        self.start_turn(turn_index, at_ms, VoiceInput(duration_ms=duration_ms, audio=name))

    def start_message_turn(
        self, turn_index: int, message: Message, *, request_ts_ms: float | None = None
    ) -> None:
        """Record a user's message with its attachments; by default requested now."""
        at_ms = self.elapsed_ms() if request_ts_ms is None else request_ts_ms
        self.start_turn(turn_index, at_ms, self._save_message(turn_index, message))

    def add_streaming_chunk(self, text_delta: str | None, audio_base64: Sound | None) -> None:
        """Append text or audio (24 kHz) to the reply; ignored without an open turn."""
        turn = self._open_turn
        if turn is None:
            return
        if text_delta:
            self._add_line(TextLine(turn_index=turn.index, text=text_delta))
        if audio_base64 is not None and media.size_bytes(audio_base64):
            if turn.first_audio_ms is None:
                turn.first_audio_ms = max(0.0, self.elapsed_ms() - turn.request_ts_ms)
            self._add_speech(turn.voice, audio_base64)

    def end_turn(
        self,
        timing: TurnTiming | None = None,
        *,
        interrupted: bool = False,
        text: str | None = None,
    ) -> None:
        """Complete the turn; ignored without one. `text` replaces the streamed text."""
        turn, self._open_turn = self._open_turn, None
        if turn is None:
            return
        cost = timing or TurnTiming()
        if cost.first_audio_ms is None and turn.first_audio_ms is not None:
            cost = TurnTiming.model_validate(
                cost.model_dump() | {"first_audio_ms": turn.first_audio_ms}
            )
        line = TurnEndLine(
            turn_index=turn.index, timing=cost, interrupted=interrupted or None, text=text
        )
        self._add_line(line)

    def record_chat_turn(
        self,
        turn_index: int,
        request_ts_ms: float,
        input_summary: TurnInput,
        text: str,
        audio: Sound | None = None,
        timing: TurnTiming | None = None,
    ) -> None:
        """Record a turn with an unstreamed reply; `audio` may be the Base64 of a WAV file."""
        self.start_turn(turn_index, request_ts_ms, input_summary)
        if audio is not None and media.size_bytes(audio):
            self.save_ai_audio_turn(turn_index, audio)
        self.end_turn(timing, text=text)

    def _add_speech(self, voice: _Voice, sound: Sound) -> None:
        kept = media.keep(sound)
        path = self.folder / voice.name

        def write() -> None:
            body = media.encode_pcm16(kept, OUTPUT_SAMPLE_RATE_HZ)
            voice.size_bytes += len(body)
            header = wav_header(OUTPUT_SAMPLE_RATE_HZ, 1, voice.size_bytes)
            if voice.size_bytes == len(body):
                atomic_write(path, header + body)
            else:
                append_sound(path, header, body)

        self._save(voice.name, write, media.size_bytes(kept), in_order=True)

    def _save_message(self, turn_index: int, message: Message) -> TextInput:
        content = message.content
        items = [TextContent(text=content)] if isinstance(content, str) else content
        texts: list[str] = []
        images: list[str | None] = []
        sounds: list[str | None] = []
        videos: list[str | None] = []
        for item in items:
            match item:
                case TextContent():
                    texts.append(item.text)
                case ImageContent():
                    images.append(self.save_user_image(self.next_image_index(), item.data))
                case AudioContent():
                    sounds.append(self.save_user_audio(turn_index, item.data, extra=len(sounds)))
                case VideoContent():
                    videos.append(self.save_user_video(self.next_video_index(), item.data))
        audio = [name for name in sounds if name]
        return TextInput(
            text="\n".join(texts),
            images=tuple(name for name in images if name) or None,
            audio=audio[0] if audio else None,
            more_audio=tuple(audio[1:]) or None,
            videos=tuple(name for name in videos if name) or None,
        )
