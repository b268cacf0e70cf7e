"""Calls to a worker: what is sent, and which error each failure becomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage

from core.errors import (
    AudioTooLongError,
    BadConfigError,
    BadPayloadError,
    ContextFullError,
    NoWorkerError,
    OmniError,
    PictureTooLargeError,
    SessionTimeoutError,
    TooBigError,
    WorkerLostError,
    WorkerUnreachableError,
    describe_error,
)
from core.schemas.queue import SESSION_SECRET_HEADER
from core.schemas.worker import WORKER_SECRET_HEADER, WorkerStatus
from gateway_modules.queue import worker_client
from gateway_modules.queue.worker_client import (
    REPLY_MAX_BYTES,
    WorkerClient,
    WorkerSocket,
    socket_options,
)
from gateway_modules.queue.worker_connection import WorkerConnection
from settings.workers import WorkerPlace
from tests.fakes.full_buffer import with_a_full_buffer
from tests.fakes.pools import answer
from tests.fakes.virtual_time import in_virtual_time

LIMIT_S = 60.0
WORKER = WorkerConnection("worker_0", WorkerPlace("localhost", 22400))
Handler = Callable[[httpx.Request], httpx.Response]


def client_of(handler: Handler, **more: Any) -> WorkerClient:
    return WorkerClient(transport=httpx.MockTransport(handler), **more)


def fails(error: Exception) -> Handler:
    def handle(request: httpx.Request) -> httpx.Response:
        raise error

    return handle


@in_virtual_time
async def test_health_is_requested_and_parsed() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=answer(WorkerStatus.LOADING).to_json())

    client = client_of(handle, secret="s3cret")
    assert (await client.health(WORKER)).worker_status is WorkerStatus.LOADING
    (request,) = seen
    assert (request.method, str(request.url)) == ("GET", "http://localhost:22400/health")
    assert request.headers[WORKER_SECRET_HEADER] == "s3cret"
    await client.close()


@in_virtual_time
@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(500, text="oops"),
        httpx.Response(404),
        httpx.Response(200, text="not JSON"),
        httpx.Response(200, json={"status": "healthy", "worker_status": "dancing"}),
    ],
)
async def test_an_invalid_health_answer_is_the_workers_error(response: httpx.Response) -> None:
    told = await client_of(lambda request: response).health(WORKER)
    assert told.worker_status is WorkerStatus.ERROR
    assert told.error


@in_virtual_time
@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("no"),
        httpx.ReadTimeout("slow"),
        httpx.ReadError("cut"),
        httpx.InvalidURL("no such host"),
        UnicodeError("label empty or too long"),
    ],
)
async def test_no_health_answer_is_unreachable(error: Exception) -> None:
    with pytest.raises(WorkerUnreachableError):
        await client_of(fails(error)).health(WORKER)


@in_virtual_time
async def test_a_worker_that_answers_too_slowly_times_out() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(1)
            yield b" "

    client = client_of(lambda request: httpx.Response(200, content=trickle()))
    with pytest.raises(WorkerUnreachableError):
        await client.health(WORKER)
    assert asyncio.get_running_loop().time() == worker_client.HEALTH_TIMEOUT_S


@in_virtual_time
async def test_chat_forwards_the_body_unread() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/chat")
        assert request.headers["content-type"] == "application/json"
        assert request.content == b'{"messages": []}'
        return httpx.Response(200, json={"text": "Hi", "tokens_generated": 2})

    reply = await client_of(handle).chat(WORKER, '{"messages": []}')
    assert (reply.text, reply.tokens_generated) == ("Hi", 2)


@in_virtual_time
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, BadPayloadError),
        (413, BadPayloadError),
        (422, BadPayloadError),
        (429, NoWorkerError),
        (503, NoWorkerError),
        (500, WorkerLostError),
        (302, WorkerLostError),
    ],
)
async def test_status_codes_become_errors(status: int, expected: type[OmniError]) -> None:
    client = client_of(lambda request: httpx.Response(status, text="why"))
    with pytest.raises(expected):
        await client.chat(WORKER, "{}")
    with pytest.raises(expected):
        await client.stop(WORKER, "streaming", "s")


@in_virtual_time
@pytest.mark.parametrize(
    "refusal",
    [
        PictureTooLargeError("The picture is 20000 x 10."),
        TooBigError("Too many values."),
        AudioTooLongError("data: the audio is longer than 5 s."),
        ContextFullError(),
        BadConfigError("config.top_k"),
    ],
)
async def test_a_workers_refusal_reaches_the_client_unchanged(refusal: OmniError) -> None:
    told = {"detail": refusal.message, "code": refusal.code}
    client = client_of(lambda request: httpx.Response(refusal.http_status, json=told))
    with pytest.raises(OmniError) as caught:
        await client.chat(WORKER, "{}")
    found = describe_error(caught.value)
    assert (type(found), found.message) == (type(refusal), refusal.message)


@in_virtual_time
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx.ConnectError("no"), WorkerUnreachableError),
        (httpx.ConnectTimeout("no"), SessionTimeoutError),
        (httpx.ReadTimeout("slow"), SessionTimeoutError),
        (httpx.RemoteProtocolError("gone"), WorkerLostError),
    ],
)
async def test_transport_failures_become_errors(
    error: Exception, expected: type[OmniError]
) -> None:
    with pytest.raises(expected):
        await client_of(fails(error)).chat(WORKER, "{}")


@in_virtual_time
async def test_an_invalid_or_oversized_reply_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = client_of(lambda request: httpx.Response(200, text="not JSON"))
    with pytest.raises(WorkerLostError):
        await client.chat(WORKER, "{}")
    with pytest.raises(WorkerLostError):
        await client.stop(WORKER, "duplex", None)
    monkeypatch.setattr(worker_client, "REPLY_MAX_BYTES", 4)
    with pytest.raises(WorkerLostError, match="too large"):
        await client.chat(WORKER, "{}")


def test_health_checks_do_not_wait_for_chat_calls() -> None:
    calls = 300

    async def test() -> None:
        asked, all_asked, gate = 0, asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            head = await reader.readuntil(b"\r\n\r\n")
            asked += 1
            if asked == calls:
                all_asked.set()
            if not head.startswith(b"GET /health"):
                await gate.wait()
            body = answer(WorkerStatus.IDLE).to_json().encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0, backlog=calls) as server:
            place = WorkerPlace(*server.sockets[0].getsockname())
            worker, client = WorkerConnection("worker_0", place), WorkerClient()
            chats = [asyncio.create_task(client.chat(worker, "{}")) for _ in range(calls)]
            async with asyncio.timeout(LIMIT_S):
                await all_asked.wait()
            health = await client.health(worker)
            gate.set()
            await asyncio.gather(*chats, return_exceptions=True)
            await client.close()
        assert health.worker_status is WorkerStatus.IDLE

    asyncio.run(test())


@in_virtual_time
async def test_stop_names_its_session() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert (request.method, request.url.path) == ("POST", "/half_duplex/stop")
        assert request.content == b'{"session_id":"hdx_1"}'
        return httpx.Response(200, json={"success": True, "message": "stopped"})

    assert (await client_of(handle).stop(WORKER, "half_duplex", "hdx_1")).success


class FakeTransport:
    """Remembers whether it was cut."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class FakeSocket:
    """A connection that takes some time to close."""

    def __init__(self) -> None:
        self.is_closed = False
        self.transport = FakeTransport()

    async def close(self) -> None:
        await asyncio.sleep(0.5)
        self.is_closed = True


class Opener:
    """Fails a number of times, then opens; remembers how it was called."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls: list[tuple[str, Mapping[str, object]]] = []
        self.socket = FakeSocket()

    async def __call__(self, address: str, **options: object) -> FakeSocket:
        self.calls.append((address, options))
        if len(self.calls) <= self.failures:
            raise [OSError("refused"), TimeoutError(), InvalidMessage("odd")][len(self.calls) % 3]
        return self.socket


def opening(failures: int) -> tuple[WorkerClient, Opener]:
    """Build a client with an opener of its own."""
    opener = Opener(failures)
    return WorkerClient(secret="s", connect=opener), opener  # type: ignore[arg-type]


@in_virtual_time
async def test_a_socket_is_opened_without_compression_and_closed() -> None:
    client, opener = opening(0)
    query = {"session_id": "adx_1", "variant": "audio duplex"}
    async with client.connected(WORKER, "/ws/duplex", query, session_secret="t") as socket:
        assert socket is opener.socket  # type: ignore[comparison-overlap]
        assert not opener.socket.is_closed
    assert opener.socket.is_closed
    ((address, options),) = opener.calls
    assert address == "ws://localhost:22400/ws/duplex?session_id=adx_1&variant=audio+duplex"
    assert options["compression"] is None
    assert options["proxy"] is None
    assert options["max_size"] == REPLY_MAX_BYTES
    assert (options["ping_interval"], options["ping_timeout"]) == (5.0, 20.0)
    assert options["additional_headers"] == {WORKER_SECRET_HEADER: "s", SESSION_SECRET_HEADER: "t"}
    assert (options["open_timeout"], options["max_queue"]) == (5.0, 16)


@in_virtual_time
async def test_a_connection_is_attempted_five_times_a_second_apart() -> None:
    client, opener = opening(4)
    async with client.connected(WORKER, "/ws/streaming"):
        assert asyncio.get_running_loop().time() == 4.0
    assert len(opener.calls) == 5
    client, opener = opening(5)
    with pytest.raises(WorkerUnreachableError):
        async with client.connected(WORKER, "/ws/streaming"):
            raise AssertionError("open")
    assert len(opener.calls) == 5


@in_virtual_time
async def test_a_socket_is_aborted_when_its_close_is_cancelled() -> None:
    client, opener = opening(0)

    async def use() -> None:
        async with client.connected(WORKER, "/ws/streaming"):
            await asyncio.sleep(60)

    task = asyncio.create_task(use())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not opener.socket.is_closed
    assert opener.socket.transport.is_aborted


@in_virtual_time
async def test_closing_twice_is_harmless() -> None:
    client = client_of(lambda request: httpx.Response(200, content=answer().to_json()))
    await client.close()
    await client.health(WORKER)
    await client.close()
    await client.close()


def socket_with_a_full_buffer() -> WorkerSocket:
    options = socket_options(None, heartbeat_s=20.0)
    limits = {name: options[name] for name in ("ping_interval", "ping_timeout", "close_timeout")}
    return with_a_full_buffer(WorkerSocket, **limits)


@in_virtual_time
async def test_a_worker_that_vanished_behind_a_full_buffer_is_detected_within_25_s() -> None:
    socket = socket_with_a_full_buffer()
    socket.start_keepalive()
    with pytest.raises(ConnectionClosed):
        await socket.next_text()
    assert asyncio.get_running_loop().time() == pytest.approx(25.0)


@in_virtual_time
async def test_a_message_behind_a_full_buffer_waits_20_s() -> None:
    socket = socket_with_a_full_buffer()
    with pytest.raises(ConnectionClosed):
        await socket.send("{}")
    assert asyncio.get_running_loop().time() == pytest.approx(20.0)


@in_virtual_time
async def test_a_close_behind_a_full_buffer_waits_a_second() -> None:
    socket = socket_with_a_full_buffer()
    await socket.close()
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)
