"""Turn-based conversations over a cascade: streaming, half duplex and one-shot chat.

A view stores the conversation as text; the language model's server caches its prompt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from PIL import Image

from core.audio import FloatArray, decode_voice, decode_wire_audio, is_same_voice, to_pcm
from core.cascade.language import Line, Sampling
from core.cascade.parts import Parts
from core.cascade.predefined import picture_note, predefined_answer, with_picture
from core.cascade.prompts import EXAMPLES, count_tokens, fit_context, prompt_of, tokens_of
from core.cascade.synthesis import Sentences
from core.cascade.turns import clean_transcript
from core.errors import OneVoiceError
from core.modes import Chunks, Threads
from core.protocols.events import MS_PER_S
from core.schemas import half_duplex, streaming
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import (
    AudioContent,
    ContentItem,
    GenerationConfig,
    ImageContent,
    Message,
    Role,
    TextContent,
    VideoContent,
)
from core.schemas.limits import CHAT_AUDIO_MAX_S, INPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd, ReplyRequest, StreamingChunk, StreamingRequest
from core.serving.lines import LinesMode, answer_at_once
from core.transcription import TranscriptionOptions
from core.video import VideoClip

SPOKEN_TOKENS_MAX: Final = 120  # ours: half a minute of speech
# Clients choose temperatures for a model of 8 B parameters; a small one needs lower ones.
TEMPERATURE_SCALE: Final = 0.25
# Ours: Whisper mishears speech that begins with the first sample, "Hello to you" for "Hello, who
# are you?".
SILENCE_BEFORE_S: Final = 0.3
SAY_SOMETHING: Final = "(Say something.)"  # the question if a reply is wanted without one
NOT_HEARD: Final = "Sorry, I didn't catch that."
ENGLISH: Final = TranscriptionOptions(language="en")


class CascadeView(LinesMode[Line]):
    def __init__(self, parts: Parts, threads: Threads) -> None:
        super().__init__(threads)
        self._parts = parts
        self._began = parts.now()
        self._prefetch: asyncio.Task[None] | None = None
        self._drawn = 0  # tokens of the latest reply, as its limit counts them

    @property
    def kv_cache_length(self) -> int:
        return tokens_of(self._lines)

    def stop(self) -> None:
        super().stop()
        if self._prefetch is not None:
            self._prefetch.cancel()

    async def close(self) -> None:
        await self._end_prefetch()
        await super().close()

    async def _end_prefetch(self) -> None:
        if self._prefetch is not None:
            self._prefetch.cancel()
            await asyncio.wait({self._prefetch})

    async def _prefetch_prompt(self, *more: Line) -> None:
        """Have the language model cache the prompt while the user still speaks."""
        await self._end_prefetch()
        lines = self._prompt(*more)
        self._prefetch = asyncio.ensure_future(self._parts.language_model.prefetch(lines))

    def _prompt(self, *more: Line) -> list[Line]:
        examples = EXAMPLES if self._parts.language_model.is_small else ()
        return prompt_of([*self._lines, *more], self._began, examples)

    # --- input ---

    def _check_voice(self, voice: FloatArray | None) -> None:
        """Add a notice if the client sent a voice, which is not used."""
        if voice is not None and not is_same_voice(voice, self._parts.default_voice):
            self._notices.append(OneVoiceError())

    async def _transcribe(self, samples: FloatArray, speech_s: float | None = None) -> str:
        """Transcribe [T] float32 at 16 kHz; without `speech_s`, all of it counts as speech."""
        padded = np.pad(samples, (int(SILENCE_BEFORE_S * INPUT_SAMPLE_RATE_HZ), 0))
        found = await self._parts.transcriber.transcribe(padded, ENGLISH)
        length_s = len(samples) / INPUT_SAMPLE_RATE_HZ
        return clean_transcript(found.text, length_s if speech_s is None else speech_s)

    async def _feed(self, *lines: Line) -> str:
        self._stopped.clear()
        self._lines = fit_context([*self._lines, *lines])
        return "\n".join(line.content for line in lines)

    async def _feed_messages(self, messages: Sequence[Message], voice_sample: str | None) -> str:
        if voice_sample:
            self._check_voice(await self._threads.run(lambda: decode_voice(voice_sample)))
        lines: list[Line] = []
        for message in messages:
            line = await self._line(message)
            lines.append(with_picture(line, [*self._lines, *lines]))
        return await self._feed(*lines)

    async def _line(self, message: Message) -> Line:
        """Return a message as text; audio of the system is a voice sample and is not used."""
        role = message.role
        if isinstance(message.content, str):
            return Line(role.value, message.content)
        items = message.content
        if role is Role.SYSTEM:
            items = [item for item in items if isinstance(item, TextContent)]
        return Line(role.value, await self._words(items))

    async def _words(self, items: Sequence[ContentItem]) -> str:
        """Return content as text: audio is transcribed, and the last picture described."""
        texts: list[str] = []
        sounds: list[FloatArray] = []  # [T] float32 at 16 kHz
        pictures: list[Image.Image] = []

        def decode() -> None:
            media = [each for each in items if isinstance(each, ImageContent | VideoContent)]
            read = iter(self._threads.read_media(media) if media else ())
            for item in items:
                if isinstance(item, TextContent):
                    texts.append(item.text)
                elif isinstance(item, AudioContent):
                    sounds.append(decode_wire_audio(item.data, max_duration_s=CHAT_AUDIO_MAX_S))
                elif isinstance(found := next(read), VideoClip):
                    sounds.append(found.audio)
                    pictures.append(found.frames[-1])
                else:
                    pictures.append(found)

        await self._threads.run(decode)
        if sounds:
            texts.append(await self._transcribe(np.concatenate(sounds)))
        question = " ".join(filter(None, texts))
        if pictures:
            question = f"{question} {await self._seen(pictures[-1], question)}".strip()
        return question

    async def _seen(self, picture: Image.Image, question: str) -> str:
        """Return the description of a picture for the language model."""
        describe = self._parts.describe
        seen = await describe(picture, question, self._threads) if describe else None
        return picture_note(seen)

    # --- output ---

    async def _pieces(
        self, sampling: Sampling, reply_start: str = "", *, is_spoken: bool
    ) -> AsyncGenerator[str, None]:
        """Yield the reply in tokens, or in sentences if it is spoken.

        A spoken reply that reaches its limit ends with its last complete sentence.
        """
        has_words = any(line.role != "system" for line in self._lines)
        lines = self._prompt(*(() if has_words else (Line("user", SAY_SOMETHING),)))
        limit = sampling.max_tokens
        is_free = self._lines[-1].role == "user" and not reply_start
        if is_free and (known := self._predefined()) is not None:
            self._drawn = min(count_tokens(known), limit - 1)  # it is complete
            yield known
            return
        self._drawn = count_tokens(reply_start)
        if reply_start:
            yield reply_start
            sampling = replace(sampling, max_tokens=limit - self._drawn)
            if sampling.max_tokens <= 0:
                return
            lines.append(Line("assistant", reply_start))
        if self._prefetch is not None and not self._prefetch.done():
            # Concurrently, the prompt would be processed twice.
            await asyncio.wait({self._prefetch})
        sentences, has_spoken = Sentences(), False
        async with aclosing(self._parts.language_model.stream(lines, sampling)) as words:
            async for delta in words:
                self._drawn += 1
                if self._stopped.is_set():
                    return
                for piece in sentences.add(delta) if is_spoken else [delta]:
                    has_spoken = True
                    yield piece
        is_cut = self._drawn >= limit
        if is_spoken and sentences.rest and not (is_cut and has_spoken):
            yield sentences.rest

    def _predefined(self) -> str | None:
        newest = self._lines[-1]
        if newest.role == "user" and not newest.content.strip():
            return NOT_HEARD
        if not self._parts.language_model.is_small:
            return None
        return predefined_answer(self._lines, self._parts.names, self._parts.now())

    async def _say(self, sampling: Sampling, reply_start: str = "", *, is_spoken: bool) -> Chunks:
        """Answer in chunks; the last one is final and empty."""
        said: list[str] = []
        began_s = time.perf_counter()
        count = 0
        try:
            async with aclosing(self._pieces(sampling, reply_start, is_spoken=is_spoken)) as pieces:
                async for text in pieces:
                    sound = None
                    if is_spoken:
                        speak = partial(self._parts.synthesizer.speak, text)
                        sound = to_pcm(await self._threads.run(speak)) or None
                    if self._stopped.is_set():
                        break
                    said.append(text)
                    last_s, began_s = began_s, time.perf_counter()
                    spent_ms = (began_s - last_s) * MS_PER_S
                    yield StreamingChunk(
                        chunk_index=count, text_delta=text, audio_data=sound, duration_ms=spent_ms
                    )
                    count += 1
        finally:
            text, was_stopped = "".join(said), self._stopped.is_set()
            self._stopped.clear()
            if said:
                self._lines.append(Line("assistant", text))
            self.reply_end = ReplyEnd(
                text=text,
                generated_tokens=self._drawn,
                stopped=was_stopped,
                is_begun=bool(said),
            )
        yield StreamingChunk(chunk_index=count, is_final=True)


class CascadeStreamingView(CascadeView):
    """A chat by turns: of messages, or of segments of speech in half duplex."""

    _config = half_duplex.HalfDuplexConfig()

    async def feed_request(self, request: StreamingRequest) -> str:
        return await self._feed_messages(request.messages, request.streaming.ref_audio_data)

    def reply(self, wanted: streaming.Generate) -> Chunks:
        start = wanted.reply_start if isinstance(wanted, ReplyRequest) else ""
        speaks = wanted.generate_audio
        return self._say(sampling_of(wanted, is_spoken=speaks), start, is_spoken=speaks)

    def decode_items(self, items: Sequence[ContentItem]) -> list[str]:
        return [item.text for item in items if isinstance(item, TextContent)]

    async def begin(
        self,
        system_content: str | list[str],
        *,
        voice: FloatArray | None,
        config: half_duplex.HalfDuplexConfig,
    ) -> str:
        self._check_voice(voice)
        self._config = config
        self._lines = []
        system = system_content if isinstance(system_content, str) else " ".join(system_content)
        prompt = await self._feed(Line("system", system))
        await self._prefetch_prompt()
        return prompt

    async def feed_segment(self, segment: FloatArray) -> None:
        await self._feed(Line("user", await self._transcribe(segment)))

    def answer(self, *, sets_rollback_point: bool) -> Chunks:
        speaks = self._config.tts.enabled
        sampling = sampling_of(self._config.generation, is_spoken=speaks)
        return self._say(sampling, is_spoken=speaks)


class CascadeChatView(CascadeView):
    """Answers requests that contain their whole history."""

    _request: ChatRequest

    async def feed_request(self, request: ChatRequest) -> str:
        self._lines, self._request = [], request
        return await self._feed_messages(request.messages, request.tts.ref_audio_data)

    async def reply(self, *, in_pieces: bool) -> Chunks:
        request = self._request
        speaks = request.tts.enabled
        sampling = sampling_of(request.generation, is_spoken=speaks, seed=request.seed)
        async with aclosing(self._say(sampling, request.reply_start, is_spoken=speaks)) as pieces:
            if in_pieces:
                async for chunk in pieces:
                    yield chunk
            else:
                chunks = [chunk async for chunk in pieces]
                yield StreamingChunk(
                    chunk_index=0,
                    text_delta="".join(chunk.text_delta or "" for chunk in chunks) or None,
                    audio_data=b"".join(chunk.audio_data or b"" for chunk in chunks) or None,
                )

    async def respond(self, request: ChatRequest) -> ChatResponse:
        return await answer_at_once(self, request)


def sampling_of(
    wanted: GenerationConfig | half_duplex.TurnGenerationConfig | streaming.Generate,
    *,
    is_spoken: bool,
    seed: int | None = None,
) -> Sampling:
    most, temperature, top_p = wanted.max_new_tokens, wanted.temperature * TEMPERATURE_SCALE, 1.0
    if not isinstance(wanted, half_duplex.TurnGenerationConfig):
        top_p = wanted.top_p
        temperature = temperature if wanted.do_sample else 0.0
    most = min(most, SPOKEN_TOKENS_MAX) if is_spoken else most
    return Sampling(max_tokens=most, temperature=temperature, top_p=top_p, seed=seed)
