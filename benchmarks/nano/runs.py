"""Duplex conversations with the loaded model at full speed, unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from core.processors.duplex import DuplexView
from core.processors.unified import UnifiedProcessor
from core.schemas.duplex_calls import DuplexConfig
from MiniCPMO45.modes.unit_output import UnitResult
from MiniCPMO45.token2wav.voice_features import resample
from training.nano.bank import Samples
from training.nano.domain.catalogue import answer, words_of
from training.nano.domain.facts import ROLES, draw_facts, system_text
from training.nano.domain.kinds import Context, Question

UNIT_SAMPLES = 16_000
OUTPUT_RATE_HZ = 24_000
NOISE_FLOOR = 1e-4
MOST_UNITS = 30
POSSIBLE_DRAWS = 24


@dataclass
class Heard:
    """A conversation as it went.

    Attributes:
        units: what the model did in each second.
    """

    units: list[UnitResult] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Everything it said."""
        return "".join(unit.text for unit in self.units)

    @property
    def first_spoken(self) -> int | None:
        """The first unit in which it spoke."""
        spoken = (number for number, unit in enumerate(self.units) if not unit.is_listen)
        return next(spoken, None)

    @property
    def has_ended_turn(self) -> bool:
        """It said a reply to its end."""
        return any(unit.end_of_turn for unit in self.units)

    @property
    def sound(self) -> Samples:
        """What it said, one after the other: float32 at 24 kHz."""
        waves = [u.audio_waveform for u in self.units if not u.is_listen]
        return np.concatenate([w for w in waves if w is not None] or [np.zeros(0, np.float32)])


Scene = Callable[[int, Heard], Samples]
"""Gives the sound of a second, given what the model did before."""


class Stage:
    """Holds conversations with one loaded model."""

    def __init__(self, processor: UnifiedProcessor) -> None:
        """Take a loaded model.

        Args:
            processor: with the embedded checkpoint.
        """
        self._processor = processor
        self._number = 0

    def hold(
        self,
        scene: Scene,
        *,
        system: str | None = None,
        speaks: bool = False,
        is_over: Callable[[Heard], bool] = lambda heard: heard.has_ended_turn,
        most_units: int = MOST_UNITS,
    ) -> Heard:
        """Hold one conversation from its beginning.

        Args:
            scene: what is heard.
            system: the system prompt.
            speaks: make its voice, too.
            is_over: looks after every unit.
            most_units: ends it in any case.
        """
        view: DuplexView = self._processor.set_duplex_mode()
        self._number += 1
        config = DuplexConfig(force_listen_count=0, generate_audio=speaks)
        view.prepare(system, config=config, session_id=f"gates-{self._number}")
        heard = Heard()
        try:
            for number in range(most_units):
                view.prefill(scene(number, heard))
                heard.units.append(view.generate_unit())
                view.finalize()
                if is_over(heard):
                    break
        finally:
            view.cleanup()
        return heard


def recorded(sound: Samples, random: Random) -> Scene:
    """Return a scene that plays a recording over a quiet floor, then goes on quietly."""
    noise = np.random.default_rng(random.getrandbits(32))

    def second(number: int, heard: Heard) -> Samples:
        del heard
        piece = np.zeros(UNIT_SAMPLES, np.float32)
        part = sound[number * UNIT_SAMPLES : (number + 1) * UNIT_SAMPLES]
        piece[: len(part)] = part
        return piece + NOISE_FLOOR * noise.standard_normal(UNIT_SAMPLES).astype(np.float32)

    return second


@dataclass(frozen=True)
class Setting:
    """A system prompt with its facts."""

    system: str
    context: Context

    @classmethod
    def draw(cls, random: Random) -> Setting:
        """Draw one."""
        facts = draw_facts(random)
        return cls(system_text(random.choice(ROLES), facts), facts.context())

    def right_answers(self, question: Question) -> set[tuple[str, ...]]:
        """Return the words of every reply that is right at the beginning of a conversation."""
        draws = (
            answer(question, Context(**vars(self.context)), Random(seed))
            for seed in range(POSSIBLE_DRAWS)
        )
        return {tuple(words_of(text)) for text in draws}


def is_exact(said: str, right: set[tuple[str, ...]]) -> bool:
    """Whether a reply is right word for word."""
    return tuple(words_of(said)) in right


def to_input_rate(sound: Samples) -> Samples:
    """Resample the model's voice to what it hears: 24 to 16 kHz."""
    return np.asarray(resample(sound, OUTPUT_RATE_HZ, UNIT_SAMPLES), np.float32)


def led_by_silence(sounds: Sequence[Samples], lead_s: float) -> Samples:
    """Put silence before sounds played one after the other."""
    lead = np.zeros(int(lead_s * UNIT_SAMPLES), np.float32)
    return np.concatenate([lead, *sounds])
