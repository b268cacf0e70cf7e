"""Gates "speaks", "sounds" and "is quick": spoken replies, held out of the voice's training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import torch

from benchmarks.nano import gates
from benchmarks.nano.gates import Figure
from benchmarks.nano.judges import Dnsmos, WhisperJudge, word_errors
from benchmarks.nano.report import Sample
from benchmarks.nano.runs import (
    Conversation,
    ConversationLog,
    Scene,
    Stage,
    led_by_silence,
    recorded,
    to_input_rate,
)
from benchmarks.nano.utterances import Utterance
from MiniCPMO45.engine.policies import GenerationSettings
from training.nano.bank import Samples
from training.nano.domain.catalogue import answer, intents
from training.nano.domain.kinds import Context, Question
from training.nano.sessions import QUIET_S, unit_after
from training.nano.voice.stages import is_held_out


def questions_with_held_out_replies(count: int, seed: int) -> list[Question]:
    """Draw questions whose replies are held out of the voice's training."""
    random, found = Random(seed), []
    table = [intent for intent in intents().values() if intent.name not in ("stop", "unknown")]
    pool = [question for intent in table for question in intent.questions]
    random.shuffle(pool)
    taken: set[str] = set()
    for question in pool:
        reply = answer(question, Context(), Random(0))
        if is_held_out(reply) and reply not in taken:
            taken.add(reply)
            found.append(question)
        if len(found) == count:
            break
    return found


def say(stage: Stage, judge: WhisperJudge, asked: Sequence[Question]) -> list[Sample]:
    settings = GenerationSettings(
        do_sample=False, generate_audio=True, use_speech_template=True, max_new_tokens=120
    )
    said = stage.answer(([each.text] for each in asked), settings)
    replies = []
    for question, reply in zip(asked, said, strict=True):
        sound = np.zeros(0, np.float32) if reply.waveform is None else reply.waveform
        transcript = judge.transcribe(to_input_rate(sound)) if len(sound) else ""
        replies.append(Sample(question.text, reply.text, transcript, sound))
    return replies


def speaks(replies: Sequence[Sample]) -> Figure:
    """Return the word error rate, with the worst replies in the note."""
    errors = [word_errors(reply.text, reply.transcript) for reply in replies]
    words = sum(each.words for each in errors)
    value = sum(each.wrong for each in errors) / words if words else None
    order = sorted(zip(errors, replies, strict=True), key=lambda pair: -pair[0].wrong)
    worst = "; ".join(f"{r.text!r} transcribed {r.transcript!r}" for e, r in order[:4] if e.wrong)
    return Figure(gates.SPEAKS, value, len(replies), worst)


def sounds(replies: Sequence[Sample], dnsmos: Dnsmos) -> Figure:
    said = [to_input_rate(reply.sound) for reply in replies if len(reply.sound)]
    scores = [dnsmos.overall(np.clip(sound, -1, 1)) for sound in said]
    return Figure(gates.SOUNDS, float(np.mean(scores)) if scores else None, len(scores))


def is_quick(stage: Stage, asked: Sequence[Utterance], seed: int) -> Iterator[Figure]:
    """Time speaking units on one core, and the first audio, with the wait for the unit's end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    busy_s: list[float] = []
    waits_s: list[float] = []
    try:
        for number, utterance in enumerate(asked):
            random = Random(f"{seed}/{number}")
            lead_s = random.uniform(0.0, 2.0)
            end_s = lead_s + utterance.duration_s
            scene = _TimedScene(recorded(led_by_silence(utterance.samples, lead_s), random))
            [log] = stage.hold([Conversation(scene, speaks=True)])
            spent_s = scene.spent_s(time.perf_counter())
            pairs = zip(spent_s, log.units, strict=True)
            busy_s += [spent for spent, unit in pairs if not unit.is_listen]
            first = log.first_spoken
            if first is not None and first >= unit_after(end_s + QUIET_S):
                waits_s.append(first + 1 + spent_s[first] - end_s)
    finally:
        torch.set_num_threads(threads)
    yield Figure(gates.SPEAKING_SHARE, float(np.mean(busy_s)) if busy_s else None, len(busy_s))
    yield Figure(gates.FIRST_AUDIO, float(np.mean(waits_s)) if waits_s else None, len(waits_s))


class _TimedScene:
    """Records when each second of a scene was requested."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._began_s: list[float] = []

    def __call__(self, number: int, log: ConversationLog) -> Samples:
        self._began_s.append(time.perf_counter())
        return self._scene(number, log)

    def spent_s(self, ended_s: float) -> list[float]:
        ends = [*self._began_s[1:], ended_s]
        return [end - start for start, end in zip(self._began_s, ends, strict=True)]
