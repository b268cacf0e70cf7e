"""Gates "hears" and "takes turns": questions in held-out voices, and noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from benchmarks.nano import gates
from benchmarks.nano.gates import Figure, Gate, share
from benchmarks.nano.runs import (
    UNIT_SAMPLES,
    Conversation,
    ConversationLog,
    Setting,
    Stage,
    is_exact,
    led_by_silence,
    recorded,
)
from benchmarks.nano.utterances import Utterance
from training.nano.bank import Samples
from training.nano.sessions import QUIET_S, unit_after

LONGEST_LEAD_S = 3.0
NOISE_UNITS = 20
MAINS_HZ = 50
PATIENCE_UNITS = 4  # after the right unit


@dataclass
class Asked:
    """A question in a conversation; the user's voice begins in unit `begin`, the reply in `due`."""

    utterance: Utterance
    setting: Setting
    begin: int
    due: int
    conversation: Conversation
    log: ConversationLog = field(default_factory=ConversationLog)

    @classmethod
    def draw(cls, utterance: Utterance, random: Random) -> Asked:
        setting = Setting.draw(random)
        lead_s = random.uniform(0.0, LONGEST_LEAD_S)
        due = unit_after(lead_s + utterance.duration_s + QUIET_S)

        def is_over(log: ConversationLog) -> bool:
            is_silent = log.first_spoken is None and len(log.units) > due + PATIENCE_UNITS
            return log.has_ended_turn or is_silent

        scene = recorded(led_by_silence(utterance.samples, lead_s), random)
        conversation = Conversation(scene, setting.system, is_over=is_over)
        return cls(utterance, setting, int(lead_s), due, conversation)

    @property
    def is_right(self) -> bool:
        return is_exact(self.log.text, self.setting.right_answers(self.utterance.question))

    @property
    def early_units(self) -> int:
        """Number of units in which the model spoke before `due`."""
        return sum(not unit.is_listen for unit in self.log.units[self.begin : self.due])


def ask(stage: Stage, spoken: Sequence[Utterance], seed: int) -> list[Asked]:
    asked = [Asked.draw(each, Random(seed + n)) for n, each in enumerate(spoken)]
    held = stage.hold(each.conversation for each in asked)
    for each, log in zip(asked, held, strict=True):
        each.log = log
    return asked


def hears(gate: Gate, asked: Sequence[Asked]) -> Figure:
    """Return the share of exact answers, with wrong ones in the note."""
    wrong = [f"{a.utterance.question.text!r} → {a.log.text!r}" for a in asked if not a.is_right]
    return share(gate, len(asked) - len(wrong), len(asked), "; ".join(wrong[:5]))


def takes_turns(asked: Sequence[Asked]) -> Iterator[Figure]:
    in_time = sum(each.log.first_spoken == each.due for each in asked)
    yield share(gates.RIGHT_UNIT, in_time, len(asked))
    early = sum(each.early_units for each in asked)
    yield share(gates.EARLY_UNITS, early, sum(each.due - each.begin for each in asked))


def false_starts(stage: Stage, count: int, seed: int) -> Figure:
    """Return the share of units with speech during silence, noise, hum and clicks."""
    conversations = []
    for number in range(count):
        random = Random(f"{seed}/{number}")
        sound = noise(number, NOISE_UNITS, np.random.default_rng(random.getrandbits(32)))
        scene, system = recorded(sound, random), Setting.draw(random).system
        conversations.append(
            Conversation(scene, system, is_over=lambda log: False, most_units=NOISE_UNITS)
        )
    started = sum(not unit.is_listen for log in stage.hold(conversations) for unit in log.units)
    return share(gates.FALSE_STARTS, started, count * NOISE_UNITS)


def noise(kind: int, seconds: int, generator: np.random.Generator) -> Samples:
    """Return one of six kinds of noise: float32 at 16 kHz."""
    n = seconds * UNIT_SAMPLES
    level = 10 ** (generator.uniform(-50, -24) / 20)
    white = generator.standard_normal(n)
    time_s = np.arange(n) / UNIT_SAMPLES
    match kind % 6:
        case 0:
            sound = np.zeros(n)
        case 1:
            sound = white
        case 2:
            spectrum = np.fft.rfft(white) / np.sqrt(np.arange(n // 2 + 1) + 1.0)
            sound = np.fft.irfft(spectrum, n) * 50
        case 3:
            waves = [np.sin(2 * np.pi * MAINS_HZ * h * time_s) / h for h in (1, 2, 3, 5)]
            sound = np.sum(waves, axis=0)
        case 4:
            sound = white * (generator.random(n) < 2e-4) * 20
        case _:
            sound = white * (1 + np.sin(2 * np.pi * 0.3 * time_s))
    return (level * sound).astype(np.float32)
