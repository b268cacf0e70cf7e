"""One-shot chat over a socket: one request and its reply, streamed or whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.errors import SessionTimeoutError
from core.protocols import events
from core.protocols.effects import (
    Close,
    Effect,
    Generate,
    Interrupt,
    Prefill,
    Send,
    StartTimer,
    StopTimer,
)
from core.protocols.events import Event, Received, TimerName
from core.protocols.machine import ENDING, FAILURE, SessionIds, SessionMachine, common_rows, fails
from core.protocols.tables import CLOSED, SAME, Phase, Row, index_rows
from core.schemas.chat import ChatChunk, ChatDone, ChatPrefillDone, ChatSocketRequest
from core.schemas.worker import WorkerStatus


@dataclass(frozen=True)
class ChatLimits:
    """Limits of a chat connection. Ours.

    Attributes:
        request_timeout_s: longest time without the request.
    """

    request_timeout_s: float = 60.0


class ChatMachine(SessionMachine):
    busy_status = WorkerStatus.BUSY_CHAT

    def __init__(self, ids: SessionIds, limits: ChatLimits | None = None) -> None:
        super().__init__(ids, Phase.WAITING)
        self._limits = limits or ChatLimits()
        self._request: ChatSocketRequest | None = None
        self._input_tokens = 0
        self._whole_audio: bytes | None = None  # of a reply that is not streamed

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus.IDLE if self._phase is Phase.WAITING else super().status

    def open(self, event: events.Opened) -> list[Effect]:
        return [StartTimer(TimerName.PREPARE, self._limits.request_timeout_s)]

    def ask(self, event: Received[ChatSocketRequest]) -> list[Effect]:
        self._request = event.message
        self._phase = Phase.PREFILLING
        return [StopTimer(TimerName.PREPARE), self._begin(Prefill(event.message))]

    def prefilled(self, event: events.PrefillDone) -> list[Effect]:
        assert self._request is not None
        self._input_tokens = event.input_tokens
        self._phase = Phase.GENERATING
        done = Send(ChatPrefillDone(input_tokens=event.input_tokens))
        return [done, self._begin(Generate(self._request))]

    def piece(self, event: events.ChunkReady) -> list[Effect]:
        assert self._request is not None
        chunk = event.chunk
        if not self._request.streaming:
            self._whole_audio = chunk.audio_data or self._whole_audio
            return []
        if not chunk.text_delta and not chunk.audio_data:
            return []
        return [Send(ChatChunk(text_delta=chunk.text_delta, audio_data=chunk.audio_data))]

    def generated(self, event: events.GenerateDone) -> list[Effect]:
        return self._done(event.text, event.token_stats.generated_tokens, event.stopped)

    def interrupt(self, event: Event) -> list[Effect]:
        """Cut the reply short; the connection ends with the partial reply."""
        return [Interrupt()]

    def cancel(self, event: Event) -> list[Effect]:
        """Wait for the end of the prefill; there is no reply."""
        self._phase = Phase.CANCELLING
        return [Interrupt()]

    def cancelled(self, event: Event) -> list[Effect]:
        return self._done("", 0, True)

    def _done(self, text: str, generated_tokens: int, stopped: bool) -> list[Effect]:
        message = ChatDone(
            text=text,
            generated_tokens=generated_tokens,
            input_tokens=self._input_tokens,
            stopped=stopped,
            audio_data=self._whole_audio,
            recording_session_id=self._ids.recording_session_id,
        )
        return self._end(Send(message), close=Close())


OPEN: Final = "waiting prefilling generating cancelling"
STOP: Final = "stop stop_requested"
PREFILLED: Final = "Send(prefill_done) Generate"
DONE: Final = "Send(done) Release Close"
LATE: Final = fails(SessionTimeoutError, "No request came in time.")
MACHINE: Final = ChatMachine

TABLE: Final = (
    Row("waiting", "opened", SAME, "StartTimer(prepare)", MACHINE.open),
    Row("waiting", "chat", "prefilling", "StopTimer(prepare) Prefill", MACHINE.ask),
    Row("waiting", "prepare_timer", CLOSED, FAILURE, LATE),
    Row("prefilling", "prefill_done", "generating", PREFILLED, MACHINE.prefilled),
    Row("generating", "chunk_ready", SAME, "Send(chunk)", MACHINE.piece),
    Row("generating", "generate_done", CLOSED, DONE, MACHINE.generated),
    Row("prefilling generating", "turn_failed", CLOSED, FAILURE, MACHINE.engine_failed),
    Row("waiting", STOP, CLOSED, "Release Close", MACHINE.close),
    Row("prefilling", STOP, "cancelling", "Interrupt", MACHINE.cancel),
    Row("generating", STOP, SAME, "Interrupt", MACHINE.interrupt),
    Row("cancelling", STOP, SAME, "", MACHINE.ignore),
    Row("cancelling", "prefill_done turn_failed", CLOSED, DONE, MACHINE.cancelled),
    Row(OPEN, "engine_failed", CLOSED, ENDING, MACHINE.engine_failed),
    *common_rows(OPEN),
)
ChatMachine.rows = index_rows(TABLE)
