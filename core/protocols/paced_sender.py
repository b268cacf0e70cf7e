"""Sound that leaves at the pace of the clock: a piece every 100 ms, silence where there is none.

Pure: time comes in as an argument. Words leave with the sound they belong to. Bounded: what is
more than `LONGEST_S` ahead is left out, the newest first.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

from core.protocols.events import MS_PER_S
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES

PIECE_MS: Final = 100
PIECE_S: Final = PIECE_MS / MS_PER_S
PIECE_BYTES: Final = OUTPUT_SAMPLE_RATE_HZ * PIECE_MS // MS_PER_S * SAMPLE_BYTES
SILENCE: Final = bytes(PIECE_BYTES)
LONGEST_S: Final = 60.0  # ours: of sound that waits; no unit makes more than a few seconds
LONGEST_BYTES: Final = int(LONGEST_S * OUTPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
LATE_MAX_S: Final = 20.0  # ours: a client that reads so much more slowly than sound plays is let go
# A word with the space before it; in writing without spaces, a character.
WORD: Final = re.compile(
    r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+)|\s+$"
)
EARLY_S: Final = 1e-3  # a timer that fires so early has fired in time


@dataclass(frozen=True)
class Piece:
    """What leaves at once.

    Attributes:
        samples: float32, mono, 24 kHz, 100 ms long.
        text: the words that are spoken in it.
        start_ms: where it begins, counted from the beginning of the session.
    """

    samples: bytes
    text: str
    start_ms: int

    @property
    def end_ms(self) -> int:
        return self.start_ms + PIECE_MS


class PacedSender:
    """What the model said and the client has not been sent yet.

    Attributes:
        is_held: silence is sent in place of what waits.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._sent = 0  # pieces
        self._held = 0  # of them, those that were silent because sound was held
        self.is_held = False
        self._sounds: deque[memoryview] = deque()  # views: a unit is not copied once for each piece
        self._waiting_bytes = 0
        self._words: deque[tuple[int, str]] = deque()  # each with the byte at which it is spoken
        self._unit_from: int | None = None  # byte at which the sound of the present unit begins

    @property
    def is_audible(self) -> bool:
        return bool(self._sounds)

    def begin(self, at_s: float) -> None:
        """Start the clock; the first piece is due now."""
        self._began_s = at_s

    def resume(self, at_s: float) -> None:
        """Continue with the clock where it stood: the next piece is due now."""
        self._began_s = at_s - self._sent * PIECE_S

    def wait_s(self, at_s: float) -> float:
        """Return how long it is until the next piece is due."""
        assert self._began_s is not None, "the clock runs"
        return max(0.0, self._began_s + self._sent * PIECE_S - at_s)

    def put(self, samples: bytes) -> None:
        """Add audio of the present unit: what follows is heard after it."""
        sound = memoryview(samples)[: LONGEST_BYTES - self._waiting_bytes]
        if self._unit_from is None:
            self._unit_from = self._end_bytes
        if sound:
            self._sounds.append(sound)
            self._waiting_bytes += len(sound)

    def end_unit(self, text: str) -> None:
        """Add the text of the present unit, whose sound is complete: spread them over it."""
        first = self._end_bytes if self._unit_from is None else self._unit_from
        length, self._unit_from = self._end_bytes - first, None
        for word in WORD.finditer(text):
            self._words.append((first + length * word.start() // len(text), word[0]))

    def due(self, at_s: float) -> list[Piece]:
        """Take out what has to leave by now, in order; ask first whether it `is_too_late`."""
        pieces: list[Piece] = []
        while self._began_s is not None and self.wait_s(at_s) <= EARLY_S:
            pieces.append(self._next_piece())
        return pieces

    def hold(self) -> None:
        """Send silence from the next piece on, and keep what waits, until `release`."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def is_too_late(self, at_s: float) -> bool:
        """Whether what is due is due for so long that it cannot be taken in any more."""
        if self._began_s is None:
            return False
        return at_s - self._began_s - self._sent * PIECE_S > LATE_MAX_S

    def drop(self) -> None:
        """Forget what has not left: sound and words."""
        self.release()
        self._sounds.clear()
        self._words.clear()
        self._waiting_bytes = 0
        self._unit_from = None

    @property
    def _played_bytes(self) -> int:
        return (self._sent - self._held) * PIECE_BYTES

    @property
    def _end_bytes(self) -> int:
        return self._played_bytes + self._waiting_bytes

    def _next_piece(self) -> Piece:
        start_ms = self._sent * PIECE_MS
        if self.is_held:
            self._sent += 1
            self._held += 1
            return Piece(SILENCE, "", start_ms)
        parts, missing = [], PIECE_BYTES
        while self._sounds and missing:
            sound = self._sounds.popleft()
            parts.append(sound[:missing])
            if len(sound) > missing:
                self._sounds.appendleft(sound[missing:])
            missing -= len(parts[-1])
        self._waiting_bytes -= PIECE_BYTES - missing
        self._sent += 1
        samples = b"".join([*parts, bytes(missing)]) if parts else SILENCE
        text = ""
        while self._words and self._words[0][0] < self._played_bytes:
            text += self._words.popleft()[1]
        return Piece(samples, text, start_ms)
