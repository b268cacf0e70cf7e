"""One-shot chat over a socket: one request and its reply, streamed or whole."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
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
from core.protocols.machine import ENDING, FAILURE, SessionIds, SessionMachine, common_rows
from core.protocols.tables import SAME, Row, index_rows
from core.schemas.chat import ChatChunk, ChatDone, ChatPrefillDone, ChatSocketRequest
from core.schemas.worker import WorkerStatus


class ChatPhase(StrEnum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    GENERATING = "generating"
    CANCELLING = "cancelling"  # stopped while prefilling
    CLOSED = "closed"


@dataclass(frozen=True)
class ChatLimits:
    """Limits of a chat connection. Ours.

    Attributes:
        request_timeout_s: longest time without the request.
    """

    request_timeout_s: float = 60.0


class ChatMachine(SessionMachine[ChatPhase]):
    """State machine of one `/ws/chat` connection."""

    busy_status = WorkerStatus.BUSY_CHAT

    def __init__(self, ids: SessionIds, limits: ChatLimits | None = None) -> None:
        super().__init__(ids, ChatPhase.WAITING)
        self._limits = limits or ChatLimits()
        self._request: ChatSocketRequest | None = None
        self._input_tokens = 0
        self._whole_audio: bytes | None = None  # of a reply that is not streamed

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus.IDLE if self._phase is ChatPhase.WAITING else super().status

    def open(self, event: events.Opened) -> list[Effect]:
        return [StartTimer(TimerName.PREPARE, self._limits.request_timeout_s)]

    def ask(self, event: Received[ChatSocketRequest]) -> list[Effect]:
        self._request = event.message
        self._phase = ChatPhase.PREFILLING
        return [StopTimer(TimerName.PREPARE), self._begin(Prefill(event.message))]

    def prefilled(self, event: events.PrefillDone) -> list[Effect]:
        assert self._request is not None
        self._input_tokens = event.input_tokens
        self._phase = ChatPhase.GENERATING
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
        self._phase = ChatPhase.CANCELLING
        return [Interrupt()]

    def cancelled(self, event: Event) -> list[Effect]:
        return self._done("", 0, True)

    def time_out(self, event: Event) -> list[Effect]:
        return self.fail(SessionTimeoutError("No request came in time."))

    def _done(self, text: str, generated_tokens: int, stopped: bool) -> list[Effect]:
        message = ChatDone(
            text=text,
            generated_tokens=generated_tokens,
            input_tokens=self._input_tokens,
            stopped=stopped,
            audio_data=self._whole_audio,
            recording_session_id=self._ids.recording_session_id,
        )
        return self._end(message, close=Close())


WAITING, PREFILLING = (ChatPhase.WAITING,), (ChatPhase.PREFILLING,)
GENERATING, CANCELLING = (ChatPhase.GENERATING,), (ChatPhase.CANCELLING,)
OPEN: Final = (*WAITING, *PREFILLING, *GENERATING, *CANCELLING)
CLOSED: Final = ChatPhase.CLOSED
DONE: Final = "Send(done) Release Close"
MACHINE: Final = ChatMachine

TABLE: Final[tuple[Row[ChatMachine, Effect], ...]] = (
    Row(WAITING, "opened", SAME, "StartTimer(prepare)", MACHINE.open),
    Row(WAITING, "chat", "prefilling", "StopTimer(prepare) Prefill", MACHINE.ask),
    Row(WAITING, "prepare_timer", CLOSED, FAILURE, MACHINE.time_out),
    Row(PREFILLING, "prefill_done", "generating", "Send(prefill_done) Generate", MACHINE.prefilled),
    Row(GENERATING, "chunk_ready", SAME, "Send(chunk)", MACHINE.piece),
    Row(GENERATING, "generate_done", CLOSED, DONE, MACHINE.generated),
    Row((*PREFILLING, *GENERATING), "turn_failed", CLOSED, FAILURE, MACHINE.engine_failed),
    *(
        row
        for stop in ("stop", "stop_requested")
        for row in (
            Row(WAITING, stop, CLOSED, "Release Close", MACHINE.close),
            Row(PREFILLING, stop, "cancelling", "Interrupt", MACHINE.cancel),
            Row(GENERATING, stop, SAME, "Interrupt", MACHINE.interrupt),
            Row(CANCELLING, stop, SAME, "", MACHINE.ignore),
        )
    ),
    Row(CANCELLING, "prefill_done turn_failed", CLOSED, DONE, MACHINE.cancelled),
    Row(OPEN, "engine_failed", CLOSED, ENDING, MACHINE.engine_failed),
    *common_rows(OPEN, CLOSED),
)
ChatMachine.rows = index_rows(TABLE)
