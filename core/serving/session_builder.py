"""Puts one session together: machine, handler, wire and observers of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from core.errors import OmniError
from core.metrics import WorkerMetrics
from core.protocols.chat import ChatMachine
from core.protocols.duplex import DuplexMachine
from core.protocols.half_duplex import HalfDuplexMachine
from core.protocols.machine import SessionNames
from core.protocols.streaming import StreamingMachine
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import TokenStats
from core.schemas.queue import RequestType
from core.serving.capacity import CapacityObserver
from core.serving.chat_handler import ChatHandler
from core.serving.connection import Connection, Machine
from core.serving.duplex_handler import DuplexHandler
from core.serving.half_duplex_handler import HalfDuplexHandler
from core.serving.observers import LogObserver, MetricsObserver, Observer
from core.serving.ownership import Lease, Owner
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
from core.serving.scheduling import LoopScheduler
from core.serving.session_handler import SessionHandler
from core.serving.session_kinds import SessionRules, SocketKind
from core.serving.sockets import Socket
from core.serving.streaming_handler import StreamingHandler
from core.serving.wire import Wire
from session_recorder import EndReason, TurnBasedSessionRecorder


@dataclass(frozen=True, eq=False)
class SessionBuilder:
    """What sessions are made of.

    Attributes:
        runtime: the model and everything around it.
        rules: what sessions may say and take.
        metrics: counts.
        recordings: makes recorders; None records nothing.
    """

    runtime: WorkerRuntime
    rules: SessionRules
    metrics: WorkerMetrics
    recordings: Recordings | None

    def build(
        self, socket: Socket, kind: SocketKind, owner: Owner, lease: Lease | None
    ) -> Connection:
        """Return a connection that is ready to be served.

        Args:
            socket: Accepted.
            kind: Which path it came to.
            owner: The session; told from here on what it does.
            lease: Its slot, if it takes one from the first moment.
        """
        scheduler = LoopScheduler()
        continued = self._continued(kind, owner)
        names = self._names(owner, continued)
        machine = self._machine(kind, names)
        handler = self._handler(kind, owner, lease)
        log = structlog.stdlib.get_logger("session").bind(mode=owner.kind.value)
        observers: list[Observer] = [LogObserver(log)]
        observers.append(MetricsObserver(self.metrics, owner.kind.value))
        measured = self.runtime.slots.measured
        if kind is SocketKind.DUPLEX and measured is not None:
            observers.append(CapacityObserver(measured, owner.session_id))

        def tell(problem: OmniError) -> None:
            connection.notice(problem)

        connection = Connection(
            Wire(socket, self.rules.endpoints[kind], scheduler),
            machine,
            handler,
            [*observers, *self._recording(kind, owner, names, continued, tell)],
            scheduler,
            log=log,
        )
        owner.told_status = lambda: machine.status
        owner.kv_tokens = lambda: handler.kv_tokens
        return connection

    def record_chat(self, owner: Owner, request: ChatRequest, response: ChatResponse) -> str | None:
        """Record a chat over HTTP; return the recording's id."""
        if self.recordings is None:
            return None
        recording_id = self.recordings.new_id(RequestType.CHAT, "")
        snapshot = chat_snapshot(request)
        recorder = self.recordings.turns(recording_id, owner, _ignore, snapshot)
        recorder.start_message_turn(0, request.messages[-1])
        if response.audio_data:
            recorder.save_ai_audio_turn(0, response.audio_data)
        stats = response.token_stats or TokenStats()
        recorder.end_turn(turn_timing(response.duration_ms, stats), text=response.text)
        recorder.finalize(EndReason.STOPPED)
        return recording_id

    def _continued(self, kind: SocketKind, owner: Owner) -> OpenRecording | None:
        """The recording a streaming session goes on with."""
        if self.recordings is None or kind is not SocketKind.STREAMING:
            return None
        return self.recordings.resume(owner)

    def _names(self, owner: Owner, continued: OpenRecording | None) -> SessionNames:
        if continued is not None:
            recording_id: str | None = continued.recording_id
        elif self.recordings is not None:
            recording_id = self.recordings.new_id(owner.kind, owner.session_id)
        else:
            recording_id = None
        return SessionNames(owner.session_id, recording_id, owner.secret or None)

    def _machine(self, kind: SocketKind, names: SessionNames) -> Machine:
        rules = self.rules
        match kind:
            case SocketKind.STREAMING:
                return StreamingMachine(names, rules.streaming)
            case SocketKind.CHAT:
                return ChatMachine(names, rules.chat)
            case SocketKind.HALF_DUPLEX:
                return HalfDuplexMachine(names, rules.half_duplex)
            case SocketKind.DUPLEX:
                return DuplexMachine(names, rules.duplex)

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
        return DuplexHandler(runtime, owner, lease, self.rules.frames)

    def _recording(
        self,
        kind: SocketKind,
        owner: Owner,
        names: SessionNames,
        continued: OpenRecording | None,
        on_stopped: OnStopped,
    ) -> list[Observer]:
        """Return who records the session, if anybody does."""
        recordings, recording_id = self.recordings, names.recording_session_id
        if recordings is None or recording_id is None:
            return []
        turns = partial(recordings.turns, recording_id, owner, on_stopped)
        match kind:
            case SocketKind.CHAT:
                return [ChatRecording(turns)]
            case SocketKind.HALF_DUPLEX:
                return [HalfDuplexRecording(turns)]
            case SocketKind.DUPLEX:
                begin = partial(recordings.duplex, recording_id, owner, on_stopped)
                return [DuplexRecording(begin)]
        assert continued is not None, "a streaming recording may go on"

        def go_on(snapshot: Snapshot) -> TurnBasedSessionRecorder:
            if continued.recorder is None:
                continued.recorder = turns(snapshot)
            return continued.recorder

        put_away = partial(recordings.put_away, owner, continued)
        return [StreamingRecording(go_on, put_away, continued.next_turn)]


def _ignore(problem: object) -> None:
    """Nobody is connected any more who could be told."""
