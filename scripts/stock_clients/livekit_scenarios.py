"""LiveKit's `RealtimeModel` in every way in which its sessions use the protocol, without a room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import Agent, AgentSession, llm, utils
from livekit.plugins.openai.realtime import RealtimeModel
from openai.types.beta.realtime.session import InputAudioTranscription
from scenarios import PIECE_S, RATE_HZ, Scenario, Server

RECYCLE_S = 2.0  # the client opens another connection after so long
NOTHING_TO_CANCEL = "response_cancel_not_active"  # the client cancels what may have ended


@llm.function_tool
async def look_up(city: str) -> str:
    """Look the weather up."""
    return "sunny"


class Conversation:
    """A Realtime session and the replies that it announced."""

    def __init__(self, session: Any, problems: list[Any]) -> None:
        self.session = session
        self.generations: asyncio.Queue[Any] = asyncio.Queue()
        self.transcripts: asyncio.Queue[Any] = asyncio.Queue()
        self.started = asyncio.Event()
        self.reconnected = asyncio.Event()
        self.problems = problems
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        session.on("generation_created", self.generations.put_nowait)
        session.on("input_audio_transcription_completed", self.transcripts.put_nowait)
        session.on("input_speech_started", lambda event: self.started.set())
        session.on("session_reconnected", lambda event: self.reconnected.set())
        session.on("openai_server_event_received", self._note)

    def _note(self, event: dict[str, Any]) -> None:
        self.received.put_nowait(event)
        if event["type"] == "error" and event["error"]["code"] != NOTHING_TO_CANCEL:
            self.problems.append(event["error"])

    async def receive(self, kind: str) -> dict[str, Any]:
        """Return the next server event of a type."""
        while (event := await self.received.get())["type"] != kind:
            pass
        return event

    async def change(self, *, remove: tuple[str, ...] = (), **texts: str) -> list[str]:
        """Remove items and add or replace others, by id; return the ids afterwards."""
        context = self.session.chat_ctx.copy()
        context.items[:] = [item for item in context.items if item.id not in remove]
        for item_id, text in texts.items():
            message = llm.ChatMessage(id=item_id, role="user", content=[text])
            at = context.index_by_id(item_id)
            if at is None:
                context.items.append(message)
            else:
                context.items[at] = message
        await self.session.update_chat_ctx(context)
        return [item.id for item in self.session.chat_ctx.items]

    async def ask(self, text: str) -> Any:
        context = self.session.chat_ctx.copy()
        context.add_message(role="user", content=text)
        await self.session.update_chat_ctx(context)
        return await self.session.generate_reply()

    async def hear_answer(self) -> None:
        """Wait for a reply; audio faster than speech interrupts the first ones."""
        samples = 0
        while samples < RATE_HZ:
            words, samples = await listen(await self.generations.get())
            assert words or not samples


@asynccontextmanager
async def opened(server: Server, model_of: Any, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Open a session of a model; also yield the list of problems, of which there may be none."""
    problems: list[Any] = []
    async with aiohttp.ClientSession() as http:
        model = model_of(base_url=server.url, api_key="sk-any", http_session=http, **options)
        session = model.session()
        session.on("error", problems.append)
        try:
            yield session, problems
        finally:
            await session.aclose()
            await model.aclose()
    assert not problems, problems


@asynccontextmanager
async def agent_session(model_of: Any, **options: Any) -> AsyncIterator[AgentSession]:
    """Open an agent session, whose model is made where its HTTP client exists."""
    async with utils.http_context.open():
        model = model_of()
        async with AgentSession(llm=model, **options) as session:
            yield session
        await model.aclose()


async def speak(session: Any, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        session.push_audio(rtc.AudioFrame(piece, RATE_HZ, 1, len(piece) // 2))
        await asyncio.sleep(PIECE_S)


@asynccontextmanager
async def converse(server: Server, **options: Any) -> AsyncIterator[Conversation]:
    async with opened(server, RealtimeModel, **options) as (session, problems):
        yield Conversation(session, problems)


async def listen(generation: Any) -> tuple[str, int]:
    """Return a reply's text and its number of samples."""
    words, samples = "", 0
    async for message in generation.message_stream:

        async def hear(spoken: Any = message.audio_stream) -> int:
            return sum([frame.samples_per_channel async for frame in spoken])

        hearing = asyncio.create_task(hear())
        words += "".join([text async for text in message.text_stream])
        samples += await hearing
    return words, samples


async def first_audio(generation: Any) -> Any:
    """Return the message of a reply as soon as some of it was heard."""
    async for message in generation.message_stream:
        async for _ in message.audio_stream:
            return message
    raise AssertionError("the reply has no audio")


async def hello(server: Server) -> None:
    async with converse(server) as one:
        words, samples = await listen(await one.ask("Hello!"))
        assert words and samples > RATE_HZ


async def vad_turn(server: Server) -> None:
    async with converse(server) as one:
        await speak(one.session, server.pieces)
        await one.started.wait()
        await one.hear_answer()


async def barge_in(server: Server) -> None:
    async with converse(server) as one:
        message = await first_audio(await one.ask("Tell me something."))
        speaking = asyncio.create_task(speak(one.session, server.pieces))
        await one.started.wait()
        one.session.interrupt()
        one.session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=300)
        await speaking
        await one.receive("conversation.item.truncated")
        await one.generations.get()  # of the one that was asked for
        await one.hear_answer()


async def tool_call(server: Server) -> None:
    async with converse(server) as one:
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
    async with converse(server) as one:
        await one.ask("Hello!")
    await hello(server)


async def instructions(server: Server) -> None:
    """Change the session's instructions, and give one reply its own."""
    async with converse(server) as one:
        await one.session.update_instructions("Be brief.")
        updated = await one.receive("session.updated")
        while updated["session"]["instructions"] != "Be brief.":
            updated = await one.receive("session.updated")
        assert (await listen(await one.session.generate_reply(instructions="Greet me.")))[1]
        assert (await listen(await one.ask("Who are you?")))[1]


async def cancellation(server: Server) -> None:
    """Cancel a reply that is heard, and one before it begins; the next one is whole."""
    async with converse(server) as one:
        generation = await one.ask("Tell me a long story.")
        await first_audio(generation)
        one.session.interrupt()
        done = await one.receive("response.done")
        assert done["response"]["status"] == "cancelled", done
        asked = one.session.generate_reply()
        asked.cancel()
        await one.receive("response.done")
        assert (await listen(await one.session.generate_reply()))[1] > RATE_HZ


async def two_replies(server: Server) -> None:
    """Ask for a reply while another one is being spoken, as `AgentSession` does: cancel first."""
    async with converse(server) as one:
        generation = await one.ask("Tell me a long story.")
        await first_audio(generation)
        one.session.interrupt()
        assert (await listen(await one.session.generate_reply(instructions="Be brief.")))[1]


async def history(server: Server) -> None:
    """Add, replace, insert and remove items; both sides hold the same ones in the same order."""
    async with converse(server) as one:
        assert await one.change(one="My name is Ann.", two="I live in Rome.") == ["one", "two"]
        assert await one.change(two="I live in Paris.") == ["one", "two"]
        await one.session.update_chat_ctx(
            llm.ChatContext(
                [
                    llm.ChatMessage(id=name, role="user", content=[text])
                    for name, text in (("one", "My name is Ann."), ("new", "I am 30."))
                ]
                + [llm.ChatMessage(id="two", role="user", content=["I live in Paris."])]
            )
        )
        assert [item.id for item in one.session.chat_ctx.items] == ["one", "new", "two"]
        assert (await listen(await one.session.generate_reply()))[0]
        [reply] = [item for item in one.session.chat_ctx.items if item.role == "assistant"]
        assert await one.change(remove=("one", reply.id)) == ["new", "two"]
        assert (await listen(await one.session.generate_reply()))[0]


async def transcription(server: Server) -> None:
    async with converse(
        server, input_audio_transcription=InputAudioTranscription(model="whisper-1")
    ) as one:
        await speak(one.session, server.pieces)
        transcript = await one.transcripts.get()
        assert transcript.is_final and transcript.transcript, transcript
        item = one.session.chat_ctx.get_by_id(transcript.item_id)
        assert item is not None and transcript.transcript in item.text_content


async def by_hand(server: Server) -> None:
    """Drop audio, then end a turn by hand; nothing is answered that was not asked for."""
    async with converse(server, turn_detection=None) as one:
        await speak(one.session, server.pieces)
        one.session.clear_audio()
        await speak(one.session, server.pieces)
        one.session.commit_audio()
        await one.receive("input_audio_buffer.committed")
        assert one.generations.empty()
        assert (await listen(await one.session.generate_reply()))[1] > RATE_HZ
        assert not one.started.is_set()


async def text_only(server: Server) -> None:
    async with converse(server, modalities=["text"]) as one:
        async for message in (await one.ask("Hello!")).message_stream:
            assert await message.modalities == ["text"]
            assert "".join([text async for text in message.text_stream])


async def options(server: Server) -> None:
    """Change settings in the middle, and forbid and demand a call for one reply."""
    async with converse(server, turn_detection=None) as one:
        await one.session.update_tools([look_up])
        one.session.update_options(tool_choice="none", max_response_output_tokens=200, speed=1.2)
        assert (await listen(await one.ask("What is the weather?")))[1]
        generation = await one.session.generate_reply(tool_choice="required")
        reading = asyncio.create_task(listen(generation))
        assert [call.name async for call in generation.function_stream] == ["look_up"]
        await reading


async def truncation(server: Server) -> None:
    """Truncate a reply that is complete, and remove one of which nothing was heard."""
    async with converse(server) as one:
        for end_ms, answer in (
            (500, "conversation.item.truncated"),
            (0, "conversation.item.deleted"),
        ):
            generation = await one.ask("Tell me something.")
            message = await first_audio(generation)
            await one.receive("response.done")
            one.session.truncate(
                message_id=message.message_id, modalities=["audio"], audio_end_ms=end_ms
            )
            assert (await one.receive(answer))["item_id"] == message.message_id


async def picture(server: Server) -> None:
    async with converse(server) as one:
        pixels = bytes((200, 100, 50, 255)) * (64 * 64)
        one.session.push_video(rtc.VideoFrame(64, 64, rtc.VideoBufferType.RGBA, pixels))
        await one.receive("conversation.item.added")
        assert (await listen(await one.session.generate_reply()))[1]


async def recycled(server: Server) -> None:
    """Open another connection while the session goes on: its history is sent again."""
    async with converse(server, max_session_duration=RECYCLE_S) as one:
        await one.session.update_instructions("Be brief.")
        await one.change(one="My name is Ann.")
        assert (await listen(await one.session.generate_reply()))[1]
        await one.reconnected.wait()
        for _ in range(4):  # both items, of either connection
            await one.receive("conversation.item.added")
        roles = [item.role for item in one.session.chat_ctx.items]
        assert roles == ["user", "assistant"]
        assert (await listen(await one.session.generate_reply()))[1]


async def agent(server: Server) -> None:
    """An agent session calls a function and speaks of what it returned."""
    model_of = partial(RealtimeModel, base_url=server.url, api_key="sk-any")
    async with agent_session(model_of) as session:
        await session.start(Agent(instructions="Be brief.", tools=[look_up]))
        result = await session.run(user_input="What is the weather in Paris?")
        result.expect.contains_function_call(name="look_up", arguments={"city": "Paris"})
        result.expect.contains_function_call_output(output="sunny")
        result.expect.contains_message(role="assistant")


REALTIME: dict[str, Scenario] = {
    "hello": hello,
    "VAD turn": vad_turn,
    "barge-in": barge_in,
    "tool call": tool_call,
    "reconnect": reconnect,
    "instructions": instructions,
    "cancellation": cancellation,
    "two replies": two_replies,
    "history": history,
    "transcription": transcription,
    "turn by hand": by_hand,
    "text only": text_only,
    "options": options,
    "truncation": truncation,
    "picture": picture,
    "recycled connection": recycled,
    "agent": agent,
}
