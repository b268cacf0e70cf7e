"""A talk over the duplex machine, at the pace of the clock: sound in, sound out, words between.

What protocols of continuous speech share; the rules of units are the duplex machine's. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pybase64 import b64decode

from core.endpointing import SpeechStarted
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_context import DuplexPhase, UnitPhase
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Detect, Effect, Prefill, Send
from core.protocols.events import Detected, Event, Received
from core.protocols.live_input import LiveInput
from core.protocols.machine import SessionNames
from core.protocols.paced_sender import PacedSender, Piece
from core.protocols.rebase import USER_SPOKE, CountTokens, Rebase, Speaker
from core.schemas import duplex
from core.schemas.queue import Interrupt, UserTranscript

START_S: Final = 30.0  # ours: for a client to begin
STOP_S: Final = 1.0  # ours: for the unit under way to end


@dataclass
class _State:
    """Where a talk stands.

    Attributes:
        model_speaks: it is in the middle of a turn.
        drops_unit: the sound of the present unit is not wanted any more.
        is_detecting: voice detection has a piece of sound.
        is_played_over: the model is not heard, and does not hear.
    """

    model_speaks: bool = False
    drops_unit: bool = False
    is_detecting: bool = False
    is_played_over: bool = False


class LiveTalk:
    """One talk.

    Attributes:
        machine: the rules of units.
        input: what the client says.
        sender: what the client is to hear.
        seen: events of the duplex machine since this was last emptied, with their effects.
        kv_share: how full the context is.
    """

    def __init__(
        self, names: SessionNames, limits: DuplexLimits, count: CountTokens, *, transcribes: bool
    ) -> None:
        """Begin before the system prompt.

        Args:
            names: What the session is called.
            limits: Of its duplex mode.
            count: Counts a text's tokens as the model does.
            transcribes: What the user says is written down.
        """
        self._transcribes = transcribes
        self._limits = replace(limits, prepare_timeout_s=START_S, stop_grace_s=STOP_S)
        self._state = _State()
        self.machine = DuplexMachine(names, self._limits, count, keeps_history=False)
        self.input = LiveInput()
        self.sender = PacedSender()
        self.seen: list[tuple[Event, Sequence[Effect]]] = []
        self.kv_share = 0.0

    @property
    def rebase(self) -> Rebase:
        """Words that reach the model between units."""
        return self.machine.rebase

    @property
    def is_active(self) -> bool:
        """Units may begin."""
        return self.machine.phase is DuplexPhase.ACTIVE

    def prepare(
        self, first: duplex.Prepare, said: Sequence[tuple[Speaker, str]], at_s: float
    ) -> list[Effect]:
        """Feed the system prompt.

        Args:
            first: What the talk begins with.
            said: What was said before it.
            at_s: The time.
        """
        for speaker, text in said:
            self.rebase.history.add(speaker, text)
        self.input.begin(at_s)
        return self.handle(Received(first, at_s=at_s))

    def begin(self, at_s: float) -> None:
        """Start the clocks: the client may hear and be heard."""
        self.input.begin(at_s)
        self.sender.begin(at_s)

    def hear(self, samples: bytes, at_s: float) -> list[Effect]:
        """Take in what the client says."""
        if self._state.is_played_over:
            samples = bytes(len(samples))
        self.input.hear(samples, at_s)
        return self.go_on(at_s)

    def due(self, at_s: float) -> list[Piece]:
        """Take out the sound that is due."""
        pieces = self.sender.due(at_s)
        for piece in pieces:
            if piece.text:
                self.rebase.history.add(Speaker.ASSISTANT, piece.text)
        return pieces

    def go_on(self, at_s: float) -> list[Effect]:
        """Hear silence where nothing comes, then begin whatever may begin."""
        if not self.is_active:
            return []
        self.input.fill(at_s)
        return [*self._detect_next(), *self._feed(at_s)]

    def detected(self, event: Detected) -> list[Effect]:
        """Break the model off if the user begins to speak while it can be heard."""
        self._state.is_detecting = False
        effects: list[Effect] = []
        if any(isinstance(happening, SpeechStarted) for happening in event.happenings):
            self.rebase.history.add(Speaker.USER, USER_SPOKE)
            is_heard = self.sender.is_audible or self._state.model_speaks
            if is_heard and not self._state.is_played_over:
                effects = self.break_off(event.at_s)
        return [*effects, *self._detect_next()]

    def break_off(self, at_s: float) -> list[Effect]:
        """Fall silent: drop what has not left, and let the next unit listen."""
        self.sender.drop()
        self._state.drops_unit = self.machine.unit is UnitPhase.STEPPING
        self.rebase.must_speak = False
        return self.handle(Received(Interrupt(), at_s=at_s))

    def play_over(self, samples: bytes, at_s: float) -> list[Effect]:
        """Let a recording be heard in place of the model, which hears nothing meanwhile."""
        effects = self.break_off(at_s)
        self._state.is_played_over = True
        self.sender.put(samples)
        self.sender.end_unit("")
        return effects

    def end_play_over(self) -> None:
        """Let the model be heard again."""
        self._state.is_played_over = False

    def handle(self, event: Event) -> list[Effect]:
        """Let the duplex machine take in an event; what it says of units stays here."""
        made = self.machine.handle(event)
        self.seen.append((event, made))
        return self._passed_on(made)

    # --- helpers ---

    def _passed_on(self, made: Sequence[Effect]) -> list[Effect]:
        return [kept for effect in made if (kept := self._taken_in(effect)) is not None]

    def _feed(self, at_s: float) -> list[Effect]:
        """Give the duplex machine the units that are full, unless a new session comes first."""
        if self.machine.is_preparing:
            return []
        effects = self._passed_on(self.machine.begin_anew())
        if effects:
            return effects
        if self.rebase.must_speak:
            self.input.fill_unit()
        while (unit := self.input.take_unit()) is not None:
            effects += self.handle(Received(duplex.AudioChunk(audio=unit), at_s=at_s))
        return effects

    def _detect_next(self) -> list[Effect]:
        """Let detection hear what it has not heard, one piece at a time."""
        if not self.is_active or self._state.is_detecting:
            return []
        piece = self.input.take_undetected()
        self._state.is_detecting = piece is not None
        return [] if piece is None else [Detect(duplex.AudioChunk(audio=piece))]

    def _taken_in(self, effect: Effect) -> Effect | None:
        is_heard = not self._state.drops_unit and not self._state.is_played_over
        match effect:
            case Prefill(duplex.Prepare() as prompt):
                return self._with_detector(prompt)
            case Send(duplex.ResultPart(audio_data=sound)):
                if is_heard:
                    self.sender.put(b64decode(sound, validate=True))
            case Send(duplex.Result() as result):
                if is_heard:
                    self.sender.put(b64decode(result.audio_data, validate=True))
                    self.sender.end_unit(result.text)
                self._state.drops_unit = False
                self._note(result)
            case Send(UserTranscript(text=text)):
                if text:
                    self.rebase.history.write_down(text)
                return effect
            case Send(duplex.Interrupted()):
                pass
            case _:
                return effect
        return None

    def _note(self, result: duplex.Result) -> None:
        self._state.model_speaks = not result.is_listen and not result.end_of_turn
        limits, length = self._limits, result.kv_cache_length
        self.kv_share = min(1.0, length / limits.max_kv_tokens)
        if limits.max_kv_tokens - length <= limits.kv_reserve_tokens:
            self.rebase.ask()

    def _with_detector(self, prompt: duplex.Prepare) -> Prefill:
        """Ask for a prompt to be fed, and for detection, which hears more often than in units."""
        wanted = {"barge_in": duplex.BargeInConfig(), "transcribe": self._transcribes}
        return Prefill(prompt.model_copy(update=wanted))
