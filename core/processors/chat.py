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
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core.audio import FloatArray, encode_wire_wav, to_pcm
from core.capabilities import ProcessorMode
from core.engine.engine import run_inline
from core.errors import OmniError
from core.processors.content import (
    MS_PER_S,
    generation_settings,
    model_messages,
    resolve_voice,
    speech_sampling,
    with_voice_prompt,
)
from core.processors.turns import TurnView, open_voice, save_reply
from core.processors.view import iterate_inline
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import Message as WireMessage
from core.schemas.common import TokenStats, TTSSamplingParams
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import ReplyEnd, StreamingChunk
from MiniCPMO45.modes.prompt_input import PieceOptions
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.processor import CHAT_MAX_TOKENS, Message
from MiniCPMO45.settings import GenerationSettings

ONE_SHOT_SESSION = "chat"


@dataclass(frozen=True)
class _Question:
    messages: list[Message]
    options: PieceOptions | None
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
        question = await self._decode(request, max_new_tokens, do_sample, speaks)
        reply = await self._answer_alone(question)

        def finished() -> ChatResponse:
            path = save_reply(request.tts.output_path, reply.waveform)
            return _response(request, reply, path, (time.perf_counter() - started_s) * MS_PER_S)

        return await self.context.threads.run(finished)

    async def feed_request(self, session_id: str, request: ChatRequest) -> str:
        """Feed a request's whole history into a fresh session; return the text, media as markers.

        A spoken reply gets the voice prompt. Errors are those of `prefill`.
        """
        question = await self._decode(request, None, None, request.tts.enabled)
        settings = question.settings
        if request.tts.ref_audio_data:
            self._check_voices(question.voice)
        options = replace(question.options or PieceOptions(), max_tokens=settings.max_input_tokens)
        if settings.generate_audio and question.voice is not None and self.context.model.can_speak:
            await self.choose_voice(question.voice)
        prompt = await self.feed_history(session_id, question.messages, options)
        self._drawing = settings
        return prompt

    def reply(
        self, session_id: str, *, in_pieces: bool = True
    ) -> AsyncGenerator[StreamingChunk, None]:
        if in_pieces:
            return self.stream_reply(session_id, self._drawing)
        return self._whole(session_id)

    async def write_reply(self, session_id: str, settings: GenerationSettings) -> ReplyResult:
        session, model = self._expect(session_id), self.context.model
        if settings.generate_audio:
            await self._open_voice(session)
        steps = model.streaming.reply_over_cache(session, settings)
        try:
            reply = await self.context.run(steps)
        finally:
            session.stop.clear()
        self._count_reply(session, len(reply.ids))
        return reply

    # --- the documented synchronous form ---

    def prefill(
        self,
        session_id: str,
        msgs: Sequence[WireMessage],
        omni_mode: bool = False,
        max_slice_nums: int | None = None,
        use_image_id: bool | None = None,
        use_tts_template: bool = False,
        enable_thinking: bool = False,
        max_inp_length: int = CHAT_MAX_TOKENS,
    ) -> str:
        """Feed a whole history into a fresh session; return its text, media as markers.

        `omni_mode` joins parts with nothing between them instead of a line feed; None takes the
        checkpoint's rules for pictures.

        Raises:
            ContextFullError: the history is longer than `max_inp_length`; nothing was run.
            BadPayloadError: a part of a message cannot be used.
        """
        options = PieceOptions(
            max_slice_nums=self._slices(max_slice_nums),
            omni_mode=omni_mode,
            enable_thinking=enable_thinking,
            use_tts_template=use_tts_template,
            use_image_id=use_image_id,
            max_tokens=max_inp_length,
        )
        messages = run_inline(self.decode(msgs))
        return run_inline(self.feed_history(session_id, messages, options))

    def generate(
        self,
        session_id: str,
        max_new_tokens: int = 256,
        do_sample: bool = True,
        generate_audio: bool = False,
        use_tts_template: bool = True,
        enable_thinking: bool = False,
        tts_ref_audio: FloatArray | None = None,
        tts_sampling_params: TTSSamplingParams | None = None,
        output_audio_path: str | Path | None = None,
        length_penalty: float = 1.1,
    ) -> str | tuple[str, FloatArray]:
        """Answer a prefilled history as a whole; a `length_penalty` above 1 makes replies longer.

        `tts_ref_audio` is the voice, [T] float32 at 16 kHz; `output_audio_path` takes a WAV file.
        Returns the text, with the waveform [T] float32 at 24 kHz if it was spoken.

        Raises:
            OutOfOrderError: nothing was prefilled for this session.
            AudioError: the recording cannot serve as a voice.
        """
        if tts_ref_audio is not None and generate_audio:
            self.init_ref_audio_from_data(tts_ref_audio)
        settings = GenerationSettings(
            max_new_tokens=max_new_tokens,
            do_sample=do_sample,
            length_penalty=length_penalty,
            enable_thinking=enable_thinking,
            use_speech_template=use_tts_template,
            generate_audio=generate_audio,
            speech=speech_sampling(tts_sampling_params),
        )
        reply = run_inline(self.write_reply(session_id, settings))
        if reply.waveform is None:
            return reply.text
        save_reply(output_audio_path, reply.waveform)
        return reply.text, reply.waveform

    def streaming_generate(
        self,
        session_id: str,
        generate_audio: bool = True,
        max_new_tokens: int = 256,
        do_sample: bool = True,
        length_penalty: float = 1.1,
    ) -> Generator[StreamingChunk, None, None]:
        """Answer a prefilled history piece by piece; the last chunk is final and empty."""
        settings = GenerationSettings(
            max_new_tokens=max_new_tokens,
            do_sample=do_sample,
            length_penalty=length_penalty,
            enable_thinking=self._pieces.enable_thinking,
            use_speech_template=self._pieces.use_tts_template or generate_audio,
            generate_audio=generate_audio,
        )
        return iterate_inline(self.stream_reply(session_id, settings))

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

    async def _answer_alone(self, question: _Question) -> ReplyResult:
        context, model = self.context, self.context.model
        session, settings = await self._start(ONE_SHOT_SESSION), question.settings
        try:
            voice = context.default_voice if question.voice is None else question.voice
            if settings.generate_audio and voice is not None and model.can_speak:
                await context.run(open_voice(session, voice))
            steps = model.streaming.reply(session, question.messages, settings, question.options)
            return await context.run(steps)
        finally:
            await self.close()

    async def _whole(self, session_id: str) -> AsyncGenerator[StreamingChunk, None]:
        reply = await self.write_reply(session_id, self._drawing)
        sound = None if reply.waveform is None else to_pcm(reply.waveform)
        self.reply_end = ReplyEnd(
            text=reply.text, generated_tokens=len(reply.ids), stopped=reply.was_stopped
        )
        yield StreamingChunk(chunk_index=0, text_delta=reply.text or None, audio_data=sound)

    async def _decode(
        self,
        request: ChatRequest,
        max_new_tokens: int | None,
        do_sample: bool | None,
        speaks: bool,
    ) -> _Question:
        base = GenerationSettings(
            enable_thinking=request.enable_thinking,
            use_speech_template=request.use_tts_template or speaks,
            generate_audio=speaks,
            reply_start=request.reply_start,
            speech=speech_sampling(request.tts.sampling),
        )
        self._seed = request.seed
        settings = generation_settings(request.generation, base)
        if max_new_tokens is not None:
            settings = replace(settings, max_new_tokens=max_new_tokens)
        if do_sample is not None:
            settings = replace(settings, do_sample=do_sample)
        options = PieceOptions(
            max_slice_nums=self._slices(request.image.max_slice_nums),
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

    def _slices(self, wanted: int | None) -> int:
        return wanted or self.context.model.processor.image_processor.max_slice_nums


def _response(
    request: ChatRequest, reply: ReplyResult, path: str | None, spent_ms: float
) -> ChatResponse:
    sound = reply.waveform
    return ChatResponse(
        text=reply.text,
        audio_path=path,
        audio_data=None if sound is None else encode_wire_wav(sound, OUTPUT_SAMPLE_RATE_HZ),
        tokens_generated=len(reply.ids),
        duration_ms=spent_ms,
        prompt=reply.prompt if request.return_prompt else None,
        token_stats=TokenStats(
            input_tokens=reply.prompt_tokens,
            generated_tokens=len(reply.ids),
            total_tokens=reply.prompt_tokens + len(reply.ids),
        ),
    )
