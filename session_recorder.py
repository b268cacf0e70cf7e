"""Recorders of sessions: duplex by chunks, all others by turns.

Observers: their methods return at once; threads do the writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Final

from core.protocols.events import MS_PER_S
from core.schemas.common import AudioContent, ImageContent, Message, TextContent, VideoContent
from core.schemas.duplex import Result
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from recording import media, names, records
from recording.folder import append_sound
from recording.media import Picture, Sound
from recording.recorder import SessionRecorder

# Far above what a session lets wait; an input beyond it is written without its result.
MAX_OPEN_INPUTS: Final = 64


class DuplexSessionRecorder(SessionRecorder):
    """Records a duplex session, one entry per chunk: `record_input`, later `record_result`."""

    turn_index = 0
    """Number of the speaking turn; incremented when a turn ends or is interrupted."""

    _is_speaking = False

    @cached_property
    def _inputs(self) -> dict[int, records.Chunk]:
        """Open inputs, at most MAX_OPEN_INPUTS; the oldest goes first."""
        return {}

    def record_input(
        self,
        index: int,
        sound: Sound,
        frames: Sequence[Picture] = (),
        *,
        receive_ts_ms: float | None = None,
        sent_ts_ms: float | None = None,
    ) -> None:
        """Record a chunk's audio, 16 kHz, and pictures; indices increase.

        `receive_ts_ms` is the time since the session's start, by default now; `sent_ts_ms` is the
        chunk's position in the sent audio, of which chunks may be missing.
        """
        at_ms = self.elapsed_ms() if receive_ts_ms is None else receive_ts_ms
        audio, pictures = self.save_user_audio(index, sound), list[str]()
        for frame in frames:
            name = self.save_user_frame(index, frame, extra=len(pictures))
            if name is not None:
                pictures.append(name)
        self._inputs[index] = records.Chunk(
            index=index,
            receive_ts_ms=at_ms,
            sent_ts_ms=sent_ts_ms,
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
            chunk = records.Chunk(index=index, receive_ts_ms=self.elapsed_ms())
        if result.barge_in and self._is_speaking:
            self._begin_next_turn()
        costs = {name.removeprefix("cost_"): value for name, value in result}
        answer = records.ChunkResult(
            mode="LISTEN" if result.is_listen else "SPEAK",
            timing=records.ChunkTiming.model_validate(costs),
            barge_in=result.barge_in or None,
        )
        if not result.is_listen:
            said = result.audio_data if sound is None else sound
            name = names.unit_audio(self.turn_index, index)
            spoken = {
                "text": result.text,
                "ai_audio": self._save_sound(name, said, OUTPUT_SAMPLE_RATE_HZ) if said else None,
                "end_of_turn": result.end_of_turn or None,
                "turn": self.turn_index,
            }
            answer = answer.model_copy(update=spoken)
            self._is_speaking = True
        self._add_line(records.ChunkLine(chunk=chunk.model_copy(update={"result": answer})))
        if result.end_of_turn and not result.is_listen:
            self._begin_next_turn()

    def _before_end(self) -> None:
        for index in list(self._inputs):
            self._write_unanswered(index)

    def _begin_next_turn(self) -> None:
        self.turn_index += 1
        self._is_speaking = False

    def _write_unanswered(self, index: int) -> None:
        self._add_line(records.ChunkLine(chunk=self._inputs.pop(index)))


@dataclass
class _OpenTurn:
    index: int
    request_ts_ms: float
    first_audio_ms: float | None = None


class TurnBasedSessionRecorder(SessionRecorder):
    """Records a chat, streaming or half-duplex session: one entry per turn.

    A turn is `start_turn` (or one of its two variants), any number of `add_streaming_chunk`, and
    `end_turn`. Streamed content is retained even without the end.
    """

    _open_turn: _OpenTurn | None = None
    _images = 0
    _videos = 0

    def start_turn(
        self, turn_index: int, request_ts_ms: float, input_summary: records.TurnInput
    ) -> None:
        """Record the user's input, whose files were passed to the `save_…` methods.

        Turns are numbered from 0; `request_ts_ms` is the time of the request since the session's
        start.
        """
        self._open_turn = _OpenTurn(turn_index, request_ts_ms)
        self._add_line(
            records.TurnStartLine(
                turn_index=turn_index, request_ts_ms=request_ts_ms, input=input_summary
            )
        )

    def start_voice_turn(self, turn_index: int, sound: Sound) -> None:
        """Record the user's speech between two endpoints, 16 kHz; it was requested now."""
        duration_ms = round(MS_PER_S * media.count_samples(sound) / INPUT_SAMPLE_RATE_HZ)
        name = self.save_user_audio(turn_index, sound)
        voice = records.VoiceInput(duration_ms=duration_ms, audio=name)
        self.start_turn(turn_index, self.elapsed_ms(), voice)

    def start_message_turn(self, turn_index: int, *messages: Message) -> None:
        """Record a user's messages with their attachments; they were requested now."""
        self.start_turn(turn_index, self.elapsed_ms(), self._save_messages(turn_index, messages))

    def add_streaming_chunk(self, text_delta: str | None, sound: Sound | None) -> None:
        """Append text or audio (24 kHz) to the reply; ignored without an open turn."""
        turn = self._open_turn
        if turn is None:
            return
        if text_delta:
            self._add_line(records.TextLine(turn_index=turn.index, text=text_delta))
        if sound:
            if turn.first_audio_ms is None:
                turn.first_audio_ms = max(0.0, self.elapsed_ms() - turn.request_ts_ms)
            name = names.turn_audio(turn.index)
            self._save(name, partial(self._append_speech, name, sound), len(sound))

    def end_turn(
        self,
        timing: records.TurnTiming | None = None,
        *,
        interrupted: bool = False,
        text: str | None = None,
    ) -> None:
        """Complete the turn; ignored without one. `text` replaces the streamed text."""
        turn, self._open_turn = self._open_turn, None
        if turn is None:
            return
        known = {"first_audio_ms": turn.first_audio_ms}
        known |= (timing or records.TurnTiming()).model_dump(exclude_none=True)
        line = records.TurnEndLine(
            turn_index=turn.index,
            timing=records.TurnTiming.model_validate(known),
            interrupted=interrupted or None,
            text=text,
        )
        self._add_line(line)

    def _append_speech(self, name: str, sound: Sound) -> None:
        body = media.encode_pcm16(sound, OUTPUT_SAMPLE_RATE_HZ)
        append_sound(self.folder / name, OUTPUT_SAMPLE_RATE_HZ, body)

    def _save_messages(self, turn_index: int, messages: Iterable[Message]) -> records.TextInput:
        contents = (message.content for message in messages)
        items = chain.from_iterable(
            [TextContent(text=content)] if isinstance(content, str) else content
            for content in contents
        )
        texts: list[str] = []
        images: list[str | None] = []
        sounds: list[str | None] = []
        videos: list[str | None] = []
        for item in items:
            match item:
                case TextContent():
                    texts.append(item.text)
                case ImageContent():
                    stem = f"{names.USER_IMAGES}/img_{self._images}"
                    images.append(self._save_picture(stem, item.data))
                    self._images += 1
                case AudioContent():
                    sounds.append(self.save_user_audio(turn_index, item.data, extra=len(sounds)))
                case VideoContent():
                    name = f"{names.USER_VIDEOS}/vid_{self._videos}.mp4"
                    videos.append(self._save_content(name, item.data))
                    self._videos += 1
        audio = [name for name in sounds if name]
        return records.TextInput(
            text="\n".join(texts),
            images=tuple(filter(None, images)) or None,
            audio=audio[0] if audio else None,
            more_audio=tuple(audio[1:]) or None,
            videos=tuple(filter(None, videos)) or None,
        )
