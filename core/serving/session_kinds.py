"""The kinds of sessions: what each accepts, its limits, and how one is put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final

import structlog

from core.errors import OmniError
from core.images import FRAME_LIMITS, PictureLimits
from core.protocols.chat import ChatLimits, ChatMachine
from core.protocols.detection_queue import HalfDuplexLimits
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_units import DuplexLimits
from core.protocols.events import (
    MS_PER_S,
    AudioReady,
    ClientMessage,
    Event,
    Received,
    StepDone,
)
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.half_duplex import HalfDuplexMachine
from core.protocols.machine import SessionIds
from core.protocols.realtime import RealtimeMachine
from core.protocols.realtime_responses import RealtimeLimits
from core.protocols.streaming import StreamingLimits, StreamingMachine
from core.schemas import half_duplex
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import TokenStats
from core.schemas.queue import RequestType, duplex_request_type
from core.serving import wire
from core.serving.connection import Connection, Machine
from core.serving.duplex_handler import DuplexHandler
from core.serving.observers import (
    SESSION_LOG,
    CapacityObserver,
    InnerObserver,
    LogObserver,
    MetricsObserver,
    Observer,
    WorkerMetrics,
)
from core.serving.openai_clients import GptLiveCodec, live_machine
from core.serving.realtime_handler import RealtimeHandler, realtime_start
from core.serving.realtime_recording import RealtimeRecording
from core.serving.recording_observer import (
    ChatRecording,
    DuplexRecording,
    HalfDuplexRecording,
    Snapshot,
    StreamingRecording,
    chat_snapshot,
    turn_timing,
)
from core.serving.recordings import OnStopped, OpenRecording, Recordings
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionHandler
from core.serving.slots import Lease, Owner
from core.serving.trace_observer import TraceObserver
from core.serving.turn_handlers import ChatHandler, HalfDuplexHandler, StreamingHandler
from core.serving.wire import Endpoint, Socket, SoundLimits, Wire
from core.telemetry import Tracing
from session_recorder import EndReason, TurnBasedSessionRecorder
from settings.sections import DuplexSettings, HalfDuplexSettings, LimitSettings

VARIANTS: Final = {"omni": RequestType.OMNI_DUPLEX, "audio": RequestType.AUDIO_DUPLEX}
"""What the gateway calls the two kinds of duplex in an address."""


class SocketKind(StrEnum):
    """What a path is for."""

    STREAMING = "streaming"
    CHAT = "chat"
    HALF_DUPLEX = "half_duplex"
    DUPLEX = "duplex"
    LIVE = "live"
    REALTIME = "realtime"

    @property
    def path(self) -> str:
        return f"/ws/{self.value}"

    @property
    def is_live(self) -> bool:
        """It occupies the worker from the first moment to the last, not turn by turn."""
        return self not in (SocketKind.STREAMING, SocketKind.CHAT)

    def request_type(self, session_id: str, variant: str | None) -> RequestType:
        """Return the request type; of duplex the gateway's variant says it, else the session id."""
        match self:
            case SocketKind.STREAMING:
                return RequestType.STREAMING
            case SocketKind.CHAT:
                return RequestType.CHAT
            case SocketKind.HALF_DUPLEX | SocketKind.REALTIME:
                return RequestType.HALF_DUPLEX_AUDIO
            case SocketKind.DUPLEX:
                return VARIANTS.get(variant or "") or duplex_request_type(session_id)
            case SocketKind.LIVE:
                return RequestType.AUDIO_DUPLEX


@dataclass(frozen=True)
class SessionRules:
    """The limits of sessions.

    Attributes:
        endpoints: what each kind of socket accepts.
        sounds: how long audio may be.
        frames: what a camera picture may be.
        streaming, chat, half_duplex, duplex, realtime: limits of the machines.
        resume_grace_s: how long a live session waits for its lost client.
    """

    endpoints: dict[SocketKind, Endpoint]
    sounds: SoundLimits
    frames: PictureLimits
    streaming: StreamingLimits
    chat: ChatLimits
    half_duplex: HalfDuplexLimits
    duplex: DuplexLimits
    realtime: RealtimeLimits
    resume_grace_s: float

    @classmethod
    def of(
        cls, limits: LimitSettings, duplex: DuplexSettings, half_duplex: HalfDuplexSettings
    ) -> SessionRules:
        chat_bytes = limits.chat_message_bytes
        live_bytes = (limits.prepare_bytes, limits.live_message_bytes)
        sounds = SoundLimits(limits.chunk_max_s, limits.reference_max_s, limits.chat_audio_max_s)
        turns = _with_defaults(wire.HALF_DUPLEX.parse, half_duplex)
        return cls(
            endpoints={
                kind: Endpoint(parse, *sizes, sounds)
                for kind, parse, sizes in (
                    (SocketKind.STREAMING, wire.STREAMING.parse, (chat_bytes, chat_bytes)),
                    (SocketKind.CHAT, wire.CHAT.parse, (chat_bytes, chat_bytes)),
                    (SocketKind.HALF_DUPLEX, turns, live_bytes),
                    (SocketKind.DUPLEX, wire.DUPLEX.parse, live_bytes),
                )
            }
            | {SocketKind.REALTIME: wire.REALTIME},
            sounds=sounds,
            frames=replace(
                FRAME_LIMITS, max_bytes=limits.frame_max_bytes, max_side_px=limits.frame_max_side_px
            ),
            streaming=StreamingLimits(max_kv_tokens=duplex.max_kv_tokens),
            chat=ChatLimits(),
            half_duplex=HalfDuplexLimits(
                max_session_s=half_duplex.max_session_s, max_kv_tokens=duplex.max_kv_tokens
            ),
            duplex=DuplexLimits(
                pause_timeout_s=duplex.pause_timeout,
                max_session_s=duplex.max_session_s,
                max_kv_tokens=duplex.max_kv_tokens,
                max_backlog_chunks=duplex.max_backlog_chunks,
                max_frames_per_chunk=duplex.max_frames_per_chunk,
                frame_grace_s=duplex.frame_grace_ms / MS_PER_S,
            ),
            realtime=RealtimeLimits(
                max_session_s=half_duplex.max_session_s, max_kv_tokens=duplex.max_kv_tokens
            ),
            resume_grace_s=limits.resume_grace_s,
        )

    def within(self, context_tokens: int | None) -> SessionRules:
        """Return the same for a model whose context may be shorter than what is configured."""
        if context_tokens is None:
            return self
        most = min(context_tokens, self.duplex.max_kv_tokens)
        return replace(
            self,
            streaming=replace(self.streaming, max_kv_tokens=most),
            half_duplex=replace(self.half_duplex, max_kv_tokens=most),
            duplex=replace(self.duplex, max_kv_tokens=most),
            realtime=replace(self.realtime, max_kv_tokens=most),
        )


def _with_defaults(
    parse: Callable[[str], ClientMessage], defaults: HalfDuplexSettings
) -> Callable[[str], ClientMessage]:
    """Let a `prepare` take what it does not say from the configuration."""

    def parse_with_defaults(text: str) -> ClientMessage:
        message = parse(text)
        if not isinstance(message, half_duplex.Prepare):
            return message
        return message.model_copy(update={"config": filled_in(message.config, defaults)})

    return parse_with_defaults


def filled_in(
    config: half_duplex.HalfDuplexConfig, defaults: HalfDuplexSettings
) -> half_duplex.HalfDuplexConfig:
    """Return a client's settings with what it left out as configured."""
    said = config.vad.model_dump(include=config.vad.model_fields_set)
    vad = defaults.vad.model_copy(update=said)
    session = config.session
    if "timeout_s" not in session.model_fields_set:
        session = half_duplex.SessionConfig(timeout_s=defaults.timeout_s)
    return config.model_copy(update={"vad": vad, "session": session})


@dataclass(frozen=True, eq=False)
class SessionBuilder:
    """Makes the connections of sessions; None for `recordings` or `tracing` makes none."""

    runtime: WorkerRuntime
    rules: SessionRules
    metrics: WorkerMetrics
    recordings: Recordings | None
    tracing: Tracing | None

    def build(
        self, socket: Socket, kind: SocketKind, owner: Owner, lease: Lease | None
    ) -> Connection:
        """Return a connection that is ready to be served; the owner's status is its machine's.

        `socket` is accepted; a live session has a `lease`.
        """
        continued, recording_id = None, None
        if self.recordings is not None and kind is SocketKind.STREAMING:
            continued = self.recordings.resume(owner)
            recording_id = continued.recording_id
        elif self.recordings is not None:
            recording_id = self.recordings.new_id(owner.kind, owner.session_id)
        names = SessionIds(owner.session_id, recording_id, owner.secret or None)
        machine = self._machine(kind, names, owner)
        handler = self._handler(kind, owner, lease)
        log = structlog.stdlib.get_logger(SESSION_LOG).bind(mode=owner.kind.value)

        def warn(problem: OmniError) -> None:
            connection.notice(problem)

        recording = self._recording(kind, owner, names, continued, warn, machine)
        is_live = kind is SocketKind.LIVE
        endpoint = GptLiveCodec().endpoint() if is_live else self.rules.endpoints[kind]
        connection = Connection(
            Wire(socket, endpoint),
            machine,
            handler,
            [LogObserver(log), *self._observers(machine, owner, recording)],
            log=log,
        )
        owner.machine_status = lambda: machine.status
        owner.kv_tokens = lambda: handler.kv_tokens
        return connection

    def _observers(
        self, machine: Machine, owner: Owner, recording: list[Observer]
    ) -> list[Observer]:
        """Return what counts and records a session; the duplex machine inside another is shown."""
        measuring: list[Observer] = [MetricsObserver(self.metrics, owner.kind.value)]
        if (measured := self.runtime.slots.measured) is not None:
            measuring.append(CapacityObserver(measured.units, owner.session_id))
        if isinstance(machine, RealtimeMachine):  # its client is sent no result of a unit
            measuring += [
                InnerObserver(machine, each, _is_of_unit, closes=False) for each in measuring
            ]
        if self.tracing is not None:
            measuring.append(TraceObserver(self.tracing, owner))
        if not isinstance(machine, GptLiveMachine):
            return [*measuring, *recording]
        measuring = [InnerObserver(machine, each) for each in measuring]
        recording = [
            InnerObserver(machine, each, lambda _: machine.may_record) for each in recording
        ]
        return [*measuring, *recording]

    def record_chat(self, owner: Owner, request: ChatRequest, response: ChatResponse) -> str | None:
        """Record a chat over HTTP; return the recording's id."""
        if self.recordings is None:
            return None
        recording_id = self.recordings.new_id(RequestType.CHAT, "")
        snapshot = chat_snapshot(request)
        recorder = self.recordings.turns(recording_id, owner, lambda problem: None, snapshot)
        recorder.start_message_turn(0, request.messages[-1])
        if response.audio_data:
            recorder.save_ai_audio_turn(0, response.audio_data)
        stats = response.token_stats or TokenStats()
        recorder.end_turn(turn_timing(response.duration_ms, stats), text=response.text)
        recorder.finalize(EndReason.STOPPED)
        return recording_id

    def _machine(self, kind: SocketKind, names: SessionIds, owner: Owner) -> Machine:
        rules = self.rules
        match kind:
            case SocketKind.STREAMING:
                return StreamingMachine(names, rules.streaming)
            case SocketKind.CHAT:
                return ChatMachine(names, rules.chat)
            case SocketKind.HALF_DUPLEX:
                return HalfDuplexMachine(names, rules.half_duplex)
            case SocketKind.DUPLEX:
                return DuplexMachine(names, rules.duplex, self.runtime.backend.count_tokens)
            case SocketKind.LIVE:
                count = self.runtime.backend.count_tokens
                writes = self.runtime.transcriber is not None
                return live_machine(names, rules.duplex, owner.model, count, transcribes=writes)
            case SocketKind.REALTIME:
                start = realtime_start(
                    owner.model,
                    is_beta=owner.is_beta,
                    can_transcribe=self.runtime.transcriber is not None,
                )
                count = self.runtime.backend.count_tokens
                return RealtimeMachine(names, start, rules.realtime, count)

    def _handler(self, kind: SocketKind, owner: Owner, lease: Lease | None) -> SessionHandler[Any]:
        runtime = self.runtime
        match kind:
            case SocketKind.STREAMING:
                return StreamingHandler(runtime, owner)
            case SocketKind.CHAT:
                return ChatHandler(runtime, owner)
        assert lease is not None, "a live session has its slot"
        if kind is SocketKind.HALF_DUPLEX:
            return HalfDuplexHandler(runtime, owner, lease)
        if kind is SocketKind.REALTIME:
            return RealtimeHandler(runtime, owner, lease, self.rules.frames)
        return DuplexHandler(runtime, owner, lease, self.rules.frames)

    def _recording(
        self,
        kind: SocketKind,
        owner: Owner,
        names: SessionIds,
        continued: OpenRecording | None,
        on_stopped: OnStopped,
        machine: Machine,
    ) -> list[Observer]:
        recordings, recording_id = self.recordings, names.recording_session_id
        if recordings is None or recording_id is None:
            return []
        turns = partial(recordings.turns, recording_id, owner, on_stopped)
        match kind:
            case SocketKind.CHAT:
                return [ChatRecording(turns)]
            case SocketKind.HALF_DUPLEX:
                return [HalfDuplexRecording(turns)]
            case SocketKind.REALTIME:
                assert isinstance(machine, RealtimeMachine)
                return [RealtimeRecording(turns, machine)]
            case SocketKind.DUPLEX | SocketKind.LIVE:
                begin = partial(recordings.duplex, recording_id, owner, on_stopped)
                return [DuplexRecording(begin)]
        assert continued is not None, "streaming recordings can be continued"

        def resumed(snapshot: Snapshot) -> TurnBasedSessionRecorder:
            if continued.recorder is None:
                continued.recorder = turns(snapshot)
            return continued.recorder

        suspend = partial(recordings.suspend, owner, continued)
        return [StreamingRecording(resumed, suspend, continued.next_turn)]


def _is_of_unit(event: Event) -> bool:
    return isinstance(event, Received | AudioReady | StepDone)
