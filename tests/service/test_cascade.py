"""Each mode over the worker's real sockets with a cascade of scripted parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from core.cascade.backend import CascadeBackend
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.worker import ModelKind
from core.serving.fake_backend import FakeBackend
from core.vad import SileroVad
from tests.fakes.cascade_parts import scripted
from tests.service.worker_checks import check_fields, recording
from tests.service.workers import (
    SECOND,
    Client,
    RunningWorker,
    running_worker,
    settings_for,
    speech,
    wire,
)

ANSWER = "Hello there, my dear friend. It is a nice day."
USER = {"role": "user", "content": "How are you?"}
TURNS = 40  # more answers than all tests ask for


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    parts = scripted(*[ANSWER] * TURNS, heard=["How are you today?"] * TURNS)
    parts = replace(parts, detector=SileroVad())
    base: Any = FakeBackend()

    def make() -> CascadeBackend:
        return CascadeBackend(base, lambda _: parts, waits=False, shares_transcriber=True)

    with running_worker(settings_for(tmp_path_factory.mktemp("data")), make) as running:
        yield running


def test_health_names_what_is_talking(worker: RunningWorker) -> None:
    async def scenario() -> None:
        health = await Client(worker.port).health()
        assert (
            health["model"]["kind"] == ModelKind.CASCADE and health["transcribes_by"] == "whisper"
        )
        assert health["model"]["name"] == "Whisper tiny → script → tone"

    asyncio.run(scenario())


def test_half_duplex(worker: RunningWorker) -> None:
    async def scenario() -> None:
        client = Client(worker.port)
        async with client.talk("half_duplex") as talk:
            prepared = await talk.prepared(system_prompt="Be kind.", transcribe=True)
            quiet = np.zeros(SECOND, np.float32)
            await talk.speak(np.concatenate([quiet, speech(), quiet]))
            heard = await talk.hear_until("turn_done")
            assert heard[-1]["text"] == ANSWER and any(m.get("audio_data") for m in heard)
            await talk.say("stop")
            await talk.hear_all()
            check_fields(TypeAdapter(half_duplex.ServerMessage), talk.heard)
        await client.idle()
        kept = await recording(worker, prepared["recording_session_id"])
        assert kept["turns"][0]["output"]["text"] == ANSWER

    asyncio.run(scenario())


def test_duplex(worker: RunningWorker) -> None:
    async def scenario() -> None:
        client = Client(worker.port)
        async with client.talk("duplex") as talk:
            await talk.prepared(config={"force_listen_count": 0})
            said, units = "", 0
            sound = np.concatenate([speech(), np.zeros(8 * SECOND, np.float32)])
            for at in range(0, len(sound) - SECOND, SECOND):
                await talk.say("audio_chunk", audio=wire(sound[at : at + SECOND]))
                result = (await talk.hear_until("result"))[-1]
                # A reply that was begun in a pause of the turn is withdrawn.
                said = "" if result["is_listen"] else said + result["text"]
                units += not result["is_listen"]
                if result["end_of_turn"]:
                    break
            assert said.split() == ANSWER.split() and units > 2
            await talk.say("stop")
            await talk.hear_all()
            check_fields(TypeAdapter(duplex.ServerMessage), talk.heard)
        await client.idle()

    asyncio.run(scenario())


def test_streaming_keeps_its_conversation(worker: RunningWorker) -> None:
    async def scenario() -> None:
        client = Client(worker.port)
        async with client.talk("streaming") as talk:
            for _ in range(2):
                await talk.say("prefill", messages=[USER])
                await talk.hear_until("prefill_done")
                await talk.say("generate", generate_audio=False)
                done = (await talk.hear_until("done"))[-1]
                assert done["text"] == ANSWER and not done["stopped"]
            await talk.say("close")
            await talk.hear_all()
            check_fields(TypeAdapter(streaming.WorkerServerMessage), talk.heard)
        await client.idle()

    asyncio.run(scenario())


def test_chat(worker: RunningWorker) -> None:
    async def scenario() -> None:
        client = Client(worker.port)
        answer = (await client.post("/chat", {"messages": [USER], "tts": {"enabled": True}})).json()
        assert answer["success"] and answer["text"] == ANSWER and answer["audio_data"]
        async with client.talk("chat") as talk:
            await talk.say(None, messages=[USER], streaming=True)
            assert (await talk.hear_until("done"))[-1]["text"] == ANSWER
            await talk.hear_all()
            check_fields(TypeAdapter(chat.ServerMessage), talk.heard)
        await client.idle()

    asyncio.run(scenario())
