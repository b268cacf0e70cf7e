"""livekit-agents with its OpenAI plugin: `RealtimeModel` and `GPTLiveModel`, without a room."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from livekit import rtc
from livekit.agents import Agent
from livekit.agents.voice.io import VideoInput
from livekit.plugins.openai.realtime import GPTLiveModel
from livekit_scenarios import REALTIME, agent_session, opened, speak
from scenarios import SILENCE, Scenario, Server, main

# Behind all that is installed here: no other package of ours may hide one of theirs.
sys.path.append(str(Path(__file__).parents[2]))
from minicpmo_live.livekit import LiveModel  # noqa: E402

AUDIBLE = 100  # of a 16-bit sample


@asynccontextmanager
async def live(server: Server) -> AsyncIterator[Any]:
    """Begin a GPT-Live session; no error may come."""
    async with opened(server, GPTLiveModel, delegation="client") as (session, _):
        await session._update_session(instructions="Be brief.", tools=[])
        yield session


async def hear(session: Any, is_audible: bool) -> None:
    """Feed silence until an audible frame comes, or a silent one."""
    feeding = asyncio.create_task(speak(session, repeat(SILENCE)))
    try:
        async for piece in session.audio_stream:
            if (max(abs(sample) for sample in piece.frame.data) > AUDIBLE) is is_audible:
                return
    finally:
        feeding.cancel()


async def live_hello(server: Server) -> None:
    async with live(server) as session:
        words: list[str] = []
        session.on("transcript_delta", lambda event: words.append(event.text))
        session.append_commentary("Say hello.")
        await hear(session, is_audible=True)
        assert words


async def live_turn(server: Server) -> None:
    async with live(server) as session:
        await hear(session, is_audible=True)
        await hear(session, is_audible=False)
        await hear(session, is_audible=True)


async def live_barge_in(server: Server) -> None:
    async with live(server) as session:
        await hear(session, is_audible=True)
        await speak(session, server.pieces[:-15])
        await hear(session, is_audible=False)


async def live_reconnect(server: Server) -> None:
    async with live(server) as session:
        await hear(session, is_audible=True)
    await live_hello(server)


class Camera(VideoInput):
    """Thirty frames a second, each of one colour and larger than the model needs."""

    def __init__(self) -> None:
        super().__init__(label="camera")
        self._pixels = bytes((200, 100, 50, 255)) * (1_920 * 1_080)

    async def __anext__(self) -> rtc.VideoFrame:
        await asyncio.sleep(1 / 30)
        return rtc.VideoFrame(1_920, 1_080, rtc.VideoBufferType.RGBA, self._pixels)


async def camera(server: Server) -> None:
    model_of = partial(LiveModel, base_url=server.url, delegation="client")
    async with agent_session(model_of, video_sampler=None) as session:
        is_seen = asyncio.Event()

        def note(event: Any) -> None:
            if event.item.type == "message" and "I see a picture" in event.item.text_content:
                is_seen.set()

        session.on("conversation_item_added", note)
        session.input.video = Camera()
        await session.start(Agent(instructions="Say what you see."))
        await is_seen.wait()


SCENARIOS: dict[str, Scenario] = {
    **{f"Realtime/{name}": scenario for name, scenario in REALTIME.items()},
    "GPT-Live/hello": live_hello,
    "GPT-Live/VAD turn": live_turn,
    "GPT-Live/barge-in": live_barge_in,
    "GPT-Live/reconnect": live_reconnect,
    "GPT-Live, minicpmo_live.livekit/camera": camera,
}

if __name__ == "__main__":
    main(SCENARIOS)
