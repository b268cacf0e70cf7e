"""Gate "yields": the model stops when interrupted, and continues over its own echo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from benchmarks.nano import gates
from benchmarks.nano.gates import Figure, share
from benchmarks.nano.runs import (
    UNIT_SAMPLES,
    Conversation,
    ConversationLog,
    Setting,
    Stage,
    led_by_silence,
    recorded,
    to_input_rate,
)
from benchmarks.nano.utterances import Utterance
from MiniCPMO45.modes.duplex import UnitResult
from training.nano.bank import Samples
from training.nano.domain import control
from training.nano.domain.catalogue import intents
from training.nano.domain.kinds import Question

LONG_INTENTS = ("story", "another_story", "alphabet", "days", "months", "count")
FEWEST_UNITS = 3  # of a reply that can be interrupted
ECHO_DB = (-25.0, -6.0)
SENTENCE_ENDS = (".", "!", "?")  # a reply that ends elsewhere was interrupted
HALF = 2  # one of so many interruptions has no echo


def long_questions(count: int, seed: int) -> list[Question]:
    random, table = Random(seed), intents()
    return [random.choice(table[random.choice(LONG_INTENTS)].questions) for _ in range(count)]


def stop_questions(count: int, seed: int) -> list[Question]:
    random = Random(seed)
    return [random.choice(intents()[control.STOP].questions) for _ in range(count)]


def yields(
    stage: Stage, asked: Sequence[Utterance], stops: Sequence[Utterance], seed: int
) -> Iterator[Figure]:
    """Interrupt long replies, and play the echo of others."""
    yield _stopped(stage, asked, stops, seed)
    rooms = [
        _Echoing(question, Random(f"{seed}/echo/{number}"), has_echo=True)
        for number, question in enumerate(asked)
    ]
    held = stage.hold(Conversation(room, speaks=True) for room in rooms)
    tried = [log for log in held if log.first_spoken is not None]
    continued = [
        log.has_ended_turn and not any(unit.barge_in for unit in log.units) for log in tried
    ]
    yield share(gates.KEEPS_ON, sum(continued), len(continued))


def _stopped(
    stage: Stage, asked: Sequence[Utterance], stops: Sequence[Utterance], seed: int
) -> Figure:
    """Return the share of interrupted turns that ended within a unit after the word."""
    rooms, conversations = [], []
    for number, (question, stop) in enumerate(zip(asked, stops, strict=True)):
        random, has_echo = Random(f"{seed}/{number}"), number % HALF == 0
        room = _Echoing(question, random, has_echo=has_echo, stop=stop)
        system = Setting.draw(random).system
        rooms.append(room)
        conversations.append(Conversation(room, system, speaks=has_echo, is_over=_has_stopped))
    results = [
        yielded(log.units, int(room.stop_end_s) + 1)
        for room, log in zip(rooms, stage.hold(conversations), strict=True)
        if room.stop_end_s is not None
    ]
    tried = [result for result in results if result is not None]
    return share(gates.YIELDS_TO_STOP, sum(tried), len(tried))


def _has_stopped(log: ConversationLog) -> bool:
    return log.has_ended_turn or any(unit.barge_in for unit in log.units)


def yielded(units: Sequence[UnitResult], last: int) -> bool | None:
    """Return whether an interrupted turn ended by unit `last`; None if the reply was complete.

    A turn is interrupted by listening in its middle, or by its end within a sentence.
    """
    over = next((n for n, unit in enumerate(units) if unit.barge_in or unit.end_of_turn), None)
    if over is None:
        return False
    text = "".join(unit.text for unit in units[: over + 1]).rstrip()
    if units[over].end_of_turn and text.endswith(SENTENCE_ENDS):
        return None if over < last else False
    return over <= last


class _Echoing:
    """A scene with a question, an echo of the model's voice, and possibly an interruption."""

    def __init__(
        self, asked: Utterance, random: Random, *, has_echo: bool, stop: Utterance | None = None
    ) -> None:
        self.stop_end_s: float | None = None
        self._random = random
        self._stop = stop
        lead_s = random.uniform(0.0, 1.0)
        self._room = recorded(led_by_silence(asked.samples, lead_s), random)
        self._gain = 10 ** (random.uniform(*ECHO_DB) / 20) if has_echo else 0.0
        self._delay = int(random.uniform(0.05, 0.5) * UNIT_SAMPLES)
        self._wait = random.randint(1, FEWEST_UNITS - 1)
        self._start: int | None = None

    def __call__(self, number: int, log: ConversationLog) -> Samples:
        samples = self._room(number, log).copy()
        samples += self._echo(number, log)
        first = log.first_spoken
        if self._stop is not None and first is not None:
            if self._start is None and number >= first + self._wait:
                self._start = number * UNIT_SAMPLES + int(self._random.random() * UNIT_SAMPLES)
                self.stop_end_s = self._start / UNIT_SAMPLES + self._stop.duration_s
            if self._start is not None:
                samples += _window(self._stop.samples, self._start, number)
        return samples

    def _echo(self, number: int, log: ConversationLog) -> Samples:
        """Return the echo of earlier units in second `number`."""
        sound = np.zeros(UNIT_SAMPLES, np.float32)
        first = log.first_spoken
        if not self._gain or first is None:
            return sound
        played = to_input_rate(log.sound) * np.float32(self._gain)
        return sound + _window(played, (first + 1) * UNIT_SAMPLES + self._delay, number)


def _window(sound: Samples, start: int, second: int) -> Samples:
    """Return one second of a sound that begins at sample `start`."""
    samples = np.zeros(UNIT_SAMPLES, np.float32)
    first = second * UNIT_SAMPLES - start
    part = sound[max(0, first) : max(0, first + UNIT_SAMPLES)]
    offset = max(0, -first)
    samples[offset : offset + len(part)] = part
    return samples
