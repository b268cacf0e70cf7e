"""Makes spans of a session for OpenTelemetry: one for itself, one a unit, and the parts of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.protocols.effects import Effect, Send, Step
from core.protocols.events import MS_PER_S, Event
from core.schemas.duplex import Result
from core.schemas.half_duplex import TurnDone
from core.schemas.queue import ErrorMessage
from core.schemas.streaming import Done
from core.serving.slots import Owner
from core.telemetry import CallTrace, Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class TraceObserver:
    """Writes the spans of one session.

    Nothing is measured for it. The parts of a unit are laid one behind the other from where its
    step began: each is as long as the result says, and what then is left is `send`.
    """

    def __init__(self, tracing: Tracing, owner: Owner) -> None:
        self._trace: CallTrace = tracing.call(owner.session_id, owner.secret)
        self._mode = owner.kind.value
        self._is_first = not owner.secret  # no gateway writes the call's own span
        self._session: Span | None = None
        self._now_s = 0.0
        self._step_s = 0.0  # when the unit's step began
        self._error = ""

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        self._now_s = event.at_s
        if self._session is None:
            first = self._is_first
            self._session = self._trace.begin("session", event.at_s, stands_for_call=first)
        for effect in effects:
            match effect:
                case Send(Result() as result):
                    self._write_unit(result, self._session)
                case Send(Done() | TurnDone() as done):
                    began_s = event.at_s - done.elapsed_ms / MS_PER_S
                    tokens = {"tokens": done.token_stats.generated_tokens}
                    self._trace.write("turn", began_s, event.at_s, self._session, tokens)
                case Send(ErrorMessage(code=code)):
                    self._error = code.value
                case Step():
                    self._step_s = event.at_s

    async def close(self) -> None:
        if self._session is not None:
            error = {"error.type": self._error} if self._error else {}
            self._trace.end(self._session, self._now_s, {"mode": self._mode} | error)

    def _write_unit(self, result: Result, session: Span) -> None:
        ended_s = self._now_s
        at_s = ended_s - result.wall_clock_ms / MS_PER_S
        about = {
            "step": result.step,
            "is_listen": result.is_listen,
            "tokens": result.n_tokens,
            "speech_tokens": result.n_tts_tokens,
            "kv_tokens": result.kv_cache_length,
        }
        unit = self._trace.write("unit", at_s, ended_s, session, about)
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
            self._trace.write(name, at_s, at_s + part_s, unit)
            at_s += part_s
        self._trace.write("send", at_s, ended_s, unit)
