"""openai-python: `realtime.connect`, with either engine, and `live.connect`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from scenarios import PIECE_S, SILENCE, Scenario, Server, main

SEMANTIC = "semantic_vad"
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]


async def until(connection: Any, kind: str) -> Any:
    """Receive events up to one of a kind; none may be an error."""
    while True:
        event = await connection.recv()
        assert event.type != "error", event
        if event.type == kind:
            return event


@asynccontextmanager
async def realtime(server: Server, detection: str = "server_vad") -> AsyncIterator[Any]:
    async with AsyncOpenAI(base_url=server.url, api_key="sk-any") as client:
        async with client.realtime.connect(model="gpt-realtime") as connection:
            await until(connection, "session.created")
            audio = {"input": {"turn_detection": {"type": detection}}}
            await connection.session.update(session={"type": "realtime", "audio": audio})
            updated = await until(connection, "session.updated")
            is_live = updated.session.model_extra["minicpmo"]["engine"] == "live"
            assert is_live is (detection == SEMANTIC)
            yield connection


async def ask(connection: Any, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    await connection.conversation.item.create(item=item)
    await connection.response.create()


async def speak(connection: Any, server: Server) -> None:
    for piece in server.pieces:
        await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())


async def hello(server: Server, *detection: str) -> None:
    async with realtime(server, *detection) as connection:
        await ask(connection, "Hello!")
        await until(connection, "response.output_audio.delta")
        assert (await until(connection, "response.done")).response.status == "completed"


async def vad_turn(server: Server, *detection: str) -> None:
    async with realtime(server, *detection) as connection:
        await speak(connection, server)
        await until(connection, "input_audio_buffer.speech_stopped")
        await until(connection, "response.output_audio.delta")


async def barge_in(server: Server, *detection: str) -> None:
    async with realtime(server, *detection) as connection:
        await ask(connection, "Tell me something.")
        item_id = (await until(connection, "response.output_audio.delta")).item_id
        await speak(connection, server)
        await until(connection, "input_audio_buffer.speech_started")
        await connection.conversation.item.truncate(
            item_id=item_id, content_index=0, audio_end_ms=300
        )
        await until(connection, "conversation.item.truncated")
        await until(connection, "response.output_audio.delta")


async def tool_call(server: Server) -> None:
    async with realtime(server) as connection:
        await connection.session.update(session={"type": "realtime", "tools": TOOLS})
        await ask(connection, "What is the weather in Paris?")
        call = await until(connection, "response.function_call_arguments.done")
        await until(connection, "response.done")
        assert (call.name, call.arguments) == ("look_up", '{"city": "Paris"}')
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        await connection.conversation.item.create(item=output)
        await connection.response.create()
        await until(connection, "response.output_audio.delta")


async def reconnect(server: Server) -> None:
    async with realtime(server) as connection:
        await ask(connection, "Hello!")
        await until(connection, "response.output_audio.delta")
    await hello(server)


@asynccontextmanager
async def live(server: Server) -> AsyncIterator[Any]:
    """Begin a GPT-Live session, and close it."""
    async with AsyncOpenAI(base_url=server.url, api_key="sk-any") as client:
        async with client.live.connect() as connection:
            await connection.send({"type": "session.start", "session": {"model": "gpt-live-1"}})
            await until(connection, "session.started")
            yield connection
            await connection.send({"type": "session.close"})
            await until(connection, "session.closed")


async def feed(connection: Any, pieces: list[bytes]) -> None:
    for piece in pieces:
        audio = base64.b64encode(piece).decode()
        await connection.send({"type": "session.input_audio.append", "audio": audio})
        await asyncio.sleep(PIECE_S)


async def hear(connection: Any, is_audible: bool) -> None:
    """Feed silence until an audible piece comes, or a silent one."""
    feeding = asyncio.create_task(feed(connection, [SILENCE] * 1_000))
    try:
        while True:
            piece = await until(connection, "session.output_audio.delta")
            if any(base64.b64decode(piece.delta)) is is_audible:
                return
    finally:
        feeding.cancel()


async def live_hello(server: Server) -> None:
    async with live(server) as connection:
        append = {"type": "session.commentary.append", "delegation_id": None}
        await connection.send({**append, "content": "Say hello."})
        await hear(connection, is_audible=True)


async def live_turn(server: Server) -> None:
    async with live(server) as connection:
        for is_audible in (True, False, True):
            await hear(connection, is_audible)


async def live_barge_in(server: Server) -> None:
    async with live(server) as connection:
        await hear(connection, is_audible=True)
        await feed(connection, server.pieces)
        await hear(connection, is_audible=False)


async def live_reconnect(server: Server) -> None:
    async with live(server) as connection:
        await hear(connection, is_audible=True)
    await live_hello(server)


SCENARIOS: dict[str, Scenario] = {
    "Realtime/hello": hello,
    "Realtime/VAD turn": vad_turn,
    "Realtime/barge-in": barge_in,
    "Realtime/tool call": tool_call,
    "Realtime/reconnect": reconnect,
    f"Realtime, {SEMANTIC}/hello": lambda server: hello(server, SEMANTIC),
    f"Realtime, {SEMANTIC}/VAD turn": lambda server: vad_turn(server, SEMANTIC),
    f"Realtime, {SEMANTIC}/barge-in": lambda server: barge_in(server, SEMANTIC),
    "GPT-Live/hello": live_hello,
    "GPT-Live/VAD turn": live_turn,
    "GPT-Live/barge-in": live_barge_in,
    "GPT-Live/reconnect": live_reconnect,
}

if __name__ == "__main__":
    main(SCENARIOS)
