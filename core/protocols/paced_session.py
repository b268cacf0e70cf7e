"""A session over the duplex machine at the pace of the clock: audio in, audio and text out.

What protocols of continuous speech share; the rules of units are the duplex machine's. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from core.endpointing import SpeechDiscarded, SpeechStarted, SpeechSuspected
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Detect, Effect, Prefill, Send
from core.protocols.events import Detected, Received
from core.protocols.machine import SessionNames
from core.protocols.paced_sender import PacedSender, Piece
from core.protocols.rebase import USER_SPOKE, CountTokens, Speaker
from core.protocols.unit_session import UnitSession
from core.schemas import duplex
from core.schemas.queue import UserTranscript

START_S: Final = 30.0  # ours: for a client to begin
STOP_S: Final = 1.0  # ours: for the unit under way to end
# Ours: after a burst that was no speech, lest an echo that returns chops the model up.
HOLD_AGAIN_S: Final = 2.0


class PacedSession(UnitSession):
    """One session.

    Attributes:
        sender: paces the sound that is sent to the client.
    """

    def __init__(
        self, names: SessionNames, limits: DuplexLimits, count: CountTokens, *, transcribes: bool
    ) -> None:
        limits = replace(limits, prepare_timeout_s=START_S, stop_grace_s=STOP_S)
        super().__init__(names, limits, count)
        self._transcribes = transcribes
        self._is_detecting = False  # voice detection has a piece of sound
        self._is_played_over = False  # a recording is played instead of the model's sound
        self._is_paused = False
        self._may_hold_from_s = 0.0
        self.sender = PacedSender()

    def prepare(
        self, first: duplex.Prepare, said: Sequence[tuple[Speaker, str]], at_s: float
    ) -> list[Effect]:
        """Feed the system prompt, with what was said before the session."""
        for speaker, text in said:
            self.rebase.history.add(speaker, text)
        self.input.begin(at_s)
        return self.handle(Received(first, at_s=at_s))

    def begin(self, at_s: float) -> None:
        self.input.begin(at_s)
        self.sender.begin(at_s)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self, at_s: float) -> None:
        """Let the clocks continue where they stood."""
        self._is_paused = False
        self.input.begin(at_s)
        self.sender.resume(at_s)

    def append_audio(self, samples: bytes, at_s: float) -> list[Effect]:
        if self._is_played_over:
            samples = bytes(len(samples))
        self.input.append(samples, at_s)
        return self.advance(at_s)

    def due(self, at_s: float) -> list[Piece]:
        pieces = self.sender.due(at_s)
        for piece in pieces:
            if piece.text:
                self.rebase.history.add(Speaker.ASSISTANT, piece.text)
        return pieces

    def advance(self, at_s: float) -> list[Effect]:
        """Append silence where nothing comes, then begin whatever may begin."""
        if not self.is_active or self._is_paused:
            return []
        self.input.fill(at_s)
        return [*self._detect_next(), *self._feed(at_s)]

    def detected(self, event: Detected) -> list[Effect]:
        """Hold the model's sound when the user may be speaking, and break it off when it is sure.

        What was no speech after all delays the model and costs it nothing.
        """
        self._is_detecting = False
        effects: list[Effect] = []
        for happening in event.happenings:
            may_yield = (self.sender.is_audible or self.model_speaks) and not self._is_played_over
            match happening:
                case SpeechSuspected() if may_yield and event.at_s >= self._may_hold_from_s:
                    self.sender.hold()
                case SpeechDiscarded() if self.sender.is_held:
                    self._may_hold_from_s = event.at_s + HOLD_AGAIN_S
                    self.sender.release()
                case SpeechStarted():
                    self.sender.release()
                    self.rebase.history.add(Speaker.USER, USER_SPOKE)
                    effects += self.break_off(event.at_s) if may_yield else []
        return [*effects, *self._detect_next()]

    def break_off(self, at_s: float) -> list[Effect]:
        """Fall silent: drop what has not left, and let the next unit listen."""
        self.sender.drop()
        return super().break_off(at_s)

    def play_over(self, samples: bytes, at_s: float) -> list[Effect]:
        """Play a recording instead of the model's sound; input counts as silence meanwhile."""
        effects = self.break_off(at_s)
        self._is_played_over = True
        self.sender.put(samples)
        self.sender.end_unit("")
        return effects

    def end_play_over(self) -> None:
        self._is_played_over = False

    # --- helpers ---

    def _feed(self, at_s: float) -> list[Effect]:
        """Give the duplex machine the units that are full, unless a new session comes first."""
        if self.machine.is_preparing:
            return []
        rebase = self.rebase
        if rebase.is_stale and (anew := self._passed_on(self.machine.begin_anew())):
            return anew
        effects: list[Effect] = []
        if rebase.must_speak:
            self.input.fill_unit()
        while (unit := self.input.take_unit()) is not None:
            effects += self.handle(Received(duplex.AudioChunk(audio=unit), at_s=at_s))
        return effects

    def _detect_next(self) -> list[Effect]:
        """Pass new input to voice detection, one piece at a time."""
        if not self.is_active or self._is_detecting:
            return []
        piece = self.input.take_undetected()
        self._is_detecting = piece is not None
        return [] if piece is None else [Detect(duplex.AudioChunk(audio=piece))]

    def _kept(self, effect: Effect) -> Effect | None:
        is_sent = not self.drops_unit and not self._is_played_over
        match effect:
            case Prefill(duplex.Prepare() as prompt):
                return self._with_detector(prompt)
            case Send(duplex.ResultPart(audio_data=sound)):
                if is_sent:
                    self.sender.put(sound)
            case Send(duplex.Result() as result):
                if is_sent:
                    self.sender.put(result.audio_data)
                    self.sender.end_unit(result.text)
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

    def _with_detector(self, prompt: duplex.Prepare) -> Prefill:
        """Ask for a prompt to be fed, and for detection of pieces shorter than a unit."""
        wanted = {"barge_in": duplex.BargeInConfig(), "transcribe": self._transcribes}
        return Prefill(prompt.model_copy(update=wanted))
