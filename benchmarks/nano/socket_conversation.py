"""Gate "end to end": ten spoken turns through gateway and worker, judged by transcripts."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from websockets.asyncio.client import ClientConnection

from benchmarks.launched import LaunchedSystem, Plan
from benchmarks.nano import gates
from benchmarks.nano.gates import Figure
from benchmarks.nano.judges import WhisperJudge, word_errors
from benchmarks.nano.runs import (
    NOISE_FLOOR,
    OUTPUT_RATE_HZ,
    POSSIBLE_DRAWS,
    UNIT_SAMPLES,
    to_input_rate,
)
from benchmarks.nano.utterances import Utterance
from benchmarks.paced_client import audio_chunk, leave, prepared, until
from training.nano.bank import Samples
from training.nano.domain.catalogue import answer, intents, words_of
from training.nano.domain.kinds import Context, Question

LAST_WAIT_S = 12.0
PAUSE_S = 1.2  # after a reply, before the next question
TIME_LIMIT_S = 240.0
WRONG_WORDS = 0.2  # tolerated share of word errors, since the judge errs as well

SCRIPT = (
    "hello.",
    "my name is Peter.",
    "what is three plus four?",
    "what is the capital of France?",
    "what is the opposite of hot?",
    "what does a cow say?",
    "what comes after five?",
    "what color is the sky?",
    "what is my name?",
    "goodbye.",
)


@dataclass
class SpokenReply:
    text: str = ""
    waves: list[Samples] = field(default_factory=list)

    @property
    def sound(self) -> Samples:
        return np.concatenate([*self.waves, np.zeros(0, np.float32)])


def converse(checkpoint: Path, spoken: Sequence[Utterance]) -> list[SpokenReply]:
    """Run the conversation in real time on a system started for it."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"model": {"model_path": str(checkpoint)}}
        plan = Plan(workers=1, backend="real", config=config)
        with LaunchedSystem(Path(folder), plan) as system:
            url = system.ws("/ws/duplex/nano_gate")
            return asyncio.run(asyncio.wait_for(_talk(url, spoken), TIME_LIMIT_S))


def script() -> list[Question]:
    """Return the ten questions; the ninth needs the memory of the second."""
    by_text = {q.text: q for intent in intents().values() for q in intent.questions}
    return [by_text[text] for text in SCRIPT]


def judged(asked: Sequence[Question], said: Sequence[SpokenReply], judge: WhisperJudge) -> Figure:
    context, wrong = Context(), []
    for question, reply in zip(asked, said, strict=True):
        right = {answer(question, context, Random(seed)) for seed in range(POSSIBLE_DRAWS)}
        transcript = judge.transcribe(to_input_rate(reply.sound)) if len(reply.sound) else ""
        if not any(_matches(transcript, wanted) for wanted in right):
            wrong.append(f"{question.text!r} → {reply.text!r}, transcribed {transcript!r}")
    return Figure(gates.CONVERSATION, float(len(asked) - len(wrong)), len(asked), "; ".join(wrong))


def _matches(transcript: str, wanted: str) -> bool:
    errors = word_errors(wanted, transcript)
    return bool(words_of(transcript)) and errors.wrong <= WRONG_WORDS * errors.words


async def _talk(url: str, spoken: Sequence[Utterance]) -> list[SpokenReply]:
    """Ask the questions in turn, each after the previous reply."""
    async with prepared(url) as socket:
        call = _Call(socket)
        replies = [await call.turn(utterance) for utterance in spoken]
        await leave(socket)
        return replies


class _Call:
    """A call that hears one second after another, each after the result of the one before."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._noise = np.random.default_rng(0)
        self._random = Random(0)
        self._next_s = 0.0

    async def turn(self, utterance: Utterance) -> SpokenReply:
        lead = np.zeros(int(self._random.uniform(0.2, 1.0) * UNIT_SAMPLES), np.float32)
        sound = np.concatenate((lead, utterance.samples))
        reply, has_ended = SpokenReply(), False
        for start in range(0, len(sound) + int(LAST_WAIT_S * UNIT_SAMPLES), UNIT_SAMPLES):
            has_ended |= await self._second(sound[start : start + UNIT_SAMPLES], reply)
            if has_ended and start + UNIT_SAMPLES > len(sound):
                break
        for _ in range(int(len(reply.sound) / OUTPUT_RATE_HZ + PAUSE_S)):
            await self._second(np.zeros(0, np.float32), reply)
        return reply

    async def _second(self, part: Samples, reply: SpokenReply) -> bool:
        """Send a second when it is due; return whether the reply ends with its unit."""
        loop = asyncio.get_running_loop()
        self._next_s = max(self._next_s + 1.0, loop.time())
        await asyncio.sleep(self._next_s - loop.time())
        second = self._noise.standard_normal(UNIT_SAMPLES).astype(np.float32) * NOISE_FLOOR
        second[: len(part)] += part
        await self._socket.send(audio_chunk(second))
        result = await until(self._socket, "result")
        if result["is_listen"]:
            return False
        reply.text += result["text"]
        reply.waves.append(np.frombuffer(base64.b64decode(result["audio_data"]), "<f4"))
        return bool(result["end_of_turn"])
