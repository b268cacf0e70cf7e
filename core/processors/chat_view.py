"""One-shot chat: a request in, a response out; and a history that is prefilled, then answered."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core.audio import FloatArray, encode_wire_wav
from core.capabilities import ProcessorMode
from core.errors import OmniError
from core.processors.content import model_messages, resolve_voice, with_voice_prompt
from core.processors.results import MS_PER_S, save_reply
from core.processors.turn_view import TurnOptions, TurnView
from core.processors.wire_settings import generation_settings, speech_sampling
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import Message as WireMessage
from core.schemas.common import TokenStats, TTSSamplingParams
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingChunk
from MiniCPMO45.chat import ChatReply
from MiniCPMO45.message_input import PieceOptions
from MiniCPMO45.processing_minicpmo import CHAT_MAX_TOKENS, Message
from MiniCPMO45.settings import GenerationSettings
from MiniCPMO45.streaming import ReplyResult

ONE_SHOT_SESSION = "chat"


@dataclass(frozen=True)
class _Question:
    """A decoded request."""

    messages: list[Message]
    options: PieceOptions
    settings: GenerationSettings
    voice: FloatArray | None


class ChatView(TurnView):
    """The documented methods of chat."""

    mode = ProcessorMode.CHAT

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
        """Feed a whole history into a fresh session.

        Args:
            session_id: its name.
            msgs: oldest first; the new user message last.
            omni_mode: join parts with nothing between them instead of a line feed.
            max_slice_nums: most slices per picture; None for the checkpoint's default.
            use_image_id: number the pictures; None for the checkpoint's default.
            use_tts_template: the reply can be spoken.
            enable_thinking: let the model think before it answers.
            max_inp_length: most tokens.

        Returns:
            The text fed, media as markers.

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
        return self.feed_history(session_id, msgs, options)

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
        """Answer a prefilled history as a whole.

        Args:
            session_id: the one prefilled.
            max_new_tokens: most tokens of the reply.
            do_sample: draw at random; False takes the likeliest token.
            generate_audio: speak the reply.
            use_tts_template: ask for a reply that can be spoken.
            enable_thinking: let the model think before it answers.
            tts_ref_audio: voice to speak with, [T] float32 at 16 kHz; None keeps the chosen one.
            tts_sampling_params: how speech is drawn; None takes the defaults.
            output_audio_path: where the spoken reply is written as a WAV file.
            length_penalty: above 1 makes replies longer.

        Returns:
            The text; with it the waveform [T] float32 at 24 kHz if it was spoken.

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
        reply = self.write_reply(session_id, settings)
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
    ) -> Generator[StreamingChunk, None, ReplyResult]:
        """Answer a prefilled history piece by piece; the last chunk is final and empty.

        Args:
            session_id: the one prefilled.
            generate_audio: speak the reply.
            max_new_tokens: most tokens of the reply.
            do_sample: draw at random; False takes the likeliest token.
            length_penalty: above 1 makes replies longer.

        Returns:
            The whole reply.

        Raises:
            OutOfOrderError: nothing was prefilled for this session.
        """
        settings = GenerationSettings(
            max_new_tokens=max_new_tokens,
            do_sample=do_sample,
            length_penalty=length_penalty,
            enable_thinking=self._options.pieces.enable_thinking,
            use_speech_template=self._options.pieces.use_tts_template or generate_audio,
            generate_audio=generate_audio,
        )
        return (yield from self._chunks(self.stream_reply(session_id, settings)))

    def answer(
        self,
        messages: Sequence[Message],
        settings: GenerationSettings,
        options: PieceOptions | None = None,
        voice: FloatArray | None = None,
    ) -> ChatReply:
        """Answer a decoded history in a session of its own, which is freed afterwards.

        Args:
            messages: the whole history; sound [T] float32 at 16 kHz, pictures RGB.
            settings: how text and speech are drawn.
            options: how the history is read; None for the checkpoint's defaults.
            voice: to speak with, [T] float32 at 16 kHz; None for the default voice.

        Raises:
            ContextFullError: the prompt is longer than `settings.max_input_tokens`.
            BadPayloadError: a part of a message cannot be used.
            AudioError: the recording cannot serve as a voice.
        """
        context, model = self.context, self.context.model
        session = self._start(ONE_SHOT_SESSION)
        try:
            chosen = context.default_voice if voice is None else voice
            if settings.generate_audio and chosen is not None and model.can_speak:
                context.run(model.init_token2wav_cache(session, chosen))
            return context.run(model.chat.reply(session, messages, settings, options))
        finally:
            self.cleanup()

    def chat(
        self,
        request: ChatRequest,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        generate_audio: bool | None = None,
    ) -> ChatResponse:
        """Answer a request; what goes wrong is told in the response.

        Args:
            request: history and settings.
            max_new_tokens: replaces the request's value.
            do_sample: replaces the request's value.
            generate_audio: replaces whether the request wants speech.
        """
        started_s = time.perf_counter()
        try:
            return self.respond(request, max_new_tokens, do_sample, generate_audio)
        except OmniError as error:
            spent_ms = (time.perf_counter() - started_s) * MS_PER_S
            return ChatResponse(success=False, error=error.message, duration_ms=spent_ms)

    def respond(
        self,
        request: ChatRequest,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        generate_audio: bool | None = None,
    ) -> ChatResponse:
        """Answer a request like `chat`, but raise what goes wrong.

        Raises:
            OmniError: see `answer`.
        """
        started_s = time.perf_counter()
        speaks = request.tts.enabled if generate_audio is None else generate_audio
        question = self._decode(request, max_new_tokens, do_sample, speaks)
        reply = self.answer(question.messages, question.settings, question.options, question.voice)
        path = save_reply(request.tts.output_path, reply.waveform)
        return _response(request, reply, path, (time.perf_counter() - started_s) * MS_PER_S)

    def prefill_request(self, session_id: str, request: ChatRequest) -> str:
        """Feed a request's whole history into a fresh session; `stream_answer` answers it.

        Args:
            session_id: its name.
            request: history and settings; a spoken reply gets the voice prompt.

        Returns:
            The text fed, media as markers.

        Raises:
            OmniError: see `prefill`.
        """
        question = self._decode(request, None, None, request.tts.enabled)
        settings = question.settings
        options = replace(question.options, max_tokens=settings.max_input_tokens)
        if settings.generate_audio and question.voice is not None and self.context.model.can_speak:
            self.init_ref_audio_from_data(question.voice)
        prompt = self.feed_decoded_history(session_id, question.messages, options)
        self._options = TurnOptions(pieces=options, reply=settings)
        return prompt

    def stream_answer(self, session_id: str) -> Generator[StreamingChunk, None, ReplyResult]:
        """Answer a prefilled request piece by piece; the last chunk is final and empty."""
        return (yield from self._chunks(self.stream_reply(session_id, self._options.reply)))

    def whole_answer(self, session_id: str) -> ChatReply:
        """Answer a prefilled request as a whole."""
        return self.write_reply(session_id, self._options.reply)

    def _decode(
        self,
        request: ChatRequest,
        max_new_tokens: int | None,
        do_sample: bool | None,
        speaks: bool,
    ) -> _Question:
        generation, changes = request.generation, {}
        if max_new_tokens is not None:
            changes["max_new_tokens"] = max_new_tokens
        if do_sample is not None:
            changes["do_sample"] = do_sample
        voice = resolve_voice(request.tts, self.context.default_voice) if speaks else None
        base = GenerationSettings(
            enable_thinking=request.enable_thinking,
            use_speech_template=request.use_tts_template or speaks,
            generate_audio=speaks,
            speech=speech_sampling(request.tts.sampling),
        )
        return _Question(
            with_voice_prompt(
                model_messages(request.messages, self.context.read_media), request.tts, voice
            ),
            PieceOptions(
                max_slice_nums=self._slices(request.image.max_slice_nums),
                omni_mode=request.omni_mode,
                use_image_id=request.image.use_image_id,
            ),
            generation_settings(generation.model_copy(update=changes), base),
            voice,
        )

    def _slices(self, wanted: int | None) -> int:
        return wanted or self.context.model.processor.image_processor.max_slice_nums


def _response(
    request: ChatRequest, reply: ChatReply, path: str | None, spent_ms: float
) -> ChatResponse:
    sound = reply.waveform
    return ChatResponse(
        text=reply.text,
        audio_path=path,
        audio_data=None if sound is None else encode_wire_wav(sound, OUTPUT_SAMPLE_RATE_HZ),
        tokens_generated=reply.n_tokens,
        duration_ms=spent_ms,
        prompt=reply.prompt if request.return_prompt else None,
        token_stats=TokenStats(
            input_tokens=reply.prompt_tokens,
            generated_tokens=reply.n_tokens,
            total_tokens=reply.prompt_tokens + reply.n_tokens,
        ),
    )
