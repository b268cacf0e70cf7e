"""Observers that pass a session's events and effects to its recorder; no handler depends on them.

A recording begins once the session is prepared, or with its first turn, and ends with the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from core.errors import ErrorCode
from core.protocols import effects, events
from core.protocols.events import MS_PER_S
from core.protocols.openai_events import Json, ServerEvent
from core.protocols.realtime import RealtimeMachine
from core.protocols.realtime_session import TurnRequest
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.common import Message, Role, TokenStats
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.queue import ErrorMessage, UserTranscript, WarningMessage
from core.serving.openai_clients import wav_of
from core.serving.recordings import OpenRecording, Recordings, Snapshot
from core.serving.slots import Owner
from recording.recorder import SessionRecorder
from recording.records import EndReason, TurnTiming, VoiceInput
from session_recorder import DuplexSessionRecorder, TurnBasedSessionRecorder

RecorderT = TypeVar("RecorderT", bound=SessionRecorder)
OpenRecorder = Callable[[Snapshot], RecorderT]
"""Begins a recording with the session's settings."""

ENDED_BY_MODEL: Final = frozenset({"completed", "incomplete"})  # statuses of responses by units
ARRIVALS_MAX: Final = 64  # chunks whose arrival is remembered; far above what may wait
LATE_MAX: Final = 64  # ours: items whose transcripts may still come
RECORDED_TYPES: Final = frozenset({"pause", "resume", "interrupt"})
"""Client messages that a duplex recording notes by their type."""

END_REASONS: Final = {
    ErrorCode.CONTEXT_FULL: EndReason.CONTEXT_FULL,
    ErrorCode.TIMEOUT: EndReason.TIMEOUT,
    ErrorCode.SHUTTING_DOWN: EndReason.STOPPED,
}
"""Reasons of sessions that end with an `error` and without a failure."""


@dataclass(eq=False)
class RecordingObserver(Generic[RecorderT]):
    """Base of the recording observers: the recording's beginning, end reason and transcripts."""

    open_recorder: OpenRecorder[RecorderT]
    recorder: RecorderT | None = field(default=None, init=False)
    _prepare: duplex.Prepare | half_duplex.Prepare | None = field(default=None, init=False)
    _end_reason = EndReason.STOPPED

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        match event:
            case events.Received(duplex.Prepare() | half_duplex.Prepare() as message):
                self._prepare = self._prepare or message
            case events.Disconnected():
                self._end_reason = EndReason.DISCONNECT
            case events.EngineFailed():
                self._end_reason = EndReason.ERROR
        self._on_event(event)
        for effect in made:
            match effect:
                case effects.Send(duplex.Prepared() | half_duplex.Prepared()):
                    assert self._prepare is not None
                    self._begin(snapshot_of(self._prepare))
                case effects.Send(half_duplex.Timeout() | duplex.Timeout()):
                    self._end_reason = EndReason.TIMEOUT
                case effects.Send(ErrorMessage(code=code)):
                    self._end_reason = END_REASONS.get(code, EndReason.ERROR)
                case effects.Send(WarningMessage()) if self.recorder is not None:
                    self.recorder.record_event("warning")
                case effects.Send(UserTranscript(text=text) as transcript) if text:
                    self._record_transcript(transcript)
            self._on_effect(effect)

    async def close(self) -> None:
        if self.recorder is not None:
            self.recorder.finalize(self._end_reason)

    def _on_event(self, event: events.Event) -> None:
        """Record an event."""

    def _on_effect(self, effect: effects.Effect) -> None:
        """Record an effect of the last event."""

    def _begin(self, snapshot: Snapshot) -> RecorderT:
        self.recorder = self.recorder or self.open_recorder(snapshot)
        return self.recorder

    def _record_transcript(self, transcript: UserTranscript) -> None:
        if self.recorder is not None:
            place = (transcript.start_ms, transcript.duration_ms, transcript.turn_index)
            self.recorder.record_words(transcript.type, transcript.text, *place)


@dataclass(eq=False)
class DuplexRecording(RecordingObserver[DuplexSessionRecorder]):
    # By the message's identity, until its unit.
    _arrivals_ms: dict[int, float] = field(default_factory=dict, init=False)
    _early = b""  # audio of the present unit that was sent ahead of its result
    _step = 0  # number of that unit

    async def close(self) -> None:
        if self._early and self.recorder is not None:  # the unit was cancelled, but was heard
            result = duplex.Result(is_listen=False, step=self._step)
            self.recorder.record_result(self._step, result, self._early)
        await super().close()

    def _on_event(self, event: events.Event) -> None:
        if (recorder := self.recorder) is None:
            return
        match event:
            case events.Received(duplex.AudioChunk() as chunk):
                self._arrivals_ms[id(chunk)] = recorder.elapsed_ms()
                if len(self._arrivals_ms) > ARRIVALS_MAX:
                    self._arrivals_ms.pop(next(iter(self._arrivals_ms)))
                if chunk.force_listen:
                    recorder.record_event("force_listen")
                if chunk.force_speak:
                    recorder.record_event("force_speak")
            case events.Received(duplex.ClientDiagnostic() as diagnostic):
                recorder.record_diagnostic(diagnostic.to_json())
            case events.Received(message) if message.type in RECORDED_TYPES:
                recorder.record_event(message.type)

    def _on_effect(self, effect: effects.Effect) -> None:
        if (recorder := self.recorder) is None:
            return
        match effect:
            case effects.Step(chunk, frames, index) as step:
                arrived_ms = self._arrivals_ms.pop(id(chunk), None)
                pictures = [frame.data for frame in frames]
                sent_ms = MS_PER_S * step.start_samples / INPUT_SAMPLE_RATE_HZ
                recorder.record_input(
                    index, chunk.audio, pictures, receive_ts_ms=arrived_ms, sent_ts_ms=sent_ms
                )
            case effects.Send(duplex.TextAdded(type=kind, text=text, start_ms=start_ms)):
                recorder.record_words(kind, text, start_ms)
            case effects.Send(duplex.ResultPart() as part):
                self._early, self._step = self._early + part.audio_data, part.step
            case effects.Send(duplex.Result() as result):
                whole, self._early = self._early + result.audio_data, b""
                recorder.record_result(result.step, result, whole)


class TurnRecording(RecordingObserver[TurnBasedSessionRecorder]):
    """Records a conversation by turns: half duplex, or a one-shot chat over a socket."""

    _speech_ms: int | None = None
    _began_s = _now_s = 0.0  # when the request came, and now

    def _on_event(self, event: events.Event) -> None:
        self._now_s = event.at_s
        if isinstance(event, events.Received) and isinstance(event.message, chat.ChatSocketRequest):
            self._began_s = event.at_s

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Generate(chat.ChatSocketRequest() as request):
                self._begin(chat_snapshot(request)).start_message_turn(0, request.messages[-1])
        if (recorder := self.recorder) is None:
            return
        match effect:
            case effects.Generate(events.Segment() as segment, turn_index):
                self._speech_ms = segment.duration_ms
                recorder.start_voice_turn(turn_index, segment.pcm)
            case effects.Send(streaming.Chunk() | chat.ChatChunk() as chunk):
                recorder.add_streaming_chunk(chunk.text_delta, chunk.audio_data)
            case effects.Send(half_duplex.TurnDone() as done):
                timing = turn_timing(done.elapsed_ms, done.token_stats, self._speech_ms)
                recorder.end_turn(timing, interrupted=done.interrupted, text=done.text)
            case effects.Send(chat.ChatDone() as done):
                recorder.add_streaming_chunk(None, done.audio_data)
                stats = TokenStats(
                    input_tokens=done.input_tokens, generated_tokens=done.generated_tokens
                )
                timing = turn_timing(self._elapsed_ms, stats)
                recorder.end_turn(timing, interrupted=done.stopped, text=done.text)

    @property
    def _elapsed_ms(self) -> float:
        return (self._now_s - self._began_s) * MS_PER_S


@dataclass(eq=False)
class StreamingRecording(TurnRecording):
    """Records the turns of a streaming socket, which may follow those of earlier sockets."""

    recordings: Recordings
    recording: OpenRecording
    # Those of this turn; empty between turns.
    _prefills: Sequence[streaming.WorkerPrefill] = field(default=(), init=False)
    _turn: int | None = field(default=None, init=False)  # number of the one under way
    # Of this turn.
    _transcripts: list[UserTranscript] = field(default_factory=list, init=False)

    async def close(self) -> None:
        had_turn = self.recorder is not None
        self.recordings.suspend(self.recording, self._end_reason if had_turn else None)

    def _on_event(self, event: events.Event) -> None:
        super()._on_event(event)
        if isinstance(event, events.Disconnected) and not self._prefills:
            self._end_reason = EndReason.STOPPED  # leaving between turns ends a chat normally

    def _begin(self, snapshot: Snapshot) -> TurnBasedSessionRecorder:
        self.recorder = self.recorder or self.recording.recorder or self.open_recorder(snapshot)
        self.recording.recorder = self.recorder
        return self.recorder

    def _on_effect(self, effect: effects.Effect) -> None:
        super()._on_effect(effect)
        match effect:
            case effects.Prefill(streaming.WorkerPrefill() as message, is_first):
                if is_first:
                    self._turn, self._prefills = None, ()
                    self._transcripts.clear()
                self._prefills = (*self._prefills, message)
            case effects.Generate(streaming.Generate()) if self._prefills:
                recorder = self._begin({"system_prompt": system_text(self._prefills[0].messages)})
                self._turn = next(self.recording.turns)
                asked = (prefill.messages[-1] for prefill in self._prefills)
                recorder.start_message_turn(self._turn, *asked)
            case effects.Send(streaming.Done() as done):
                self._prefills = ()
                # A turn that was stopped before its reply has no number, and is not recorded.
                if self.recorder is None or self._turn is None:
                    return
                for transcript in self._transcripts:
                    super()._record_transcript(
                        transcript.model_copy(update={"turn_index": self._turn})
                    )
                timing = turn_timing(done.elapsed_ms, done.token_stats)
                self.recorder.end_turn(timing, interrupted=done.stopped, text=done.text)

    def _record_transcript(self, transcript: UserTranscript) -> None:
        self._transcripts.append(transcript)  # the turn may have no number yet


@dataclass(eq=False)
class RealtimeRecording(TurnRecording):
    """Records every response of a Realtime conversation, and its request, as a turn."""

    machine: RealtimeMachine
    _request: TurnRequest | None = field(default=None, init=False)  # of the turn under way
    # Of the newest response by units.
    _by_units: TurnRequest | None = field(default=None, init=False)
    # Of a unit, not recorded yet.
    _piece: tuple[str, bytes | None] | None = field(default=None, init=False)
    _turns = 0
    # Of the newest items without a transcript.
    _turn_of: dict[str, int] = field(default_factory=dict, init=False)

    def _on_event(self, event: events.Event) -> None:
        self._now_s = event.at_s
        if isinstance(event, events.ItemTranscribed) and event.item_id in self._turn_of:
            self._record_text(event.text, self._turn_of.pop(event.item_id))
        self._piece = None
        match event:
            case events.AudioReady(pcm):
                self._piece = ("", pcm)
            case events.StepDone(result) if not result.is_listen:
                self._piece = (result.text, result.audio_data)
        if self._request is None or self.recorder is None:
            return
        self._record_piece()
        match event:
            case events.ChunkReady(chunk):
                self.recorder.add_streaming_chunk(chunk.text_delta, chunk.audio_data)
            case events.GenerateDone(text, stopped, stats):
                self._end_turn(text, stats, is_whole=not stopped)
            case events.TurnFailed():
                self._end_turn("", TokenStats(), is_whole=False)

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Generate(TurnRequest(is_outside=False) as request):
                self._begin_turn(request)
            case effects.Send(ServerEvent(type="response.created")):
                newest = self.machine.unit_request
                if newest is not None and newest is not self._by_units:
                    self._by_units = newest
                    self._begin_turn(newest)
                    self._record_piece()
            case effects.Send(ServerEvent(type="response.done", fields={"response": done})):
                if self._request is not None and self._request is self._by_units:
                    self._end_unit_turn(done)

    def _record_piece(self) -> None:
        piece, self._piece = self._piece, None
        is_wanted = self._request is not None and self._request is self._by_units
        if piece is not None and is_wanted and self.recorder is not None:
            self.recorder.add_streaming_chunk(*piece)

    def _begin_turn(self, request: TurnRequest) -> None:
        recorder = self._begin({"system_prompt": request.system})
        self._request, self._began_s = request, self._now_s
        turn_index, self._turns = self._turns, self._turns + 1
        last = request.turns[-1] if request.turns else None
        content = last.content if last is not None and last.role == "user" else ()
        text = "".join(part.text or "" for part in content)
        sounds = [part.audio for part in content if part.audio is not None and part.audio.pcm]
        if not sounds or last is None:
            recorder.start_message_turn(turn_index, Message(role=Role.USER, content=text))
            return
        sound = sounds[0]
        name = recorder.save_user_audio(turn_index, wav_of(sound), is_wav=True)
        duration_ms = round(MS_PER_S * len(sound.pcm) / sound.format.bytes_per_s)
        voice = VoiceInput(duration_ms=duration_ms, audio=name)
        recorder.start_turn(turn_index, recorder.elapsed_ms(), voice)
        self._record_text(text, turn_index)
        self._turn_of[last.key[0]] = turn_index
        if len(self._turn_of) > LATE_MAX:
            self._turn_of.pop(next(iter(self._turn_of)))

    def _record_text(self, text: str, turn_index: int) -> None:
        if text and self.recorder is not None:
            self.recorder.record_words("user_transcript", text, 0, turn=turn_index)

    def _end_unit_turn(self, done: Json) -> None:
        parts = [part for item in done["output"] for part in item.get("content", ())]
        text = "".join(part.get("transcript") or part.get("text") or "" for part in parts)
        tokens = done["usage"]["output_token_details"]["text_tokens"]
        stats = TokenStats(generated_tokens=tokens)
        self._end_turn(text, stats, is_whole=done["status"] in ENDED_BY_MODEL)

    def _end_turn(self, text: str, stats: TokenStats, *, is_whole: bool) -> None:
        request, self._request = self._request, None
        assert request is not None and self.recorder is not None, "a turn is under way"
        timing = turn_timing(self._elapsed_ms, stats, request.input_audio_ms)
        self.recorder.end_turn(timing, interrupted=not is_whole, text=text)


def record_chat(
    recordings: Recordings, owner: Owner, request: chat.ChatRequest, response: chat.ChatResponse
) -> str:
    """Record a chat over HTTP; return the recording's id."""
    recording = recordings.resume(owner)
    recorder = recordings.open(TurnBasedSessionRecorder, recording, chat_snapshot(request))
    recorder.start_message_turn(0, request.messages[-1])
    if response.audio_data:
        recorder.save_ai_audio_turn(0, response.audio_data)
    stats = response.token_stats or TokenStats()
    recorder.end_turn(turn_timing(response.duration_ms, stats), text=response.text)
    recorder.finalize(EndReason.STOPPED)
    return recording.recording_id


def turn_timing(elapsed_ms: float, stats: TokenStats, speech_ms: int | None = None) -> TurnTiming:
    return TurnTiming(
        elapsed_ms=elapsed_ms,
        tokens=stats.generated_tokens,
        input_tokens=stats.input_tokens,
        cached_tokens=stats.cached_tokens,
        total_tokens=stats.total_tokens,
        speech_input_ms=speech_ms,
    )


def snapshot_of(message: duplex.Prepare | half_duplex.Prepare) -> Snapshot:
    """Return the settings of a session; the recorder stores the audio as files."""
    if isinstance(message, duplex.Prepare):
        return {
            "system_prompt": message.prefix_system_prompt,
            "ref_audio": {"ref_audio_base64": message.ref_audio_base64 or ""},
            "tts_ref_audio": {"ref_audio_base64": message.tts_ref_audio_base64 or ""},
            "deferred_finalize": message.deferred_finalize,
            **message.config.model_dump(mode="json"),
            "max_slice_nums": message.slice_limit,
        }
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
    content = next((each.content for each in messages if each.role is Role.SYSTEM), "")
    if isinstance(content, str):
        return content
    return "\n".join(item.text for item in content if item.type == "text")
