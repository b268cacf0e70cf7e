"""Which speech codes go to the vocoder now, and how its samples become a unit of audio.

Pure: integers and arrays, no model. Sources: docs/specification/model.md#6.7 and #7.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from MiniCPMO45.configuration_minicpmo import SpeechTiming

TIMING = SpeechTiming()
HOP_CODES = 25  # progress of a full call: one second
WINDOW_CODES = HOP_CODES + TIMING.lookahead_codes
FEWEST_CODES = 8  # of a call that is not the last; fewer do not fill the overlap
INT16_PEAK = 32_767
INT16_SCALE = 32_768.0


@dataclass(frozen=True)
class Piece:
    """Codes of one vocoder call.

    Attributes:
        codes: at most 28; the last 3 are look-ahead unless `is_last`.
        is_last: nothing follows in this turn.
    """

    codes: tuple[int, ...]
    is_last: bool


@dataclass
class SpeechBuffer:
    """Codes of one turn that wait for their look-ahead.

    Attributes:
        waiting: codes not yet consumed; a turn starts with three codes of silence.
    """

    waiting: list[int] = field(
        default_factory=lambda: [TIMING.silence_code] * TIMING.lookahead_codes
    )

    def push(
        self, codes: Sequence[int], *, is_last: bool, fewest: int = FEWEST_CODES
    ) -> list[Piece]:
        """Add new codes and take out every call that can be made now.

        Args:
            codes: what the speech decoder made, possibly nothing.
            is_last: the turn ends with them; the rest is flushed.
            fewest: codes a call that is not the last takes at least, from 8 to 28.

        Returns:
            Calls in order; empty when too few codes wait.
        """
        self.waiting += codes
        pieces = []
        while len(self.waiting) >= fewest:
            taken = min(WINDOW_CODES, len(self.waiting))
            pieces.append(Piece(tuple(self.waiting[:taken]), is_last=False))
            del self.waiting[: min(HOP_CODES, taken - TIMING.lookahead_codes)]
        if is_last and self.waiting:
            pieces.append(Piece(tuple(self.waiting), is_last=True))
            self.waiting.clear()
        return pieces

    def clone(self) -> SpeechBuffer:
        """Return an independent copy."""
        return SpeechBuffer(list(self.waiting))

    def reset(self) -> None:
        """Start a new turn."""
        self.waiting = SpeechBuffer().waiting


def cut_whole_reply(codes: Sequence[int]) -> list[Piece]:
    """Cut all codes of a chat reply into vocoder calls; no silence is put in front.

    Returns:
        Windows of 28 codes, 25 apart, and the rest; the last one ends the reply.
    """
    pieces = []
    start = 0
    while len(codes) - start >= WINDOW_CODES:
        window = tuple(codes[start : start + WINDOW_CODES])
        is_final = start + WINDOW_CODES == len(codes)
        pieces.append(Piece(window, is_last=is_final))
        start += HOP_CODES
        if is_final:
            return pieces
    if start < len(codes):
        pieces.append(Piece(tuple(codes[start:]), is_last=True))
    return pieces


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Round samples in -1...1 (clipped) towards zero to 16 bits; any shape."""
    return (np.clip(samples, -1.0, 1.0) * INT16_PEAK).astype(np.int16)


def finish_unit(
    samples: np.ndarray, *, is_last: bool, unit_samples: int = TIMING.sample_rate_hz
) -> np.ndarray:
    """Make the audio of one unit from what the vocoder answered.

    Args:
        samples: joined answers, float [n]; n may be 0.
        is_last: the turn ends with this unit, which is then not padded.
        unit_samples: length a unit inside a turn has (one second).

    Returns:
        float32 [n]: 16-bit steps, zeros in front up to `unit_samples`; empty stays empty.
    """
    stepped = (to_int16(samples) / INT16_SCALE).astype(np.float32)
    missing = unit_samples - len(stepped)
    if is_last or len(stepped) == 0 or missing <= 0:
        return stepped
    return np.concatenate((np.zeros(missing, np.float32), stepped))
