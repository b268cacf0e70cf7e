"""Responses of a Realtime session that the duplex engine makes, unit by unit. Pure.

The user's audio goes to the model as it comes, and the model decides in each unit whether it
speaks. Responses that ask for something of their own are made by the turn engine, between units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from core.errors import InternalError
from core.protocols import openai_events as events
from core.protocols.duplex_context import CountTokens
from core.protocols.effects import Effect, Send, StartTimer, Step, StopTimer
from core.protocols.events import (
    AudioReady,
    EngineFailed,
    Event,
    FinalizeDone,
    GenerateDone,
    Prefetched,
    PrefillDone,
    Received,
    StepDone,
    TimerFired,
    TimerName,
    TurnFailed,
)
from core.protocols.machine import SessionIds
from core.protocols.realtime_items import Content
from core.protocols.realtime_response import Outcome, Response
from core.protocols.realtime_responses import RealtimeLimits, RealtimeStart, ResponseMachine
from core.protocols.realtime_session import TurnRequest, offer_of, request_of
from core.protocols.realtime_unit_session import RealtimeUnitSession
from core.schemas import duplex
from core.schemas.common import TokenStats
from core.schemas.realtime import InputImageAppend
from core.schemas.realtime_session import ResponsePatch, SemanticVad

UNIT_EVENTS: Final = (PrefillDone, StepDone, FinalizeDone, AudioReady, Prefetched)
# Of `response.create`: what changes nothing about how the response is made.
HARMLESS: Final = frozenset(
    "metadata conversation output_modalities modalities max_output_tokens "
    "max_response_output_tokens".split()
)
# How long the model may listen on after the user's turn, and how inclined it is to.
MAX_WAIT_S: Final = {"low": 8.0, "medium": 4.0, "auto": 4.0, "high": 2.0}
LISTEN_SCALE: Final = {"low": 1.3, "medium": 1.0, "auto": 1.0, "high": 0.7}
VOICE_SAMPLE: Final = "session.audio.output.voice_sample"
FILL_S: Final = 0.1  # ours: how often it is checked whether silence must be appended


@dataclass
class _State:
    """Where the duplex engine stands."""

    is_live: bool = False  # it answers
    response: Response | None = None  # the response that its units make
    tokens: int = 0  # of that response
    is_due: bool = False  # the user's turn has ended, and the model is expected to speak
    is_asked: bool = False  # that response was asked for, and no unit has begun it yet
    is_forced: bool = False  # the present unit has to speak
    now_s: float = 0.0  # when the present event came
    request: TurnRequest | None = None  # what the newest response by units answers


class UnitResponses(ResponseMachine):
    """The part of a Realtime session's rules that lets the duplex engine respond."""

    def __init__(
        self,
        ids: SessionIds,
        start: RealtimeStart,
        limits: RealtimeLimits | None = None,
        count_tokens: CountTokens = len,
    ) -> None:
        super().__init__(ids, start, limits)
        self._count_tokens = count_tokens
        self._units = RealtimeUnitSession(ids, self._limits, count_tokens)
        self._state = _State()

    @property
    def _is_live(self) -> bool:
        return self._state.is_live

    @property
    def unit_request(self) -> TurnRequest | None:
        return self._state.request

    @property
    def seen(self) -> Sequence[tuple[Event, Sequence[Effect]]]:
        """What the last event led the duplex machine to, for observers."""
        return tuple(self._units.seen)

    @property
    def is_working(self) -> bool:
        return super().is_working or self._units.machine.is_working

    def handle(self, event: Event) -> list[Effect]:
        self._state.now_s = event.at_s
        self._units.seen.clear()
        return super().handle(event)

    def _is_expected(self, event: Event) -> bool:
        is_of_units = isinstance(event, UNIT_EVENTS)
        is_of_units |= isinstance(event, TurnFailed) and self._units.machine.is_preparing
        return is_of_units or super()._is_expected(event)

    # --- events ---

    def unit_event(self, event: Event) -> list[Effect]:
        """Let the duplex machine continue, then whatever waited for it."""
        self._refresh()
        effects = self._translated(self._units.handle(event), event)
        return effects if self.is_closed else [*effects, *self._continue()]

    def fill(self, event: TimerFired) -> list[Effect]:
        """Append silence where nothing comes, so that the model can continue."""
        self._units.input.fill(event.at_s)
        return self._continue()

    def answer_is_due(self, event: TimerFired) -> list[Effect]:
        if not self._is_live or self._active is not None or self._audio.is_open:
            return []
        return self._respond(None)

    def made(self, event: GenerateDone) -> list[Effect]:
        return [*super().made(event), *self._continue()]

    def failed(self, event: TurnFailed) -> list[Effect]:
        """See `ResponseMachine`; where units cannot begin, it may be for the client's voice."""
        if not self._units.machine.is_preparing:
            return [*super().failed(event), *self._continue()]
        output, response = self._config.output, self._state.response
        if output.voice_sample is None:
            return self.engine_failed(EngineFailed(event.error, at_s=event.at_s))
        self._config = replace(self._config, output=replace(output, voice_sample=None))
        self._units = RealtimeUnitSession(self._ids, self._limits, self._count_tokens)
        text = event.error.message
        effects = self._send(events.error("invalid_value", text, param=VOICE_SAMPLE))
        if response is not None:
            effects += self._end_response(response, Outcome("failed", "", "invalid_value", text))
        return [*effects, *self._continue()]

    def append_image(self, event: Received) -> list[Effect]:
        assert isinstance(event.message, InputImageAppend)
        if not self._is_live:
            text = "Pictures outside items are seen where the model decides when to speak."
            return self._wrong(event, "invalid_event", text)
        return self._add_pictures([Content("input_image", picture=event.message.image)])

    # --- for the rest of the rules ---

    def _feed_audio(self, samples: bytes) -> list[Effect]:
        if not self._is_live:
            return []
        self._units.input.append(samples, self._state.now_s)
        return [] if self._units.waits_for_audio else self._continue()

    def _add_pictures(self, parts: Iterable[Content]) -> list[Effect]:
        effects: list[Effect] = []
        for part in parts:
            if part.picture is not None and self._is_live:
                made = self._units.add_picture(part.picture, self._state.now_s)
                effects += self._translated(made, None)
        return effects

    def _expect_response(self) -> list[Effect]:
        """The user's turn has ended: the model answers, or is made to."""
        if self._active is not None:
            return []
        self._state.is_due = True
        return [StartTimer(TimerName.ANSWER, MAX_WAIT_S[self._eagerness]), *self._continue()]

    def _expect_no_response(self) -> list[Effect]:
        was_due, self._state.is_due = self._state.is_due, False
        return [StopTimer(TimerName.ANSWER)] if was_due else []

    def _changed(self) -> None:
        """What was said, or the settings, are not what the model has in its cache."""
        if self._is_live and self._units.has_begun:
            self._units.rebase.ask()

    def _choose_engine(self) -> list[Effect]:
        """Change engines if the settings say so and nothing is under way."""
        is_live = self._config.engine(self._start.model) == "live"
        is_busy = self._active is not None or self._making is not None
        if is_live == self._is_live or is_busy or self._units.machine.is_working:
            return []
        self._state.is_live = is_live
        if is_live:
            self._units = RealtimeUnitSession(self._ids, self._limits, self._count_tokens)
        return self._expect_no_response()

    @property
    def _first(self) -> duplex.Prepare:
        output, is_new = self._config.output, self._store.last_id is None
        first = duplex.Prepare(early_audio=True)
        config: dict[str, float | bool] = {"generate_audio": output.speaks}
        config["listen_prob_scale"] = LISTEN_SCALE[self._eagerness]
        if not is_new:
            config["force_listen_count"] = 0
        if output.temperature is not None:
            config["temperature"] = output.temperature
        return first.model_copy(
            update={
                "prefix_system_prompt": output.instructions,
                "ref_audio_base64": output.voice_sample,
                "config": first.config.model_copy(update=config),
            }
        )

    # --- units ---

    def _begin_units(self) -> list[Effect]:
        if self._units.has_begun:
            return []
        first = self._first
        self._units.set_conversation(first, self._store)
        return self._units.begin(first, self._state.now_s)

    def _refresh(self) -> None:
        """Update the prompt of a session that is about to begin."""
        if self._units.rebase.is_stale:
            self._units.set_conversation(self._first, self._store)

    def _continue(self) -> list[Effect]:
        """Begin what is next: a reply of the turn engine's, or a unit."""
        effects = [*self._choose_engine(), *self._make_next()]
        if not self._is_live or self._making is not None:
            return effects
        self._refresh()
        effects += self._begin_units()
        state, rules = self._state, self._config.turn_detection
        is_awaited = state.is_due or state.response is not None
        may_speak = is_awaited or (rules is not None and rules.create_response)
        made = self._units.advance(state.now_s, must_listen=not may_speak)
        effects += self._translated(made, None)
        return [*effects, StartTimer(TimerName.PACE, FILL_S)] if is_awaited else effects

    def _translated(self, made: Sequence[Effect], event: Event | None) -> list[Effect]:
        effects: list[Effect] = []
        for effect in made:
            match effect:
                case Send(duplex.ResultPart()):
                    assert isinstance(event, AudioReady)
                    effects += self._begun(event.client_audio)
                case Send(duplex.Result() as result):
                    assert isinstance(event, StepDone)
                    effects += self._ended(result, event.client_audio)
                case Step(must_speak=must_speak):
                    self._state.is_forced = must_speak
                    effects.append(replace(effect, client_format=self._config.output.format))
                case Send():
                    pass
                case _:
                    effects.append(effect)
        return [*effects, *self.fail(InternalError())] if self._units.machine.is_closed else effects

    def _begun(self, audio: bytes) -> list[Effect]:
        if self._units.drops_unit or self._is_elsewhere:
            return []
        opened, response = self._opened()
        return [*opened, *self._speak(response, "", audio)]

    def _ended(self, result: duplex.Result, audio: bytes) -> list[Effect]:
        state = self._state
        if not self._units.end_unit(result) or self._is_elsewhere:
            return []
        if result.is_listen:
            response = state.response
            if response is None or (state.is_asked and not state.is_forced):
                return []
            return self._end_response(response, Outcome(), self._stats(result))
        opened, response = self._opened()
        effects = [*opened, *self._speak(response, result.text, audio)]
        response.mark()
        state.tokens += result.n_tokens
        stats = self._stats(result)
        limit = response.output.max_output_tokens
        if result.end_of_turn:
            return [*effects, *self._end_response(response, Outcome(), stats)]
        if isinstance(limit, int) and state.tokens >= limit:
            outcome = Outcome("incomplete", "max_output_tokens")
            return [*effects, *self._end_response(response, outcome, stats), *self._break_off()]
        return effects

    @property
    def _is_elsewhere(self) -> bool:
        """The turn engine makes the response that is active."""
        return not self._is_live or self._active is not self._state.response

    def _opened(self) -> tuple[list[Effect], Response]:
        """Open a response behind the item of what the user said, unless one is open."""
        self._units.rebase.speak_next(is_wanted=False)
        self._state.is_asked = False
        if self._state.response is not None:
            return [], self._state.response
        effects = [*self._end_open_segment(), *self._begin_live(None)]
        assert self._state.response is not None
        return effects, self._state.response

    def _begin_live(self, patch: ResponsePatch | None) -> list[Effect]:
        state = self._state
        quiet = replace(self._config.for_response(patch), tools=(), tool_choice="none")
        effects = [*self._expect_no_response(), *self._begin_response(patch, quiet)]
        response = state.response = self._active
        assert response is not None
        request = request_of(self._store, quiet, response.id, is_outside=False)
        response.request = state.request = request
        state.tokens = 0
        return effects

    def _speak(self, response: Response, text: str, audio: bytes) -> list[Effect]:
        audio = audio if response.output.speaks else b""
        self._note_audible(response, audio, self._state.now_s)
        return self._send(*response.add(text, audio, is_marked=False))

    def _break_off(self) -> list[Effect]:
        return self._translated(self._units.break_off(self._state.now_s), None)

    # --- responses ---

    def _respond(self, patch: ResponsePatch | None) -> list[Effect]:
        if self._is_by_units(patch):
            self._refresh()
            self._units.rebase.speak_next()
            self._state.is_asked = True
            return [*self._begin_live(patch), *self._continue()]
        # before there is a reply to cut
        quiet = self._break_off() if self._units.model_speaks else []
        return [*quiet, *self._expect_no_response(), *super()._respond(patch)]

    def _is_by_units(self, patch: ResponsePatch | None) -> bool:
        """The model may respond in units what was fed to it, as the client asked."""
        output = self._config.for_response(patch)
        has_own = patch is not None and not patch.model_fields_set <= HARMLESS
        is_same = output.modality == self._config.output.modality and not has_own
        is_said = self._store.last_id is not None
        return self._is_live and is_same and is_said and not offer_of(output).functions

    def _waiting(self) -> list[Response]:
        """Nothing is made by turns while units are, or while they make a response."""
        if self._units.is_busy or self._state.response is not None:
            return []
        return super()._waiting()

    def _cut(self, response: Response, reason: str) -> list[Effect]:
        if response is not self._state.response:
            return super()._cut(response, reason)
        ended = self._end_response(response, Outcome("cancelled", reason), self._stats(None))
        return [*ended, *self._break_off()]

    def _end_response(
        self, response: Response, outcome: Outcome, stats: TokenStats | None = None
    ) -> list[Effect]:
        is_foreign = response is self._active and response is not self._state.response
        if response is self._state.response:
            self._state.response = None
        effects = super()._end_response(response, outcome, stats)
        if is_foreign and response.has_output:
            self._changed()
        return effects

    def _stats(self, result: duplex.Result | None) -> TokenStats:
        made = self._state.tokens
        length = result.kv_cache_length if result is not None and result.kv_cache_length else made
        received = max(0, length - made)
        return TokenStats(input_tokens=received, generated_tokens=made, total_tokens=length)

    @property
    def _eagerness(self) -> str:
        rules = self._config.turn_detection
        return rules.eagerness if isinstance(rules, SemanticVad) else "auto"
