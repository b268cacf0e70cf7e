"""The questions of a conversation: choice, recordings, replies and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from training.nano.bank import Bank, Samples
from training.nano.domain import catalogue, control
from training.nano.domain.camera import INTENTS as SEEING
from training.nano.domain.camera import draw_scene
from training.nano.domain.catalogue import learned_by_slots
from training.nano.domain.facts import INTENTS as TELLING_FACTS
from training.nano.domain.facts import ROLES, Facts, draw_facts, system_text
from training.nano.domain.kinds import Context, Question, capitalised
from training.nano.user_voices.engines import MARGIN_SAMPLES, trimmed

FACT_BOOST, SIGHT_BOOST, SUM_BOOST, RESUME_BOOST = 6.0, 14.0, 2.0, 30.0
MEMORY_BOOST, NO_MEMORY_BOOST = 6.0, 3.0  # of asking for a known or an unknown name
SUBSTITUTED = 0.5  # of the questions whose answers restate the question
RESTATED_UNTIL = " is"  # in those answers
UNPROMPTED_STOP = 0.3  # factor of "stop" while nothing is spoken
WITHOUT_SIGHT = 0.3  # factor of camera questions without a picture
LEAST_SPEED, MOST_SPEED = 0.84, 1.2
LEAST_PAUSE_S, MOST_PAUSE_S = 0.2, 1.6
TYPICAL_RMS = 0.07

_FACTS = frozenset(intent.name for intent in TELLING_FACTS)
_SUMS = frozenset(("plus", "minus", "times"))
# Factors of typed practice, for arithmetic and for copied facts.
_PRACTISED = {
    **dict.fromkeys(_SUMS, 2.0),
    **dict.fromkeys(("double", "half", "my_name", "whats_my_name"), 4.0),
    **dict.fromkeys(_FACTS, 10.0),
    "date": 20.0,
    "repeat": 4.0,
}
# Factors of spoken questions, for copied facts and long replies.
_ASKED_MORE = {"story": 2.0, "another_story": 2.0, "whats_my_name": 2.0, "repeat": 1.5, "date": 3.0}
_RESTATING = frozenset(
    ("plus", "minus", "times", "double", "half", "capital", "opposite", "colour_of")
)
_SIGHT = frozenset(intent.name for intent in SEEING)


@dataclass(frozen=True, eq=False)
class Asked:
    """A spoken question, float32 samples at 16 kHz."""

    question: Question
    samples: Samples

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLE_RATE_HZ


@dataclass
class Dialogue:
    """Facts, memory and questions of one conversation.

    With `substitutes`, some replies answer other questions; see `substitute`.
    """

    bank: Bank
    random: Random
    context: Context = field(default_factory=Context)
    system_text: str = ""
    substitutes: bool = False

    @classmethod
    def begin(
        cls,
        bank: Bank,
        random: Random,
        *,
        has_pictures: bool,
        has_system: bool = True,
        substitutes: bool = False,
    ) -> Dialogue:
        """Draw a system prompt with its facts, or none, and the scene of the camera."""
        facts = draw_facts(random) if has_system else Facts()
        context = facts.context()
        context.scene = draw_scene(random) if has_pictures else None
        text = system_text(random.choice(ROLES), facts) if has_system else ""
        return cls(bank, random, context, text, substitutes)

    def ask(self) -> Asked:
        weights = self._weights()
        names = list(weights)
        [intent] = self.random.choices(names, [weights[name] for name in names])
        return self.ask_about(intent)

    def ask_in_writing(self, *, practises: bool = False) -> Question:
        """Draw a training question, recorded or not.

        Practice favours questions that need arithmetic or facts of the conversation.
        """
        weights = self._weights()
        if practises:
            weights = {name: w * _PRACTISED.get(name, 1.0) for name, w in weights.items()}
        [intent] = self.random.choices(list(weights), list(weights.values()))
        return self.random.choice(self.random.choice(learned_by_slots(intent)))

    def ask_about(self, intent: str) -> Asked:
        """Draw a recorded question of one intent, at a random speed."""
        index = self.bank.draw(self.random, intent)
        return Asked(self.bank.recordings[index].question, self._augmented(index))

    def reply(self, question: Question) -> str:
        """Answer a question and update the memory."""
        text = catalogue.answer(question, self.context, self.random)
        if question.intent == "go_on" and self.context.unsaid:
            text = capitalised(text)
        self.context.last_reply, self.context.unsaid = text, ""
        return text

    def substitute(self, question: Question) -> Question | None:
        """Return another question to answer instead, or None.

        Only for answers that restate the question; the loss excludes the restatement. Such answers
        train the model to derive results from the restated words instead of memorising the sound
        of questions.
        """
        if not self.substitutes or question.intent not in _RESTATING:
            return None
        if self.random.random() >= SUBSTITUTED:
            return None
        return self.random.choice(self.random.choice(learned_by_slots(question.intent)))

    def voice_sample(self) -> Samples:
        """Draw the voice sample of the system prompt: mostly the model's own voice, or none."""
        chance = self.random.random()
        if chance < 0.2:
            return np.zeros(0, np.float32)
        own = list(self.bank.own)
        wanted = int(self.random.triangular(0.8, 5.0, 0.8) * SAMPLE_RATE_HZ)
        parts: list[Samples] = []
        while sum(map(len, parts)) < wanted:
            if chance < 0.85 and own:
                part = self.bank.own_voice(self.random.choice(own))
                assert part is not None
            else:
                part = self.bank.samples(self.bank.draw_any(self.random))
            parts.append(part)
        return np.concatenate(parts)[: wanted + SAMPLE_RATE_HZ]

    def _weights(self) -> dict[str, float]:
        weights = {name: w * _ASKED_MORE.get(name, 1.0) for name, w in self.bank.weights.items()}
        for name in weights:
            if name in _FACTS:
                weights[name] *= FACT_BOOST if self.context.clock or self.context.day else 1.0
            elif name in _SIGHT:
                weights[name] *= SIGHT_BOOST if self.context.scene else WITHOUT_SIGHT
            elif name in _SUMS:
                weights[name] *= SUM_BOOST
        if "whats_my_name" in weights:
            weights["whats_my_name"] *= MEMORY_BOOST if self.context.name else NO_MEMORY_BOOST
        if self.context.unsaid and "go_on" in weights:
            weights["go_on"] *= RESUME_BOOST
        if not self.context.last_reply and control.STOP in weights:
            weights[control.STOP] *= UNPROMPTED_STOP
        return weights

    def _augmented(self, index: int) -> Samples:
        random, each = self.random, self.bank.recordings[index]
        samples = self.bank.samples(index)
        if each.cut and random.random() < 0.75:
            pause = np.zeros(int(random.uniform(LEAST_PAUSE_S, MOST_PAUSE_S) * SAMPLE_RATE_HZ))
            parts = (samples[: each.cut], pause.astype(np.float32), samples[each.cut :])
            samples = np.concatenate(parts)
        rms = float(np.sqrt(np.mean(samples**2))) + 1e-6
        samples = samples * np.float32(min(TYPICAL_RMS / rms, 0.95 / np.abs(samples).max()))
        spoken = at_speed(samples, random.uniform(LEAST_SPEED, MOST_SPEED))
        return trimmed(np.pad(spoken, MARGIN_SAMPLES))  # equal margins before and after the voice


def at_speed(samples: Samples, speed: float) -> Samples:
    """Resample to another speed; pitch and formants change like those of another speaker."""
    places = np.arange(0, len(samples) - 1, speed)
    return np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
