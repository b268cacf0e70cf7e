"""pipecat: its Realtime and Live services in a pipeline with a context and its aggregators."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    CancelFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from scenarios import PIECE_S, RATE_HZ, SILENCE, Scenario, Server, main

TOOL = FunctionSchema(
    name="look_up", description="", properties={"city": {"type": "string"}}, required=["city"]
)


class Listener(FrameProcessor):
    """Keeps what passes."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.put_nowait(frame)
        await self.push_frame(frame, direction)


class Call:
    """A running pipeline."""

    def __init__(self, task: PipelineTask, listener: Listener, service: Any) -> None:
        self.task = task
        self.listener = listener
        self.service = service

    async def until(self, is_last: Callable[[Frame], bool]) -> None:
        """Wait for a frame; none may be an error."""
        while True:
            frame = await self.listener.frames.get()
            assert not isinstance(frame, ErrorFrame), frame
            if is_last(frame):
                return

    async def feed(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            await self.task.queue_frame(InputAudioRawFrame(piece, RATE_HZ, 1))
            await asyncio.sleep(PIECE_S)


def is_sound(frame: Frame) -> bool:
    return isinstance(frame, OutputAudioRawFrame) and any(frame.audio)


def is_silence(frame: Frame) -> bool:
    """Whether it is what a silent model sends, or the end of its speech."""
    is_quiet = isinstance(frame, OutputAudioRawFrame) and not any(frame.audio)
    return is_quiet or isinstance(frame, TTSStoppedFrame)


@asynccontextmanager
async def call(service: Any, text: str = "", tools: Any = None) -> AsyncIterator[Call]:
    """Run a pipeline; a text begins it."""
    messages: list[Any] = [{"role": "user", "content": text}] if text else []
    context = LLMContext(messages, **({"tools": tools} if tools else {}))
    aggregators, listener = LLMContextAggregatorPair(context), Listener()
    parts = [aggregators.user(), service, listener, aggregators.assistant()]
    params = PipelineParams(audio_in_sample_rate=RATE_HZ, audio_out_sample_rate=RATE_HZ)
    task = PipelineTask(Pipeline(parts), params=params, enable_rtvi=False)
    errors: list[Any] = []
    service.add_event_handler("on_connection_error", lambda *args: errors.append(args))
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    made = Call(task, listener, service)
    try:
        await task.queue_frame(LLMRunFrame())
        yield made
        assert not errors, errors
    finally:
        await task.queue_frame(CancelFrame())
        await task.cancel()
        await asyncio.gather(running, return_exceptions=True)


def realtime(server: Server) -> OpenAIRealtimeLLMService:
    return OpenAIRealtimeLLMService(api_key="sk-any", base_url=f"{server.ws_url}/realtime")


def live(server: Server) -> OpenAILiveLLMService:
    return OpenAILiveLLMService(api_key="sk-any", base_url=f"{server.ws_url}/live/sessions")


async def hello(server: Server) -> None:
    async with call(realtime(server), "Hello!") as one:
        await one.until(is_sound)
        await one.until(lambda frame: isinstance(frame, TTSStoppedFrame))


async def vad_turn(server: Server) -> None:
    async with call(realtime(server), "Hello!") as one:
        await one.until(lambda frame: isinstance(frame, TTSStoppedFrame))
        await one.feed(server.pieces)
        await one.until(is_sound)


async def barge_in(server: Server) -> None:
    service, sent = realtime(server), []
    plain = service._ws_send

    async def noted(message: Any) -> None:
        sent.append(json.dumps(message))
        await plain(message)

    service._ws_send = noted
    async with call(service, "Tell me something.") as one:
        await one.until(is_sound)
        speaking = asyncio.create_task(one.feed(server.pieces))
        await one.until(lambda frame: isinstance(frame, InterruptionFrame))
        await speaking
        await one.until(is_sound)
    assert any("conversation.item.truncate" in message for message in sent)


async def tool_call(server: Server) -> None:
    service, calls = realtime(server), []

    async def look_up(params: Any) -> None:
        calls.append(params.arguments)
        await params.result_callback("sunny")

    service.register_function("look_up", look_up)
    tools = ToolsSchema(standard_tools=[TOOL])
    async with call(service, "What is the weather in Paris?", tools) as one:
        await one.until(is_sound)
        assert calls == [{"city": "Paris"}]


async def reconnect(server: Server) -> None:
    async with call(realtime(server), "Hello!") as one:
        await one.until(is_sound)
    await hello(server)


async def live_hello(server: Server) -> None:
    async with call(live(server), "Hello!") as one:
        feeding = asyncio.create_task(one.feed([SILENCE] * 300))
        await one.until(is_sound)
        feeding.cancel()


async def live_turn(server: Server) -> None:
    async with call(live(server), "Hello!") as one:
        feeding = asyncio.create_task(one.feed([SILENCE] * 300))
        await one.until(is_sound)
        await one.until(is_silence)
        await one.until(is_sound)
        feeding.cancel()


async def live_barge_in(server: Server) -> None:
    async with call(live(server), "Hello!") as one:
        feeding = asyncio.create_task(one.feed([*[SILENCE] * 30, *server.pieces]))
        await one.until(is_sound)
        await feeding
        await one.until(is_silence)


async def live_reconnect(server: Server) -> None:
    await live_hello(server)
    await live_hello(server)


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
}

if __name__ == "__main__":
    main(SCENARIOS)
