"""openai-agents: `RealtimeRunner` with an agent and a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from scenarios import Scenario, Server, main

CALLS: list[str] = []


@function_tool
def look_up(city: str) -> str:
    """Look the weather up."""
    CALLS.append(city)
    return "sunny"


async def session_of(server: Server, tools: list[Any]) -> RealtimeSession:
    runner = RealtimeRunner(RealtimeAgent(name="helper", instructions="Be brief.", tools=tools))
    url = f"{server.ws_url}/realtime?model=gpt-realtime"
    return await runner.run(model_config={"url": url, "api_key": "sk-any"})


async def until(session: RealtimeSession, is_last: Callable[[Any], bool]) -> list[Any]:
    """Receive events up to one; none may be an error."""
    seen: list[Any] = []
    async for event in session:
        assert event.type != "error", event
        seen.append(event)
        if is_last(event):
            return seen
    raise AssertionError("the session ended")


def is_kind(kind: str) -> Callable[[Any], bool]:
    return lambda event: event.type == kind


async def hello(server: Server) -> None:
    async with await session_of(server, []) as session:
        await session.send_message("Hello!")
        seen = await until(session, is_kind("agent_end"))
        assert any(event.type == "audio" for event in seen)


async def speak(session: RealtimeSession, server: Server) -> None:
    for piece in server.pieces:
        await session.send_audio(piece)


async def vad_turn(server: Server) -> None:
    async with await session_of(server, []) as session:
        await speak(session, server)
        await until(session, is_kind("audio"))
        await until(session, is_kind("agent_end"))


async def barge_in(server: Server) -> None:
    async with await session_of(server, []) as session:
        await session.send_message("Tell me something.")
        await until(session, is_kind("audio"))
        await asyncio.sleep(0.5)
        await speak(session, server)
        await until(session, is_kind("audio_interrupted"))
        await until(session, is_truncated)
        await until(session, is_kind("audio"))


def is_truncated(event: Any) -> bool:
    raw = getattr(getattr(event, "data", None), "data", None)
    return isinstance(raw, dict) and raw.get("type") == "conversation.item.truncated"


async def tool_call(server: Server) -> None:
    async with await session_of(server, [look_up]) as session:
        await session.send_message("What is the weather in Paris?")
        await until(session, is_kind("tool_end"))
        assert CALLS == ["Paris"]
        await until(session, is_kind("audio"))


async def reconnect(server: Server) -> None:
    async with await session_of(server, []) as session:
        await session.send_message("Hello!")
        await until(session, is_kind("audio"))
    await hello(server)


SCENARIOS: dict[str, Scenario] = {
    "Realtime/hello": hello,
    "Realtime/VAD turn": vad_turn,
    "Realtime/barge-in": barge_in,
    "Realtime/tool call": tool_call,
    "Realtime/reconnect": reconnect,
}

if __name__ == "__main__":
    main(SCENARIOS)
