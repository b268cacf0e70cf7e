"""How a session's connection is assembled, and its limits, by the kind of its socket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import structlog
from pydantic import TypeAdapter

from config import Settings
from core.images import FRAME_LIMITS, PictureLimits
from core.metrics import WorkerMetrics
from core.protocols import events
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import ServerMessage
from core.protocols.events import MS_PER_S
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.half_duplex import HalfDuplexLimits, HalfDuplexMachine
from core.protocols.machine import SessionIds, SessionMachine
from core.protocols.realtime import RealtimeMachine
from core.protocols.realtime_items import RealtimeLimits
from core.protocols.streaming import ChatLimits, ChatMachine, StreamingLimits, StreamingMachine
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.common import parse_message
from core.schemas.limits import EVENT_LIMIT_BYTES
from core.schemas.openai_errors import error_event, socket_code
from core.schemas.queue import ErrorMessage, SocketKind, WarningMessage
from core.schemas.realtime import parse_event
from core.serving.capacity import MetricsObserver
from core.serving.connection import SESSION_LOG, Connection
from core.serving.duplex_handler import DuplexHandler
from core.serving.observers import InnerObserver, Observer, TraceObserver
from core.serving.openai_clients import GptLiveCodec, live_names
from core.serving.realtime_handler import RealtimeHandler, realtime_start
from core.serving.recording_observer import (
    DuplexRecording,
    RealtimeRecording,
    StreamingRecording,
    TurnRecording,
)
from core.serving.recordings import OpenRecording, Recordings
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionHandler
from core.serving.slots import Owner
from core.serving.turn_handlers import ChatHandler, HalfDuplexHandler, StreamingHandler
from core.serving.wire import Endpoint, Socket, Wire
from core.telemetry import Tracing
from session_recorder import DuplexSessionRecorder, TurnBasedSessionRecorder
from settings.sections import DuplexSettings, HalfDuplexSettings, LimitSettings

# Any: no type annotation expresses a union of messages.
MESSAGES: Final[dict[SocketKind, TypeAdapter[Any]]] = {
    SocketKind.STREAMING: TypeAdapter(streaming.WorkerClientMessage),
    SocketKind.CHAT: TypeAdapter(chat.ClientMessage),
    SocketKind.HALF_DUPLEX: TypeAdapter(half_duplex.ClientMessage),
    SocketKind.DUPLEX: TypeAdapter(duplex.ClientMessage),
}


def endpoint_of(kind: SocketKind, settings: Settings) -> Endpoint:
    if kind.has_events:
        parse = GptLiveCodec().parse if kind is SocketKind.LIVE else parse_event
        return Endpoint(parse, EVENT_LIMIT_BYTES, EVENT_LIMIT_BYTES, write=_spelled_as_event)
    limits = settings.limits
    sizes = (limits.prepare_bytes, limits.live_message_bytes)
    if kind.has_turns:
        sizes = (limits.chat_message_bytes, limits.chat_message_bytes)
    if kind is SocketKind.HALF_DUPLEX:
        return Endpoint(partial(_parse_half_duplex, settings.half_duplex), *sizes, limits)
    return Endpoint(partial(parse_message, MESSAGES[kind]), *sizes, limits)


def _spelled_as_event(message: ServerMessage) -> str:
    """Return a message as JSON; errors and warnings become events in OpenAI's form."""
    if isinstance(message, ErrorMessage | WarningMessage):
        return error_event(socket_code(message.code), message.message)
    return message.to_json()


def frame_limits(limits: LimitSettings) -> PictureLimits:
    return replace(
        FRAME_LIMITS, max_bytes=limits.frame_max_bytes, max_side_px=limits.frame_max_side_px
    )


def duplex_limits(duplex: DuplexSettings, context_tokens: int | None) -> DuplexLimits:
    return DuplexLimits(
        pause_timeout_s=duplex.pause_timeout,
        max_session_s=duplex.max_session_s,
        max_kv_tokens=min(duplex.max_kv_tokens, context_tokens or duplex.max_kv_tokens),
        max_backlog_chunks=duplex.max_backlog_chunks,
        max_frames_per_chunk=duplex.max_frames_per_chunk,
        frame_grace_s=duplex.frame_grace_ms / MS_PER_S,
    )


def _parse_half_duplex(defaults: HalfDuplexSettings, text: str) -> events.ClientMessage:
    """Parse a message, and fill the fields that a `prepare` leaves out."""
    message: half_duplex.ClientMessage = parse_message(MESSAGES[SocketKind.HALF_DUPLEX], text)
    if not isinstance(message, half_duplex.Prepare):
        return message
    config = message.config
    vad = defaults.vad.model_copy(update=config.vad.model_dump(exclude_unset=True))
    session = config.session
    if "timeout_s" not in session.model_fields_set:
        session = half_duplex.SessionConfig(timeout_s=defaults.timeout_s)
    config = config.model_copy(update={"vad": vad, "session": session})
    return message.model_copy(update={"config": config})


@dataclass(frozen=True, eq=False)
class SessionBuilder:
    """Assembles the connections of sessions; `recordings` and `tracing` are optional."""

    runtime: WorkerRuntime
    settings: Settings
    metrics: WorkerMetrics
    recordings: Recordings | None
    tracing: Tracing | None

    def build(self, socket: Socket, kind: SocketKind, owner: Owner) -> Connection:
        """Return a connection that is ready to be served; the owner's status is its machine's."""
        recording: OpenRecording | None = None
        if self.recordings is not None and owner.is_recorded:
            recording = self.recordings.resume(owner)
        recording_id = recording.recording_id if recording else None
        names = SessionIds(owner.session_id, recording_id, owner.secret or None)
        machine, handler = self._machine_and_handler(kind, names, owner)
        observers = self._observers(machine, owner)
        if recording is not None:
            observers.append(self._recording(machine, recording))
        log = structlog.stdlib.get_logger(SESSION_LOG).bind(mode=owner.kind.value)
        connection = Connection(
            Wire(socket, endpoint_of(kind, self.settings)), machine, handler, observers, log=log
        )
        if recording is not None:
            recording.on_stopped = lambda problem: connection.post(events.EngineWarning(problem))
        owner.machine_status = lambda: machine.status
        owner.kv_tokens = lambda: handler.kv_tokens
        return connection

    def _machine_and_handler(
        self, kind: SocketKind, names: SessionIds, owner: Owner
    ) -> tuple[SessionMachine, SessionHandler[Any]]:
        runtime, settings = self.runtime, self.settings
        count, transcribes = runtime.backend.count_tokens, runtime.transcriber is not None
        by_units = duplex_limits(settings.duplex, runtime.backend.context_tokens)
        kv_tokens, max_session_s = by_units.max_kv_tokens, settings.half_duplex.max_session_s
        frames = frame_limits(settings.limits)
        match kind:
            case SocketKind.STREAMING:
                streams = StreamingMachine(names, StreamingLimits(max_kv_tokens=kv_tokens))
                return streams, StreamingHandler(runtime, owner)
            case SocketKind.CHAT:
                return ChatMachine(names, ChatLimits()), ChatHandler(runtime, owner)
            case SocketKind.HALF_DUPLEX:
                by_turns = HalfDuplexLimits(max_session_s=max_session_s, max_kv_tokens=kv_tokens)
                return HalfDuplexMachine(names, by_turns), HalfDuplexHandler(runtime, owner)
            case SocketKind.REALTIME:
                start = realtime_start(
                    owner.model, is_beta=owner.is_beta, can_transcribe=transcribes
                )
                realtime = RealtimeLimits(max_session_s=max_session_s, max_kv_tokens=kv_tokens)
                by_responses = RealtimeMachine(names, start, realtime, count)
                return by_responses, RealtimeHandler(runtime, owner, frames)
        handler = DuplexHandler(runtime, owner, frames)
        if kind is SocketKind.DUPLEX:
            return DuplexMachine(names, by_units, count), handler
        live = live_names(owner.session_id, owner.model, transcribes=transcribes)
        return GptLiveMachine(names, by_units, live, count), handler

    # --- observers ---

    def _observers(self, machine: SessionMachine, owner: Owner) -> list[Observer]:
        """Return the observers that measure; in GPT-Live they observe it as a duplex machine."""
        metrics: Observer = MetricsObserver(
            self.metrics, self.runtime.slots.measured, owner.kind.value, owner.session_id
        )
        if isinstance(machine, RealtimeMachine):  # it sends its client no unit results
            of_unit = (events.Received, events.AudioReady, events.StepDone)
            metrics = InnerObserver(machine, metrics, of_unit, events.Event)
        elif isinstance(machine, GptLiveMachine):  # only its own messages have a size
            metrics = InnerObserver(machine, metrics, outer=events.Received)
        if self.tracing is None:
            return [metrics]
        trace: Observer = TraceObserver(
            self.tracing.call(owner.session_id, owner.secret),
            owner.kind.value,
            is_root=not owner.secret,
        )
        if isinstance(machine, GptLiveMachine):
            trace = InnerObserver(machine, trace)
        return [metrics, trace]

    def _recording(self, machine: SessionMachine, recording: OpenRecording) -> Observer:
        assert self.recordings is not None
        turns = partial(self.recordings.open, TurnBasedSessionRecorder, recording)
        units = partial(self.recordings.open, DuplexSessionRecorder, recording)
        match machine:
            case RealtimeMachine():
                return RealtimeRecording(turns, machine)
            case GptLiveMachine():
                observer = DuplexRecording(units)
                return InnerObserver(machine, observer, is_on=lambda: machine.may_record)
            case DuplexMachine():
                return DuplexRecording(units)
            case StreamingMachine():
                return StreamingRecording(turns, self.recordings, recording)
        return TurnRecording(turns)
