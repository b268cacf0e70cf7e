"""Responses of chat completions, from a worker's messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from core.schemas.chat import ChatChunk, ChatDone
from gateway_modules.openai.answer import DONE, Answer
from gateway_modules.openai.chat_request import CompletionRequest
from gateway_modules.openai.worker_request import Transcripts
from gateway_modules.routes.chat import ReplyMessage

CALL = '<tool_call>\n{"name": "clock"}\n</tool_call>'


@pytest.mark.parametrize(("said", "has_audio"), [("", False), ("One moment. ", True)])
def test_a_spoken_stream_has_audio_only_if_anything_is_said(said: str, has_audio: bool) -> None:
    request = CompletionRequest.model_validate(
        {
            "model": "x",
            "messages": [{"role": "user", "content": "What time is it?"}],
            "modalities": ["text", "audio"],
            "audio": {"format": "pcm16"},
            "tools": [{"type": "function", "function": {"name": "clock"}}],
            "stream": True,
        }
    )
    voices = cast(Any, None)  # only audio needs them, and this reply has none
    answer = Answer(request, "x", voices, Transcripts())

    async def rest() -> AsyncGenerator[ReplyMessage]:
        yield ChatDone(generated_tokens=9)

    async def deltas() -> list[dict[str, Any]]:
        first = ChatChunk(text_delta=said + CALL)
        events = [event async for event in answer.events(first, rest()) if event != DONE]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        return [chunk["choices"][0]["delta"] for chunk in chunks]

    sent = asyncio.run(deltas())
    assert any("tool_calls" in delta for delta in sent)
    assert any("audio" in delta for delta in sent) == has_audio
    assert len(answer.transcripts) == has_audio
