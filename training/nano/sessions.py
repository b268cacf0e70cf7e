"""Training examples of duplex conversations: audio and the right decision of each unit.

The user speaks, pauses and interrupts; the model's own voice returns as an echo one unit after its
words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from MiniCPMO45.processing.mel import (
    FIRST_PAD_SAMPLES,
    SAMPLE_RATE_HZ,
    UNIT_SAMPLES,
    embedding_count,
)
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from training.nano.asking import RESTATED_UNTIL, Asked, Dialogue, at_speed
from training.nano.bank import Bank, Samples
from training.nano.domain import control
from training.nano.domain.camera import shown_words
from training.nano.domain.catalogue import words_of
from training.nano.hearing import stream_samples
from training.nano.layout import DuplexLayout, Layout
from training.nano.pace import split_reply

LEAD_SAMPLES = FIRST_PAD_SAMPLES - UNIT_SAMPLES  # padding before the client's audio
UNSEEN_S = 0.035  # end of a unit's audio that belongs to the next unit's frames
QUIET_S = 0.12  # silence after which a sentence may have ended
HESITATION_S = 0.01  # added to it, since a late reply is better than an early one
EVIDENCE_S = 0.45  # speech of the user that interrupts the model
DOUBT_S = 0.12  # speech of the user that makes either decision acceptable
FORCED_UNITS = 3  # as `DuplexSettings.force_listen_count`
FORCED = 0.5  # of the sessions
WAITS = 0.3  # of the questions may follow seconds later, the others at once

# Loss weights of decisions. Beginning to speak and waiting while the user speaks have the same
# weight: otherwise the likelier of the two would not be the more frequent one.
IDLE, ATTENTIVE, DECISION = 0.3, 1.0, 2.0
QUIET_SESSIONS = 0.06
INTERRUPTED = 0.35
STOPPED = 0.6  # of interruptions; the others are new questions
ECHOES = 0.5
BURSTS = 0.35
SCENES = 0.75  # of the conversations with pictures; the others have pictures without meaning


@dataclass(frozen=True, eq=False)
class Example:
    """A training sequence with its audio."""

    layout: Layout
    stream: Samples  # of the units, with the padding of the first; empty without units
    clips: list[Samples]
    caption: list[int]  # token ids for every picture; empty for pictures without meaning
    has_blocked_clips: bool = True  # clips are encoded in attention blocks of a second


class DuplexSession:
    def __init__(
        self,
        bank: Bank,
        tokenizer: MiniCPMOTokenizerFast,
        random: Random,
        n_units: int,
        *,
        has_pictures: bool = False,
        substitutes: bool = False,
    ) -> None:
        self.random = random
        self.n_units = n_units
        self.has_pictures = has_pictures
        self.shows_scene = has_pictures and random.random() < SCENES
        self.dialogue = Dialogue.begin(
            bank, random, has_pictures=self.shows_scene, substitutes=substitutes
        )
        self.layout = DuplexLayout(tokenizer)
        self.stream = np.zeros(stream_samples(n_units), np.float32)
        self.forced = FORCED_UNITS if random.random() < FORCED else 0
        self.echo_gain = 10 ** (random.uniform(-25, -6) / 20) if random.random() < ECHOES else 0.0
        self.unit = 0
        self.voiced_until_s = -1.0

    def compose(self) -> Example:
        voice = self.dialogue.voice_sample()
        self.layout.begin(self.dialogue.system_text, embedding_count(len(voice)))
        if self.random.random() >= QUIET_SESSIONS:
            self._converse()
        self._listen_until(self.n_units)
        if self.random.random() < BURSTS:
            self._add_bursts()
        clips = [voice] if len(voice) else []
        caption = self.layout.tokenizer.encode(shown_words(self.dialogue.context.scene))
        return Example(self.layout, self.stream, clips, caption)

    def _converse(self) -> None:
        start_s = self.random.uniform(0.0, 5.0 if self.random.random() < WAITS else 1.2)
        asked = self.dialogue.ask()
        while True:
            end_s = start_s + asked.duration_s
            self._ask(asked, start_s)
            answered = max(unit_after(end_s + QUIET_S + HESITATION_S), self.forced, self.unit)
            self._listen_until(min(answered, self.n_units), start_s)
            if answered >= self.n_units:
                return
            start_s, asked = self._answer(asked)

    def _answer(self, asked: Asked) -> tuple[float, Asked]:
        """Add a reply, possibly interrupted; return the time of the next question, and it."""
        random, first = self.random, self.unit
        other = self.dialogue.substitute(asked.question)
        reply = self.dialogue.reply(other or asked.question)
        texts = split_reply(reply)
        stop_unit, stop_s, interruption = first + len(texts), math.inf, None
        if len(texts) > 1 and random.random() < INTERRUPTED * min(2.0, len(texts) / 3):
            is_stop = random.random() < STOPPED and control.STOP in self.dialogue.bank.weights
            interruption = self.dialogue.ask_about(control.STOP) if is_stop else self.dialogue.ask()
            stop_s = random.uniform(first + 1.05, first + len(texts) + 0.3)
            evident_s = stop_s + min(EVIDENCE_S, interruption.duration_s)
            stop_unit = min(stop_unit, max(unit_after(evident_s), first + 1))
        spoken = self._speak(texts, stop_unit, stop_s)
        is_interrupted = spoken < len(texts)
        self.layout.close_reply(reply, has_ended=not is_interrupted, intent=asked.question.intent)
        if other:
            self.layout.mask_until(RESTATED_UNTIL)
        self._echo(reply, first, spoken)
        if is_interrupted and self.unit < self.n_units:
            self._end_turn("".join(texts[spoken:]))
        if interruption is None:
            gap_s = random.uniform(-0.6, 3.5 if random.random() < WAITS else 0.8)
            return first + spoken + 1 + max(gap_s, 0.1 - 1.0), self.dialogue.ask()
        if interruption.question.intent == control.STOP and is_interrupted:
            self._ask(interruption, stop_s)
            after_s = stop_s + interruption.duration_s
            return after_s + random.uniform(0.6, 3.0), self.dialogue.ask()
        return stop_s, interruption

    def _speak(self, texts: list[str], stop_unit: int, stop_s: float) -> int:
        """Add units of speech up to `stop_unit`; return their number."""
        spoken = 0
        for number, text in enumerate(texts):
            if self.unit >= min(stop_unit, self.n_units):
                break
            overlap_s = self.unit + 1 - UNSEEN_S - stop_s
            weight = DECISION if number == 0 else ATTENTIVE
            if overlap_s > DOUBT_S:
                weight = 0.0  # the user may have begun: either decision is right
            self.layout.add_input(has_picture=self.has_pictures)
            self.layout.speak(text, ends=number == len(texts) - 1, weight=weight)
            self.unit += 1
            spoken += 1
        return spoken

    def _end_turn(self, unsaid: str) -> None:
        self.layout.add_input(has_picture=self.has_pictures)
        self.layout.interrupt(DECISION)
        self.unit += 1
        self.dialogue.context.unsaid = unsaid.strip()

    def _listen_until(self, unit: int, voiced_from_s: float = math.inf) -> None:
        while self.unit < unit:
            is_voiced = self.unit + 1 > voiced_from_s or self.unit < self.voiced_until_s
            weight = DECISION if is_voiced else IDLE
            self.layout.add_input(has_picture=self.has_pictures)
            self.layout.listen(0.0 if self.unit < self.forced else weight)
            self.unit += 1

    def _ask(self, asked: Asked, start_s: float) -> None:
        """Add a question to the stream at a time of the client's clock."""
        start = LEAD_SAMPLES + int(start_s * SAMPLE_RATE_HZ)
        part = asked.samples[: max(0, len(self.stream) - start)]
        self.stream[start : start + len(part)] += part
        self.voiced_until_s = max(self.voiced_until_s, start_s + asked.duration_s)
        if len(part) == len(asked.samples):
            words = " ".join(words_of(asked.question.text))
            self.layout.transcript += self.layout.tokenizer.encode(f" {words}")

    def _echo(self, reply: str, first: int, spoken: int) -> None:
        """Add the echo of the model's own voice."""
        if not self.echo_gain:
            return
        own = self.dialogue.bank.own_voice(reply)
        if own is None:
            return
        delay_s = self.random.uniform(0.05, 0.5)
        played = own[: int((spoken + self.random.uniform(0.0, 1.0)) * SAMPLE_RATE_HZ)]
        echo = at_speed(played, self.random.uniform(0.97, 1.03))
        start = LEAD_SAMPLES + int((first + 1 + delay_s) * SAMPLE_RATE_HZ)
        part = echo[: max(0, len(self.stream) - start)]
        self.stream[start : start + len(part)] += part * np.float32(self.echo_gain)

    def _add_bursts(self) -> None:
        """Add coughs, clicks and knocks."""
        noise = np.random.default_rng(self.random.getrandbits(32))
        for _ in range(self.random.randint(1, 4)):
            n = int(self.random.uniform(0.01, 0.3) * SAMPLE_RATE_HZ)
            raw = noise.standard_normal(n)
            width = self.random.choice((1, 3, 8, 20))
            shape = np.exp(-np.linspace(0, self.random.uniform(2, 8), n))
            burst = np.convolve(raw, np.full(width, 1 / width), "same") * shape
            level = 10 ** (self.random.uniform(-40, -12) / 20)
            start = self.random.randrange(max(1, len(self.stream) - n))
            self.stream[start : start + n] += level * burst[: len(self.stream) - start]


def unit_after(time_s: float) -> int:
    """Return the first unit whose frames extend past a time of the client's clock."""
    return max(0, math.ceil(time_s + UNSEEN_S) - 1)
