"""What a live client's microphone hears, cut into units; bounded, and never behind the clock. Pure.

Samples are little-endian float32 at 16 kHz. Of sound that is more than `AHEAD_MAX_S` ahead of the
clock the newest is left out; where none comes for longer than a unit, silence takes its place.
Of more than `WAITING_MAX_BYTES` that wait to be taken out, the oldest is left out.
"""

from __future__ import annotations

from typing import Final

from core.protocols.events import MS_PER_S
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES, UNIT_MS

BYTES_PER_S: Final = INPUT_SAMPLE_RATE_HZ * SAMPLE_BYTES
UNIT_BYTES: Final = UNIT_MS * BYTES_PER_S // MS_PER_S
AHEAD_MAX_S: Final = 3.0  # ours: as many units as may wait
SILENT_AFTER_S: Final = 1.2  # ours: without sound, silence is heard
WAITING_MAX_BYTES: Final = 4 * UNIT_BYTES  # ours
WINDOW_BYTES: Final = 32 * BYTES_PER_S // MS_PER_S  # what detection judges at once


class LiveInput:
    """The sound of one client on its way to the model and to voice detection."""

    def __init__(self) -> None:
        self.is_muted = False
        self._unit = bytearray()  # the beginning of the unit that is not full yet
        self._undetected = bytearray()
        self._missing_bytes = WINDOW_BYTES  # until detection has another window complete
        self._heard_bytes = 0
        self._began_s = 0.0
        self._last_s = 0.0  # when sound last came

    @property
    def heard_ms(self) -> int:
        return self._heard_bytes * MS_PER_S // BYTES_PER_S

    def begin(self, at_s: float) -> None:
        self._began_s = at_s - self._heard_bytes / BYTES_PER_S
        self._last_s = at_s

    def hear(self, samples: bytes, at_s: float) -> bool:
        """Take in sound; say whether all of it was taken."""
        if at_s - self._last_s >= SILENT_AFTER_S:
            self.begin(at_s)  # what did not come meanwhile may not come at once now
        self._last_s = at_s
        ahead = int((at_s - self._began_s + AHEAD_MAX_S) * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
        taken = samples[: max(0, ahead - self._heard_bytes)]
        self._take(bytes(len(taken)) if self.is_muted else taken)
        return len(taken) == len(samples)

    def fill(self, at_s: float) -> None:
        """Hear silence for the time for which no sound came, if that is long."""
        if at_s - self._last_s < SILENT_AFTER_S:
            return
        now = int((at_s - self._began_s) * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
        self._take(bytes(max(0, now - self._heard_bytes)))

    def take_unit(self) -> bytes | None:
        if len(self._unit) < UNIT_BYTES:
            return None
        unit = bytes(self._unit[:UNIT_BYTES])
        del self._unit[:UNIT_BYTES]
        return unit

    def fill_unit(self) -> None:
        """End the unit that is not full with silence; this does not move the session's clock."""
        self._unit.extend(bytes(-len(self._unit) % UNIT_BYTES or UNIT_BYTES * (not self._unit)))

    def take_undetected(self) -> bytes | None:
        """Take out what voice detection has not heard, a unit at most, once it fills a window."""
        if len(self._undetected) < self._missing_bytes:
            return None
        piece = bytes(self._undetected[:UNIT_BYTES])
        del self._undetected[: len(piece)]
        self._missing_bytes = WINDOW_BYTES - (len(piece) - self._missing_bytes) % WINDOW_BYTES
        return piece

    def _take(self, samples: bytes) -> None:
        self._heard_bytes += len(samples)
        for waiting in (self._unit, self._undetected):
            waiting.extend(samples)
            del waiting[: max(0, len(waiting) - WAITING_MAX_BYTES)]
