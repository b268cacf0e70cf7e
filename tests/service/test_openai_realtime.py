"""`/v1/realtime` as OpenAI's own client uses it, unmodified: gateway, worker, and fixed replies."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import soundfile
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from PIL import Image
from websockets.asyncio.client import connect

from core.schemas import gpt_live as gpt_live_events
from core.schemas import realtime as realtime_events
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.serving.fake_backend import FakeBackend, FakeTimes
from tests.fakes.gateway_stage import HURRY, PATIENT, Stage, settings_for
from tests.fakes.stock_client import stock_client
from tests.source_tree import ROOT
from tests.unit.test_openai_mutations import is_right, mutants
from worker import create_app

STAGE_COUNT = re.compile(
    r'^omni_worker_unit_stage_seconds_count\{mode="half_duplex_audio",stage="(\w+)"\} (\S+)$', re.M
)
LIMIT_S = 120.0  # ends a test that hangs
HELLO = ROOT / "examples" / "hello.wav"
Scenario = Callable[[AsyncRealtimeConnection], Awaitable[None]]


class RealStage(Stage):
    """A gateway with one worker without a model."""

    def __init__(self, folder: Path) -> None:
        # Who floods it may be slow to answer a ping on a busy machine.
        limits = {"heartbeat_s": LIMIT_S}
        settings = settings_for(
            folder, recording={"enabled": False}, limits=limits, service={"worker_slots": 4}
        )
        super().__init__(settings, 1, HURRY)
        times = FakeTimes(prefill_ms=1, piece_ms=1)
        app = create_app(settings, lambda: FakeBackend(times))
        self.workers[0].app = app  # type: ignore[assignment]


class Served:
    """One stage for all tests of this file, on its own loop."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.stage = RealStage(folder)
        self.loop.run_until_complete(self.stage.start())

    def run(self, scenario: Scenario, **connection: Any) -> None:
        """Run a conversation with the stock client."""

        async def converse() -> None:
            await self.stage.wait_for_workers()
            address = f"http://127.0.0.1:{self.stage.port}/v1"
            async with stock_client(address, "sk-any") as client:
                async with asyncio.timeout(LIMIT_S):
                    async with client.realtime.connect(
                        model="gpt-realtime",
                        websocket_connection_options=PATIENT,
                        **connection,
                    ) as realtime:
                        assert (await realtime.recv()).type == "session.created"
                        assert (await realtime.recv()).type == "conversation.created"
                        await scenario(realtime)
            await self.stage.check_quiet()

        self.loop.run_until_complete(converse())

    def close(self) -> None:
        self.loop.run_until_complete(self.stage.stop())
        self.loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("realtime"))
    yield made
    made.close()


async def until(realtime: AsyncRealtimeConnection, kind: str) -> list[Any]:
    """Receive events up to one of a type, none of them an error."""
    events: list[Any] = []
    while not events or events[-1].type != kind:
        events.append(await realtime.recv())
        assert events[-1].type != "error", events[-1]
    return events


def hello() -> bytes:
    """A spoken hello: 16-bit samples at 24 kHz."""
    samples, rate_hz = soundfile.read(HELLO, dtype="float32")
    length = len(samples) * OUTPUT_SAMPLE_RATE_HZ // rate_hz
    at = np.linspace(0, len(samples) - 1, length)
    heard = np.interp(at, np.arange(len(samples)), samples)
    return bytes((heard * 32_767).astype("<i2").tobytes())


async def speak(realtime: AsyncRealtimeConnection, pcm: bytes) -> None:
    for start in range(0, len(pcm), 4_800):
        piece = base64.b64encode(pcm[start : start + 4_800]).decode()
        await realtime.input_audio_buffer.append(audio=piece)


def test_text_gets_a_text_reply(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        await realtime.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "model": "gpt-realtime"}
        )
        updated = (await until(realtime, "session.updated"))[-1]
        assert updated.session.output_modalities == ["text"]
        for _ in range(2):
            await realtime.conversation.item.create(
                item={
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Hello!"}],
                }
            )
            await realtime.response.create()
            events = await until(realtime, "response.done")
            done = events[-1].response
            assert done.status == "completed"
            words = "".join(one.delta for one in events if one.type == "response.output_text.delta")
            assert words == done.output[0].content[0].text and "fixed reply" in words
        # The second turn stands behind the first in the cache.
        assert done.usage.input_token_details.cached_tokens > 0

    served.run(scenario)


def test_the_users_speech_is_transcribed(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        await realtime.session.update(
            session={
                "type": "realtime",
                "audio": {
                    "input": {
                        "transcription": {"model": "gpt-4o-mini-transcribe"},
                        "turn_detection": None,
                    }
                },
            }
        )
        updated = (await until(realtime, "session.updated"))[-1]
        assert updated.session.audio.input.transcription.model == "gpt-4o-mini-transcribe"
        await speak(realtime, hello()[:48_000])
        await realtime.input_audio_buffer.commit()
        kind = "conversation.item.input_audio_transcription.completed"
        events = await until(realtime, kind)
        [committed] = [one for one in events if one.type == "input_audio_buffer.committed"]
        assert events[-1].item_id == committed.item_id
        assert events[-1].transcript == "I speak for 1.0 s." and events[-1].usage.seconds == 1.0

    served.run(scenario)


def test_speech_gets_a_spoken_reply(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        await speak(realtime, hello())
        await speak(realtime, bytes(2 * OUTPUT_SAMPLE_RATE_HZ))  # a second of silence
        # It comes faster than it was spoken, so that what follows interrupts the first answers.
        events = await until(realtime, "response.done")
        while events[-1].response.status != "completed":
            assert events[-1].response.status_details.reason == "turn_detected"
            events += await until(realtime, "response.done")
        kinds = [one.type for one in events]
        assert kinds.index("input_audio_buffer.speech_started") < kinds.index("response.created")
        deltas = [one.delta for one in events if one.type == "response.output_audio.delta"]
        assert max(len(base64.b64decode(delta)) for delta in deltas) <= 9_600
        sound = b"".join(map(base64.b64decode, deltas))
        assert len(sound) > OUTPUT_SAMPLE_RATE_HZ and any(sound)
        user = next(one for one in events if one.type == "input_audio_buffer.committed").item_id
        await realtime.conversation.item.retrieve(item_id=user)
        item = (await until(realtime, "conversation.item.retrieved"))[-1].item
        assert len(base64.b64decode(item.content[0].audio)) > OUTPUT_SAMPLE_RATE_HZ // 2

    served.run(scenario)


def test_g711_audio_in_both_directions(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        law: Any = {"format": {"type": "audio/pcmu"}}
        heard: Any = {**law, "turn_detection": None}
        await realtime.session.update(
            session={"type": "realtime", "audio": {"input": heard, "output": law}}
        )
        quiet = base64.b64encode(b"\xff" * 8_000).decode()
        await realtime.input_audio_buffer.append(audio=quiet)
        await realtime.input_audio_buffer.commit()
        await realtime.response.create()
        events = await until(realtime, "response.done")
        pieces = [one.delta for one in events if one.type == "response.output_audio.delta"]
        seconds = sum(len(base64.b64decode(piece)) for piece in pieces) / 8_000
        words = events[-1].response.output[0].content[0].transcript.split()
        assert seconds == pytest.approx(len(words), abs=0.01)

    served.run(scenario)


def test_a_cancelled_reply_is_followed_by_the_next_one(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        await realtime.response.create(response={"metadata": {"client_event_id": "mine"}})
        await realtime.response.cancel()
        done = (await until(realtime, "response.done"))[-1].response
        assert done.status == "cancelled" and done.metadata == {"client_event_id": "mine"}
        await realtime.response.create()
        assert (await until(realtime, "response.done"))[-1].response.status == "completed"

    served.run(scenario)


def test_a_function_is_called_and_its_output_spoken(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        tools: Any = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
        await realtime.response.create(response={"tools": tools, "tool_choice": "required"})
        done = (await until(realtime, "response.done"))[-1].response
        # The fixed reply goes on in words where arguments should stand.
        assert done.status == "failed"
        assert done.status_details.error.code == "invalid_tool_call"
        call: Any = {"type": "function_call", "name": "look", "call_id": "c1", "arguments": "{}"}
        output: Any = {"type": "function_call_output", "call_id": "c1", "output": "an owl"}
        for item in (call, output):
            await realtime.conversation.item.create(item=item)
        await realtime.response.create()
        assert (await until(realtime, "response.done"))[-1].response.status == "completed"

    served.run(scenario)


def test_an_item_with_a_damaged_picture_is_refused_and_not_kept(served: Served) -> None:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    whole = file.getvalue()

    def item(name: str, *contents: bytes) -> Any:
        urls = [f"data:image/png;base64,{base64.b64encode(each).decode()}" for each in contents]
        parts = [{"type": "input_image", "image_url": url} for url in urls]
        text = {"type": "input_text", "text": "What is this?"}
        return {"type": "message", "id": name, "role": "user", "content": [text, *parts]}

    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        for damaged in (b"no picture", whole[: len(whole) // 2]):
            await realtime.conversation.item.create(
                item=item("one", whole, damaged), event_id="mine"
            )
            refused: Any = await realtime.recv()
            assert refused.type == "error", refused
            problem = refused.error
            assert (problem.code, problem.event_id) == ("invalid_value", "mine")
            assert problem.param == "item.content[2].image_url"
            given: Any = {"input": [item("two", whole), item("one", damaged)]}
            await realtime.response.create(response=given)
            refused = await realtime.recv()
            assert refused.error.param == "response.input[1].content[1].image_url"
        await realtime.conversation.item.create(item=item("one", whole))
        await realtime.response.create()
        assert (await until(realtime, "response.done"))[-1].response.status == "completed"

    served.run(scenario)


def test_the_beta_is_served_on_request(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        await realtime.response.create()
        while (event := await realtime.recv()).type != "response.done":
            assert not event.type.startswith("response.output_audio")

    served.run(scenario, extra_headers={"OpenAI-Beta": "realtime=v1"})


SEMANTIC: Any = {
    "type": "realtime",
    "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}},
}


async def listen(realtime: AsyncRealtimeConnection, kind: str) -> list[Any]:
    async def be_silent() -> None:
        while True:
            await speak(realtime, bytes(4_800))
            await asyncio.sleep(0.1)

    sending = asyncio.create_task(be_silent())
    try:
        return await until(realtime, kind)
    finally:
        sending.cancel()


def test_the_model_decides_when_to_respond(served: Served) -> None:
    async def scenario(realtime: AsyncRealtimeConnection) -> None:
        await realtime.session.update(session=SEMANTIC)
        updated = (await until(realtime, "session.updated"))[-1]
        assert updated.session.model_extra["minicpmo"] == {"engine": "live"}
        await speak(realtime, hello())
        events = await listen(realtime, "input_audio_buffer.committed")
        while events[-1].type != "response.done" or events[-1].response.status != "completed":
            events += await listen(realtime, "response.done")
        done = events[-1].response
        # The fake's units; those of a turn are three seconds of sound.
        assert "of turn" in done.output[0].content[0].transcript
        item = done.output[0].id
        deltas = [
            one.delta
            for one in events
            if one.type == "response.output_audio.delta" and one.item_id == item
        ]
        sound = b"".join(map(base64.b64decode, deltas))
        assert len(sound) % (2 * OUTPUT_SAMPLE_RATE_HZ) == 0 and any(sound)
        # Typed words, in the middle of the call.
        words: Any = {"type": "input_text", "text": "And now?"}
        typed: Any = {"type": "message", "role": "user", "content": [words]}
        await realtime.conversation.item.create(item=typed)
        status = "completed"
        while status == "completed":  # the fake speaks for three seconds; a cancel may be too late
            await realtime.response.create()
            await listen(realtime, "response.output_audio.delta")
            await realtime.response.cancel()
            status = (await listen(realtime, "response.done"))[-1].response.status
            while status == "completed" and (await realtime.recv()).type != "error":
                continue
        assert status == "cancelled"
        # And out of turn, by the other engine.
        await realtime.response.create(response={"instructions": "Be brief."})
        done = (await until(realtime, "response.done"))[-1].response
        assert "fixed reply" in done.output[0].content[0].transcript

    async def metrics() -> str:
        transport = httpx.ASGITransport(cast(Any, served.stage.workers[0].app))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            return (await client.get("/metrics")).text

    served.run(scenario)
    # Its units are counted, each once.
    counted = {
        stage: float(count)
        for stage, count in STAGE_COUNT.findall(served.loop.run_until_complete(metrics()))
    }
    assert 3 <= counted["wall"] and abs(counted["wall"] - counted["finalize"]) <= 1


SHARE = 13  # of the changes; the others are tried without a socket


@pytest.mark.parametrize("module", [realtime_events, gpt_live_events], ids=["realtime", "live"])
def test_no_mutation_of_an_event_ends_a_session(served: Served, module: Any) -> None:
    path = "live/sessions" if module is gpt_live_events else "realtime"
    texts = [text for text, _ in list(mutants(module))[::SHARE] if '"session.close"' not in text]
    wrong = sum(not is_right(module.parse_event, text) for text in texts)
    assert len(texts) > 60 and wrong > len(texts) / 3

    async def converse() -> None:
        await served.stage.check_quiet()  # there is one slot, and the last test's may be held yet
        await served.stage.wait_for_workers()
        address = f"ws://127.0.0.1:{served.stage.port}/v1/{path}"
        connecting = connect(
            address, max_size=None, open_timeout=None, ping_interval=None, proxy=None
        )
        async with asyncio.timeout(LIMIT_S), connecting as socket:
            if path != "realtime":
                start = {"type": "session.start", "session": {"model": "gpt-live-1"}}
                await socket.send(json.dumps(start))
            # A session that has not begun keeps 64 events at most.
            begun = json.loads(await socket.recv())["type"]
            assert begun in ("session.created", "session.started")

            async def send_all() -> None:
                for text in [*texts, '{"type": "nothing", "event_id": "last"}']:
                    await socket.send(text)

            sending, errors = asyncio.create_task(send_all()), 0
            while True:
                event = json.loads(await socket.recv())
                if event["type"] == "error":
                    errors += 1
                    error = event["error"]
                    if "last" in (error.get("event_id"), error.get("client_event_id")):
                        break
            await sending
            assert errors > wrong
        await served.stage.check_quiet()

    served.loop.run_until_complete(converse())
