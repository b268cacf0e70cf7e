"""One-shot chat over a cascade: requests that bring their whole history."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from core.audio import encode_wire_wav, from_pcm
from core.cascade.talk import CascadeView, sampling_of, since
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import TokenStats
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd, StreamingChunk


class CascadeChatView(CascadeView):
    """Requests that bring their whole history."""

    _request: ChatRequest

    async def feed_request(self, session_id: str, request: ChatRequest) -> str:
        """Take in a whole history."""
        self._lines, self._request = [], request
        await self._check_voice_sent(request.tts.ref_audio_data)
        return await self._feed(*[await self._line(message) for message in request.messages])

    async def reply(
        self, session_id: str, *, in_pieces: bool
    ) -> AsyncGenerator[StreamingChunk, None]:
        """Answer a fed request: piece by piece, or in one chunk."""
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
        """Answer a request at once."""
        began_s = time.perf_counter()
        prompt = await self.feed_request("", request)
        fed = self.kv_cache_length
        [whole] = [chunk async for chunk in self.reply("", in_pieces=False)]
        end = self.reply_end or ReplyEnd()
        sound = whole.audio_data
        return ChatResponse(
            text=end.text,
            audio_data=None
            if sound is None
            else encode_wire_wav(from_pcm(sound), OUTPUT_SAMPLE_RATE_HZ),
            tokens_generated=end.generated_tokens,
            duration_ms=since(began_s)[0],
            prompt=prompt if request.return_prompt else None,
            token_stats=TokenStats(
                input_tokens=fed,
                generated_tokens=end.generated_tokens,
                total_tokens=self.kv_cache_length,
            ),
        )


async def _joined(pieces: AsyncGenerator[StreamingChunk, None]) -> StreamingChunk:
    chunks = [chunk async for chunk in pieces]
    return StreamingChunk(
        chunk_index=0,
        text_delta="".join(chunk.text_delta or "" for chunk in chunks) or None,
        audio_data=b"".join(chunk.audio_data or b"" for chunk in chunks) or None,
    )
