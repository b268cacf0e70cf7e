"""Units of a Realtime session: input audio and prompt of the duplex engine. Pure.

The cache of the duplex engine grows by units alone; any other change of the conversation restarts
it with a prompt that contains the items as text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from core.protocols.duplex_context import SPEAKER_OF, CountTokens, UnitPhase
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Effect, StartTimer, StopTimer
from core.protocols.events import MS_PER_S, Received, TimerName
from core.protocols.machine import SessionIds
from core.protocols.realtime_items import Content, Item
from core.protocols.realtime_responses import RealtimeLimits
from core.protocols.unit_session import UnitSession
from core.schemas import duplex

PADS_MAX: Final = 4.0  # ours: units that may be padded with silence ahead of the clock
PADS_PER_S: Final = 0.4  # ours: rate at which that allowance recovers


class RealtimeUnitSession(UnitSession):
    """Duplex session behind a Realtime session."""

    def __init__(self, ids: SessionIds, limits: RealtimeLimits, count: CountTokens) -> None:
        unbounded = DuplexLimits(
            max_session_s=0.0,
            idle_timeout_s=0.0,
            max_kv_tokens=limits.max_kv_tokens,
            kv_reserve_tokens=limits.kv_reserve_tokens,
            has_window=True,  # the session restarts before the context is full
        )
        super().__init__(ids, unbounded, count, detects=False)
        self.has_begun = False
        self._pictures: deque[str] = deque(maxlen=unbounded.max_frames_per_chunk)
        self._pads = PADS_MAX
        self._padded_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a unit or a prompt is in the engine."""
        return self.machine.is_preparing or self.machine.unit is not UnitPhase.IDLE

    @property
    def waits_for_audio(self) -> bool:
        """Whether nothing can begin before more input audio arrives."""
        is_asked = self.rebase.is_stale or self.rebase.is_speech_due
        return self.has_begun and not is_asked and not self.input.has_unit

    def begin(self, first: duplex.Prepare, at_s: float) -> list[Effect]:
        self.has_begun = True
        self.input.begin(at_s)
        effects = self.handle(Received(first, at_s=at_s))
        while self._pictures:
            effects += self.add_picture(self._pictures.popleft(), at_s)
        return effects

    def add_picture(self, picture: str, at_s: float) -> list[Effect]:
        """Add a picture for the next unit; before `begin`, for the first."""
        if not self.has_begun:
            self._pictures.append(picture)
            return []
        return self.handle(Received(duplex.VideoFrame(frame=picture), at_s=at_s))

    def set_conversation(self, first: duplex.Prepare, items: Iterable[Item]) -> None:
        """Set the prompt of the next restart: settings and conversation."""
        self.rebase.first = first
        self.rebase.history.clear()
        for item in items:
            if item.role is not None and (line := _line(item)):
                self.rebase.history.add(SPEAKER_OF[item.role], f" {line}")

    def advance(self, at_s: float, *, must_listen: bool) -> list[Effect]:
        """Restart if due, else begin the next unit if its audio is complete."""
        if not self.is_active or self.is_busy:
            return []
        if effects := self._passed_on(self.machine.begin_anew()):
            return effects
        if self.rebase.is_speech_due and self._may_pad(at_s):
            self.input.fill_unit()
        unit = self.input.take_unit()
        if unit is None:
            return []
        chunk = duplex.AudioChunk(audio=unit, force_listen=must_listen)
        return self.handle(Received(chunk, at_s=at_s))

    def end_unit(self, result: duplex.Result) -> bool:
        """Return whether the unit's output is used."""
        is_wanted = not self.drops_unit
        self._note(result)
        return is_wanted

    def _kept(self, effect: Effect) -> Effect | None:
        match effect:
            case StartTimer(name) | StopTimer(name):
                return effect if name is TimerName.FRAME else None
        return effect

    def _may_pad(self, at_s: float) -> bool:
        """Limit padding, as units may not run faster than the duplex machine allows."""
        self._pads = min(PADS_MAX, self._pads + (at_s - self._padded_s) * PADS_PER_S)
        self._padded_s = at_s
        is_allowed = self._pads >= 1
        self._pads -= is_allowed
        return is_allowed


def _line(item: Item) -> str:
    return " ".join(filter(None, map(_words, item.content))).strip()


def _words(part: Content) -> str:
    if part.text:
        return part.text
    if part.picture is not None:
        return "[a picture]"
    seconds = 0.0 if part.audio is None else part.audio.duration_ms / MS_PER_S
    return f"[the user spoke for {seconds:.1f} s]" if seconds and part.type == "input_audio" else ""
