"""Conversations by turns: the base of their views, and one-shot chat.

view = processor.set_chat_mode()
response = await view.respond(request)           # in one call; or in two steps:
await view.feed_request(request)
async for chunk in view.reply(): ...
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from core.audio import FloatArray, encode_wire_wav, to_pcm, write_wav
from core.engine.engine import run_inline
from core.errors import BadConfigError, OmniError, OutOfOrderError
from core.modes import Chunks
from core.processors.content import (
    model_messages,
    override,
    read_voice,
    resolve_voice,
    with_voice_prompt,
)
from core.processors.view import View, ViewContext, model_errors
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import MS_PER_S, TokenStats
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd, StreamingChunk
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import OpenVoice, Steps
from MiniCPMO45.modes.prompt_input import PrefillOptions, render_history, render_question
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.processor import Prompt
from MiniCPMO45.settings import GenerationSettings, SpeechSampling


class TurnView(View):
    """Base of the conversations by turns: one session, its voice and its replies."""

    def __init__(self, context: ViewContext) -> None:
        super().__init__(context)
        self.reply_end: ReplyEnd | None = None  # outcome of the last reply
        self._voice: FloatArray | None = None
        self._drawing = GenerationSettings()  # how replies are drawn

    async def choose_voice(self, voice: FloatArray | None) -> None:
        """Choose the voice of replies, [T] float32 at 16 kHz, from 0.5 s; None is the default.

        Raises `AudioError` if it cannot serve as a voice, so that the voice chosen before stays,
        and `GenerationFailedError` if the checkpoint has no vocoder.
        """
        if voice is not None:
            await self.context.run(_try_voice(voice))
        self._voice = voice
        if self._session is not None:
            self._session.speech.vocoder = None

    def init_ref_audio(self, ref_audio_path: str | Path | None = None) -> None:
        voice = None if ref_audio_path is None else read_voice(ref_audio_path)
        run_inline(self.choose_voice(voice))

    def init_ref_audio_from_data(self, ref_audio: FloatArray) -> None:
        run_inline(self.choose_voice(ref_audio))

    def reset_session(self, session_id: str) -> None:
        run_inline(self.reset(session_id))

    async def stream_reply(
        self, session_id: str | None, settings: GenerationSettings, *, takes_snapshot: bool = False
    ) -> Chunks:
        """Stream the reply to what was fed; the last chunk is final and empty.

        `stop` ends it soon, and so does closing the stream. `reply_end` describes it afterwards.
        `takes_snapshot` keeps a rollback point. Raises `OutOfOrderError` if nothing was fed into
        this session, or into any if `session_id` is None.
        """
        session, before = self._expect(session_id), self.kv_cache_length
        await self._open_voice(session, self._voice, settings)
        if takes_snapshot:
            session.take_snapshot()
        stream = self.context.begin(self.context.model.streaming.generate(session, settings))
        index, last_s = 0, time.perf_counter()
        ended_s = last_s
        try:
            with model_errors():
                async for piece in stream:
                    now_s, wave = time.perf_counter(), piece.waveform
                    yield StreamingChunk(
                        chunk_index=index,
                        text_delta=piece.text or None,
                        audio_data=None if wave is None or not wave.size else to_pcm(wave),
                        duration_ms=(now_s - last_s) * MS_PER_S,
                    )
                    index, last_s, ended_s = index + 1, now_s, time.perf_counter()
        except GeneratorExit:
            session.stop.set()  # so that the cache holds exactly what was said
            with model_errors():
                async for _ in stream:
                    pass
            raise
        finally:
            session.stop.clear()
        result = stream.result
        self.reply_end = ReplyEnd(
            text=result.text,
            generated_tokens=len(result.ids),
            stopped=result.was_stopped,
            is_begun=self.kv_cache_length != before,
        )
        spent_ms = (time.perf_counter() - ended_s) * MS_PER_S
        yield StreamingChunk(chunk_index=index, is_final=True, duration_ms=spent_ms)

    def _expect(self, session_id: str | None) -> Session:
        if self._session is None or session_id not in (None, self._session.id):
            raise OutOfOrderError("Nothing was prefilled for this session.")
        return self._session

    async def _open_voice(
        self, session: Session, voice: FloatArray | None, settings: GenerationSettings
    ) -> None:
        """Open a voice for a reply that has sound, unless one is open."""
        voice = self.context.default_voice if voice is None else voice
        speaks = settings.generate_audio and self.context.model.can_speak
        if speaks and session.speech.vocoder is None and voice is not None:
            await self.context.run(open_voice(session, voice))


def open_voice(session: Session, voice: FloatArray) -> Steps[None]:
    """Open a voice, [T] float32 at 16 kHz; the speech of a running turn is dropped."""
    session.speech.vocoder = yield OpenVoice(voice, session.sampler.generator)
    session.reset_speech()


def _try_voice(voice: FloatArray) -> Steps[None]:
    yield OpenVoice(voice, None)


Question = tuple[Prompt, GenerationSettings, FloatArray | None]
"""A request's prompt, the settings of its reply, and the voice."""


class ChatView(TurnView):
    """One-shot chat: each request brings its whole history."""

    async def respond(self, request: ChatRequest) -> ChatResponse:
        """Answer a request in a separate session, which is freed afterwards."""
        started_s = time.perf_counter()
        prompt, settings, voice = await self._decode(request, is_one_shot=True)
        session = await self.reset()
        try:
            await self._open_voice(session, voice, settings)
            steps = self.context.model.streaming.reply(session, prompt, settings)
            reply = await self.context.run(steps)
        finally:
            await self.close()
        return await self.context.threads.run(lambda: _response(request, reply, started_s))

    async def feed_request(self, request: ChatRequest) -> str:
        """Feed a request's whole history into a fresh session; return the text, with media markers.

        A spoken reply gets the voice prompt. Raises `ContextFullError`, before anything is run, if
        the history is longer than `max_inp_length`, and `BadPayloadError` if a part of a message
        cannot be used.
        """
        model = self.context.model
        prompt, settings, voice = await self._decode(request, is_one_shot=False)
        if request.tts.ref_audio_data:
            self._check_voice(voice)
        if settings.generate_audio and voice is not None and model.can_speak:
            await self.choose_voice(voice)
        await self.reset()
        self._drawing = settings
        return await self.context.run(model.streaming.prefill_history(self.session, prompt))

    def reply(self, *, in_pieces: bool = True) -> Chunks:
        return self.stream_reply(None, self._drawing) if in_pieces else self._whole()

    def chat(self, request: ChatRequest) -> ChatResponse:
        """Run `respond`; an error is reported in the response."""
        started_s = time.perf_counter()
        try:
            return run_inline(self.respond(request))
        except OmniError as error:
            spent_ms = (time.perf_counter() - started_s) * MS_PER_S
            return ChatResponse(success=False, error=error.message, duration_ms=spent_ms)

    async def _whole(self) -> Chunks:
        session, settings = self._expect(None), self._drawing
        await self._open_voice(session, self._voice, settings)
        steps = self.context.model.streaming.reply_over_cache(session, settings)
        try:
            reply = await self.context.run(steps)
        finally:
            session.stop.clear()
        wave = None if reply.waveform is None else to_pcm(reply.waveform)
        self.reply_end = ReplyEnd(
            text=reply.text, generated_tokens=len(reply.ids), stopped=reply.was_stopped
        )
        yield StreamingChunk(chunk_index=0, text_delta=reply.text or None, audio_data=wave)

    async def _decode(self, request: ChatRequest, *, is_one_shot: bool) -> Question:
        """Decode and render a request on a thread, so that no other conversation is delayed."""
        speaks = request.tts.enabled
        base = GenerationSettings(
            use_speech_template=request.use_tts_template or speaks,
            generate_audio=speaks,
            speech=override(SpeechSampling(), request.tts.sampling),
        )
        self._seed = request.seed
        settings = override(override(base, request), request.generation)
        options = override(PrefillOptions(omni_mode=request.omni_mode), request.image)
        options = replace(options, max_tokens=settings.max_input_tokens)
        context, threads = self.context, self.context.threads
        processor = context.model.processor

        def decode() -> Question:
            voice = resolve_voice(request.tts, context.default_voice) if speaks else None
            messages = model_messages(request.messages, threads.read_media)
            prompted = with_voice_prompt(messages, request.tts, voice)
            with model_errors():
                if is_one_shot:
                    prompt = render_question(processor, prompted, settings, options)
                else:
                    prompt = render_history(processor, prompted, options)
            return prompt, settings, voice

        return await threads.run(decode)


def _response(request: ChatRequest, reply: ReplyResult, started_s: float) -> ChatResponse:
    """Write the speech to the file that the request names, and return the response."""
    wave, path = reply.waveform, request.tts.output_path or None
    fed, drawn = reply.prompt_tokens, len(reply.ids)
    if path and wave is not None:
        try:
            write_wav(Path(path), wave, OUTPUT_SAMPLE_RATE_HZ)
        except OSError as error:
            raise BadConfigError(f"The reply cannot be written: {error.strerror}.") from error
    spent_ms = (time.perf_counter() - started_s) * MS_PER_S
    return ChatResponse(
        text=reply.text,
        audio_path=None if wave is None else path,
        audio_data=None if wave is None else encode_wire_wav(wave, OUTPUT_SAMPLE_RATE_HZ),
        tokens_generated=drawn,
        duration_ms=spent_ms,
        prompt=reply.prompt if request.return_prompt else None,
        token_stats=TokenStats(input_tokens=fed, generated_tokens=drawn, total_tokens=fed + drawn),
    )
