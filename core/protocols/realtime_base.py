"""Base of the Realtime machine: settings, conversation, input audio, and sending events. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.errors import CloseCode, OmniError
from core.protocols import openai_events as events
from core.protocols.effects import Close, Effect, Send, StartTimer, Transcribe
from core.protocols.events import MS_PER_S, Received, TimerName
from core.protocols.machine import SessionIds, SessionMachine
from core.protocols.openai_events import SHOWN_SESSION_S, Json, RealtimeEvent
from core.protocols.realtime_input import InputAudio
from core.protocols.realtime_items import Content, Item, ItemStore, RealtimeLimits
from core.protocols.realtime_response import NewId, Response
from core.protocols.realtime_session import OutputConfig, SessionConfig
from core.protocols.tables import Phase
from core.schemas.openai_errors import socket_code
from core.schemas.worker import WorkerStatus


@dataclass(frozen=True)
class RealtimeStart:
    model: str  # the served model's id, echoed
    instructions: str  # default system prompt
    new_id: NewId  # `new_id("item")` begins with `item_`
    session_id: str
    conversation_id: str
    is_beta: bool = False  # use the beta spellings of events
    can_transcribe: bool = False  # the server has a transcriber
    unix_time_s: int = 0  # start of the session


class RealtimeBase(SessionMachine):
    """The part of the Realtime machine that both input and responses need."""

    busy_status = WorkerStatus.BUSY_HALF_DUPLEX

    def __init__(
        self, ids: SessionIds, start: RealtimeStart, limits: RealtimeLimits | None
    ) -> None:
        super().__init__(ids, Phase.IDLE)
        self._limits = limits or RealtimeLimits()
        self._start = start
        output = OutputConfig(start.instructions)
        self._config = SessionConfig(output, can_transcribe=start.can_transcribe)
        self._store = ItemStore(start.conversation_id, self._limits)
        self._audio = InputAudio()
        self._active: Response | None = None
        self._audible_until_s = 0.0  # above 0 once the model has spoken

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

    def _end_playback(self, now_s: float) -> None:
        """Note that the client plays nothing more of what it was sent."""
        self._audible_until_s = min(self._audible_until_s, now_s)

    def _wire(self) -> Json:
        limit_s = self._limits.max_session_s or SHOWN_SESSION_S
        expires_at = self._start.unix_time_s + round(limit_s)
        return self._config.wire(self._start.session_id, self._start.model, expires_at)

    # Any: JSON.
    def _event(self, kind: str, **fields: Any) -> list[Effect]:
        return self._send(RealtimeEvent(kind, fields))

    def _send(self, *sent: RealtimeEvent) -> list[Effect]:
        effects: list[Effect] = []
        temperature = self._config.output.temperature
        for event in sent:
            spelled = events.in_beta(event, temperature) if self._start.is_beta else event
            if spelled is not None:
                fields = {"event_id": self._start.new_id("event"), **spelled.fields}
                effects.append(Send(RealtimeEvent(spelled.type, fields)))
        return effects

    def _wrong(
        self, event: Received[Any], code: str, text: str, param: str | None = None
    ) -> list[Effect]:
        return self._send(events.error(code, text, param=param, event_id=event.message.event_id))

    def fail(self, error: OmniError) -> list[Effect]:
        sent = events.error(socket_code(error.code), error.message)
        return self._close_with(sent, error.close_code)

    def _close_with(self, sent: RealtimeEvent, code: CloseCode) -> list[Effect]:
        close = Close(code, sent.fields["error"]["code"])
        return self._end(*self._send(sent), close=close)
