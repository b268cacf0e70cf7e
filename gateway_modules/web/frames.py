"""Frames of a WebSocket as the gateway forwards them, most of them unparsed.

Source: RFC 6455, section 5.2.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # the fastest there is

from gateway_modules.web.limits import READ_BYTES
from gateway_modules.web.long_text import JOINED_CHARS

# Every fragment but the last. The mask begins anew at each, so this is a multiple of its length.
FRAGMENT_BYTES: Final = 64 * 1024

# Parts of a frame's head.
FIN: Final = 0x80
OPCODE: Final = 0x0F
MASKED: Final = 0x80
LENGTH: Final = 0x7F
LENGTH_BYTES: Final = (0,) * 126 + (2, 8)  # that follow, by what the first one says
MASK_BYTES: Final = 4
HEAD_BYTES: Final = 2 + 8 + MASK_BYTES  # at most
TEXT: Final = 1
BINARY: Final = 2  # the last opcode of data; the others are of control frames

SHORTCUT_MARK: Final = "shortcut"  # key in a socket's scope

Text = bytes | memoryview
"""A text in UTF-8."""

Take = Callable[[Text], bool]
"""Takes a text at once and returns whether it could."""


@dataclass
class Shortcut:
    send: Take  # a text for the peer
    take: Take | None = None  # a text of the peer; None sends all through the task
    is_open: bool = False  # the task waits for the next text, and nothing is queued before it

    def offer(self, text: Text) -> bool:
        self.is_open = self.is_open and self.take is not None and self.take(text)
        return self.is_open


class IncomingText:
    """A text message that comes in fragments; each is decoded on its own."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._parts: list[str] = []

    def add(self, fragment: bytes, *, is_last: bool) -> None:
        if self._decoder is None:
            if is_last:  # the whole message
                self._parts.append(fragment.decode())
                return
            self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._parts.append(self._decoder.decode(fragment, is_last))

    def fields(self, *, takes_parts: bool) -> dict[str, object]:
        if takes_parts and sum(map(len, self._parts)) > JOINED_CHARS:
            return {"parts": self._parts}
        return {"text": "".join(self._parts)}


class FrameSplitter:
    """Splits long frames of a client into fragments as the network delivers them."""

    def __init__(self, limit_bytes: int) -> None:
        """A frame longer than `limit_bytes` is not split, so that its head is refused."""
        self._limit_bytes = limit_bytes
        self._head = b""
        self._mask = b""
        self._fin = 0
        self._frame_bytes = 0  # of the current frame, after the current fragment
        self._fragment_bytes = 0  # of the current fragment, still to come

    @property
    def is_inside(self) -> bool:
        """What comes next belongs to a frame of which a part came already."""
        return bool(self._head or self._fragment_bytes)

    @property
    def read_bytes(self) -> int:
        """The rest of a fragment in one piece, but few short frames."""
        return max(READ_BYTES, min(self._fragment_bytes, 2 * FRAGMENT_BYTES))

    def split(self, block: bytes) -> bytes:
        """Return the same frames, long ones as fragments; an incomplete head is kept back."""
        if len(block) < self._fragment_bytes:
            self._fragment_bytes -= len(block)
            return block
        made, at = bytearray(), 0
        while at < len(block):
            if self._fragment_bytes:
                payload = block[at : at + self._fragment_bytes]
                made += payload
                at += len(payload)
                self._fragment_bytes -= len(payload)
                if not self._fragment_bytes and self._frame_bytes:
                    made += self._fragment(opcode=0)
            else:
                head = self._head + block[at : at + HEAD_BYTES - len(self._head)]
                size_bytes = _head_bytes(head)
                if len(head) < size_bytes:
                    self._head = head
                    break
                at += size_bytes - len(self._head)
                self._head = b""
                made += self._begin(head[:size_bytes])
        return bytes(made)

    def _begin(self, head: bytes) -> bytes:
        length = head[1] & LENGTH
        if LENGTH_BYTES[length]:
            length = int.from_bytes(head[2 : 2 + LENGTH_BYTES[length]])
        is_short = length < 2 * FRAGMENT_BYTES
        if is_short or length > self._limit_bytes or head[0] & OPCODE > BINARY:
            self._fragment_bytes = length
            return head
        self._fin = head[0] & FIN
        self._mask = head[-MASK_BYTES:] if head[1] & MASKED else b""
        self._frame_bytes = length
        return self._fragment(opcode=head[0] & ~FIN)

    def _fragment(self, opcode: int) -> bytes:
        is_last = self._frame_bytes < 2 * FRAGMENT_BYTES
        size_bytes = self._frame_bytes if is_last else FRAGMENT_BYTES
        self._frame_bytes -= size_bytes
        self._fragment_bytes = size_bytes
        first = opcode | self._fin if is_last else opcode
        second = LENGTH | (MASKED if self._mask else 0)
        return bytes([first, second]) + size_bytes.to_bytes(LENGTH_BYTES[LENGTH]) + self._mask


def whole_text(block: bytes, *, is_masked: bool) -> Text | None:
    size_bytes = _head_bytes(block)
    if block[0] != FIN | TEXT or len(block) < size_bytes or bool(block[1] & MASKED) != is_masked:
        return None
    length = block[1] & LENGTH
    if LENGTH_BYTES[length]:
        length = int.from_bytes(block[2 : 2 + LENGTH_BYTES[length]])
    if len(block) != size_bytes + length:
        return None
    text = memoryview(block)[size_bytes:]
    return apply_mask(text, block[size_bytes - MASK_BYTES : size_bytes]) if is_masked else text


def _head_bytes(head: bytes) -> int:
    if len(head) < 2:
        return 2
    mask_bytes = MASK_BYTES if head[1] & MASKED else 0
    return 2 + LENGTH_BYTES[head[1] & LENGTH] + mask_bytes
