"""Response of `POST /v1/chat/completions`: whole, or as server-sent events.

Source: OpenAI's API reference, "The chat completion object" and "... chunk object".
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Final

from core import tools
from core.errors import ErrorCode, OmniError
from core.protocols.realtime_response import AUDIO_TOKENS_PER_S, SPOKEN_TOKENS_PER_S
from core.schemas import limits
from core.schemas.chat import ChatChunk, ChatDone
from core.schemas.openai_errors import OpenAIError
from core.tools import StopFilter
from gateway_modules.openai.chat_request import CompletionRequest, Json
from gateway_modules.openai.speech import server_event, spoken
from gateway_modules.openai.worker_request import Transcripts
from gateway_modules.routes.chat import ReplyMessage
from gateway_modules.voices import VoiceLibrary
from gateway_modules.web.responses import openai_error

ID_BYTES: Final = 12
AUDIO_BYTES_PER_S: Final = limits.SAMPLE_BYTES * limits.OUTPUT_SAMPLE_RATE_HZ
DONE: Final = "data: [DONE]\n\n"


class InvalidToolCallError(OpenAIError):
    code = ErrorCode.GENERATION_FAILED
    openai_code = "invalid_tool_call"


@dataclass
class Answer:
    request: CompletionRequest
    model: str
    voices: VoiceLibrary
    transcripts: Transcripts
    audio_s: float = 0.0
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(ID_BYTES)}")
    audio_id: str = field(default_factory=lambda: f"audio_{secrets.token_hex(ID_BYTES)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self._stop = StopFilter(self.request.stop_sequences)
        self._parser = tools.CallParser(self.request.offer.names)
        self._text = ""
        self._calls: list[tools.CallDone] = []
        self._call_ids: list[str] = []
        self._audio_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether the worker can stop: after a stop sequence, the only call or the JSON object."""
        if self._stop.has_stopped or self._has_its_call:
            return True
        wanted = self.request.json_format
        return wanted is not None and self._text.endswith("}") and wanted.end_of(self._text) > 0

    @property
    def _has_its_call(self) -> bool:
        return bool(self._calls) and not self.request.parallel_tool_calls

    async def whole(self, messages: AsyncGenerator[ReplyMessage]) -> Json:
        pieces: list[bytes] = []
        done: ChatDone | None = None
        async with aclosing(messages):  # their end releases the worker, before audio is encoded
            async for message in messages:
                if isinstance(message, ChatChunk) and not self.is_over:
                    self._take(message.text_delta or "")
                    pieces += [message.audio_data] if message.audio_data else []
                    self._audio_bytes += len(message.audio_data or b"")
                elif isinstance(message, ChatDone):
                    done = message
        assert done is not None, "a reply ends with `done`"
        await self._rest(done)
        choice = {"index": 0, "message": await self._message(pieces), "logprobs": None}
        choice["finish_reason"] = self._reason(done)
        completion = {**self._head("chat.completion"), "choices": [choice]}
        return {**completion, "usage": self._usage(done)}

    async def events(
        self, first: ReplyMessage, messages: AsyncGenerator[ReplyMessage]
    ) -> AsyncGenerator[str]:
        yield self._event({"role": "assistant", "content": None if self.request.speaks else ""})
        try:
            message: ReplyMessage | None = first
            while message is not None:
                done = message
                if isinstance(message, ChatChunk) and not self.is_over:
                    for delta in await self._deltas(message):
                        yield self._event(delta)
                message = await anext(messages, None)  # the last call releases the worker
            assert isinstance(done, ChatDone), "a reply ends with `done`"
            for event in await self._last(done):
                yield event
        except OmniError as error:
            yield server_event(openai_error(error))
        yield DONE

    def _take(self, text: str) -> list[Json]:
        return self._deltas_of(self._parser.feed(self._stop.feed(text)))

    async def _rest(self, done: ChatDone) -> list[Json]:
        events = [*self._parser.feed(self._stop.flush()), *self._parser.flush()]
        if self._is_cut(done) or self._stop.has_stopped:
            events = [event for event in events if not isinstance(event, tools.CallInvalid)]
        deltas, wanted = self._deltas_of(events), self.request.json_format
        if wanted is None:
            return deltas
        if self._calls:
            self._text = ""  # text around calls has no JSON format
            return deltas
        self._text = self._text[: wanted.end_of(self._text) or None]
        if not self._is_cut(done):
            await asyncio.to_thread(wanted.check_answer, self._text)
        return [*deltas, self._text_delta(self._text)]

    def _deltas_of(self, events: list[tools.CallEvent]) -> list[Json]:
        deltas: list[Json] = []
        for event in events:
            if self._has_its_call:
                break
            match event:
                case tools.Said(text):
                    self._text += text
                    if self.request.json_format is None:  # JSON is validated first
                        deltas.append(self._text_delta(text))
                case tools.CallBegun(name):
                    self._call_ids.append(f"call_{secrets.token_hex(ID_BYTES)}")
                    called = {"name": name, "arguments": ""}
                    begun = {"id": self._call_ids[-1], "type": "function", "function": called}
                    deltas.append(self._call_delta(begun))
                case tools.CallArguments(text):
                    deltas.append(self._call_delta({"function": {"arguments": text}}))
                case tools.CallDone():
                    self._calls.append(event)
                case tools.CallInvalid(reason):
                    raise InvalidToolCallError(f"The model made an invalid tool call: {reason}.")
        return deltas

    def _call_delta(self, fields: Json) -> Json:
        return {"tool_calls": [{"index": len(self._call_ids) - 1, **fields}]}

    async def _message(self, pieces: list[bytes]) -> Json:
        message: Json = {"role": "assistant", "content": self._text, "refusal": None}
        if self._calls:
            message["content"] = self._text or None
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": asdict(call)}
                for call_id, call in zip(self._call_ids, self._calls, strict=False)
            ]
        if self.request.speaks and (pieces or not self._calls):
            wanted, voices = self.request.answer_audio.format, self.voices
            data = await voices.run(spoken, pieces, wanted, voices.decoder)
            audio = {**self._audio_end(), "data": data, "transcript": self._text}
            message |= {"content": None, "audio": audio}
        return message

    async def _deltas(self, chunk: ChatChunk) -> list[Json]:
        deltas = self._take(chunk.text_delta or "")
        if chunk.audio_data and self.request.speaks:
            self._audio_bytes += len(chunk.audio_data)
            wanted, decoder = self.request.answer_audio.format, self.voices.decoder
            data = await asyncio.to_thread(spoken, [chunk.audio_data], wanted, decoder)
            deltas.append({"audio": {"id": self.audio_id, "data": data}})
        return deltas

    async def _last(self, done: ChatDone) -> list[str]:
        deltas = await self._rest(done)
        if self.request.speaks and (self._text or self._audio_bytes or not self._calls):
            deltas.append({"audio": self._audio_end()})
        events = [self._event(delta) for delta in deltas]
        events.append(self._event({}, self._reason(done)))
        if self.request.stream_options and self.request.stream_options.include_usage:
            events.append(self._chunk([], self._usage(done)))
        return events

    def _audio_end(self) -> Json:
        return {"id": self.audio_id, "expires_at": self.transcripts.keep(self.audio_id, self._text)}

    def _text_delta(self, text: str) -> Json:
        if self.request.speaks:
            return {"audio": {"id": self.audio_id, "transcript": text}}
        return {"content": text}

    def _is_cut(self, done: ChatDone) -> bool:
        return done.generated_tokens >= self.request.token_limit and not self.is_over

    def _reason(self, done: ChatDone) -> str:
        if self._is_cut(done):
            return "length"
        return "tool_calls" if self._calls else "stop"

    def _event(self, delta: Json, reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._chunk([choice])

    def _chunk(self, choices: list[Json], usage: Json | None = None) -> str:
        body = {**self._head("chat.completion.chunk"), "choices": choices}
        if usage is not None:
            body["usage"] = usage
        return server_event(body)

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _usage(self, done: ChatDone) -> Json:
        """Return token counts; those of audio are derived from its duration."""
        audio_tokens = min(round(self.audio_s * AUDIO_TOKENS_PER_S), done.input_tokens)
        spoken = round(self._audio_bytes / AUDIO_BYTES_PER_S * SPOKEN_TOKENS_PER_S)
        generated = done.generated_tokens + spoken
        return {
            "prompt_tokens": done.input_tokens,
            "completion_tokens": generated,
            "total_tokens": done.input_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": audio_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": spoken},
        }
