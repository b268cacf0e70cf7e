"""One answer of `POST /v1/chat/completions`: as a whole, or in server-sent events.

Source: OpenAI's API reference, "The chat completion object" and "... chunk object".
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from core.errors import OmniError
from core.schemas.chat import ChatChunk, ChatDone
from core.stop_sequences import StopFilter
from gateway_modules.answers import openai_error
from gateway_modules.openai.chat_request import CompletionRequest
from gateway_modules.openai.sound import spoken
from gateway_modules.openai.transcripts import Transcripts
from gateway_modules.openai.worker_turn import ReplyMessage
from gateway_modules.voice_library import VoiceLibrary

ID_BYTES: Final = 12
DONE: Final = "data: [DONE]\n\n"

Json = dict[str, Any]  # Any: a JSON object


@dataclass
class Answer:
    """Makes what the client reads out of what the worker says.

    Attributes:
        request: what was asked.
        model: the served model's id.
        voices: encode sound.
        transcripts: keep what was said, for requests that name it by its id.
    """

    request: CompletionRequest
    model: str
    voices: VoiceLibrary
    transcripts: Transcripts
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(ID_BYTES)}")
    audio_id: str = field(default_factory=lambda: f"audio_{secrets.token_hex(ID_BYTES)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        """Look for the request's stop sequences."""
        self._stop = StopFilter(self.request.stop_sequences)
        self._text = ""

    @property
    def is_over(self) -> bool:
        """A stop sequence was found: the worker need not go on."""
        return self._stop.has_stopped

    async def whole(self, messages: AsyncIterator[ReplyMessage]) -> Json:
        """Return the answer when it is complete."""
        pieces: list[str] = []
        async for message in messages:
            if isinstance(message, ChatChunk) and not self.is_over:
                self._take(message.text_delta or "")
                pieces += [message.audio_data] if message.audio_data else []
            elif isinstance(message, ChatDone):
                self._text += self._stop.flush()
                choice = {
                    "index": 0,
                    "message": await self._message(pieces),
                    "logprobs": None,
                    "finish_reason": self._reason(message),
                }
                return {
                    **self._head("chat.completion"),
                    "choices": [choice],
                    "usage": _usage(message),
                }
        raise AssertionError("a reply ends with `done`")

    async def events(
        self, first: ReplyMessage, messages: AsyncIterator[ReplyMessage]
    ) -> AsyncIterator[str]:
        """Yield server-sent events; an error in the middle of the answer is one too."""
        yield self._event({"role": "assistant", "content": None if self.request.speaks else ""})
        try:
            message: ReplyMessage | None = first
            while message is not None:
                if isinstance(message, ChatChunk) and not self.is_over:
                    for delta in await self._deltas(message):
                        yield self._event(delta)
                elif isinstance(message, ChatDone):
                    for event in self._last(message):
                        yield event
                message = await anext(messages, None)
        except OmniError as error:
            yield f"data: {json.dumps(openai_error(error))}\n\n"
        yield DONE

    def _take(self, text: str) -> str:
        """Add to the answer's text; return what of it may be sent now."""
        fresh = self._stop.feed(text)
        self._text += fresh
        return fresh

    async def _message(self, pieces: list[str]) -> Json:
        message: Json = {"role": "assistant", "content": self._text, "refusal": None}
        if self.request.speaks:
            wanted, voices = self.request.answer_audio.format, self.voices
            data = await voices.run(spoken, pieces, wanted, voices.decoder)
            audio = {**self._audio_end(), "data": data, "transcript": self._text}
            message |= {"content": None, "audio": audio}
        return message

    async def _deltas(self, chunk: ChatChunk) -> list[Json]:
        text = self._take(chunk.text_delta or "")
        deltas = [self._text_delta(text)] if text else []
        if chunk.audio_data and self.request.speaks:
            wanted, decoder = self.request.answer_audio.format, self.voices.decoder
            data = await asyncio.to_thread(spoken, [chunk.audio_data], wanted, decoder)
            deltas.append({"audio": {"id": self.audio_id, "data": data}})
        return deltas

    def _last(self, done: ChatDone) -> list[str]:
        rest = self._stop.flush()
        self._text += rest
        deltas = [self._text_delta(rest)] if rest else []
        deltas += [{"audio": self._audio_end()}] if self.request.speaks else []
        events = [self._event(delta) for delta in deltas]
        events.append(self._event({}, self._reason(done)))
        if self.request.stream_options and self.request.stream_options.include_usage:
            events.append(self._chunk([], _usage(done)))
        return events

    def _audio_end(self) -> Json:
        """Keep the words of a spoken answer, and say for how long."""
        expires_s = self.transcripts.keep(self.audio_id, self._text)
        return {"id": self.audio_id, "expires_at": expires_s}

    def _text_delta(self, text: str) -> Json:
        if self.request.speaks:
            return {"audio": {"id": self.audio_id, "transcript": text}}
        return {"content": text}

    def _reason(self, done: ChatDone) -> str:
        is_cut = done.generated_tokens >= self.request.token_limit and not self.is_over
        return "length" if is_cut else "stop"

    def _event(self, delta: Json, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._chunk([choice])

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> str:
        body = {**self._head("chat.completion.chunk"), "choices": choices}
        if usage is not None:
            body["usage"] = usage
        return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _usage(done: ChatDone) -> Json:
    return {
        "prompt_tokens": done.input_tokens,
        "completion_tokens": done.generated_tokens,
        "total_tokens": done.input_tokens + done.generated_tokens,
    }
