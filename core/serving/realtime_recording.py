"""Records the responses of a Realtime session and what each answers."""

from __future__ import annotations

from typing import Final

from core.audio import to_pcm
from core.protocols.effects import Effect, Generate, Send
from core.protocols.events import (
    MS_PER_S,
    AudioReady,
    ChunkReady,
    Event,
    GenerateDone,
    ItemTranscribed,
    StepDone,
    TurnFailed,
)
from core.protocols.openai_events import Json, RealtimeEvent
from core.protocols.realtime import RealtimeMachine
from core.protocols.realtime_session import TurnRequest
from core.schemas.common import Message, Role, TokenStats
from core.schemas.queue import UserTranscript
from core.serving.openai_clients import model_samples
from core.serving.recording_observer import OpenRecorder, TurnRecording, turn_timing
from session_recorder import TurnBasedSessionRecorder

LATE_MAX: Final = 64  # ours: items whose transcripts may still come


class RealtimeRecording(TurnRecording):
    """Records every response of the conversation as a turn."""

    def __init__(
        self, open_recorder: OpenRecorder[TurnBasedSessionRecorder], machine: RealtimeMachine
    ) -> None:
        super().__init__(open_recorder)
        self._machine = machine
        self._request: TurnRequest | None = None  # of the turn under way
        self._by_units: TurnRequest | None = None  # of the newest response by units
        self._piece: tuple[str, bytes | None] | None = None  # of one, not recorded yet
        self._turns = 0
        self._began_s = self._now_s = 0.0
        self._turn_of: dict[str, int] = {}  # of the newest items without a transcript

    def _on_event(self, event: Event) -> None:
        self._now_s = event.at_s
        if isinstance(event, ItemTranscribed) and event.item_id in self._turn_of:
            self._keep(event.text, self._turn_of.pop(event.item_id))
        self._piece = None
        match event:
            case AudioReady(pcm):
                self._piece = ("", pcm)
            case StepDone(result) if not result.is_listen:
                self._piece = (result.text, result.audio_data)
        if self._request is None or self.recorder is None:
            return
        self._add_piece()
        match event:
            case ChunkReady(chunk):
                self.recorder.add_streaming_chunk(chunk.text_delta, chunk.audio_data)
            case GenerateDone(text, stopped, stats):
                self._end_turn(text, stats, is_whole=not stopped)
            case TurnFailed():
                self._end_turn("", TokenStats(), is_whole=False)

    def _on_effect(self, effect: Effect) -> None:
        match effect:
            case Generate(TurnRequest(is_outside=False) as request):
                self._begin_turn(request)
            case Send(RealtimeEvent(type="response.created")):
                newest = self._machine.unit_request
                if newest is not None and newest is not self._by_units:
                    self._by_units = newest
                    self._begin_turn(newest)
                    self._add_piece()
            case Send(RealtimeEvent(type="response.done", fields={"response": done})):
                if self._request is not None and self._request is self._by_units:
                    self._end_unit_turn(done)

    def _add_piece(self) -> None:
        piece, self._piece = self._piece, None
        is_wanted = self._request is not None and self._request is self._by_units
        if piece is not None and is_wanted and self.recorder is not None:
            self.recorder.add_streaming_chunk(*piece)

    def _end_unit_turn(self, done: Json) -> None:
        parts = [part for item in done["output"] for part in item.get("content", ())]
        text = "".join(part.get("transcript") or part.get("text") or "" for part in parts)
        tokens = done["usage"]["output_token_details"]["text_tokens"]
        is_whole = done["status"] == "completed"
        if self.recorder is not None:
            self._end_turn(text, TokenStats(generated_tokens=tokens), is_whole=is_whole)

    def _begin_turn(self, request: TurnRequest) -> None:
        self._begin({"system_prompt": request.system})
        self._request, self._began_s = request, self._now_s
        turn_index, self._turns = self._turns, self._turns + 1
        if self.recorder is None:
            return
        last = request.turns[-1] if request.turns else None
        said = last.content if last is not None and last.role == "user" else ()
        sounds = [part.audio for part in said if part.audio is not None and part.audio.pcm]
        if sounds and last is not None:
            pcm = to_pcm(model_samples(sounds[0]))
            self.recorder.start_voice_turn(turn_index, pcm)
            self._keep("".join(part.text or "" for part in said), turn_index)
            self._turn_of[last.key[0]] = turn_index
            if len(self._turn_of) > LATE_MAX:
                self._turn_of.pop(next(iter(self._turn_of)))
        else:
            text = "".join(part.text or "" for part in said)
            self.recorder.start_message_turn(turn_index, Message(role=Role.USER, content=text))

    def _keep(self, text: str, turn_index: int) -> None:
        if text:
            said = UserTranscript(text=text, start_ms=0, duration_ms=0, turn_index=turn_index)
            self._record_words(said)

    def _end_turn(self, text: str, stats: TokenStats, *, is_whole: bool) -> None:
        request, self._request = self._request, None
        assert request is not None and self.recorder is not None, "a turn is under way"
        elapsed_ms = (self._now_s - self._began_s) * MS_PER_S
        timing = turn_timing(elapsed_ms, stats, request.input_audio_ms)
        self.recorder.end_turn(timing, interrupted=not is_whole, text=text)
