"""Client for workers: health, chat and stop over HTTP, and their WebSockets.

Maps every transport failure to one of our errors. Never chooses a worker.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode

import httpx
from pydantic import TypeAdapter, ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import OPEN, Event

from core import errors
from core.schemas import worker as wire
from core.schemas.chat import ChatResponse
from core.schemas.common import WireModel
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES
from core.schemas.queue import SESSION_SECRET_HEADER
from core.worker_tls import SNI, WORKER_TLS_NAME
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.web.messages import FrameSplitter, Shortcut, Text, parts_of, whole_text
from gateway_modules.web.responses import refusal_of

HEALTH_TIMEOUT_S = 5.0  # docs/specification/service.md#3.5
CONNECT_TRIES = 5  # of a WebSocket
CONNECT_PAUSE_S = 1.0  # between two attempts
OPEN_TIMEOUT_S = 5.0  # of one attempt
# A worker suspended for less retains its sessions. Source: docs/specification/service.md#2.1.
PONG_TIMEOUT_S = 20.0
PINGS_PER_TIMEOUT = 4  # a suspended worker is detected within 25 s
CLOSE_TIMEOUT_S = 1.0  # for a worker to answer a close
WAITING_MESSAGES = 16  # received ahead of the relay; then backpressure
HTTP_CONNECTIONS = 256  # of a door to its desk; more requests wait
REPLY_MAX_BYTES = CHAT_SOCKET_LIMIT_BYTES  # as long as a message on any of our sockets
REFUSED_STATUSES: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
WORKER_BUSY: Final = "The worker is busy. Please try again later."
HEAD_END: Final = b"\r\n\r\n"  # of the answer to a handshake
TRANSCRIPT_LINE: Final[TypeAdapter[wire.TranscriptPassage | wire.TranscriptProblem]] = TypeAdapter(
    wire.TranscriptPassage | wire.TranscriptProblem
)
StopPath = Literal["streaming", "half_duplex", "duplex"]
Reply = TypeVar("Reply", bound=WireModel)


class TimedConnection(ClientConnection):
    """A connection that is lost when the peer accepts nothing for as long as a pong may take."""

    async def drain(self) -> None:
        # None of the library's limits covers this wait: behind the full buffer of a peer that
        # vanished, a ping is never sent and a close never ends.
        limit_s = self.loop.time() + (self.ping_timeout or PONG_TIMEOUT_S)
        async with asyncio.timeout_at(self.close_deadline or limit_s):
            await super().drain()


class WorkerSocket(TimedConnection):
    # Any: the parameters of the library's class.
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shortcut = Shortcut(self.send_now)
        self._frames: FrameSplitter | None = None  # None before the handshake

    async def next_text(self) -> str:
        """Wait for the next text that `shortcut` does not take."""
        self.shortcut.is_open = not self.recv_messages.frames
        try:
            return await self.recv(decode=True)
        finally:
            self.shortcut.is_open = False

    def data_received(self, data: bytes) -> None:
        if self._frames is not None:
            if self.shortcut.is_open and not self._frames.is_inside:
                text = whole_text(data, is_masked=False)
                if text is not None and self.shortcut.offer(text):
                    return
            self._frames.split(data)
        was_open = self.protocol.state is OPEN
        super().data_received(data)
        if not was_open and self.protocol.state is OPEN and HEAD_END in data:
            self._frames = FrameSplitter(0)
            self._frames.split(data.partition(HEAD_END)[2])

    def process_event(self, event: Event) -> None:
        if self.shortcut.is_open and isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            if event.fin and event.opcode is Opcode.TEXT and self.shortcut.offer(bytes(event.data)):
                return
            self.shortcut.is_open = False
        super().process_event(event)

    def send_now(self, text: Text) -> bool:
        """Send a text if that is possible without waiting; return whether it was sent."""
        if self.protocol.state is not OPEN or self.paused or self.send_in_progress:
            return False
        self.protocol.send_text(text)
        self.send_data()
        return True


# Any: options of several types.
def socket_options(tls: ssl.SSLContext | None, heartbeat_s: float) -> dict[str, Any]:
    """Return the options of a WebSocket between two of our own processes.

    No compression, which costs more than it saves there, and no proxy of the environment.
    """
    return {
        "compression": None,
        "proxy": None,
        "ssl": tls,
        "server_hostname": WORKER_TLS_NAME if tls else None,
        "open_timeout": OPEN_TIMEOUT_S,
        "close_timeout": CLOSE_TIMEOUT_S,
        "ping_interval": heartbeat_s / PINGS_PER_TIMEOUT,
        "ping_timeout": heartbeat_s,
    }


@dataclass(eq=False, kw_only=True)
class WorkerClient:
    """Client for all workers of a gateway.

    Calls are not limited in number: a chat call holds a slot, and a health check that waited for
    chat calls would find every worker silent. A reply larger than `REPLY_MAX_BYTES` is refused.
    """

    request_timeout_s: float = 300.0  # of one chat call
    secret: str | None = None  # sent with every call
    heartbeat_s: float = PONG_TIMEOUT_S  # for a worker's answer to a ping
    tls: ssl.SSLContext | None = None  # None: plain HTTP
    transport: httpx.AsyncBaseTransport | None = None  # replaces the network in tests
    connect: Callable[..., Awaitable[WorkerSocket]] = connect  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self._headers = {wire.WORKER_SECRET_HEADER: self.secret} if self.secret else {}
        self._http = self._opened()

    def _opened(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=self._headers,
            timeout=self.request_timeout_s,
            limits=httpx.Limits(),
            transport=self.transport,
            trust_env=False,  # no proxy between our own processes
            verify=self.tls or False,  # without TLS there is no certificate
        )

    async def close(self) -> None:
        """Close the connections; later calls open others."""
        http, self._http = self._http, self._opened()
        await http.aclose()

    async def health(self, worker: WorkerConnection) -> wire.WorkerHealth:
        """Return a worker's health; an invalid answer counts as an error of the worker.

        Raises WorkerUnreachableError if it did not answer in time.
        """
        try:
            status, body = await self._call(worker, "GET", "/health", HEALTH_TIMEOUT_S)
        except (errors.WorkerLostError, errors.SessionTimeoutError) as error:
            raise errors.WorkerUnreachableError(error.message) from error
        problem = f"health answered with HTTP {status}"
        if status == HTTPStatus.UNAUTHORIZED:
            problem = "It refuses the gateway: its security.worker_secret differs."
        if status == HTTPStatus.OK:
            try:
                return wire.WorkerHealth.model_validate_json(body)
            except ValidationError:
                problem = "health returned an invalid answer"
        failed = wire.WorkerStatus.ERROR
        return wire.WorkerHealth(status="error", worker_status=failed, error=problem)

    async def chat(
        self, worker: WorkerConnection, body: str, session_secret: str = ""
    ) -> ChatResponse:
        """Send the JSON of a `ChatRequest`; the secret becomes that of the recording's owner.

        Cancelling closes the connection, which stops the worker.

        Raises:
            BadPayloadError: The worker refuses the request.
            NoWorkerError: It is busy or not loaded.
            SessionTimeoutError: It took too long.
            WorkerLostError: It failed, or the connection to it did.
            WorkerUnreachableError: No connection could be made.
        """
        secret, limit_s = {SESSION_SECRET_HEADER: session_secret}, self.request_timeout_s
        answer = await self._call(worker, "POST", "/chat", limit_s, _blocks(body), secret)
        return _parsed(ChatResponse, *answer)

    async def transcribe(
        self, worker: WorkerConnection, audio: bytes, query: Mapping[str, str]
    ) -> AsyncGenerator[wire.TranscriptPassage]:
        """Yield the passages of a transcript as they arrive; `audio` is float32, mono, 16 kHz.

        Raises as `chat` does; also GenerationFailedError part-way.
        """
        url = self._url("http", worker, "/transcribe")
        stream = self._http.stream
        with _our_errors():
            async with stream("POST", url, params=query, content=audio, extensions=SNI) as answer:
                if answer.status_code != HTTPStatus.OK:
                    _raise_for_status(answer.status_code, await _read(answer))
                async for line in answer.aiter_lines():
                    passage = TRANSCRIPT_LINE.validate_json(line)
                    if isinstance(passage, wire.TranscriptProblem):
                        raise errors.GenerationFailedError(passage.problem)
                    yield passage

    async def stop(
        self, worker: WorkerConnection, path: StopPath, session_id: str | None
    ) -> wire.ActionResult:
        """Stop a session's reply, or all replies of a protocol's path."""
        body = wire.StopRequest(session_id=session_id).model_dump_json().encode()
        return await self._act(worker, f"/{path}/stop", body)

    async def keeps(self, worker: WorkerConnection, session: wire.KeptSession) -> bool:
        """Whether a worker retains a resumable session; False if it does not answer."""
        try:
            return (await self._act(worker, "/keeps", session.to_json().encode())).success
        except errors.OmniError:
            return False

    async def restart(self, worker: WorkerConnection) -> wire.ActionResult:
        """Have its launcher restart it; NotSupervisedError if there is none."""
        return await self._act(worker, "/restart", b"{}")

    @asynccontextmanager
    async def connected(
        self,
        worker: WorkerConnection,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        session_secret: str = "",
        tries: int = CONNECT_TRIES,
    ) -> AsyncIterator[WorkerSocket]:
        """Open a WebSocket to a worker for the block; WorkerUnreachableError if all attempts fail.

        A full receive buffer applies backpressure; messages are limited to `REPLY_MAX_BYTES`.
        """
        address = self._url("ws", worker, path)
        if query:
            address += f"?{urlencode(query)}"
        while True:
            try:
                socket = await self.connect(
                    address,
                    create_connection=WorkerSocket,
                    additional_headers={**self._headers, SESSION_SECRET_HEADER: session_secret},
                    max_size=REPLY_MAX_BYTES,
                    max_queue=WAITING_MESSAGES,
                    **socket_options(self.tls, self.heartbeat_s),
                )
                break
            except (OSError, TimeoutError, WebSocketException) as error:
                tries -= 1
                if tries <= 0:
                    raise errors.WorkerUnreachableError() from error
            await asyncio.sleep(CONNECT_PAUSE_S)
        try:
            yield socket
        finally:
            try:
                await socket.close()
            finally:
                # If the close is cancelled, the connection would linger until a ping fails.
                socket.transport.abort()

    def _url(self, scheme: Literal["http", "ws"], worker: WorkerConnection, path: str) -> str:
        return f"{scheme}{'s' * bool(self.tls)}://{worker.place.netloc}{path}"

    async def _act(self, worker: WorkerConnection, path: str, body: bytes) -> wire.ActionResult:
        answer = await self._call(worker, "POST", path, HEALTH_TIMEOUT_S, body)
        return _parsed(wire.ActionResult, *answer)

    async def _call(
        self,
        worker: WorkerConnection,
        method: Literal["GET", "POST"],
        path: str,
        timeout_s: float,
        body: bytes | AsyncIterator[bytes] | None = None,
        further: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        headers |= further or {}
        url = self._url("http", worker, path)
        sent = self._http.stream(method, url, content=body, headers=headers, extensions=SNI)
        with _our_errors():
            # httpx limits each read only, not the whole call.
            async with asyncio.timeout(timeout_s), sent as response:
                return response.status_code, await _read(response)


async def _blocks(text: str) -> AsyncIterator[bytes]:
    for part in parts_of(text):
        yield part.encode("utf-8", "surrogatepass")


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > REPLY_MAX_BYTES:
            raise errors.WorkerLostError("The worker's reply is too large.")
    return bytes(body)


def _parsed(kind: type[Reply], status: int, body: bytes) -> Reply:
    _raise_for_status(status, body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise errors.WorkerLostError("The worker returned an invalid answer.") from error


def _raise_for_status(status: int, body: bytes) -> None:
    if status == HTTPStatus.CONFLICT:
        raise errors.NotSupervisedError()
    if status in REFUSED_STATUSES:
        raise refusal_of(status, body)
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        raise errors.NoWorkerError(WORKER_BUSY)
    if status != HTTPStatus.OK:
        raise errors.WorkerLostError(f"The worker failed (HTTP {status}).")


@contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.InvalidURL, UnicodeError) as error:
        # The latter two: the host cannot be a name in DNS.
        raise errors.WorkerUnreachableError() from error
    except (TimeoutError, httpx.TimeoutException) as error:
        raise errors.SessionTimeoutError("The worker did not answer in time.") from error
    except (httpx.HTTPError, ValidationError) as error:
        raise errors.WorkerLostError() from error
