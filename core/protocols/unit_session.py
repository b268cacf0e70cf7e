"""The duplex machine and its input audio, for OpenAI's protocols. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from core.errors import OmniError
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_context import CountTokens, DuplexPhase, Rebase, UnitPhase
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Effect
from core.protocols.events import MS_PER_S, Event, Received
from core.protocols.machine import SessionIds
from core.schemas import duplex
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES, UNIT_MS
from core.schemas.queue import Interrupt

BYTES_PER_S: Final = INPUT_SAMPLE_RATE_HZ * SAMPLE_BYTES
UNIT_BYTES: Final = UNIT_MS * BYTES_PER_S // MS_PER_S
AHEAD_MAX_S: Final = 3.0  # ours: as many units as may wait
SILENT_AFTER_S: Final = 1.2  # ours: a gap longer than this is filled with silence
WAITING_MAX_BYTES: Final = 4 * UNIT_BYTES  # ours
WINDOW_BYTES: Final = 32 * BYTES_PER_S // MS_PER_S  # of voice activity detection


class InputAudioBuffer:
    """Buffers a client's audio for the model and for voice activity detection.

    Samples are little-endian float32 at 16 kHz. Audio more than `AHEAD_MAX_S` ahead of the clock is
    dropped, the newest first; gaps are filled with silence. Beyond `WAITING_MAX_BYTES` of waiting
    audio the oldest is dropped.
    """

    def __init__(self, *, is_detected: bool) -> None:
        """With `is_detected`, buffer audio for voice activity detection too: `take_undetected`."""
        self.is_muted = False
        self._unit = bytearray()  # the incomplete unit
        self._undetected = bytearray()
        self._waiting = (self._unit, self._undetected) if is_detected else (self._unit,)
        self._missing_bytes = WINDOW_BYTES  # until detection can complete another window
        self._received_bytes = 0
        self._began_s = 0.0
        self._last_s = 0.0  # when audio last arrived

    @property
    def received_ms(self) -> int:
        return self._received_bytes * MS_PER_S // BYTES_PER_S

    def begin(self, at_s: float) -> None:
        self._began_s = at_s - self._received_bytes / BYTES_PER_S
        self._last_s = at_s

    def append(self, samples: bytes, at_s: float) -> bool:
        """Append audio; return whether none of it was dropped."""
        if self.is_starved(at_s):
            self.begin(at_s)  # the missing audio may not arrive in one burst
        self._last_s = at_s
        ahead = int((at_s - self._began_s + AHEAD_MAX_S) * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
        taken = samples[: max(0, ahead - self._received_bytes)]
        self._take(bytes(len(taken)) if self.is_muted else taken)
        return len(taken) == len(samples)

    def is_starved(self, at_s: float) -> bool:
        return at_s - self._last_s >= SILENT_AFTER_S

    def fill(self, at_s: float) -> None:
        """Append silence if no audio has arrived for `SILENT_AFTER_S`."""
        if not self.is_starved(at_s):
            return
        now = int((at_s - self._began_s) * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
        self._take(bytes(max(0, now - self._received_bytes)))

    @property
    def has_unit(self) -> bool:
        return len(self._unit) >= UNIT_BYTES

    def take_unit(self) -> bytes | None:
        if not self.has_unit:
            return None
        unit = bytes(self._unit[:UNIT_BYTES])
        del self._unit[:UNIT_BYTES]
        return unit

    def fill_unit(self) -> None:
        """Pad the incomplete unit with silence; the session's clock does not advance."""
        self._unit.extend(bytes(-len(self._unit) % UNIT_BYTES or UNIT_BYTES * (not self._unit)))

    def take_undetected(self) -> bytes | None:
        """Remove and return undetected audio, at most a unit, once it completes a window."""
        if len(self._undetected) < self._missing_bytes:
            return None
        piece = bytes(self._undetected[:UNIT_BYTES])
        del self._undetected[: len(piece)]
        self._missing_bytes = WINDOW_BYTES - (len(piece) - self._missing_bytes) % WINDOW_BYTES
        return piece

    def _take(self, samples: bytes) -> None:
        self._received_bytes += len(samples)
        for waiting in self._waiting:
            waiting += samples
            if len(waiting) > WAITING_MAX_BYTES:
                del waiting[:-WAITING_MAX_BYTES]


class UnitSession(ABC):
    """Base of sessions over the duplex machine."""

    def __init__(
        self, ids: SessionIds, limits: DuplexLimits, count: CountTokens, *, detects: bool
    ) -> None:
        """With `detects`, buffer input for voice activity detection too."""
        self._limits = limits
        self.machine = DuplexMachine(ids, limits, count, keeps_history=False)
        self.input = InputAudioBuffer(is_detected=detects)
        # Events and effects of the duplex machine since this was last cleared.
        self.seen: list[tuple[Event, Sequence[Effect]]] = []
        self.kv_share = 0.0  # share of the context in use
        self.model_speaks = False  # in the middle of a turn
        self.drops_unit = False  # the output of the current unit is discarded

    @property
    def rebase(self) -> Rebase:
        return self.machine.rebase

    @property
    def is_active(self) -> bool:
        return self.machine.phase is DuplexPhase.ACTIVE

    def handle(self, event: Event) -> list[Effect]:
        made = self.machine.handle(event)
        self.seen.append((event, made))
        return self._passed_on(made)

    def fail(self, error: OmniError) -> list[Effect]:
        return self._passed_on(self.machine.fail(error))

    def break_off(self, at_s: float) -> list[Effect]:
        """Discard the output of the current unit, and make the next one listen."""
        self.drops_unit = self.machine.unit is UnitPhase.STEPPING
        self.rebase.speak_next(is_wanted=False)
        return self.handle(Received(Interrupt(), at_s=at_s))

    # --- helpers ---

    @abstractmethod
    def _kept(self, effect: Effect) -> Effect | None:
        """Return the effect to carry out in place of one of the duplex machine."""

    def _passed_on(self, made: Sequence[Effect]) -> list[Effect]:
        return [kept for effect in made if (kept := self._kept(effect)) is not None]

    def _note(self, result: duplex.Result) -> None:
        self.drops_unit = False
        self.model_speaks = not result.is_listen and not result.end_of_turn
        limits, length = self._limits, result.kv_cache_length
        self.kv_share = min(1.0, length / limits.max_kv_tokens)
        if limits.max_kv_tokens - length <= limits.kv_reserve_tokens:
            self.rebase.ask()
