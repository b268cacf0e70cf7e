"""Audio that is sent at the pace of the clock, in short pieces; silence where there is none.

Pure: time comes in as an argument. Text is sent with the audio that speaks it. Bounded: what is
more than `LONGEST_S` ahead is left out, the newest first.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

from core.protocols.events import MS_PER_S
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES

PIECE_MS: Final = 40  # a piece that was sent is played to its end, even if the user interrupts it
SILENCE_MS: Final = 100  # of nothing there is nothing to interrupt
BYTES_PER_MS: Final = OUTPUT_SAMPLE_RATE_HZ // MS_PER_S * SAMPLE_BYTES
PIECE_BYTES: Final = PIECE_MS * BYTES_PER_MS
SHORT_SILENCE: Final = bytes(PIECE_BYTES)
SILENCE: Final = bytes(SILENCE_MS * BYTES_PER_MS)
LONGEST_S: Final = 60.0  # ours: of sound that waits; no unit makes more than a few seconds
LONGEST_BYTES: Final = int(LONGEST_S * OUTPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
LATE_MAX_S: Final = 20.0  # ours: a client that reads so much more slowly than sound plays is let go
# A word with the space before it; in writing without spaces, a character.
WORD: Final = re.compile(
    r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+)|\s+$"
)
EARLY_S: Final = 1e-3  # a timer that fires so early has fired in time


@dataclass(frozen=True, slots=True)
class Piece:
    """What is sent at once.

    Attributes:
        samples: float32, mono, 24 kHz; `PIECE_MS` long, or `SILENCE`.
        text: what is spoken in it.
        start_ms: where it begins, counted from the beginning of the session.
        end_ms: where its text will have been spoken; without text, where its audio ends.
    """

    samples: bytes
    text: str
    start_ms: int
    end_ms: int


class PacedSender:
    """What the model said and the client has not been sent yet.

    Attributes:
        is_held: silence is sent in place of what waits.
    """

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._sent_ms = 0
        self._held_ms = 0  # of it, silence that was sent because sound was held
        self.is_held = False
        self._sounds: deque[memoryview] = deque()  # views: a unit is not copied once for each piece
        self._waiting_bytes = 0
        # Each with the bytes at which it begins and ends to be spoken.
        self._words: deque[tuple[int, int, str]] = deque()
        self._unit_from: int | None = None  # byte at which the sound of the present unit begins

    @property
    def is_audible(self) -> bool:
        return bool(self._sounds)

    def begin(self, at_s: float) -> None:
        """Start the clock; the first piece is due now."""
        self._began_s = at_s

    def resume(self, at_s: float) -> None:
        """Continue with the clock where it stood: the next piece is due now."""
        self._began_s = at_s - self._sent_ms / MS_PER_S

    def wait_s(self, at_s: float) -> float:
        """Return how long it is until the next piece is due."""
        assert self._began_s is not None, "the clock runs"
        return max(0.0, self._began_s + self._sent_ms / MS_PER_S - at_s)

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
            start, end = (first + length * at // len(text) for at in word.span())
            self._words.append((start, end, word[0]))

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
        return at_s - self._began_s - self._sent_ms / MS_PER_S > LATE_MAX_S

    def drop(self) -> None:
        """Forget what has not left: sound and words."""
        self.release()
        self._sounds.clear()
        self._words.clear()
        self._waiting_bytes = 0
        self._unit_from = None

    @property
    def _played_bytes(self) -> int:
        return (self._sent_ms - self._held_ms) * BYTES_PER_MS

    @property
    def _end_bytes(self) -> int:
        return self._played_bytes + self._waiting_bytes

    def _next_piece(self) -> Piece:
        samples, text = SILENCE, ""
        if self.is_held:
            samples = SHORT_SILENCE
            self._held_ms += PIECE_MS
        elif self._sounds:
            samples = self._take_sound()
        start_ms = self._sent_ms
        end_ms = self._sent_ms = start_ms + len(samples) // BYTES_PER_MS
        played = self._played_bytes
        while self._words and self._words[0][0] < played and not self.is_held:
            _, end, word = self._words.popleft()
            text += word
            end_ms = max(end_ms, self._sent_ms + (end - played) // BYTES_PER_MS)
        return Piece(samples, text, start_ms, end_ms)

    def _take_sound(self) -> bytes:
        """Take a piece off what waits; the last one is filled with silence."""
        parts, missing = [], PIECE_BYTES
        while self._sounds and missing:
            sound = self._sounds.popleft()
            parts.append(sound[:missing])
            if len(sound) > missing:
                self._sounds.appendleft(sound[missing:])
            missing -= len(parts[-1])
        self._waiting_bytes -= PIECE_BYTES - missing
        return b"".join([*parts, bytes(missing)])
