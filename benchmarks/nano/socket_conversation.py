"""Gate "end to end": ten spoken turns through gateway and worker, judged by transcripts."""

from __future__ import annotations

import asyncio
import base64
import json
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
from benchmarks.paced_client import leave, prepared
from core.audio import encode_wire_audio
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
        reader = asyncio.create_task(call.read())
        try:
            replies = [await call.turn(utterance) for utterance in spoken]
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await leave(socket)
        return replies


class _Call:
    """Sends audio continuously and collects the results."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._reply = SpokenReply()
        self._has_ended = asyncio.Event()
        self._noise = np.random.default_rng(0)
        self._random = Random(0)
        self._next_s = 0.0

    async def turn(self, utterance: Utterance) -> SpokenReply:
        self._reply, self._has_ended = SpokenReply(), asyncio.Event()
        lead = np.zeros(int(self._random.uniform(0.2, 1.0) * UNIT_SAMPLES), np.float32)
        sound = np.concatenate((lead, utterance.samples))
        deadline_s = len(sound) / UNIT_SAMPLES + LAST_WAIT_S
        seconds = 0
        while seconds < deadline_s and not (
            self._has_ended.is_set() and seconds * UNIT_SAMPLES > len(sound)
        ):
            await self._send(sound[seconds * UNIT_SAMPLES : (seconds + 1) * UNIT_SAMPLES])
            seconds += 1
        said = self._reply
        for _ in range(int(len(said.sound) / OUTPUT_RATE_HZ + PAUSE_S)):
            await self._send(np.zeros(0, np.float32))
        return said

    async def read(self) -> None:
        async for text in self._socket:
            message = json.loads(text)
            if message["type"] not in ("result", "result_part") or message.get("is_listen"):
                continue
            self._reply.text += message.get("text", "")
            if sound := message.get("audio_data"):
                self._reply.waves.append(np.frombuffer(base64.b64decode(sound), "<f4"))
            if message.get("end_of_turn"):
                self._has_ended.set()

    async def _send(self, part: Samples) -> None:
        loop = asyncio.get_running_loop()
        self._next_s = max(self._next_s + 1.0, loop.time())
        await asyncio.sleep(self._next_s - loop.time())
        second = self._noise.standard_normal(UNIT_SAMPLES).astype(np.float32) * NOISE_FLOOR
        second[: len(part)] += part
        chunk = {"type": "audio_chunk", "audio": encode_wire_audio(second)}
        await self._socket.send(json.dumps(chunk))
