"""Base of conversations whose state is a list of lines: the cascade's and the fake's."""

from __future__ import annotations

import asyncio
import time
from typing import Generic, TypeVar

from core.audio import encode_wire_wav, from_pcm
from core.errors import OmniError
from core.modes import ChatMode, Threads
from core.protocols.events import MS_PER_S
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import TokenStats
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd

LineT = TypeVar("LineT")


class LinesMode(Generic[LineT]):
    """Implements the methods that all modes of `core.modes` share."""

    def __init__(self, threads: Threads) -> None:
        self.reply_end: ReplyEnd | None = None  # outcome of the last reply
        self._threads = threads
        self._lines: list[LineT] = []
        self._marked: list[LineT] | None = None
        self._notices: list[OmniError] = []
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def close(self) -> None:
        self._lines, self._marked = [], None

    def use_threads(self, threads: Threads) -> None:
        self._threads = threads

    def take_notices(self) -> list[OmniError]:
        notices, self._notices = self._notices, []
        return notices

    async def mark(self) -> None:
        self._marked = list(self._lines)

    def can_rollback(self) -> bool:
        return self._marked is not None

    def clear_rollback_point(self) -> None:
        self._marked = None

    async def roll_back(self) -> None:
        self._lines, self._marked = self._marked or [], None


async def answer_at_once(view: ChatMode, request: ChatRequest) -> ChatResponse:
    """Feed a request and return its whole reply; raises as the view."""
    began_s = time.perf_counter()
    prompt = await view.feed_request(request)
    fed = view.kv_cache_length
    [whole] = [chunk async for chunk in view.reply(in_pieces=False)]
    end, audio = view.reply_end or ReplyEnd(), whole.audio_data
    return ChatResponse(
        text=end.text,
        audio_data=audio and encode_wire_wav(from_pcm(audio), OUTPUT_SAMPLE_RATE_HZ),
        tokens_generated=end.generated_tokens,
        duration_ms=(time.perf_counter() - began_s) * MS_PER_S,
        prompt=prompt if request.return_prompt else None,
        token_stats=TokenStats(
            input_tokens=fed,
            generated_tokens=end.generated_tokens,
            total_tokens=view.kv_cache_length,
        ),
    )
