"""Passes what happens in a session to its recorder; no handler knows of it.

The recording begins when the session is ready, and ends with it. Nothing here waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from core.errors import ErrorCode
from core.protocols.effects import Effect, Generate, Prefill, Send, Step
from core.protocols.events import (
    MS_PER_S,
    Disconnected,
    EngineFailed,
    Event,
    Received,
    Segment,
    ShuttingDown,
)
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.common import Message, Role, TokenStats
from core.schemas.queue import ErrorMessage, UserTranscript, WarningMessage
from session_recorder import (
    DuplexSessionRecorder,
    EndReason,
    SessionRecorder,
    TurnBasedSessionRecorder,
    TurnTiming,
)

RecorderT = TypeVar("RecorderT", bound=SessionRecorder)
# Any: a snapshot of settings as plain JSON values, whose names belong to the protocol.
Snapshot = Mapping[str, Any]
OpenRecorder = Callable[[Snapshot], RecorderT]
"""Begins a recording with the session's settings."""

ARRIVALS_MAX: Final = 64  # chunks whose arrival is remembered; far above what may wait
NOTED: Final = frozenset({"pause", "resume", "interrupt"})
"""Messages of a client that a duplex recording notes by their type."""


class RecordingObserver(ABC, Generic[RecorderT]):
    """What the observers of all protocols share: the beginning and the end."""

    def __init__(self, open_recorder: OpenRecorder[RecorderT]) -> None:
        self.recorder: RecorderT | None = None
        self._open = open_recorder
        self._end_reason = EndReason.STOPPED

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        match event:
            case Disconnected():
                self._end_reason = EndReason.DISCONNECT
            case EngineFailed():
                self._end_reason = EndReason.ERROR
            case ShuttingDown():
                self._end_reason = EndReason.STOPPED
        self._on_event(event)
        for effect in effects:
            if isinstance(effect, Send):
                self._note_end(effect)
            self._on_effect(effect)

    async def close(self) -> None:
        if self.recorder is not None:
            self.recorder.finalize(self._end_reason)

    @abstractmethod
    def _on_event(self, event: Event) -> None:
        """Record an event."""

    @abstractmethod
    def _on_effect(self, effect: Effect) -> None:
        """Record what it led to."""

    def _begin(self, snapshot: Snapshot) -> None:
        if self.recorder is None:
            self.recorder = self._open(snapshot)

    def _note_end(self, effect: Send) -> None:
        match effect.message:
            case half_duplex.Timeout() | duplex.Timeout():
                self._end_reason = EndReason.TIMEOUT
            case ErrorMessage(code=ErrorCode.CONTEXT_FULL):
                self._end_reason = EndReason.CONTEXT_FULL
            case ErrorMessage():
                self._end_reason = EndReason.ERROR
            case WarningMessage() if self.recorder is not None:
                self.recorder.record_event("warning")
            case UserTranscript(text=text) as said if text:
                self._record_words(said)

    def _record_words(self, said: UserTranscript) -> None:
        if self.recorder is not None:
            place = (said.start_ms, said.duration_ms, said.turn_index)
            self.recorder.record_words(said.type, said.text, *place)


class DuplexRecording(RecordingObserver[DuplexSessionRecorder]):
    """Records a duplex session: every unit's input and result."""

    def __init__(self, open_recorder: OpenRecorder[DuplexSessionRecorder]) -> None:
        super().__init__(open_recorder)
        self._prepare: duplex.Prepare | None = None
        self._arrivals_ms: dict[int, float] = {}  # by the message's identity, until its unit
        self._early = b""  # sound of the present unit that went ahead

    def _on_event(self, event: Event) -> None:
        recorder = self.recorder
        match event:
            case Received(duplex.Prepare() as message):
                self._prepare = self._prepare or message
            case Received(duplex.AudioChunk() as chunk) if recorder is not None:
                self._arrivals_ms[id(chunk)] = recorder.elapsed_ms()
                if len(self._arrivals_ms) > ARRIVALS_MAX:
                    self._arrivals_ms.pop(next(iter(self._arrivals_ms)))
                if chunk.force_listen:
                    recorder.record_event("force_listen")
                if chunk.force_speak:
                    recorder.record_event("force_speak")
            case Received(message) if recorder is not None and message.type in NOTED:
                recorder.record_event(message.type)

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, duplex.Prepared):
            assert self._prepare is not None
            self._begin(duplex_snapshot(self._prepare))
        recorder = self.recorder
        if recorder is None:
            return
        match effect:
            case Step(chunk, frames, index):
                arrived_ms = self._arrivals_ms.pop(id(chunk), None)
                pictures = [frame.data for frame in frames]
                recorder.record_input(index, chunk.audio, pictures, receive_ts_ms=arrived_ms)
            case Send(duplex.TextAdded(type=kind, text=text, start_ms=start_ms)):
                recorder.record_words(kind, text, start_ms)
            case Send(duplex.ResultPart() as part):
                self._early += part.audio_data
            case Send(duplex.Result() as result):
                whole, self._early = self._early + result.audio_data, b""
                recorder.record_result(result.step, result, whole)


TurnRecording = RecordingObserver[TurnBasedSessionRecorder]


class HalfDuplexRecording(TurnRecording):
    """Records a half-duplex session: what the user said and what was answered."""

    def __init__(self, open_recorder: OpenRecorder[TurnBasedSessionRecorder]) -> None:
        super().__init__(open_recorder)
        self._prepare: half_duplex.Prepare | None = None
        self._speech_ms = 0

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, half_duplex.Prepare):
            self._prepare = self._prepare or event.message

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, half_duplex.Prepared):
            assert self._prepare is not None
            self._begin(half_duplex_snapshot(self._prepare))
        recorder = self.recorder
        if recorder is None:
            return
        match effect:
            case Generate(Segment() as segment, turn_index):
                self._speech_ms = segment.duration_ms
                recorder.start_voice_turn(turn_index, segment.pcm)
            case Send(streaming.Chunk() as chunk):
                recorder.add_streaming_chunk(chunk.text_delta, chunk.audio_data)
            case Send(half_duplex.TurnDone() as done):
                timing = turn_timing(done.elapsed_ms, done.token_stats, self._speech_ms)
                recorder.end_turn(timing, interrupted=done.interrupted, text=done.text)


class StreamingRecording(TurnRecording):
    """Records the turns of a streaming socket, perhaps behind those of earlier sockets."""

    def __init__(
        self,
        open_recorder: OpenRecorder[TurnBasedSessionRecorder],
        suspend: Callable[[EndReason], None],
        next_turn: Callable[[], int],
    ) -> None:
        """Call `suspend` at the end, instead of ending the recording, with why the socket left."""
        super().__init__(open_recorder)
        self._suspend = suspend
        self._next_turn = next_turn
        self._asked_by: streaming.WorkerPrefill | None = None
        self._turn: int | None = None  # number of the one under way
        self._words: list[UserTranscript] = []  # of this turn

    async def close(self) -> None:
        """Make what was recorded readable; the next socket may continue it."""
        if self.recorder is not None:
            self._suspend(self._end_reason)

    def _on_event(self, event: Event) -> None:
        """Everything to be recorded shows in the effects."""

    def _on_effect(self, effect: Effect) -> None:
        match effect:
            case Prefill(streaming.WorkerPrefill() as message, is_first):
                self._asked_by = message
                if is_first:
                    self._words.clear()
            case Generate(streaming.Generate()) if self._asked_by is not None:
                self._begin_turn(self._asked_by)
            case Send(streaming.Chunk() as chunk) if self.recorder is not None:
                self.recorder.add_streaming_chunk(chunk.text_delta, chunk.audio_data)
            case Send(streaming.Done() as done) if self.recorder is not None:
                for said in self._words:
                    super()._record_words(said.model_copy(update={"turn_index": self._turn}))
                timing = turn_timing(done.elapsed_ms, done.token_stats)
                self.recorder.end_turn(timing, interrupted=done.stopped, text=done.text)

    def _record_words(self, said: UserTranscript) -> None:
        self._words.append(said)  # the turn may have no number yet

    def _begin_turn(self, message: streaming.WorkerPrefill) -> None:
        self._begin({"system_prompt": system_text(message.messages)})
        if self.recorder is not None:
            self._turn = self._next_turn()
            self.recorder.start_message_turn(self._turn, message.messages[-1])


class ChatRecording(TurnRecording):
    """Records a one-shot chat over a socket."""

    def __init__(self, open_recorder: OpenRecorder[TurnBasedSessionRecorder]) -> None:
        super().__init__(open_recorder)
        self._began_s = 0.0
        self._now_s = 0.0

    def _on_event(self, event: Event) -> None:
        self._now_s = event.at_s
        if isinstance(event, Received) and isinstance(event.message, chat.ChatSocketRequest):
            self._began_s = event.at_s

    def _on_effect(self, effect: Effect) -> None:
        match effect:
            case Generate(chat.ChatSocketRequest() as request):
                self._begin(chat_snapshot(request))
                if self.recorder is not None:
                    self.recorder.start_message_turn(0, request.messages[-1])
            case Send(chat.ChatChunk() as chunk) if self.recorder is not None:
                self.recorder.add_streaming_chunk(chunk.text_delta, chunk.audio_data)
            case Send(chat.ChatDone() as done) if self.recorder is not None:
                self.recorder.add_streaming_chunk(None, done.audio_data)
                stats = TokenStats(
                    input_tokens=done.input_tokens, generated_tokens=done.generated_tokens
                )
                timing = turn_timing((self._now_s - self._began_s) * MS_PER_S, stats)
                self.recorder.end_turn(timing, interrupted=done.stopped, text=done.text)


def turn_timing(elapsed_ms: float, stats: TokenStats, speech_ms: int | None = None) -> TurnTiming:
    return TurnTiming(
        elapsed_ms=elapsed_ms,
        tokens=stats.generated_tokens,
        input_tokens=stats.input_tokens,
        cached_tokens=stats.cached_tokens,
        total_tokens=stats.total_tokens,
        speech_input_ms=speech_ms,
    )


def duplex_snapshot(message: duplex.Prepare) -> Snapshot:
    """Return the settings of a duplex session; the recorder takes sound out of them."""
    return {
        "system_prompt": message.prefix_system_prompt,
        "ref_audio": {"ref_audio_base64": message.ref_audio_base64 or ""},
        "tts_ref_audio": {"ref_audio_base64": message.tts_ref_audio_base64 or ""},
        "deferred_finalize": message.deferred_finalize,
        **message.config.model_dump(mode="json"),
        "max_slice_nums": message.slice_limit,
    }


def half_duplex_snapshot(message: half_duplex.Prepare) -> Snapshot:
    config = message.config
    return {
        "system_prompt": message.system_prompt,
        "system_content_count": len(message.system_content or ()),
        "vad": config.vad.model_dump(mode="json"),
        "generation": config.generation.model_dump(mode="json"),
        "tts_enabled": config.tts.enabled,
        "timeout_s": config.session.timeout_s,
    }


def chat_snapshot(request: chat.ChatSocketRequest | chat.ChatRequest) -> Snapshot:
    return {
        "system_prompt": system_text(request.messages),
        "streaming": isinstance(request, chat.ChatSocketRequest) and request.streaming,
        "ref_audio": {"ref_audio_data": request.tts.ref_audio_data or ""},
    }


def system_text(messages: Sequence[Message]) -> str:
    """Return the text of the first system message."""
    for message in messages:
        if message.role is not Role.SYSTEM:
            continue
        if isinstance(message.content, str):
            return message.content
        return "\n".join(item.text for item in message.content if item.type == "text")
    return ""
