"""`/v1/live/sessions` as OpenAI's own client speaks it, unmodified, through gateway and worker."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.resources.live.live import AsyncLiveConnection
from openai.types.live import ServerEvent
from pydantic import TypeAdapter

from core.serving.fake_backend import FakeBackend, FakeTimes
from tests.fakes.gateway_stage import HOST, HURRY, PATIENT, Stage, settings_for
from tests.fakes.stock_client import stock_client
from tests.service.workers import RunningWorker, running_worker

ORACLE: TypeAdapter[Any] = TypeAdapter(ServerEvent)
SILENCE = base64.b64encode(bytes(4_800)).decode()  # 100 ms at 24 kHz
PIECE_SAMPLES = 2_400
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A worker with fixed replies, which all tests of this file share."""
    settings = settings_for(tmp_path_factory.mktemp("worker"))
    with running_worker(settings, lambda: FakeBackend(FakeTimes(unit_ms=5))) as running:
        yield running


class Talk:
    """A connection of the stock client, and its received events."""

    def __init__(self, connection: AsyncLiveConnection) -> None:
        self.connection = connection
        self.events: list[Any] = []
        self.sound: list[bytes] = []

    @property
    def words(self) -> str:
        kind = "session.output_transcript.delta"
        return "".join(event.delta for event in self.events if event.type == kind)

    @property
    def samples(self) -> Any:
        return np.frombuffer(b"".join(self.sound), "<i2")

    async def hear(self, kind: str) -> Any:
        """Wait for an event of a type; the client's types must accept every event."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                raw = await self.connection.recv_bytes()
                event = ORACLE.validate_json(raw)
                if event.type == "session.output_audio.delta":
                    self.sound.append(base64.b64decode(event.delta))
                else:
                    self.events.append(event)
                if event.type == kind:
                    return event

    async def say(self, kind: str, **fields: Any) -> None:
        event: Any = {"type": kind, **fields}
        await self.connection.send(event)

    async def start(self, **session: Any) -> Any:
        await self.say("session.start", session={"model": "gpt-live-1", **session}, event_id="s")
        return await self.hear("session.started")


@asynccontextmanager
async def talking(worker: RunningWorker, folder: Path) -> AsyncIterator[Talk]:
    """Start a gateway with the worker, and connect the stock client."""
    stage = Stage(settings_for(folder), 0, HURRY, [f"{HOST}:{worker.port}"])
    await stage.start()
    try:
        base_url = f"http://{HOST}:{stage.port}/v1"
        async with stock_client(base_url, "none") as client:
            async with client.live.connect(websocket_connection_options=PATIENT) as connection:
                yield Talk(connection)
        await stage.check_quiet()
    finally:
        await stage.stop()


def test_a_greeting_is_spoken_and_the_session_closes(worker: RunningWorker, tmp_path: Path) -> None:
    async def scene() -> None:
        async with talking(worker, tmp_path) as talk:
            # `session.closed` repeats them, and is none the less recognized as the end.
            started = await talk.start(instructions="Be kind. " * 1_000)
            assert started.client_event_id == "s"
            assert (started.session.model, started.session.status) == ("fake", "active")
            await talk.say("session.input_audio.append", audio=SILENCE)
            await talk.say(
                "session.commentary.append", content="Greet.", delegation_id=None, event_id="c"
            )
            appended = await talk.hear("session.commentary.appended")
            assert appended.client_event_id == "c"
            while "turn" not in talk.words:
                await talk.hear("session.output_transcript.delta")
            await talk.hear("session.output_audio.delta")
            await talk.say("session.close")
            closed = await talk.hear("session.closed")
            assert closed.reason == "close_requested" and closed.usage.seconds > 0
            lengths = {len(piece) // 48 for piece in talk.sound}
            assert lengths <= {40, 100}, "ms"
            loud = np.flatnonzero(talk.samples)
            assert len(loud), "the greeting is heard"
            assert loud[0] % PIECE_SAMPLES < 2, "it begins with a piece, behind exact zeros"
            with pytest.raises(Exception, match="1000"):
                await talk.hear("nothing")

    asyncio.run(scene())


def test_every_unit_has_audio_and_text(worker: RunningWorker, tmp_path: Path) -> None:
    async def scene() -> None:
        async with talking(worker, tmp_path) as talk:
            await talk.start(audio={"format": {"type": "audio/pcmu", "rate": 8_000}})
            while "Part 3" not in talk.words:  # it listens three units and speaks three
                await talk.hear("session.output_transcript.delta")
            starts = [e.start_ms for e in talk.events if e.type.endswith("transcript.delta")]
            assert starts == sorted(starts) and starts[0] >= 3_000
            assert len(talk.sound) * 100 >= starts[-1]
            assert b"".join(talk.sound[:20]) == b"\xff" * 16_000, "silence in μ-law"
            await talk.say("session.close")
            await talk.hear("session.closed")

    asyncio.run(scene())


def test_errors_are_named_and_do_no_harm(worker: RunningWorker, tmp_path: Path) -> None:
    async def scene() -> None:
        async with talking(worker, tmp_path) as talk:
            await talk.say("session.input_audio.append", audio=SILENCE, event_id="early")
            early = await talk.hear("error")
            assert early.error.code == "session_not_started"
            assert early.error.client_event_id == "early"
            await talk.start()
            await talk.say(
                "session.thinking.append", content="word " * 600, delegation_id=None, event_id="t"
            )
            long = await talk.hear("error")
            assert (long.error.code, long.error.param) == ("content_too_long", "content")
            await talk.say("session.input_audio.mute")
            await talk.hear("session.input_audio.muted")
            await talk.say("session.close")
            assert (await talk.hear("session.closed")).reason == "close_requested"

    asyncio.run(scene())


def test_a_disconnected_client_frees_the_worker(worker: RunningWorker, tmp_path: Path) -> None:
    async def scene() -> None:
        for _ in range(2):
            async with talking(worker, tmp_path) as talk:
                await talk.start()
                await talk.hear("session.output_audio.delta")

    asyncio.run(scene())
