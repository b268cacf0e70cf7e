"""The duplex machine and the audio on its way to it, for protocols that are not its own. Pure."""

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
SILENT_AFTER_S: Final = 1.2  # ours: without audio, silence is fed
WAITING_MAX_BYTES: Final = 4 * UNIT_BYTES  # ours
WINDOW_BYTES: Final = 32 * BYTES_PER_S // MS_PER_S  # what detection judges at once


class InputAudioBuffer:
    """The audio of one client on its way to the model and to voice detection.

    Samples are little-endian float32 at 16 kHz. Of audio that is more than `AHEAD_MAX_S` ahead of
    the clock the newest is left out; where none comes for longer than a unit, silence takes its
    place. Of more than `WAITING_MAX_BYTES` that wait to be taken out, the oldest is left out.
    """

    def __init__(self, *, is_detected: bool) -> None:
        """Keep audio for voice detection as well if `is_detected`: see `take_undetected`."""
        self.is_muted = False
        self._unit = bytearray()  # the beginning of the unit that is not full yet
        self._undetected = bytearray()
        self._waiting = (self._unit, self._undetected) if is_detected else (self._unit,)
        self._missing_bytes = WINDOW_BYTES  # until detection has another window complete
        self._received_bytes = 0
        self._began_s = 0.0
        self._last_s = 0.0  # when audio last came

    @property
    def received_ms(self) -> int:
        return self._received_bytes * MS_PER_S // BYTES_PER_S

    def begin(self, at_s: float) -> None:
        self._began_s = at_s - self._received_bytes / BYTES_PER_S
        self._last_s = at_s

    def append(self, samples: bytes, at_s: float) -> bool:
        """Return whether all of it was taken."""
        if self.is_starved(at_s):
            self.begin(at_s)  # what did not come meanwhile may not come at once now
        self._last_s = at_s
        ahead = int((at_s - self._began_s + AHEAD_MAX_S) * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES
        taken = samples[: max(0, ahead - self._received_bytes)]
        self._take(bytes(len(taken)) if self.is_muted else taken)
        return len(taken) == len(samples)

    def is_starved(self, at_s: float) -> bool:
        return at_s - self._last_s >= SILENT_AFTER_S

    def fill(self, at_s: float) -> None:
        """Append silence if no audio has come for `SILENT_AFTER_S`."""
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
        """End the unit that is not full with silence; this does not move the session's clock."""
        self._unit.extend(bytes(-len(self._unit) % UNIT_BYTES or UNIT_BYTES * (not self._unit)))

    def take_undetected(self) -> bytes | None:
        """Take out what voice detection has not had, a unit at most, once it fills a window."""
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
    """One session in units."""

    def __init__(
        self, ids: SessionIds, limits: DuplexLimits, count: CountTokens, *, detects: bool
    ) -> None:
        """Let the session detect voice in what the client says by itself if `detects`."""
        self._limits = limits
        # The rules of units.
        self.machine = DuplexMachine(ids, limits, count, keeps_history=False)
        self.input = InputAudioBuffer(is_detected=detects)  # what the client says
        # Events of the duplex machine since this was last emptied, with their effects.
        self.seen: list[tuple[Event, Sequence[Effect]]] = []
        self.kv_share = 0.0  # how full the context is
        self.model_speaks = False  # it is in the middle of a turn
        self.drops_unit = False  # the audio of the present unit is not wanted any more

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
        """Drop the rest of the present unit, and let the next one listen."""
        self.drops_unit = self.machine.unit is UnitPhase.STEPPING
        self.rebase.speak_next(is_wanted=False)
        return self.handle(Received(Interrupt(), at_s=at_s))

    # --- helpers ---

    @abstractmethod
    def _kept(self, effect: Effect) -> Effect | None:
        """Return what is passed on in place of an effect."""

    def _passed_on(self, made: Sequence[Effect]) -> list[Effect]:
        return [kept for effect in made if (kept := self._kept(effect)) is not None]

    def _note(self, result: duplex.Result) -> None:
        self.drops_unit = False
        self.model_speaks = not result.is_listen and not result.end_of_turn
        limits, length = self._limits, result.kv_cache_length
        self.kv_share = min(1.0, length / limits.max_kv_tokens)
        if limits.max_kv_tokens - length <= limits.kv_reserve_tokens:
            self.rebase.ask()
