"""Duplex conversations as they happen: sound by the second, decisions and words by the unit.

The user speaks, pauses, is silent, interrupts; the nano's own voice comes back as an echo one
unit after its words. What the nano should decide in each unit follows from the sound alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from MiniCPMO45.processing.mel import FIRST_PAD_SAMPLES, UNIT_SAMPLES, embedding_count
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from training.nano.asking import RESTATED_UNTIL, SAMPLE_RATE_HZ, Asked, Talk, at_speed
from training.nano.bank import Bank, Samples
from training.nano.domain import control
from training.nano.domain.camera import shown_words
from training.nano.domain.catalogue import words_of
from training.nano.hearing import stream_samples
from training.nano.layout import DuplexLayout, Layout
from training.nano.pace import split_reply

LEAD_SAMPLES = FIRST_PAD_SAMPLES - UNIT_SAMPLES  # zeros before the client's sound
UNSEEN_S = 0.035  # the end of a unit's sound that belongs to the next unit's frames
QUIET_S = 0.12  # silence after which a sentence may have ended
HESITATION_S = 0.01  # of a learner, after that: rather a little late than early
EVIDENCE_S = 0.45  # of the user's voice, enough to give way
DOUBT_S = 0.12  # less than this is no reason yet
FORCED_UNITS = 3  # listened to whatever the model wants. Source: DuplexSettings
FORCED = 0.5  # of the sessions
WAITS = 0.3  # of the questions may come seconds later; the others follow at once

# Weights of decisions. To begin and to wait while the user speaks count alike: else the likelier
# of the two would not be the more frequent one.
IDLE, ATTENTIVE, DECISION = 0.3, 1.0, 2.0
QUIET_SESSIONS = 0.06
INTERRUPTED = 0.35
STOPPED = 0.6  # of interruptions; the others are new questions
ECHOES = 0.5
BURSTS = 0.35
SCENES = 0.75  # of the conversations with pictures; those of the others mean nothing


@dataclass(frozen=True, eq=False)
class Example:
    """A training sequence with its sounds.

    Attributes:
        stream: float32 samples of the units, led by the first unit's zeros; empty without units.
        caption: ids of what every picture shows; empty for pictures that mean nothing.
        has_blocked_clips: clips are encoded in blocks of a second.
    """

    layout: Layout
    stream: Samples
    clips: list[Samples]
    caption: list[int]
    has_blocked_clips: bool = True


class DuplexSession:
    def __init__(
        self,
        bank: Bank,
        tokenizer: MiniCPMOTokenizerFast,
        random: Random,
        n_units: int,
        *,
        has_pictures: bool = False,
        mishears: bool = False,
    ) -> None:
        self.random = random
        self.n_units = n_units
        self.has_pictures = has_pictures
        self.shows_scene = has_pictures and random.random() < SCENES
        self.talk = Talk.begin(bank, random, has_pictures=self.shows_scene, mishears=mishears)
        self.layout = DuplexLayout(tokenizer)
        self.stream = np.zeros(stream_samples(n_units), np.float32)
        self.forced = FORCED_UNITS if random.random() < FORCED else 0
        self.echo_gain = 10 ** (random.uniform(-25, -6) / 20) if random.random() < ECHOES else 0.0
        self.unit = 0
        self.voiced_until_s = -1.0
        self._tokenizer = tokenizer

    def compose(self) -> Example:
        voice = self.talk.voice_sample()
        self.layout.begin(self.talk.system_text, embedding_count(len(voice)))
        if self.random.random() >= QUIET_SESSIONS:
            self._converse()
        self._listen_until(self.n_units)
        if self.random.random() < BURSTS:
            self._add_bursts()
        clips = [voice] if len(voice) else []
        caption = self._tokenizer.encode(shown_words(self.talk.context.scene))
        return Example(self.layout, self.stream, clips, caption)

    def _converse(self) -> None:
        start_s = self.random.uniform(0.0, 5.0 if self.random.random() < WAITS else 1.2)
        asked = self.talk.ask()
        while True:
            end_s = start_s + asked.duration_s
            self._ask(asked, start_s)
            answered = max(unit_after(end_s + QUIET_S + HESITATION_S), self.forced, self.unit)
            self._listen_until(min(answered, self.n_units), start_s)
            if answered >= self.n_units:
                return
            start_s, asked = self._answer(asked)

    def _answer(self, asked: Asked) -> tuple[float, Asked]:
        """Say a reply, perhaps interrupted; returns when the next question is asked, and it."""
        random, first = self.random, self.unit
        other = self.talk.misheard(asked.question)
        reply = self.talk.reply(other or asked.question)
        pieces = split_reply(reply)
        stop_unit, stop_s, barging = first + len(pieces), math.inf, None
        if len(pieces) > 1 and random.random() < INTERRUPTED * min(2.0, len(pieces) / 3):
            is_stop = random.random() < STOPPED and control.STOP in self.talk.bank.weights
            barging = self.talk.ask_about(control.STOP) if is_stop else self.talk.ask()
            stop_s = random.uniform(first + 1.05, first + len(pieces) + 0.3)
            heard_s = min(stop_s + EVIDENCE_S, stop_s + barging.duration_s)
            stop_unit = min(stop_unit, max(unit_after(heard_s), first + 1))
        said = self._speak(pieces, stop_unit, stop_s)
        is_cut = said < len(pieces)
        self.layout.close_reply(reply, has_ended=not is_cut, intent=asked.question.intent)
        if other:
            self.layout.unlearn(self.layout.replies[-1], self._tokenizer.decode, RESTATED_UNTIL)
        self._echo(reply, first, said)
        if is_cut and self.unit < self.n_units:
            self._give_way("".join(pieces[said:]))
        if barging is None:
            gap_s = random.uniform(-0.6, 3.5 if random.random() < WAITS else 0.8)
            return first + said + 1 + max(gap_s, 0.1 - 1.0), self.talk.ask()
        if barging.question.intent == control.STOP and is_cut:
            self._ask(barging, stop_s)
            after_s = stop_s + barging.duration_s
            return after_s + random.uniform(0.6, 3.0), self.talk.ask()
        return stop_s, barging

    def _speak(self, pieces: list[str], stop_unit: int, stop_s: float) -> int:
        """Write units of speech up to `stop_unit`; returns how many."""
        said = 0
        for number, piece in enumerate(pieces):
            if self.unit >= min(stop_unit, self.n_units):
                break
            overlap_s = self.unit + 1 - UNSEEN_S - stop_s
            weight = DECISION if number == 0 else ATTENTIVE
            if overlap_s > DOUBT_S:
                weight = 0.0  # the user may have begun; either decision is fine
            self.layout.hear(has_picture=self.has_pictures)
            self.layout.speak(piece, ends=number == len(pieces) - 1, weight=weight)
            self.unit += 1
            said += 1
        return said

    def _give_way(self, unsaid: str) -> None:
        self.layout.hear(has_picture=self.has_pictures)
        self.layout.interrupt(DECISION)
        self.unit += 1
        self.talk.context.unsaid = unsaid.strip()

    def _listen_until(self, unit: int, voiced_from_s: float = math.inf) -> None:
        while self.unit < unit:
            is_voiced = self.unit + 1 > voiced_from_s or self.unit < self.voiced_until_s
            weight = DECISION if is_voiced else IDLE
            self.layout.hear(has_picture=self.has_pictures)
            self.layout.listen(0.0 if self.unit < self.forced else weight)
            self.unit += 1

    def _ask(self, asked: Asked, start_s: float) -> None:
        """Mix a question into the stream at a time of the client's clock."""
        start = LEAD_SAMPLES + int(start_s * SAMPLE_RATE_HZ)
        part = asked.samples[: max(0, len(self.stream) - start)]
        self.stream[start : start + len(part)] += part
        self.voiced_until_s = max(self.voiced_until_s, start_s + asked.duration_s)
        if len(part) == len(asked.samples):
            words = " ".join(words_of(asked.question.text))
            self.layout.heard += self._tokenizer.encode(f" {words}")

    def _echo(self, reply: str, first: int, said: int) -> None:
        """Let the nano's own voice come back from the room while it is played."""
        if not self.echo_gain:
            return
        own = self.talk.bank.own_voice(reply)
        if own is None:
            return
        delay_s = self.random.uniform(0.05, 0.5)
        played = own[: int((said + self.random.uniform(0.0, 1.0)) * SAMPLE_RATE_HZ)]
        heard = at_speed(played, self.random.uniform(0.97, 1.03))
        start = LEAD_SAMPLES + int((first + 1 + delay_s) * SAMPLE_RATE_HZ)
        part = heard[: max(0, len(self.stream) - start)]
        self.stream[start : start + len(part)] += part * np.float32(self.echo_gain)

    def _add_bursts(self) -> None:
        """Coughs, clicks and knocks, which mean nothing."""
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
    """Return the first unit whose frames reach past a time of the client's clock."""
    return max(0, math.ceil(time_s + UNSEEN_S) - 1)
