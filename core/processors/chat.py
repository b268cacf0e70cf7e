"""One-shot chat: a request in, a response out; and a history that is fed, then answered.

view = processor.set_chat_mode()
response = await view.respond(request)           # at once; or in two steps:
await view.feed_request("session", request)
async for chunk in view.reply("session"): ...
view.stop()
await view.close()
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path

from core.audio import FloatArray, encode_wire_wav, to_pcm, write_wav
from core.capabilities import ProcessorMode
from core.engine.engine import run_inline
from core.errors import BadConfigError, OmniError
from core.processors.content import (
    MS_PER_S,
    generation_settings,
    model_messages,
    resolve_voice,
    speech_sampling,
    with_voice_prompt,
)
from core.processors.turns import TurnView
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import TokenStats
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd, StreamingChunk
from MiniCPMO45.modes.prompt_input import PrefillOptions
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.processor import Message
from MiniCPMO45.settings import GenerationSettings

ONE_SHOT_SESSION = "chat"


@dataclass(frozen=True)
class _Question:
    messages: list[Message]
    options: PrefillOptions
    settings: GenerationSettings
    voice: FloatArray | None


class ChatView(TurnView):
    """Requests that bring their whole history."""

    mode = ProcessorMode.CHAT

    # --- the conversation ---

    async def respond(
        self,
        request: ChatRequest,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        generate_audio: bool | None = None,
    ) -> ChatResponse:
        """Answer a request in a session of its own, which is freed afterwards.

        `max_new_tokens`, `do_sample` and `generate_audio` replace the request's values.
        """
        started_s = time.perf_counter()
        speaks = request.tts.enabled if generate_audio is None else generate_audio
        question = await self._decode(request, speaks)
        settings = question.settings
        if max_new_tokens is not None:
            settings = replace(settings, max_new_tokens=max_new_tokens)
        if do_sample is not None:
            settings = replace(settings, do_sample=do_sample)
        session = await self._start(ONE_SHOT_SESSION)
        try:
            if speaks:
                await self._open_voice(session, question.voice)
            steps = self.context.model.streaming.reply(
                session, question.messages, settings, question.options
            )
            reply = await self.context.run(steps)
        finally:
            await self.close()

        def finished() -> ChatResponse:
            path, wave = request.tts.output_path, reply.waveform
            if path and wave is not None:
                _save(path, wave)
            return _response(request, reply, (time.perf_counter() - started_s) * MS_PER_S)

        return await self.context.threads.run(finished)

    async def feed_request(self, session_id: str, request: ChatRequest) -> str:
        """Feed a request's whole history into a fresh session; return the text, media as markers.

        A spoken reply gets the voice prompt.

        Raises:
            ContextFullError: the history is longer than `max_inp_length`; nothing was run.
            BadPayloadError: a part of a message cannot be used.
        """
        question = await self._decode(request, request.tts.enabled)
        settings = question.settings
        if request.tts.ref_audio_data:
            self._check_voices(question.voice)
        options = replace(question.options, max_tokens=settings.max_input_tokens)
        if settings.generate_audio and question.voice is not None and self.context.model.can_speak:
            await self.choose_voice(question.voice)
        await self.reset(session_id)
        self._drawing = settings
        steps = self.context.model.streaming.prefill_history(
            self.session, question.messages, options
        )
        prompt = await self.context.run(steps)
        self._count_input(self.session)
        return prompt

    def reply(
        self, session_id: str, *, in_pieces: bool = True
    ) -> AsyncGenerator[StreamingChunk, None]:
        if in_pieces:
            return self.stream_reply(session_id, self._drawing)
        return self._whole(session_id)

    def chat(
        self,
        request: ChatRequest,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        generate_audio: bool | None = None,
    ) -> ChatResponse:
        """Run `respond`; an error is reported in the response."""
        started_s = time.perf_counter()
        try:
            return run_inline(self.respond(request, max_new_tokens, do_sample, generate_audio))
        except OmniError as error:
            spent_ms = (time.perf_counter() - started_s) * MS_PER_S
            return ChatResponse(success=False, error=error.message, duration_ms=spent_ms)

    # --- helpers ---

    async def _whole(self, session_id: str) -> AsyncGenerator[StreamingChunk, None]:
        session, settings = self._expect(session_id), self._drawing
        if settings.generate_audio:
            await self._open_voice(session, self._voice)
        steps = self.context.model.streaming.reply_over_cache(session, settings)
        try:
            reply = await self.context.run(steps)
        finally:
            session.stop.clear()
        self._count_reply(session, len(reply.ids))
        wave = None if reply.waveform is None else to_pcm(reply.waveform)
        self.reply_end = ReplyEnd(
            text=reply.text, generated_tokens=len(reply.ids), stopped=reply.was_stopped
        )
        yield StreamingChunk(chunk_index=0, text_delta=reply.text or None, audio_data=wave)

    async def _decode(self, request: ChatRequest, speaks: bool) -> _Question:
        base = GenerationSettings(
            enable_thinking=request.enable_thinking,
            use_speech_template=request.use_tts_template or speaks,
            generate_audio=speaks,
            reply_start=request.reply_start,
            speech=speech_sampling(request.tts.sampling),
        )
        self._seed = request.seed
        settings = generation_settings(request.generation, base)
        slices = self.context.model.processor.image_processor.max_slice_nums
        options = PrefillOptions(
            max_slice_nums=request.image.max_slice_nums or slices,
            omni_mode=request.omni_mode,
            use_image_id=request.image.use_image_id,
        )
        context, threads = self.context, self.context.threads

        def decode() -> _Question:
            voice = resolve_voice(request.tts, context.default_voice) if speaks else None
            messages = model_messages(request.messages, threads.read_media)
            prompted = with_voice_prompt(messages, request.tts, voice)
            return _Question(prompted, options, settings, voice)

        return await threads.run(decode)


def _save(path: str, waveform: FloatArray) -> None:
    try:
        write_wav(Path(path), waveform, OUTPUT_SAMPLE_RATE_HZ)
    except OSError as error:
        raise BadConfigError(f"The reply cannot be written: {error.strerror}.") from error


def _response(request: ChatRequest, reply: ReplyResult, spent_ms: float) -> ChatResponse:
    wave = reply.waveform
    return ChatResponse(
        text=reply.text,
        audio_path=None if wave is None else request.tts.output_path or None,
        audio_data=None if wave is None else encode_wire_wav(wave, OUTPUT_SAMPLE_RATE_HZ),
        tokens_generated=len(reply.ids),
        duration_ms=spent_ms,
        prompt=reply.prompt if request.return_prompt else None,
        token_stats=TokenStats(
            input_tokens=reply.prompt_tokens,
            generated_tokens=len(reply.ids),
            total_tokens=reply.prompt_tokens + len(reply.ids),
        ),
    )
