"""livekit-agents with its OpenAI plugin: `RealtimeModel` and `GPTLiveModel`, without a room."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import Agent, AgentSession, llm, utils
from livekit.agents.voice.io import VideoInput
from livekit.plugins.openai.realtime import GPTLiveModel, RealtimeModel
from scenarios import PIECE_BYTES, SILENCE, Scenario, Server, main

# Behind all that is installed here: no other package of ours may hide one of theirs.
sys.path.append(str(Path(__file__).parents[2]))
from minicpmo_live.livekit import LiveModel  # noqa: E402

RATE_HZ = 24_000
PIECE_S = 0.1
AUDIBLE = 100  # of a 16-bit sample


@llm.function_tool
async def look_up(city: str) -> str:
    """Look the weather up."""
    return "sunny"


class Talk:
    """A Realtime session and the answers that it announced."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.generations: asyncio.Queue[Any] = asyncio.Queue()
        self.started = asyncio.Event()
        self.truncated = asyncio.Event()
        self.problems: list[Any] = []
        session.on("generation_created", self.generations.put_nowait)
        session.on("input_speech_started", lambda event: self.started.set())
        session.on("error", self.problems.append)
        session.on("openai_server_event_received", self._note)

    def _note(self, event: Any) -> None:
        if event["type"] == "conversation.item.truncated":
            self.truncated.set()

    async def ask(self, text: str) -> Any:
        context = self.session.chat_ctx.copy()
        context.add_message(role="user", content=text)
        await self.session.update_chat_ctx(context)
        return await self.session.generate_reply()

    async def speak(self, server: Server) -> None:
        for piece in server.pieces:
            self.session.push_audio(rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2))
            await asyncio.sleep(PIECE_S)

    async def hear_answer(self) -> None:
        """Wait for an answer; audio faster than speech interrupts the first ones."""
        samples = 0
        while samples < RATE_HZ:
            words, samples = await listen(await self.generations.get())
            assert words or not samples


@asynccontextmanager
async def talk(server: Server) -> AsyncIterator[Talk]:
    """Begin a session; no error may come."""
    async with aiohttp.ClientSession() as http:
        model = RealtimeModel(base_url=server.url, api_key="sk-any", http_session=http)
        session = model.session()
        made = Talk(session)
        try:
            yield made
        finally:
            await session.aclose()
            await model.aclose()
        assert not made.problems, made.problems


async def listen(generation: Any) -> tuple[str, int]:
    """Return an answer's text and its number of samples."""
    words, samples = "", 0
    async for message in generation.message_stream:

        async def hear(spoken: Any = message.audio_stream) -> int:
            return sum([frame.samples_per_channel async for frame in spoken])

        hearing = asyncio.create_task(hear())
        words += "".join([text async for text in message.text_stream])
        samples += await hearing
    return words, samples


async def hello(server: Server) -> None:
    async with talk(server) as one:
        words, samples = await listen(await one.ask("Hello!"))
        assert words and samples > RATE_HZ


async def vad_turn(server: Server) -> None:
    async with talk(server) as one:
        await one.speak(server)
        await one.started.wait()
        await one.hear_answer()


async def barge_in(server: Server) -> None:
    async with talk(server) as one:
        generation = await one.ask("Tell me something.")
        async for message in generation.message_stream:
            async for _ in message.audio_stream:
                break
            speaking = asyncio.create_task(one.speak(server))
            await one.started.wait()
            one.session.interrupt()
            one.session.truncate(
                message_id=message.message_id, modalities=["audio"], audio_end_ms=300
            )
            break
        await speaking
        await one.truncated.wait()
        await one.generations.get()  # of the one that was asked for
        await one.hear_answer()


async def tool_call(server: Server) -> None:
    async with talk(server) as one:
        await one.session.update_tools([look_up])
        generation = await one.ask("What is the weather in Paris?")
        reading = asyncio.create_task(listen(generation))
        calls = [call async for call in generation.function_stream]
        await reading
        assert [(call.name, call.arguments) for call in calls] == [("look_up", '{"city": "Paris"}')]
        context = one.session.chat_ctx.copy()
        output = llm.FunctionCallOutput(
            call_id=calls[0].call_id, name="look_up", output="sunny", is_error=False
        )
        context.items.append(output)
        await one.session.update_chat_ctx(context)
        assert (await listen(await one.session.generate_reply()))[0]


async def reconnect(server: Server) -> None:
    async with talk(server) as one:
        await one.ask("Hello!")
    await hello(server)


@asynccontextmanager
async def live(server: Server) -> AsyncIterator[Any]:
    """Begin a GPT-Live session; no error may come."""
    async with aiohttp.ClientSession() as http:
        model = GPTLiveModel(
            base_url=server.url, api_key="sk-any", http_session=http, delegation="client"
        )
        session, problems = model.session(), []
        session.on("error", problems.append)
        await session._update_session(instructions="Be brief.", tools=[])
        try:
            yield session
        finally:
            await session.aclose()
            await model.aclose()
        assert not problems, problems


async def hear(session: Any, is_audible: bool) -> None:
    """Feed silence until an audible frame comes, or a silent one."""

    async def feed() -> None:
        while True:
            session.push_audio(rtc.AudioFrame(SILENCE, RATE_HZ, 1, PIECE_BYTES // 2))
            await asyncio.sleep(PIECE_S)

    feeding = asyncio.create_task(feed())
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
        for piece in server.pieces[:-15]:
            session.push_audio(rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2))
            await asyncio.sleep(PIECE_S)
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
    async with utils.http_context.open():
        model = LiveModel(base_url=server.url, delegation="client")
        async with AgentSession(llm=model, video_sampler=None) as session:
            is_seen = asyncio.Event()

            def note(event: Any) -> None:
                if event.item.type == "message" and "I see a picture" in event.item.text_content:
                    is_seen.set()

            session.on("conversation_item_added", note)
            session.input.video = Camera()
            await session.start(Agent(instructions="Say what you see."))
            await is_seen.wait()
        await model.aclose()


SCENARIOS: dict[str, Scenario] = {
    "Realtime/hello": hello,
    "Realtime/VAD turn": vad_turn,
    "Realtime/barge-in": barge_in,
    "Realtime/tool call": tool_call,
    "Realtime/reconnect": reconnect,
    "GPT-Live/hello": live_hello,
    "GPT-Live/VAD turn": live_turn,
    "GPT-Live/barge-in": live_barge_in,
    "GPT-Live/reconnect": live_reconnect,
    "GPT-Live, minicpmo_live.livekit/camera": camera,
}

if __name__ == "__main__":
    main(SCENARIOS)
