"""Pure: splits long WebSocket frames into fragments, so that no step handles a whole one.

An intermediary may change how a message is fragmented. Source: RFC 6455, section 5.4. A frame that
breaks a rule passes as it is: the parser behind refuses it.
"""

from __future__ import annotations

from typing import Final

# Every fragment but the last. The mask begins anew at each, so this is a multiple of its length.
FRAGMENT_BYTES: Final = 64 * 1024

# Parts of a frame's head. Source: RFC 6455, section 5.2.
FIN: Final = 0x80
OPCODE: Final = 0x0F
MASKED: Final = 0x80
LENGTH: Final = 0x7F
LENGTH_BYTES: Final = (0,) * 126 + (2, 8)  # that follow, by what the first one says
MASK_BYTES: Final = 4
BINARY: Final = 2  # the last opcode of data; the others are of control frames


class FrameSplitter:
    """What a client sends after its handshake, in blocks as the network delivers them."""

    def __init__(self, limit_bytes: int) -> None:
        """Begin before a frame.

        Args:
            limit_bytes: A frame longer than this is not split, so that its head is refused.
        """
        self._limit_bytes = limit_bytes
        self._head = bytearray()
        self._mask = b""
        self._fin = 0
        self._frame_bytes = 0  # of the current frame, after the current fragment
        self._fragment_bytes = 0  # of the current fragment, still to come

    def split(self, block: bytes) -> bytes:
        """Return the same frames, long ones as fragments; an incomplete head is kept back."""
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
                self._head.append(block[at])
                at += 1
                if len(self._head) > 1 and len(self._head) == self._head_bytes():
                    made += self._begin()
        return bytes(made)

    def _head_bytes(self) -> int:
        mask_bytes = MASK_BYTES if self._head[1] & MASKED else 0
        return 2 + LENGTH_BYTES[self._head[1] & LENGTH] + mask_bytes

    def _begin(self) -> bytes:
        """Return the head of a frame, or of its first fragment."""
        head, self._head = bytes(self._head), bytearray()
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
        """Return the head of the next fragment of the current frame."""
        is_last = self._frame_bytes < 2 * FRAGMENT_BYTES
        size_bytes = self._frame_bytes if is_last else FRAGMENT_BYTES
        self._frame_bytes -= size_bytes
        self._fragment_bytes = size_bytes
        first = opcode | self._fin if is_last else opcode
        second = LENGTH | (MASKED if self._mask else 0)
        return bytes([first, second]) + size_bytes.to_bytes(LENGTH_BYTES[LENGTH]) + self._mask
