"""However a client cuts a message into frames, no fragment is long and the message is the same."""

from __future__ import annotations

import pytest
from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, SERVER, Protocol

from gateway_modules.web.limits import READ_BYTES
from gateway_modules.web.messages import FRAGMENT_BYTES, FrameSplitter, whole_text

LIMIT_BYTES = 4 * FRAGMENT_BYTES
MASK = b"\x01\x80\x03\xff"
SIZES = [0, 1, 126, 2 * FRAGMENT_BYTES - 1, 2 * FRAGMENT_BYTES, 3 * FRAGMENT_BYTES + 9]


def masked(opcode: Opcode, payload: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


def received(stream: bytes, block_bytes: int, limit_bytes: int | None = LIMIT_BYTES) -> Protocol:
    """A server's parser that was given what the splitter makes of a client's bytes."""
    parser = Protocol(SERVER, state=OPEN, max_size=limit_bytes)
    splitter = FrameSplitter(LIMIT_BYTES)
    for start in range(0, len(stream), block_bytes):
        parser.receive_data(splitter.split(stream[start : start + block_bytes]))
    return parser


def frames_of(parser: Protocol) -> list[Frame]:
    return [event for event in parser.events_received() if isinstance(event, Frame)]


@pytest.mark.parametrize("block_bytes", [4_096, 65_537, 1_000_000])
def test_long_frames_are_split_and_the_message_is_unchanged(block_bytes: int) -> None:
    payloads = [(b"%07d" % at * (size // 7 + 1))[:size] for at, size in enumerate(SIZES)]
    stream = masked(Opcode.TEXT, payloads[0], fin=False)
    for payload in payloads[1:]:
        stream += masked(Opcode.PING, b"x") + masked(Opcode.CONT, payload, fin=False)
    frames = frames_of(received(stream + masked(Opcode.CONT, b""), block_bytes, limit_bytes=None))
    parts = [frame for frame in frames if frame.opcode is not Opcode.PING]
    assert b"".join(bytes(part.data) for part in parts) == b"".join(payloads)
    assert max(len(part.data) for part in parts) < 2 * FRAGMENT_BYTES
    assert [part.fin for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[0].opcode is Opcode.TEXT
    assert {part.opcode for part in parts[1:]} == {Opcode.CONT}
    assert len(frames) - len(parts) == len(SIZES) - 1


def test_headers_may_arrive_byte_by_byte() -> None:
    stream = masked(Opcode.TEXT, b"x" * 200_000) + masked(Opcode.PING, b"")
    assert [frame.opcode for frame in frames_of(received(stream, 1))] == [
        Opcode.TEXT,
        Opcode.CONT,
        Opcode.CONT,
        Opcode.PING,
    ]


def test_a_frame_beyond_the_limit_is_not_split() -> None:
    parser = received(masked(Opcode.TEXT, bytes(LIMIT_BYTES + 1))[:14], 5)
    assert isinstance(parser.parser_exc, PayloadTooBig)


@pytest.mark.parametrize("head", [b"\x81\x01x", b"\xf1\x80" + MASK, b"\x8f\x80" + MASK])
def test_an_invalid_frame_reaches_the_parser(head: bytes) -> None:
    """One without a mask, one with a reserved bit, one of an unknown kind."""
    assert received(head, 1).parser_exc is not None


@pytest.mark.parametrize("size", [10, 100_000, 2 * FRAGMENT_BYTES + 9, 2**62])
def test_larger_reads_occur_only_within_a_fragment(size: int) -> None:
    """So that one read brings few frames to parse, and no head makes us take much memory."""
    splitter = FrameSplitter(LIMIT_BYTES)
    assert splitter.read_bytes == READ_BYTES
    splitter.split(bytes([0x82, 0xFF]) + size.to_bytes(8) + MASK)
    assert READ_BYTES <= splitter.read_bytes <= max(READ_BYTES, min(size, 2 * FRAGMENT_BYTES))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_masked", [True, False])
def test_only_a_complete_text_bypasses_the_parser(size: int, is_masked: bool) -> None:
    text = b"x" * size
    block = Frame(Opcode.TEXT, text).serialize(mask=is_masked)
    found = whole_text(block, is_masked=is_masked)
    assert found is not None and bytes(found) == text
    assert whole_text(block, is_masked=not is_masked) is None
    others = [block[:1], block[:-1], block + block, block + b"\x81"]
    others += [Frame(Opcode.TEXT, text, fin=False).serialize(mask=is_masked)]
    others += [Frame(Opcode.BINARY, text).serialize(mask=is_masked)]
    others += [Frame(Opcode.PING, b"x").serialize(mask=is_masked), bytes([0xC1]) + block[1:]]
    assert [whole_text(other, is_masked=is_masked) for other in others] == [None] * len(others)
