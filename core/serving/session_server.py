"""Sessions of a worker over WebSockets and HTTP, from acceptance to end."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from core import errors
from core.errors import OmniError
from core.protocols.effects import Close
from core.protocols.events import ClientAway, ShuttingDown, StopRequested
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.queue import (
    LAST_SEQ,
    RESUMABLE,
    SESSION_SECRET_HEADER,
    UNRECORDED,
    ErrorMessage,
    RequestType,
    SocketKind,
    check_session_id,
    read_seq,
)
from core.schemas.worker import ActionResult, KeptSession, WorkerStatus
from core.serving.connection import Connection
from core.serving.recording_observer import record_chat
from core.serving.resumable import ResumableSocket
from core.serving.session_kinds import SessionBuilder, endpoint_of
from core.serving.slots import Owner
from core.serving.turn_handlers import ChatHandler
from core.serving.wire import (
    Socket,
    StarletteSocket,
    Wire,
    await_end,
    check_audio,
    end_task,
    loop_time_s,
)
from recording.names import generate_session_id

NOT_READY_TEXT: Final = "The worker is still loading its model. Please try again later."
UNNAMED: Final = "direct"  # prefix of generated session ids
CLAIM_WAIT_S: Final = 5.0  # ours: for an earlier socket of the same session to end
DRAIN_POLL_S: Final = 0.05
END_LIMIT_S: Final = 10.0  # ours: for sessions to end after they were shut down


@dataclass(eq=False)
class _Live:
    """A socket or an HTTP request that is being served."""

    kind: SocketKind
    owner: Owner
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # it is no longer served
    connection: Connection | None = None  # of a socket, once it is served
    shut_down: Callable[[], None] = lambda: None  # has it end now, without waiting
    resumable: ResumableSocket | None = None  # another socket of its owner may continue

    @property
    def is_idle(self) -> bool:
        """The session has no turn under way, or no socket."""
        is_away = self.resumable is not None and self.resumable.is_away
        is_busy = self.connection is None or self.connection.machine.status.is_busy
        return is_away or not is_busy


class SessionServer:
    def __init__(self, builder: SessionBuilder) -> None:
        self.runtime = runtime = builder.runtime
        self.recordings = builder.recordings
        self.begin_restart: Callable[[], None] | None = None  # None if nothing restarts it
        metrics = builder.metrics
        metrics.loaded.set_function(lambda: runtime.progress.is_loaded)
        metrics.watch("capacity", lambda: runtime.slots.capacity)
        metrics.watch("window_tokens", lambda: runtime.slots.measured.window or 0)
        metrics.watch("engine_seconds", lambda: runtime.engine.heartbeat.worked_s)
        self._builder = builder
        self._settings = builder.settings
        self._live: dict[tuple[str, str], _Live] = {}  # by kind and id
        self._is_hurried = False  # sessions are not waited for any longer
        self._log = structlog.stdlib.get_logger("sessions")

    # --- start and shutdown ---

    async def recover(self) -> None:
        """Make the recordings of killed processes readable."""
        if self.recordings is None:
            return
        try:
            recovered = await asyncio.to_thread(self.recordings.recover)
        except Exception:
            self._log.exception("recordings_not_recovered")
        else:
            self._log.info("recordings_recovered", count=len(recovered))

    def restart(self) -> None:
        """Begin a restart; raises `NotSupervisedError` if nothing would start the worker again."""
        if self.begin_restart is None or not self.runtime.identity.is_supervised:
            raise errors.NotSupervisedError()
        self.begin_restart()

    async def drain(self, limit_s: float) -> None:
        """Refuse new sessions, wait for running ones and transcripts, end them after a limit."""
        self.runtime.is_draining = True
        self._log.info("draining", sessions=len(self._live), limit_s=limit_s)
        await self._wait_until(lambda: not (self._live or self.runtime.transcripts), limit_s)
        for live in self._live.values():
            live.shut_down()
        await self._wait_until(lambda: not self._live, END_LIMIT_S)

    def stop_waiting(self) -> None:
        """End the wait of `drain` that is under way; may be called by a signal handler."""
        self._is_hurried = True

    async def close(self) -> None:
        """Finish the recordings and end the runtime."""
        self.runtime.is_draining = True
        if self.recordings is not None:
            await asyncio.to_thread(self.recordings.close)
        await asyncio.to_thread(self.runtime.close)

    # --- sockets ---

    async def serve(self, websocket: WebSocket, kind: SocketKind) -> None:
        """Serve one socket to its end.

        A worker that is not ready denies the handshake, so that the gateway can try another one.
        """
        try:
            self._check_open()
        except OmniError as error:
            body = ErrorMessage.of(error).model_dump(mode="json")
            await websocket.send_denial_response(JSONResponse(body, error.http_status))
            return
        await websocket.accept()
        socket, query = StarletteSocket(websocket), websocket.query_params
        name = query.get("session_id") or generate_session_id(UNNAMED)
        with structlog.contextvars.bound_contextvars(session_id=name):
            try:
                check_session_id(name)
                self._check_open()
                secret = websocket.headers.get(SESSION_SECRET_HEADER, "")
                if LAST_SEQ in query:
                    resumable = self._resumable(kind, name, secret)
                    if resumable is None:
                        raise errors.SessionExpiredError()
                    await resumable.resume(websocket, read_seq(query[LAST_SEQ]))
                    return
                owner = Owner(name, kind.request_type(name, query.get("variant")), secret=secret)
                owner.model = query.get("model", "")
                owner.is_beta = query.get("beta") == "1"
                owner.is_recorded = UNRECORDED not in query
                async with self._claimed(kind, owner) as live:
                    if not kind.has_turns:  # else each turn takes a slot
                        await self.runtime.slots.take(owner)
                    if RESUMABLE in query:
                        grace_s = self._settings.limits.resume_grace_s
                        live.resumable = ResumableSocket(websocket, grace_s)
                    await self._converse(live.resumable or socket, live)
            except OmniError as error:
                self._log.info("socket_refused", code=error.code.value, kind=kind.value)
                wire = Wire(socket, endpoint_of(kind, self._settings))
                await wire.send(ErrorMessage.of(error))
                await wire.close(Close(error.close_code, error.code.value))

    async def chat(
        self,
        request: ChatRequest,
        disconnected: Callable[[], Coroutine[Any, Any, None]],
        secret: str,
    ) -> ChatResponse:
        """Answer one HTTP request; the return of `disconnected` cancels it.

        `secret` is that of the recording's owner. Raises `OmniError`.
        """
        self._check_open()
        check_audio(request, self._settings.limits)
        owner = Owner(generate_session_id("chat"), RequestType.CHAT, secret=secret)
        async with self._claimed(SocketKind.CHAT, owner) as live:
            handler = ChatHandler(self.runtime, owner)
            owner.kv_tokens = lambda: handler.kv_tokens
            live.shut_down = handler.cancel

            async def leave() -> None:
                await disconnected()
                handler.cancel()

            async def end() -> None:
                await end_task(leaving)
                await handler.release()

            leaving = asyncio.create_task(leave())
            try:
                response = await handler.respond(request)
            finally:
                await await_end(asyncio.create_task(end()))
        if self.recordings is None:
            return response
        recorded = record_chat(self.recordings, owner, request, response)
        return response.model_copy(update={"recording_session_id": recorded})

    def stop(self, kinds: Sequence[SocketKind], session_id: str | None) -> ActionResult:
        """Stop the reply of a session of these kinds; without an id, of all of them."""
        found = [
            live.connection
            for (kind, name), live in self._live.items()
            if kind in kinds and session_id in (None, name) and live.connection is not None
        ]
        for connection in found:
            connection.post(StopRequested())
        if not found and session_id is not None:
            return ActionResult(success=False, message="There is no such session here.")
        return ActionResult(success=True, message=f"Sessions asked to stop: {len(found)}.")

    def keeps(self, session: KeptSession) -> bool:
        """Return whether a session can be resumed over another socket of its client."""
        kind, name, secret = session.kind, session.session_id, session.session_secret
        return self._resumable(kind, name, secret) is not None

    # --- helpers ---

    def _resumable(self, kind: str, session_id: str, secret: str) -> ResumableSocket | None:
        """Return the session's socket, None if there is none or the secret is wrong."""
        live = self._live.get((kind, session_id))
        if live is None or not hmac.compare_digest(secret.encode(), live.owner.secret.encode()):
            return None
        return live.resumable

    async def _wait_until(self, is_over: Callable[[], bool], limit_s: float) -> None:
        """Wait for what runs, and disconnect idle clients.

        A session without a socket is ended too: a worker that shuts down accepts no other one.
        """
        notified: set[_Live] = set()
        self._is_hurried = False
        until_s = loop_time_s() + limit_s
        while not (is_over() or self._is_hurried) and loop_time_s() < until_s:
            idle = {live for live in self._live.values() if live.is_idle} - notified
            for live in idle:
                live.shut_down()
            notified |= idle
            await asyncio.sleep(DRAIN_POLL_S)

    def _check_open(self) -> None:
        if self.runtime.is_draining:
            raise errors.ShuttingDownError()
        if self.runtime.status in (WorkerStatus.LOADING, WorkerStatus.ERROR):
            raise errors.NoWorkerError(self.runtime.error or NOT_READY_TEXT)

    @asynccontextmanager
    async def _claimed(self, kind: SocketKind, owner: Owner) -> AsyncIterator[_Live]:
        """Claim the session's id; raises `SessionInUseError` if another socket keeps it."""
        key, deadline_s = (kind, owner.session_id), loop_time_s() + CLAIM_WAIT_S
        while (other := self._live.get(key)) is not None:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await other.gone.wait()
            except TimeoutError:
                raise errors.SessionInUseError() from None
        live = self._live[key] = _Live(kind, owner)
        try:
            yield live
        finally:
            del self._live[key]
            live.gone.set()

    async def _converse(self, socket: Socket, live: _Live) -> None:
        try:
            self._check_open()  # again, as it may have waited for a slot
            connection = self._builder.build(socket, live.kind, live.owner)
            live.connection = connection
            live.shut_down = lambda: connection.post(ShuttingDown())
            if live.resumable is not None:
                live.resumable.on_away = lambda is_away: connection.post(ClientAway(is_away))
            await connection.serve()
        finally:
            if live.resumable is not None:
                live.resumable.end()
            self.runtime.slots.give_back(live.owner)  # if the connection has not done so
