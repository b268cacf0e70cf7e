"""Observers of a session: their interface, and its trace spans.

An observer is given each event with its effects before these are carried out. `observe` must not
block; an observer that raises is removed, and the session continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from core.protocols import effects, events
from core.protocols.events import MS_PER_S
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.realtime import RealtimeMachine
from core.schemas.duplex import Result
from core.schemas.half_duplex import TurnDone
from core.schemas.queue import ErrorMessage
from core.schemas.streaming import Done
from core.telemetry import CallTrace

if TYPE_CHECKING:
    from opentelemetry.trace import Span


EventTypes = type[events.Event] | tuple[type[events.Event], ...]


class Observer(Protocol):
    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        """Record an event and its effects; runs on the event loop, without blocking."""

    async def close(self) -> None:
        """Finish; called once, after the session is released."""


@dataclass
class InnerObserver:
    """Passes an observer the events that another protocol's machine handles as a duplex machine."""

    machine: GptLiveMachine | RealtimeMachine
    observer: Observer
    inner: EventTypes = events.Event
    outer: EventTypes = ()  # events of the other protocol that are passed too
    is_on: Callable[[], bool] = lambda: True  # whether the events inside are passed now

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        if isinstance(event, self.outer):
            self.observer.observe(event, made)
        for seen, seen_made in self.machine.seen:
            if isinstance(seen, self.inner) and self.is_on():
                self.observer.observe(seen, seen_made)

    async def close(self) -> None:
        await self.observer.close()


@dataclass(eq=False)
class TraceObserver:
    """Writes the OpenTelemetry spans of one session, of its units and of their parts.

    Nothing is measured for it. The parts of a unit are placed one after another from the unit's
    beginning, each as long as the result says; the rest is `send`.
    """

    trace: CallTrace
    mode: str
    is_root: bool  # no gateway writes the call's own span, so that the session's stands for it
    _session: Span | None = field(default=None, init=False)
    _now_s = 0.0
    _step_s = 0.0  # when the unit's step began
    _error = ""

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        self._now_s = event.at_s
        if self._session is None:
            root = self.is_root
            self._session = self.trace.begin("session", event.at_s, stands_for_call=root)
        for effect in made:
            match effect:
                case effects.Send(Result() as result):
                    self._write_unit(result, self._session)
                case effects.Send(Done() | TurnDone() as done):
                    began_s = event.at_s - done.elapsed_ms / MS_PER_S
                    tokens = {"tokens": done.token_stats.generated_tokens}
                    self.trace.write("turn", began_s, event.at_s, self._session, tokens)
                case effects.Send(ErrorMessage(code=code)):
                    self._error = code.value
                case effects.Step():
                    self._step_s = event.at_s

    async def close(self) -> None:
        if self._session is not None:
            error = {"error.type": self._error} if self._error else {}
            self.trace.end(self._session, self._now_s, {"mode": self.mode} | error)

    def _write_unit(self, result: Result, session: Span) -> None:
        ended_s = self._now_s
        at_s = ended_s - result.wall_clock_ms / MS_PER_S
        attributes = {
            "step": result.step,
            "is_listen": result.is_listen,
            "tokens": result.n_tokens,
            "speech_tokens": result.n_tts_tokens,
            "kv_tokens": result.kv_cache_length,
        }
        unit = self.trace.write("unit", at_s, ended_s, session, attributes)
        speech_ms = result.cost_tts_ms + (result.cost_tts_prep_ms or 0.0)
        parts_ms = {
            "queue": (self._step_s - at_s) * MS_PER_S,
            "encode": result.prefill_ms,
            "prefill": result.cost_read_ms,
            "generate": result.cost_llm_ms - result.cost_read_ms,
            "speech": speech_ms + (result.cost_token2wav_ms or 0.0),
        }
        for name, length_ms in parts_ms.items():
            part_s = min(max(0.0, length_ms) / MS_PER_S, max(0.0, ended_s - at_s))
            self.trace.write(name, at_s, at_s + part_s, unit)
            at_s += part_s
        self.trace.write("send", at_s, ended_s, unit)
