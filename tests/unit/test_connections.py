"""What one connection, and many, may take of the server: time, places, and turns of the loop."""

from __future__ import annotations

import asyncio
import resource
import struct

import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from gateway_modules.web.limits import (
    DESCRIPTORS_EACH,
    DESCRIPTORS_RESERVED,
    HEALTH_CHECKS_MAX,
    READ_BYTES,
    BoundedReads,
    Connections,
    RefusalLog,
    connection_limit,
)
from gateway_modules.web.messages import SHORTCUT_MARK, Shortcut, Take, Text
from gateway_modules.web.server import LIMITS_S, SLOWEST_BYTES_PER_S, Expected
from gateway_modules.web.socket_server import SMALL_FRAMES_AT_ONCE
from tests.fakes.raw_connection import RawConnection
from tests.fakes.virtual_time import in_virtual_time, let_others_run

LOCAL = "127.0.0.1"
HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
UPLOAD = b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
HANDSHAKE = (
    b"GET /ws/chat HTTP/%s\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)
UPGRADE = HANDSHAKE % (b"1.1", b"")
PERIOD_S = LIMITS_S[Expected.BODY]
TEXT, CONTINUATION, PING, PONG = 0x1, 0x0, 0x9, 0xA
FINAL, MASKED = 0x80, 0x80
POLICY = 1008


class App:
    """Reads bodies, answers requests, and takes the messages of sockets until they end."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.code = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            self.texts.append(event["text"])
        self.code = event["code"]

    async def _answer(self, receive: Receive, send: Send) -> None:
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


class Waiter(App):
    """Takes a message, and is busy with it until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.shortcut: Shortcut = scope[SHORTCUT_MARK]
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            self.texts.append(event["text"])
            await self.may_go_on.wait()
            self.may_go_on.clear()


def frame(opcode: int, payload: bytes = b"", *, is_final: bool = True) -> bytes:
    """A masked frame. Source: RFC 6455, section 5.2; a mask of zeros changes nothing."""
    assert len(payload) < 2**16
    size = struct.pack(">BH", MASKED | 126, len(payload))
    if len(payload) <= 125:
        size = bytes([MASKED | len(payload)])
    return bytes([FINAL * is_final | opcode]) + size + bytes(4) + payload


async def socket_of(app: App) -> RawConnection:
    connection = RawConnection(app)
    await connection.receive(UPGRADE)
    await let_others_run()
    assert connection.sent.startswith(b"HTTP/1.1 101")
    return connection


@pytest.mark.parametrize("beginning", [b"", HEAD[:5], HEAD[:-2], HEAD + HEAD[:9]])
@in_virtual_time
async def test_a_request_head_is_complete_in_ten_seconds(beginning: bytes) -> None:
    connection = RawConnection(App())
    await connection.receive(beginning)
    for _ in range(9):
        await asyncio.sleep(1)
        await connection.receive(b"X")
    assert connection.is_open
    await asyncio.sleep(1.1)
    assert not connection.is_open


@pytest.mark.parametrize(("share", "is_kept"), [(1.1, True), (0.9, False)])
@in_virtual_time
async def test_a_body_must_arrive_at_the_minimum_rate(share: float, is_kept: bool) -> None:
    connection = RawConnection(App())
    await connection.receive(UPLOAD)
    for _ in range(3 * int(PERIOD_S)):
        await asyncio.sleep(1)
        await connection.receive(bytes(int(SLOWEST_BYTES_PER_S * share)))
    assert connection.is_open is is_kept


@pytest.mark.parametrize(("taken", "is_kept"), [(0, False), (SLOWEST_BYTES_PER_S * 31, True)])
@in_virtual_time
async def test_a_client_that_does_not_read_the_response_is_disconnected(
    taken: int, is_kept: bool
) -> None:
    connection = RawConnection(App())
    await connection.receive(UPLOAD)
    connection.fill(10_000_000)
    await asyncio.sleep(PERIOD_S - 1)
    connection.fill(10_000_000 - taken)
    await asyncio.sleep(2)
    assert connection.is_open is is_kept


@in_virtual_time
async def test_idle_connections_are_closed_for_new_ones_and_busy_ones_are_not() -> None:
    connections = Connections(3, 3, lambda address: "")
    busy = RawConnection(App(), connections, ("192.0.2.1", 1))
    await busy.receive(UPLOAD)
    crowd = [RawConnection(App(), connections, ("192.0.2.2", port)) for port in range(1, 50)]
    await let_others_run()
    assert len(connections) == 3
    assert busy.is_open
    assert [one.is_open for one in crowd[-2:]] == [True, True]
    assert not any(one.is_open for one in crowd[:-2])
    await crowd[-1].receive(HEAD)
    await let_others_run()
    assert b"200" in crowd[-1].sent


async def full_connections() -> tuple[Connections, RawConnection]:
    """One place, and its connection, which is busy."""
    connections = Connections(1, 10, lambda address: "")
    busy = RawConnection(App(), connections, ("192.0.2.1", 1))
    await busy.receive(UPLOAD)
    return connections, busy


@in_virtual_time
async def test_health_checks_of_this_machine_are_answered_beyond_the_limit() -> None:
    connections, busy = await full_connections()
    for port in range(2 * HEALTH_CHECKS_MAX):
        check = RawConnection(App(), connections, (LOCAL, port))
        await check.receive(HEAD)
        await let_others_run()
        assert b"200" in check.sent
        assert not check.is_open, "the next one needs its place"
    stranger = RawConnection(App(), connections, ("192.0.2.2", 1))
    assert not stranger.is_open
    assert busy.is_open
    assert len(connections) == 1


@in_virtual_time
async def test_a_proxy_of_this_machine_cannot_take_the_places_of_health_checks() -> None:
    connections, _ = await full_connections()
    silent = [RawConnection(App(), connections, (LOCAL, port)) for port in range(200)]
    for sent in (UPLOAD, UPGRADE, HEAD[:5], HEAD.replace(b"health", b"healthy")):
        proxied = RawConnection(App(), connections, (LOCAL, 1_000))
        await proxied.receive(sent)
        assert not proxied.is_open
        assert proxied.sent == b""
        await let_others_run()
    check = RawConnection(App(), connections, (LOCAL, 2_000))
    await check.receive(HEAD + UPLOAD)
    await let_others_run()
    assert check.sent.count(b"200") == 1
    assert not check.is_open
    assert sum(one.is_open for one in silent) < HEALTH_CHECKS_MAX


@in_virtual_time
async def test_connections_are_limited_per_client() -> None:
    connections = Connections(10, 2, lambda address: address)
    mine = [RawConnection(App(), connections, ("192.0.2.1", port)) for port in range(1, 5)]
    other = RawConnection(App(), connections, ("192.0.2.2", 1))
    await let_others_run()
    assert [one.is_open for one in mine] == [True, True, False, False]
    assert other.is_open
    mine[0].close()
    await let_others_run()
    assert RawConnection(App(), connections, ("192.0.2.1", 9)).is_open


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(frame(CONTINUATION, is_final=False), id="empty fragments"),
        pytest.param(frame(CONTINUATION, b"x", is_final=False), id="fragments of a byte"),
        pytest.param(frame(PING, b"x" * 100), id="pings"),
        pytest.param(frame(PONG), id="pongs"),
    ],
)
@in_virtual_time
async def test_small_frames_are_rate_limited(kind: bytes) -> None:
    app = App()
    connection = await socket_of(app)
    await connection.receive(frame(TEXT, b"{", is_final=False))
    before = len(connection.sent)
    await connection.receive(kind * (SMALL_FRAMES_AT_ONCE - 1))
    assert connection.is_open
    await connection.receive(kind * READ_BYTES)
    await let_others_run()
    assert not connection.is_open
    assert app.code == POLICY
    assert len(connection.sent) - before < 2 * SMALL_FRAMES_AT_ONCE * len(kind) + READ_BYTES


@in_virtual_time
async def test_a_shortcut_takes_texts_while_its_app_waits_in_order() -> None:
    app, passed = Waiter(), list[str]()

    def take(text: Text) -> bool:
        is_taken = len(text) > 100
        if is_taken:
            passed.append(bytes(text).decode())
        return is_taken

    connection = await socket_of(app)
    app.shortcut.take = take
    long = [str(at) * 200 for at in range(6)]
    await connection.receive(frame(TEXT, long[0].encode()))
    assert (passed, app.texts) == (long[:1], [])
    rest = ["short", long[1], "short too", long[2]]
    await connection.receive(b"".join(frame(TEXT, text.encode()) for text in rest))
    assert (passed, app.texts) == (long[:1], ["short"]), "nothing overtakes what waits"
    for _ in rest:
        app.may_go_on.set()
        await let_others_run()
    assert (passed, app.texts) == (long[:1], rest)
    await connection.receive(frame(TEXT, long[3].encode()))
    assert passed == [long[0], long[3]]
    assert app.shortcut.send(b"at once")
    assert connection.sent.endswith(b"at once")
    connection.fill(1)
    assert not app.shortcut.send(b"the client does not read")
    connection.close()
    await let_others_run()
    assert not app.shortcut.send(b"the client is gone")


def taking(passed: list[bytes]) -> Take:
    def take(text: Text) -> bool:
        passed.append(bytes(text))
        return True

    return take


@in_virtual_time
async def test_short_texts_after_a_long_one_are_read_at_once_and_parsed_turn_by_turn() -> None:
    """A flood of them must not use the room that another long text would have had."""
    app, passed = Waiter(), list[bytes]()
    connection = await socket_of(app)
    app.shortcut.take = taking(passed)
    await connection.receive(frame(TEXT, b"a" * 60_000))
    short = [b"%04d" % at * 25 for at in range(1_000)]
    before = len(passed)
    assert await connection.receive(b"".join(frame(TEXT, text) for text in short)) == 1
    assert len(passed) - before <= 2 * READ_BYTES // len(short[0])
    while len(passed) - before < len(short):
        turn = len(passed)
        await asyncio.sleep(0)
        assert len(passed) - turn <= READ_BYTES // len(short[0]) + 1
    assert passed[before:] == short


@in_virtual_time
async def test_unparsed_data_is_not_lost_with_the_connection() -> None:
    app, passed = Waiter(), list[bytes]()
    connection = await socket_of(app)
    app.shortcut.take = taking(passed)
    await connection.receive(frame(TEXT, b"a" * 60_000) + frame(TEXT, b"b" * 100) * 200)
    connection.end()
    await let_others_run()
    assert len(passed) == 201


@in_virtual_time
async def test_a_text_within_a_fragmented_text_is_refused() -> None:
    app, passed = Waiter(), list[bytes]()
    connection = await socket_of(app)
    app.shortcut.take = taking(passed)
    await connection.receive(frame(TEXT, b"a" * 200, is_final=False))
    await connection.receive(frame(TEXT, b"b" * 200))
    await let_others_run()
    assert passed == []
    assert not connection.is_open


@in_virtual_time
async def test_a_message_may_arrive_in_large_fragments() -> None:
    app = App()
    connection = await socket_of(app)
    await connection.receive(frame(TEXT, b"a" * 60_000, is_final=False))
    for _ in range(SMALL_FRAMES_AT_ONCE * 2):
        await connection.receive(frame(CONTINUATION, b"b" * 2_000, is_final=False))
    await connection.receive(frame(CONTINUATION, b"c"))
    await let_others_run()
    assert [len(text) for text in app.texts] == [60_001 + SMALL_FRAMES_AT_ONCE * 4_000]


@in_virtual_time
async def test_each_turn_of_the_loop_reads_a_bounded_amount() -> None:
    connection = await socket_of(App())
    short = b"".join(frame(0 if at else TEXT, b"a" * 1_024, is_final=False) for at in range(60))
    assert await connection.receive(short) >= len(short) // READ_BYTES, "frames cost time each"
    long = b"".join(frame(0, b"a" * 60_000, is_final=False) for _ in range(20))
    assert await connection.receive(long) >= 20, "bytes cost little, but not nothing"


@pytest.mark.parametrize(
    "handshake",
    [
        pytest.param(HANDSHAKE % (b"1.1", b"X: y\r\n" * 200), id="too many headers"),
        pytest.param(HANDSHAKE % (b"1.1", b"X: " + b"y" * 9_000 + b"\r\n"), id="a long header"),
        pytest.param(HANDSHAKE % (b"1.1", b"Content-Length: 3\r\n") + b"abc", id="a body"),
        pytest.param(HANDSHAKE % (b"1.0", b""), id="an old HTTP"),
        pytest.param(UPGRADE.replace(b"13", b"12"), id="an old WebSocket"),
    ],
)
@in_virtual_time
async def test_an_invalid_handshake_is_refused_and_closed(handshake: bytes) -> None:
    connection = RawConnection(App())
    await connection.receive(handshake)
    await let_others_run()
    assert connection.sent.startswith(b"HTTP/1.1 4")
    assert not connection.is_open


def test_refusals_are_logged_once_a_second() -> None:
    now_s = 0.0
    log = RefusalLog(lambda: now_s)
    with capture_logs() as lines:
        for step in range(1_000):
            now_s = step / 400  # for two seconds and a half
            log.warn("connection refused", open=5)
    assert [line["more"] for line in lines] == [0, 399, 399]


def test_connections_leave_file_descriptors_for_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"soft": 512, "hard": 900}

    def set_limit(kind: int, wanted: tuple[int, int]) -> None:
        limits["soft"] = wanted[0]

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits["soft"], limits["hard"]))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    allowed = connection_limit(2_000)
    assert limits["soft"] == 900
    assert allowed * DESCRIPTORS_EACH + DESCRIPTORS_RESERVED <= 900
    assert allowed == (900 - DESCRIPTORS_RESERVED) // DESCRIPTORS_EACH
    limits["hard"] = resource.RLIM_INFINITY
    assert connection_limit(100) == 200


def test_data_that_tls_writes_into_slices_is_read() -> None:
    """As asyncio does when it decrypts several records in one turn."""
    read: list[bytes] = []

    class Reader(BoundedReads):
        def data_received(self, data: bytes) -> None:
            read.append(data)

    reader = Reader()
    buffer = reader.get_buffer(-1)
    buffer[:2] = b"ab"
    buffer[2:][:2] = b"cd"
    reader.buffer_updated(4)
    assert read == [b"abcd"]
