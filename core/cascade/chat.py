"""One-shot chat over a cascade: each request contains the whole history."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from core.cascade.turn_based import CascadeView, sampling_of
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.streaming import StreamingChunk
from core.serving.lines import answer_at_once


class CascadeChatView(CascadeView):
    """Answers requests that contain their whole history."""

    _request: ChatRequest

    async def feed_request(self, request: ChatRequest) -> str:
        self._lines, self._request = [], request
        await self._check_voice_sent(request.tts.ref_audio_data)
        return await self._feed(*[await self._line(message) for message in request.messages])

    async def reply(self, *, in_pieces: bool) -> AsyncGenerator[StreamingChunk, None]:
        """Answer the request that was fed, in pieces or in one chunk."""
        request = self._request
        speaks = request.tts.enabled
        sampling = sampling_of(request.generation, is_spoken=speaks, seed=request.seed)
        pieces = self._say(sampling, request.reply_start, is_spoken=speaks)
        async with aclosing(pieces):
            if in_pieces:
                async for chunk in pieces:
                    yield chunk
            else:
                yield await _joined(pieces)

    async def respond(self, request: ChatRequest) -> ChatResponse:
        return await answer_at_once(self, request)


async def _joined(pieces: AsyncGenerator[StreamingChunk, None]) -> StreamingChunk:
    chunks = [chunk async for chunk in pieces]
    return StreamingChunk(
        chunk_index=0,
        text_delta="".join(chunk.text_delta or "" for chunk in chunks) or None,
        audio_data=b"".join(chunk.audio_data or b"" for chunk in chunks) or None,
    )
