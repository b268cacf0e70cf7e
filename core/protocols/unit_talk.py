"""The duplex machine and the sound on its way to it, for protocols that are not its own. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from core.errors import OmniError
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_context import DuplexPhase, UnitPhase
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Effect
from core.protocols.events import Event, Received
from core.protocols.live_input import LiveInput
from core.protocols.machine import SessionNames
from core.protocols.rebase import CountTokens, Rebase
from core.schemas import duplex
from core.schemas.queue import Interrupt


class UnitTalk(ABC):
    """One talk in units.

    Attributes:
        machine: the rules of units.
        input: what the client says.
        seen: events of the duplex machine since this was last emptied, with their effects.
        kv_share: how full the context is.
        model_speaks: it is in the middle of a turn.
        drops_unit: the sound of the present unit is not wanted any more.
    """

    def __init__(self, names: SessionNames, limits: DuplexLimits, count: CountTokens) -> None:
        """Begin before the system prompt.

        Args:
            names: What the session is called.
            limits: Of its duplex mode.
            count: Counts a text's tokens as the model does.
        """
        self._limits = limits
        self.machine = DuplexMachine(names, limits, count, keeps_history=False)
        self.input = LiveInput()
        self.seen: list[tuple[Event, Sequence[Effect]]] = []
        self.kv_share = 0.0
        self.model_speaks = False
        self.drops_unit = False

    @property
    def rebase(self) -> Rebase:
        return self.machine.rebase

    @property
    def is_active(self) -> bool:
        return self.machine.phase is DuplexPhase.ACTIVE

    def handle(self, event: Event) -> list[Effect]:
        """Let the duplex machine take in an event; return what of its effects is passed on."""
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
    def _taken_in(self, effect: Effect) -> Effect | None:
        """Return what of an effect is passed on."""

    def _passed_on(self, made: Sequence[Effect]) -> list[Effect]:
        return [kept for effect in made if (kept := self._taken_in(effect)) is not None]

    def _note(self, result: duplex.Result) -> None:
        self.drops_unit = False
        self.model_speaks = not result.is_listen and not result.end_of_turn
        limits, length = self._limits, result.kv_cache_length
        self.kv_share = min(1.0, length / limits.max_kv_tokens)
        if limits.max_kv_tokens - length <= limits.kv_reserve_tokens:
            self.rebase.ask()
