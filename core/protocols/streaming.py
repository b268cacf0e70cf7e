"""Chat by turns between a gateway and a worker: prefill and generate, repeatedly or once.

In streaming, the worker is taken from a turn's first `prefill` to its `done`; between turns the
conversation is retained and the socket may stay open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from core.errors import OutOfOrderError, SessionTimeoutError
from core.protocols import events
from core.protocols.effects import (
    Close,
    Effect,
    Generate,
    Interrupt,
    Prefill,
    Retain,
    Rollback,
    Send,
    StartTimer,
    StopTimer,
)
from core.protocols.events import MS_PER_S, Event, Received, TimerName
from core.protocols.machine import (
    ENDING,
    FAILURE,
    Reply,
    SessionIds,
    SessionMachine,
    common_rows,
    fail,
    fails,
)
from core.protocols.tables import CLOSED, SAME, Phase, Row, index_rows
from core.schemas import streaming as messages
from core.schemas.chat import ChatChunk, ChatDone, ChatPrefillDone, ChatSocketRequest
from core.schemas.common import TokenStats
from core.schemas.worker import WorkerStatus


@dataclass(frozen=True)
class StreamingLimits:
    """Limits of a streaming socket. Ours."""

    open_timeout_s: float = 300.0  # longest time between turns; no slot is held meanwhile
    turn_timeout_s: float = 60.0  # longest time without `generate` inside a turn
    max_kv_tokens: int = 8_192  # tokens that leave no room for a reply
    kv_reserve_tokens: int = 512  # remaining tokens at which the client is warned
    # Queued `prefill` messages; one more ends the connection, as dropping one would leave a gap in
    # the history.
    max_waiting_prefills: int = 4


@dataclass
class Turn:
    began_s: float = 0.0
    reply: Reply = field(default_factory=Reply)
    prefill: messages.WorkerPrefill | None = None  # the latest; supplies the defaults
    cached_tokens: int | None = None
    input_tokens: int = 0
    # Speech whose transcript `done` follows, as the worker is released then.
    untranscribed: list[messages.WorkerPrefill] = field(default_factory=list)
    end: events.GenerateDone | None = None  # held back until then


class StreamingMachine(SessionMachine):
    busy_status = WorkerStatus.BUSY_STREAMING
    idle_phases = (Phase.OPEN, Phase.CLOSED)

    def __init__(self, ids: SessionIds, limits: StreamingLimits | None = None) -> None:
        super().__init__(ids, Phase.OPEN)
        self._limits = limits or StreamingLimits()
        self._turn = Turn()
        self._waiting: list[messages.WorkerPrefill] = []

    def open(self, event: events.Opened) -> list[Effect]:
        return [StartTimer(TimerName.IDLE, self._limits.open_timeout_s)]

    def begin_turn(self, event: Received[messages.WorkerPrefill]) -> list[Effect]:
        self._turn = Turn(event.at_s)
        return self.prefill(event)

    def prefill(self, event: Received[messages.WorkerPrefill]) -> list[Effect]:
        return [StopTimer(TimerName.IDLE), *self._feed(event.message)]

    def queue_prefill(self, event: Received[messages.WorkerPrefill]) -> list[Effect]:
        if len(self._waiting) >= self._limits.max_waiting_prefills:
            return self.fail(OutOfOrderError("Too many `prefill` messages wait."))
        self._waiting.append(event.message)
        return []

    def prefilled(self, event: events.PrefillDone) -> list[Effect]:
        turn = self._turn
        if turn.cached_tokens is None:
            turn.cached_tokens = event.cached_tokens
        turn.input_tokens += event.input_tokens
        if turn.prefill is not None and turn.prefill.speech:
            turn.untranscribed.append(turn.prefill)
        message = messages.PrefillDone(
            **vars(event),
            cache_hit=event.cached_tokens > 0,
            recording_session_id=self._ids.recording_session_id,
        )
        limits = self._limits
        room = (limits.max_kv_tokens, limits.kv_reserve_tokens)
        checked = self._check_context(event.kv_tokens, *room)
        if self.is_closed:
            return [Send(message), Rollback(), Retain(), *checked]
        if self._waiting:
            return [Send(message), *checked, *self._feed(self._waiting.pop(0))]
        self.phase = Phase.READY
        return [Send(message), *checked, StartTimer(TimerName.IDLE, limits.turn_timeout_s)]

    def missed(self, event: events.CacheMissed) -> list[Effect]:
        """Request the whole history; the worker stays assigned."""
        self._waiting.clear()
        self._turn = Turn(self._turn.began_s)
        self.phase = Phase.READY
        timer = StartTimer(TimerName.IDLE, self._limits.turn_timeout_s)
        return [Send(messages.CacheMiss()), timer]

    def generate(self, event: Received[messages.Generate]) -> list[Effect]:
        if self._turn.prefill is None:  # after a cache miss without a new prefill
            return self._not_allowed(event)
        request = event.message.with_defaults(self._turn.prefill)
        self.phase = Phase.GENERATING
        return [StopTimer(TimerName.IDLE), self._begin(Generate(request))]

    def piece(self, event: events.ChunkReady) -> list[Effect]:
        return [self._turn.reply.add(event.chunk, event.at_s)]

    def generated(self, event: events.GenerateDone) -> list[Effect]:
        self._turn.end = event
        last = self._turn.reply.last_chunk()
        return last if self._turn.untranscribed else [*last, *self._end_turn(event, event.at_s)]

    def transcribed(self, event: events.Transcribed) -> list[Effect]:
        """Send the transcript; end the turn if only this was missing."""
        turn = self._turn
        others = [prefill for prefill in turn.untranscribed if prefill is not event.prefill]
        if len(others) == len(turn.untranscribed):  # of an earlier turn that was cut short
            return []
        turn.untranscribed = others
        effects = super().transcribed(event)
        if turn.end is None or others:
            return effects
        return [*effects, *self._end_turn(turn.end, event.at_s)]

    def turn_failed(self, event: events.TurnFailed) -> list[Effect]:
        """Roll the turn back, so that the history before it stays usable, and fail."""
        undo: list[Effect] = [Rollback(), Retain()] if event.can_rollback else []
        return [*undo, *self.fail(event.error)]

    def interrupt(self, event: Event) -> list[Effect]:
        """Cut the reply short; the turn ends with the partial reply."""
        end = self._turn.end
        return [Interrupt()] if end is None else self._end_turn(end, event.at_s)

    def cancel_prefill(self, event: Event) -> list[Effect]:
        """Wait for the end of the prefill, then roll the turn back."""
        self._waiting.clear()
        self.phase = Phase.CANCELLING
        return [Interrupt()]

    def cancel_turn(self, event: Event) -> list[Effect]:
        undo: list[Effect] = [Rollback()] if self._turn.prefill else []
        return [*undo, *self._end_turn(events.GenerateDone(stopped=True), event.at_s)]

    def _feed(self, message: messages.WorkerPrefill) -> list[Effect]:
        self.phase = Phase.PREFILLING
        is_first, self._turn.prefill = self._turn.prefill is None, message
        return [self._begin(Prefill(message, is_first=is_first))]

    def _end_turn(self, end: events.GenerateDone, now_s: float) -> list[Effect]:
        turn = self._turn
        stats = TokenStats(
            cached_tokens=turn.cached_tokens or 0,
            input_tokens=turn.input_tokens,
            generated_tokens=end.token_stats.generated_tokens,
            total_tokens=end.kv_tokens,
        )
        message = messages.Done(
            **vars(self._ids),
            text=end.text,
            elapsed_ms=round(max(0.0, now_s - turn.began_s) * MS_PER_S, 1),
            stopped=end.stopped,
            token_stats=stats,
        )
        self.phase = Phase.OPEN
        timer = StartTimer(TimerName.IDLE, self._limits.open_timeout_s)
        return [Retain(), Send(message), timer]


OPEN: Final = "open prefilling ready generating cancelling"
STOP: Final = "stop stop_requested"
DONE: Final = "Retain Send(done) StartTimer(idle)"
MACHINE: Final = StreamingMachine
PREFILLED: Final = (
    f"Send(prefill_done) Send(warning) Prefill StartTimer(idle) Rollback Retain {FAILURE}"
)
REPLY: Final = "StopTimer(idle) Generate Send(warning)"
TRANSCRIBED: Final = f"Send(user_transcript) {DONE}"
UNDONE: Final = f"Rollback Retain {FAILURE}"
TURN: Final = "prefilling ready generating"
ENDS: Final = "prefill_done cache_missed turn_failed"

TABLE: Final = (
    Row("open", "opened", SAME, MACHINE.open, "StartTimer(idle)"),
    Row("open", "prefill", "prefilling", MACHINE.begin_turn, "StopTimer(idle) Prefill"),
    Row("prefilling", "prefill", f"{SAME} {CLOSED}", MACHINE.queue_prefill, ENDING),
    Row("prefilling", "prefill_done", f"{SAME} ready {CLOSED}", MACHINE.prefilled, PREFILLED),
    Row("prefilling", "cache_missed", "ready", MACHINE.missed, "Send(cache_miss) StartTimer(idle)"),
    Row("ready", "prefill", "prefilling", MACHINE.prefill, "StopTimer(idle) Prefill"),
    Row("ready", "generate", f"{SAME} generating", MACHINE.generate, REPLY),
    Row("generating", "chunk_ready", SAME, MACHINE.piece, "Send(chunk)"),
    Row("generating", "generate_done", f"{SAME} open", MACHINE.generated, f"Send(chunk) {DONE}"),
    Row(TURN, "transcribed", f"{SAME} open", MACHINE.transcribed, TRANSCRIBED),
    Row("prefilling generating", "turn_failed", CLOSED, MACHINE.turn_failed, UNDONE),
    Row("prefilling", STOP, "cancelling", MACHINE.cancel_prefill, "Interrupt"),
    Row("ready", STOP, "open", MACHINE.cancel_turn, f"Rollback {DONE}"),
    Row("generating", STOP, f"{SAME} open", MACHINE.interrupt, f"Interrupt {DONE}"),
    Row("cancelling", STOP, SAME, MACHINE.ignore, ""),
    Row("cancelling", ENDS, "open", MACHINE.cancel_turn, f"Rollback {DONE}"),
    Row("open ready", "idle_timer", CLOSED, fails(SessionTimeoutError), FAILURE),
    Row(OPEN, "close", CLOSED, MACHINE.close, "Cancel Release Close"),
    Row(OPEN, "engine_failed", CLOSED, fail, ENDING),
    *common_rows(OPEN),
)
"""All transitions of a worker's `/ws/streaming`. A `stop` between turns has nothing to stop."""

StreamingMachine.rows = index_rows(TABLE)


# --- one request and its reply, streamed or whole ---


@dataclass(frozen=True)
class ChatLimits:
    request_timeout_s: float = 60.0  # longest time without the request; ours


class ChatMachine(SessionMachine):
    busy_status = WorkerStatus.BUSY_CHAT
    idle_phases = (Phase.WAITING, Phase.CLOSED)

    def __init__(self, ids: SessionIds, limits: ChatLimits | None = None) -> None:
        super().__init__(ids, Phase.WAITING)
        self._limits = limits or ChatLimits()
        self._request: ChatSocketRequest | None = None
        self._input_tokens = 0
        self._whole_audio: bytes | None = None  # of a reply that is not streamed

    def open(self, event: events.Opened) -> list[Effect]:
        return [StartTimer(TimerName.PREPARE, self._limits.request_timeout_s)]

    def ask(self, event: Received[ChatSocketRequest]) -> list[Effect]:
        self._request = event.message
        self.phase = Phase.PREFILLING
        return [StopTimer(TimerName.PREPARE), self._begin(Prefill(event.message))]

    def prefilled(self, event: events.PrefillDone) -> list[Effect]:
        assert self._request is not None
        self._input_tokens = event.input_tokens
        self.phase = Phase.GENERATING
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

    def interrupt(self, event: Event) -> list[Effect]:
        """Cut the reply short; the connection ends with the partial reply."""
        return [Interrupt()]

    def cancel(self, event: Event) -> list[Effect]:
        """Wait for the end of the prefill; there is no reply."""
        self.phase = Phase.CANCELLING
        return [Interrupt()]

    def cancelled(self, event: Event) -> list[Effect]:
        return self.generated(events.GenerateDone(stopped=True))

    def generated(self, event: events.GenerateDone) -> list[Effect]:
        message = ChatDone(
            text=event.text,
            generated_tokens=event.token_stats.generated_tokens,
            input_tokens=self._input_tokens,
            stopped=event.stopped,
            audio_data=self._whole_audio,
            recording_session_id=self._ids.recording_session_id,
        )
        return self._end(Send(message), close=Close())


CHAT_OPEN: Final = "waiting prefilling generating cancelling"
CHAT_PREFILLED: Final = "Send(prefill_done) Generate"
CHAT_DONE: Final = "Send(done) Release Close"
LATE: Final = fails(SessionTimeoutError, "No request came in time.")
CHAT: Final = ChatMachine

CHAT_TABLE: Final = (
    Row("waiting", "opened", SAME, CHAT.open, "StartTimer(prepare)"),
    Row("waiting", "chat", "prefilling", CHAT.ask, "StopTimer(prepare) Prefill"),
    Row("waiting", "prepare_timer", CLOSED, LATE, FAILURE),
    Row("prefilling", "prefill_done", "generating", CHAT.prefilled, CHAT_PREFILLED),
    Row("generating", "chunk_ready", SAME, CHAT.piece, "Send(chunk)"),
    Row("generating", "generate_done", CLOSED, CHAT.generated, CHAT_DONE),
    Row("prefilling generating", "turn_failed", CLOSED, fail, FAILURE),
    Row("waiting", STOP, CLOSED, CHAT.close, "Release Close"),
    Row("prefilling", STOP, "cancelling", CHAT.cancel, "Interrupt"),
    Row("generating", STOP, SAME, CHAT.interrupt, "Interrupt"),
    Row("cancelling", STOP, SAME, CHAT.ignore, ""),
    Row("cancelling", "prefill_done turn_failed", CLOSED, CHAT.cancelled, CHAT_DONE),
    Row(CHAT_OPEN, "engine_failed", CLOSED, fail, ENDING),
    *common_rows(CHAT_OPEN),
)
ChatMachine.rows = index_rows(CHAT_TABLE)
