"""Records the responses of a Realtime session and what each answers."""

from __future__ import annotations

from typing import Final

from core.protocols.effects import Effect, Generate
from core.protocols.events import (
    MS_PER_S,
    ChunkReady,
    Event,
    GenerateDone,
    ItemTranscribed,
    TurnFailed,
)
from core.protocols.realtime_turns import TurnRequest
from core.schemas.common import Message, Role, TokenStats
from core.schemas.queue import UserTranscript
from core.serving.realtime_sound import model_samples
from core.serving.recording_observer import OpenRecorder, TurnRecording, turn_timing
from session_recorder import TurnBasedSessionRecorder

LATE_MAX: Final = 64  # ours: items whose words may still come


class RealtimeRecording(TurnRecording):
    """Records every response of the conversation as a turn."""

    def __init__(self, open_recorder: OpenRecorder[TurnBasedSessionRecorder]) -> None:
        """Begin without a recording."""
        super().__init__(open_recorder)
        self._request: TurnRequest | None = None  # of the turn under way
        self._began_s = self._now_s = 0.0
        self._turn_of: dict[str, int] = {}  # of the newest items without words

    def _heard(self, event: Event) -> None:
        self._now_s = event.at_s
        if isinstance(event, ItemTranscribed) and event.item_id in self._turn_of:
            self._keep(event.text, self._turn_of.pop(event.item_id))
        if self._request is None or self.recorder is None:
            return
        match event:
            case ChunkReady(chunk):
                self.recorder.add_streaming_chunk(chunk.text_delta, chunk.audio_data)
            case GenerateDone(text, stopped, stats):
                self._end_turn(text, stats, is_whole=not stopped)
            case TurnFailed():
                self._end_turn("", TokenStats(), is_whole=False)

    def _asked(self, effect: Effect) -> None:
        match effect:
            case Generate(TurnRequest(is_outside=False) as request, turn_index):
                self._begin({"system_prompt": request.system})
                self._request, self._began_s = request, self._now_s
                self._begin_turn(request, turn_index)

    def _begin_turn(self, request: TurnRequest, turn_index: int) -> None:
        if self.recorder is None:
            return
        last = request.turns[-1] if request.turns else None
        said = last.content if last is not None and last.role == "user" else ()
        sounds = [part.sound for part in said if part.sound is not None and part.sound.pcm]
        if sounds and last is not None:
            pcm = model_samples(sounds[0]).astype("<f4").tobytes()
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
            self._keep_words(said)

    def _end_turn(self, text: str, stats: TokenStats, *, is_whole: bool) -> None:
        request, self._request = self._request, None
        assert request is not None and self.recorder is not None, "a turn is under way"
        elapsed_ms = (self._now_s - self._began_s) * MS_PER_S
        timing = turn_timing(elapsed_ms, stats, request.heard_ms)
        self.recorder.end_turn(timing, interrupted=not is_whole, text=text)
