"""Conversations with a worker's real model, and an engine that can be made to fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.processors import UnifiedProcessor
from core.processors.backend import RealBackend
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.steps import Collect, LlmForward
from tests.fakes.decoding import MediaHere
from tests.service.workers import SILENCE, Client, Message, Talk, spoken

GREEDY = {"do_sample": False, "max_new_tokens": 24}
UNITS = 6


def model_backend(checkpoint: Path, *, seed: int, warms_up: bool = True) -> RealBackend:
    backend = RealBackend(
        lambda engine, report: UnifiedProcessor(
            checkpoint,
            device="cpu",
            seed=seed,
            show_progress=False,
            engine=engine,
            on_progress=report,
        ),
        warms_up=warms_up,
    )
    backend.media = MediaHere()
    return backend


class Failing:
    """Makes chosen language-model passes of an executor fail, or slows all of them down."""

    def __init__(self, executor: Executor) -> None:
        self.passes_until_failure: int | None = None
        self.failures = 0
        self.delay_s = 0.0
        self._submit = executor._handlers[LlmForward]
        executor._handlers[LlmForward] = self.run

    def run(self, requests: Sequence[Any]) -> Collect:
        time.sleep(self.delay_s)
        if self.passes_until_failure is not None:
            self.passes_until_failure -= 1
            if self.passes_until_failure < 0:
                self.passes_until_failure = None
                self.failures += 1
                raise RuntimeError("the device has hiccups")
        return self._submit(requests)


async def turn(
    client: Client, messages: list[Message], session_id: str | None = None, **fields: object
) -> Message:
    """Run one greedy turn on a separate socket."""
    async with client.talk("streaming", session_id) as talk:
        fed = await talk.ask("prefill", messages=messages, **fields)
        assert fed["type"] == "prefill_done", fed
        await talk.say("generate", **GREEDY)
        done = (await talk.hear_until("done"))[-1]
    return {"fed": fed, "text": done["text"], "stats": done["token_stats"]}


async def say_something(talk: Talk, second: int) -> list[Message]:
    """Send a second of speech, then silence, and receive the answer."""
    await talk.say("audio_chunk", audio=spoken(second))
    await talk.say("audio_chunk", audio=SILENCE)
    return await talk.hear_until("turn_done")


DUPLEX = {"force_listen_count": 0, "decode_mode": "greedy", "tts_temperature": 0}


async def listen_and_speak(client: Client, gate: asyncio.Barrier | None = None) -> list[Message]:
    results = []
    async with client.talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        for index in range(UNITS):
            if gate is not None:
                await gate.wait()
            results.append(await talk.ask("audio_chunk", audio=spoken(index)))
        await talk.stop()
    return results
