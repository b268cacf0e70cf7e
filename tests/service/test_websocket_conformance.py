"""RFC 6455 frame by frame, in the order of the Autobahn suite's chapters, on the gateway's sockets.

The suite itself expects a server that echoes, and a Python that is no longer there. Our server
answers a message of an unknown type with a warning, which tells as much: it arrived whole.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from benchmarks.floods import FRAGMENT, MASKED, PING, PONG, TEXT, handshake
from tests.fakes.gateway_stage import HOST, LIMIT_S, Stage, on_stage
from tests.pairing import by_default

# First bytes of frames. Source: RFC 6455, section 5.2.
FIN, BINARY, CLOSE = 0x80, 0x82, 0x88
PART, PART_OF_BINARY, LAST_PART = 0x01, 0x02, 0x80
RESERVED_BITS = (0x40, 0x20, 0x10)
RESERVED_OPCODES = (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)

ALIVE = "answers"
PROTOCOL_ERROR, UNSUPPORTED, NO_CODE, NO_UTF8 = 1002, 1003, 1005, 1007
SENT_CODES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999)
UNSENT_CODES = (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000)
SIZES = (0, 90, 91, 92, 93, 94, 65_490, 65_500, 65_536)  # around 125 and 65,535 with the rest
BROKEN_TEXTS = (
    b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80",  # a surrogate
    b"\xc0\xaf",  # longer than need be
    b"\xf4\x90\x80\x80",  # beyond the last code point
    b"\x80",
    b"\xff",
    b"\xe6\xbc",  # ends within a character
)
WHOLE_TEXTS = ("κόσμε", "\U0001f600", "\U0010ffff", "\ud7ff\ue000", "a\u0000b")


def frame(head: int, payload: bytes = b"", *, is_masked: bool = True) -> bytes:
    """Return a frame; its length takes as few bytes as it needs."""
    size, bit = len(payload), MASKED if is_masked else 0
    if size < 126:
        length = bytes([bit | size])
    elif size < 65_536:
        length = bytes([bit | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([bit | 127]) + size.to_bytes(8, "big")
    return bytes([head]) + length + (bytes(4) if is_masked else b"") + payload


def message(text: str = "") -> bytes:
    """Return a message of a type that does not exist."""
    return json.dumps({"type": "sing", "x": text}, ensure_ascii=False).encode()


@dataclass(frozen=True)
class Case:
    """What a client sends, and what comes of it.

    Attributes:
        chapter: of the suite, and a word for the case.
        sent: frames.
        expected: how the server closes, or that it answers messages.
        pongs: what it sends back to pings.
    """

    chapter: str
    sent: bytes
    expected: int | str = ALIVE
    pongs: tuple[bytes, ...] = ()


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + reason)


def whole_messages() -> Iterator[Case]:
    for size in SIZES:
        yield Case(f"1.1 text of {size}", frame(TEXT, message("x" * size)))
    yield Case("1.2 binary", frame(BINARY, b"x" * 126), UNSUPPORTED)


def pings() -> Iterator[Case]:
    for payload in (b"", b"hello", bytes(range(125))):
        yield Case(f"2 ping of {len(payload)}", frame(PING, payload), pongs=(payload,))
    yield Case("2.5 ping of 126", frame(PING, b"x" * 126), PROTOCOL_ERROR)
    answer = frame(PONG, b"x") + frame(TEXT, message())
    yield Case("2.7 pong that answers nothing", answer)
    many = [str(number).encode() for number in range(10)]
    yield Case("2.10 ten pings", b"".join(frame(PING, one) for one in many), pongs=tuple(many))


def reserved() -> Iterator[Case]:
    for bit in RESERVED_BITS:
        for kind in (TEXT, PING, CLOSE):
            yield Case(f"3 bit {bit:#x} of {kind:#x}", frame(kind | bit, b""), PROTOCOL_ERROR)
    for opcode in RESERVED_OPCODES:
        yield Case(f"4 opcode {opcode}", frame(FIN | opcode, b"x"), PROTOCOL_ERROR)


def fragments() -> Iterator[Case]:
    whole = message("in parts")
    first, rest = whole[:9], whole[9:]
    yield Case("5.3 two parts", frame(PART, first) + frame(LAST_PART, rest))
    bytewise = b"".join(frame(FRAGMENT, bytes([byte])) for byte in whole[1:-1])
    yield Case("5.5 bytes", frame(PART, whole[:1]) + bytewise + frame(LAST_PART, whole[-1:]))
    between = frame(PART, first) + frame(PING, b"?") + frame(LAST_PART, rest)
    yield Case("5.6 ping between parts", between, pongs=(b"?",))
    empty = frame(PART) + frame(FRAGMENT) + frame(LAST_PART, whole)
    yield Case("5.8 empty parts", empty)
    yield Case("5.9 goes on with nothing", frame(LAST_PART, whole), PROTOCOL_ERROR)
    yield Case("5.10 part of nothing", frame(FRAGMENT, first), PROTOCOL_ERROR)
    yield Case("5.15 whole one between parts", frame(PART, b"{") + frame(TEXT), PROTOCOL_ERROR)
    yield Case("5.16 two beginnings", frame(PART, b"{") + frame(PART, b"}"), PROTOCOL_ERROR)
    yield Case("5.1 ping in parts", frame(PING & ~FIN, b"x"), PROTOCOL_ERROR)
    binary = frame(PART_OF_BINARY, b"x") + frame(LAST_PART, b"y")
    yield Case("5.2 binary in parts", binary, UNSUPPORTED)


def texts() -> Iterator[Case]:
    for text in WHOLE_TEXTS:
        whole = message(text)
        yield Case(f"6.2 {text!r}", frame(TEXT, whole))
        parts = [frame(FRAGMENT, bytes([byte])) for byte in whole[1:-1]]
        split = frame(PART, whole[:1]) + b"".join(parts) + frame(LAST_PART, whole[-1:])
        yield Case(f"6.2 {text!r} in bytes", split)
    for broken in BROKEN_TEXTS:
        yield Case(f"6.3 {broken!r}", frame(TEXT, b'{"x":"' + broken + b'"}'), NO_UTF8)
        split = frame(PART, b'{"x":"' + broken) + frame(LAST_PART, b'"}')
        yield Case(f"6.4 {broken!r} in parts", split, NO_UTF8)


def closes() -> Iterator[Case]:
    yield Case("7.1 text after close", closing(1000) + frame(TEXT, message()), 1000)
    yield Case("7.3 no code", frame(CLOSE), NO_CODE)
    yield Case("7.3 half a code", frame(CLOSE, b"\x03"), PROTOCOL_ERROR)
    yield Case("7.3 reason", closing(1000, b"x" * 123), 1000)
    yield Case("7.3 long reason", closing(1000, b"x" * 124), PROTOCOL_ERROR)
    yield Case("7.5 reason of no text", closing(1000, b"\xff"), NO_UTF8)
    for code in SENT_CODES:
        yield Case(f"7.7 code {code}", closing(code), code)
    for code in UNSENT_CODES:
        yield Case(f"7.9 code {code}", closing(code), PROTOCOL_ERROR)
    yield Case("no mask", frame(TEXT, message(), is_masked=False), PROTOCOL_ERROR)


CASES = [*whole_messages(), *pings(), *reserved(), *fragments(), *texts(), *closes()]
KEY, VERSION = b"Sec-WebSocket-Key: ", b"Sec-WebSocket-Version: "
REFUSED_HANDSHAKES = {
    "no key": handshake("/ws/chat").replace(KEY, b"X-Key: "),
    "half a key": handshake("/ws/chat").replace(KEY, KEY + b"x"),
    "old version": handshake("/ws/chat").replace(VERSION, VERSION + b"8, "),
    "another method": handshake("/ws/chat").replace(b"GET", b"POST"),
    "no such subprotocol": handshake("/ws/chat").replace(
        KEY, b"Sec-WebSocket-Protocol: \xff\r\n" + KEY
    ),
    "another origin": handshake("/ws/chat").replace(KEY, b"Origin: https://x.example\r\n" + KEY),
    "unsupported use": handshake("/v1/realtime?call_id=x"),
}
SOCKETS = ("/ws/streaming/s_{}", "/ws/chat")  # those that answer before a worker is there


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one of the server's frames; it masks none."""
    head, size = await reader.readexactly(2)
    assert not size & MASKED, "the server has masked a frame"
    if size >= 126:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
    return head, await reader.readexactly(size)


async def outcome(port: int, path: str, case: Case) -> tuple[int | str, tuple[bytes, ...]]:
    """Send a case; return how it ended and the pongs."""
    reader, writer = await asyncio.open_connection(HOST, port)
    pongs: list[bytes] = []
    try:
        writer.write(handshake(path))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        writer.write(case.sent)
        while True:
            kind, payload = await read_frame(reader)
            if kind == PONG:
                pongs.append(payload)
                if case.expected == ALIVE and tuple(pongs) == case.pongs:
                    return ALIVE, tuple(pongs)
            elif kind == CLOSE:
                return int.from_bytes(payload[:2], "big") if payload else NO_CODE, tuple(pongs)
            elif kind == TEXT and json.loads(payload).get("code") == "unknown_type":
                return ALIVE, tuple(pongs)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        return type(error).__name__, tuple(pongs)
    finally:
        writer.close()


@pytest.mark.parametrize("path", by_default(SOCKETS[:1], SOCKETS))
@on_stage()
async def test_every_frame_is_answered_as_the_standard_says(
    stage: Stage, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = []
    for number, case in enumerate(CASES):
        async with asyncio.timeout(LIMIT_S):
            found = await outcome(stage.port, path.format(number), case)
        if found != (case.expected, case.pongs):
            wrong.append(f"{case.chapter}: {found}, expected {(case.expected, case.pongs)}")
    assert wrong == []
    told = [record.getMessage() for record in caplog.records if record.exc_info]
    assert told == [], "a client's mistake is no error of the server, which a traceback would be"


@pytest.mark.parametrize("name", REFUSED_HANDSHAKES)
@on_stage()
async def test_a_refused_handshake_leaves_neither_a_connection_nor_an_error(
    stage: Stage, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection(HOST, stage.port)
    writer.write(REFUSED_HANDSHAKES[name])
    async with asyncio.timeout(LIMIT_S):
        assert (await reader.read()).startswith(b"HTTP/1.1 4")
    writer.close()
    await stage.stop_gateway()  # which waits for all connections, as uvicorn does
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert told == []
