"""Responses of a Realtime session: one active in the conversation, some outside it. Pure.

The engine generates one reply at a time: a response waits while another one's reply is still being
cut short, and so do those outside the conversation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from core.errors import CloseCode, ContextFullError, OmniError
from core.protocols import openai_events as events
from core.protocols.effects import (
    Close,
    Effect,
    Generate,
    Interrupt,
    Send,
    StartTimer,
    StopTimer,
    Transcribe,
)
from core.protocols.events import (
    MS_PER_S,
    ChunkReady,
    EngineFailed,
    Event,
    GenerateDone,
    Received,
    TimerName,
    TurnFailed,
)
from core.protocols.machine import SessionIds, SessionMachine
from core.protocols.openai_events import Json, RealtimeEvent
from core.protocols.realtime_input import InputAudio
from core.protocols.realtime_items import Content, Item, ItemStore, StoreLimits, item_of
from core.protocols.realtime_response import NewId, Outcome, Response
from core.protocols.realtime_session import OutputConfig, SessionConfig, request_of
from core.schemas.common import TokenStats
from core.schemas.openai_errors import SOCKET_CODES
from core.schemas.realtime import ResponseCancel, ResponseCreate
from core.schemas.realtime_items import ItemReference
from core.schemas.realtime_session import ResponsePatch, RetentionRatio
from core.schemas.worker import WorkerStatus

SHOWN_SESSION_S: Final = 3_600  # reported where sessions are unlimited
HALF: Final = 0.5  # share of the items kept when the context is full
KEPT_ITEMS: Final = 4  # the last two turns are always kept
NOTHING_TO_CANCEL: Final = "Cancellation failed: no active response found."
CLIENT_CANCELLED: Final = "client_cancelled"
TURN_DETECTED: Final = "turn_detected"


class RealtimePhase(StrEnum):
    """Phase of a Realtime session."""

    OPENING = "opening"
    IDLE = "idle"
    RESPONDING = "responding"  # a response is active
    CLOSED = "closed"


@dataclass(frozen=True)
class RealtimeLimits(StoreLimits):
    """Limits of a Realtime session. Ours.

    Attributes:
        max_session_s: longest session; 0 is unlimited.
        max_kv_tokens: tokens that leave no room for a reply.
        kv_reserve_tokens: tokens kept free by dropping the oldest items.
        max_outside: queued responses outside the conversation.
        max_items: beyond it the oldest items are dropped.
        max_audio_s: audio in items; beyond it the oldest audio is dropped, its text kept.
        max_pictures: items that are pictures alone; beyond it the oldest are dropped.
    """

    max_session_s: float = 0.0
    max_kv_tokens: int = 8_192
    kv_reserve_tokens: int = 1_024
    max_outside: int = 8


@dataclass(frozen=True)
class RealtimeStart:
    """Initial parameters of a session."""

    model: str  # the served model's id, echoed
    instructions: str  # default system prompt
    new_id: NewId  # `new_id("item")` begins with `item_`
    session_id: str
    conversation_id: str
    is_beta: bool = False  # use the beta spellings of events
    can_transcribe: bool = False  # the server has a transcriber
    unix_time_s: int = 0  # start of the session


class ResponseMachine(SessionMachine[RealtimePhase]):
    """The part of the Realtime machine that manages responses."""

    def __init__(
        self, ids: SessionIds, start: RealtimeStart, limits: RealtimeLimits | None = None
    ) -> None:
        super().__init__(ids, RealtimePhase.OPENING)
        self._limits = limits or RealtimeLimits()
        self._start = start
        output = OutputConfig(start.instructions)
        self._config = SessionConfig(output, can_transcribe=start.can_transcribe)
        self._store = ItemStore(start.conversation_id, self._limits)
        self._audio = InputAudio()
        self._active: Response | None = None
        self._outside: list[Response] = []  # the first may be in generation
        self._making: Response | None = None  # in generation; it may have ended already
        self._audible_until_s = 0.0  # above 0 once the model has spoken
        self._turn_index = 0

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus.IDLE if self.is_closed else WorkerStatus.BUSY_HALF_DUPLEX

    @property
    def _is_live(self) -> bool:
        return False

    # --- responses ---

    def create_response(self, event: Received[ResponseCreate]) -> list[Effect]:
        message = event.message
        patch = message.response
        is_outside = patch is not None and patch.conversation == "none"
        if not is_outside and self._active is not None:
            text = f"Conversation already has an active response in progress: {self._active.id}."
            return self._wrong(event, "conversation_already_has_active_response", text)
        if is_outside and len(self._outside) >= self._limits.max_outside:
            text = f"{self._limits.max_outside} responses are queued already."
            return self._wrong(event, "rate_limit_exceeded", text)
        for item in (patch.input if patch is not None else None) or ():
            if isinstance(item, ItemReference) and item.id not in self._store:
                text = f"There is no item '{item.id}'."
                return self._wrong(event, "invalid_value", text, "response.input")
        if patch is None or not is_outside:
            return [*self._end_open_segment(), *self._respond(patch)]
        output = self._config.for_response(patch)
        response = Response(output, self._start.new_id, None, patch.metadata)
        items = self._given_items(patch)
        response.items = tuple(self._store) if items is None else items
        self._outside.append(response)
        return [*self._send(response.created()), *self._make_next()]

    def cancel_response(self, event: Received[ResponseCancel]) -> list[Effect]:
        message = event.message
        wanted = [one for one in self._responses if message.response_id in (None, one.id)]
        if not wanted:
            return self._wrong(event, "response_cancel_not_active", NOTHING_TO_CANCEL)
        self._audible_until_s = min(self._audible_until_s, event.at_s)
        return [*self._cut(wanted[0], CLIENT_CANCELLED), *self._wait_for_speech(event.at_s)]

    def stop(self, event: Event) -> list[Effect]:
        return [] if self._active is None else self._cut(self._active, CLIENT_CANCELLED)

    def chunk(self, event: ChunkReady) -> list[Effect]:
        making = self._making
        if making not in self._responses:
            return []
        chunk = event.chunk
        sent = making.add(chunk.text_delta or "", event.client_audio)
        self._note_audible(making, event.client_audio, event.at_s)
        if making.failure is None:
            return self._send(*sent)
        return [*self._send(*sent), *self._end_response(making, making.failure), Interrupt()]

    def generated(self, event: GenerateDone) -> list[Effect]:
        making, self._making, self._work = self._making, None, None
        effects: list[Effect] = []
        if making in self._responses:
            outcome = Outcome("incomplete", CLIENT_CANCELLED) if event.stopped else Outcome()
            limit = making.request.max_tokens if making.request is not None else 0
            if event.token_stats.generated_tokens >= limit:
                outcome = Outcome("incomplete", "max_output_tokens")
            effects += self._end_response(making, outcome, event.token_stats)
        if event.kv_tokens > self._limits.max_kv_tokens - self._limits.kv_reserve_tokens:
            self._make_room()
        return [*effects, *self._make_next(), *self._wait_for_speech(event.at_s)]

    def failed(self, event: TurnFailed) -> list[Effect]:
        """Fail the response; if the context was full, drop the oldest items and retry."""
        making, self._making, self._work = self._making, None, None
        if making not in self._responses:
            return self._make_next()
        is_full = isinstance(event.error, ContextFullError)
        if is_full and not making.has_output and self._make_room():
            return self._make_next()
        code = "context_length_exceeded" if is_full else "internal_error"
        outcome = Outcome("failed", code=code, message=event.error.message)
        return [*self._end_response(making, outcome), *self._make_next()]

    def engine_failed(self, event: EngineFailed) -> list[Effect]:
        outcome = Outcome("failed", code="internal_error", message=event.error.message)
        effects: list[Effect] = []
        for response in self._responses:
            effects += self._end_response(response, outcome)
        return [*effects, *self.fail(event.error)]

    # --- for the other parts of the machine ---

    def _respond(self, patch: ResponsePatch | None) -> list[Effect]:
        begun = self._begin_response(patch, self._config.for_response(patch))
        return [*begun, *self._make_next()]

    def _begin_response(self, patch: ResponsePatch | None, output: OutputConfig) -> list[Effect]:
        metadata = patch.metadata if patch is not None else None
        response = Response(output, self._start.new_id, self._store, metadata)
        response.items = self._given_items(patch)
        self._active, self._audio.is_unanswered = response, False
        self._phase = RealtimePhase.RESPONDING
        return [StopTimer(TimerName.IDLE), *self._send(response.created())]

    @property
    def _may_generate(self) -> bool:
        """Whether the turn engine may generate."""
        return self._making is None

    def _make_next(self) -> list[Effect]:
        if not self._may_generate or not self._responses:
            return []
        response = self._making = self._responses[0]
        items = tuple(self._store) if response.items is None else response.items
        is_outside = response.items is not None
        request = request_of(items, response.output, response.id, is_outside=is_outside)
        response.request = replace(request, is_beside_units=self._is_live)
        self._turn_index += 1
        return [self._begin(Generate(response.request, self._turn_index - 1))]

    @property
    def _responses(self) -> list[Response]:
        return [*([] if self._active is None else [self._active]), *self._outside]

    def _note_audible(self, response: Response, audio: bytes, at_s: float) -> None:
        duration_s = len(audio) / response.output.format.bytes_per_s
        if duration_s > 0 and not response.is_outside:
            self._audible_until_s = max(self._audible_until_s, at_s) + duration_s

    def _cut(self, response: Response, reason: str) -> list[Effect]:
        effects = self._end_response(response, Outcome("cancelled", reason))
        return [*effects, Interrupt()] if self._making is response else effects

    def _end_response(
        self, response: Response, outcome: Outcome, stats: TokenStats | None = None
    ) -> list[Effect]:
        sent = response.finish(outcome, stats or TokenStats())
        if response is self._active:
            self._active = None
            self._phase = RealtimePhase.IDLE
        else:
            self._outside.remove(response)
        owed = self._respond(None) if self._audio.is_unanswered and self._active is None else []
        return [*self._send(*sent), *owed]

    def _make_room(self) -> bool:
        """Drop the oldest items; return whether there were any."""
        truncation = self._config.truncation
        if truncation == "disabled":
            return False
        kept, least = HALF, 1
        if isinstance(truncation, RetentionRatio):
            kept, least = truncation.retention_ratio, 0
        count = sum(item.role != "system" for item in self._store)
        surplus = min(max(least, round(count * (1 - kept))), count - KEPT_ITEMS)
        return surplus > 0 and self._store.drop_oldest(surplus) > 0

    def _given_items(self, patch: ResponsePatch | None) -> tuple[Item, ...] | None:
        """Return the items to respond to instead of the conversation, if any."""
        if patch is None or patch.input is None:
            return None
        items = []
        for given in patch.input:
            if isinstance(given, ItemReference):
                known = self._store.get(given.id)
                assert known is not None, "references were checked"
                items.append(known)
            else:
                item_id = given.id or self._start.new_id("item")
                items.append(item_of(given, item_id, self._config.input_format))
        return tuple(items)

    def _end_open_segment(self) -> list[Effect]:
        return self._end_segment(self._audio.end_ms) if self._audio.is_open else []

    def _end_segment(self, end_ms: int) -> list[Effect]:
        kind, item_id = "input_audio_buffer.speech_stopped", self._audio.item_id
        sent = self._event(kind, audio_end_ms=end_ms, item_id=item_id)
        return [*sent, *self._commit(end_ms)]

    def _commit(self, end_ms: int) -> list[Effect]:
        """Make an item of the buffered audio up to a position."""
        item_id, audio = self._audio.take(end_ms)
        item_id = item_id or self._start.new_id("item")
        item = Item(item_id, role="user", content=(Content("input_audio", audio=audio),))
        previous = self._store.add(item)
        ids = {"previous_item_id": previous, "item_id": item_id}
        sent = self._event("input_audio_buffer.committed", **ids)
        sent += self._added(item, previous)
        wanted = self._config.transcription
        if wanted is None or not audio.pcm:
            return sent
        return [*sent, Transcribe(item_id, audio.pcm, audio.format, wanted)]

    def _added(self, item: Item, previous: str | None) -> list[Effect]:
        wire = item.wire()
        added, done = (events.item_event(kind, wire, previous) for kind in ("added", "done"))
        return self._send(added, done)

    def _wait_for_speech(self, now_s: float) -> list[Effect]:
        """Start the idle timer if the client set a time-out."""
        rules = self._config.turn_detection
        idle_ms = rules.idle_timeout_ms if rules is not None else None
        if idle_ms is None or self._active is not None or self._audio.is_open:
            return []
        silent_s = max(0.0, self._audible_until_s - now_s)
        return [StartTimer(TimerName.IDLE, silent_s + idle_ms / MS_PER_S)]

    def _wire(self) -> Json:
        limit_s = self._limits.max_session_s or SHOWN_SESSION_S
        expires_at = self._start.unix_time_s + round(limit_s)
        return self._config.wire(self._start.session_id, self._start.model, expires_at)

    # Any: JSON.
    def _event(self, kind: str, **fields: Any) -> list[Effect]:
        return self._send(RealtimeEvent(kind, fields))

    def _send(self, *sent: RealtimeEvent) -> list[Effect]:
        effects: list[Effect] = []
        for event in sent:
            spelled = events.in_beta(event) if self._start.is_beta else event
            if spelled is not None:
                fields = {"event_id": self._start.new_id("event"), **spelled.fields}
                effects.append(Send(RealtimeEvent(spelled.type, fields)))
        return effects

    def _wrong(
        self, event: Received[Any], code: str, text: str, param: str | None = None
    ) -> list[Effect]:
        return self._send(events.error(code, text, param=param, event_id=event.message.event_id))

    def fail(self, error: OmniError) -> list[Effect]:
        code = SOCKET_CODES.get(error.code, error.code.value)
        return self._close_with(events.error(code, error.message), error.close_code)

    def _close_with(self, sent: RealtimeEvent, code: CloseCode) -> list[Effect]:
        last = self._send(sent)
        *halt, release, close = self._end(close=Close(code, sent.fields["error"]["code"]))
        return [*halt, *last, release, close]
