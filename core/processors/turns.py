"""What the turn-based modes have in common: a kept session, its voice, replies and their counts."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from core.audio import FloatArray, to_pcm
from core.engine.engine import run_inline
from core.engine.passes import Task
from core.errors import OutOfOrderError
from core.processors.content import MS_PER_S, read_voice
from core.processors.view import View, ViewContext, model_errors
from core.schemas.common import TokenStats
from core.schemas.streaming import ReplyEnd, StreamingChunk
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import OpenVoice, Steps
from MiniCPMO45.modes.prompt_input import PrefillOptions
from MiniCPMO45.modes.streaming import ReplyResult
from MiniCPMO45.processing.processor import Message
from MiniCPMO45.settings import GenerationSettings


class TurnView(View):
    """A turn-based conversation over one kept session.

    Attributes:
        reply_end: what the last reply came to.
        token_stats: tokens of the last turn.
    """

    def __init__(self, context: ViewContext, session: Session | None = None) -> None:
        super().__init__(context, session)
        self.reply_end: ReplyEnd | None = None
        self._voice: FloatArray | None = None
        self.token_stats = TokenStats()
        self._options = PrefillOptions()  # of prefill
        self._drawing = GenerationSettings()  # how replies are drawn
        self._has_replied = True

    # --- voice ---

    async def choose_voice(self, voice: FloatArray | None) -> None:
        """Choose the voice of replies, [T] float32 at 16 kHz, from 0.5 s; None is the default.

        Raises:
            AudioError: it cannot serve as a voice; the voice chosen before stays.
            GenerationFailedError: the checkpoint has no vocoder.
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

    # --- input ---

    async def reset(self, session_id: str) -> None:
        """Begin another conversation; the chosen voice stays."""
        await self._start(session_id)
        self.token_stats, self._has_replied = TokenStats(), True

    def reset_session(self, session_id: str) -> None:
        run_inline(self.reset(session_id))

    async def feed(
        self, session_id: str, messages: Sequence[Message], options: PrefillOptions
    ) -> list[str]:
        """Feed messages one by one behind what the cache holds; return the text fed for each.

        Another `session_id` than before begins a fresh conversation. Audio is [T] float32 at 16
        kHz, pictures RGB; `options.is_last_chunk` is about the last message.

        Raises:
            BadPayloadError: a part of the message cannot be used.
            ContextFullError: the conversation is too long for the model.
        """
        session = await self._session_for(session_id)
        self._options = options
        prompts = []
        for number, message in enumerate(messages, start=1):
            is_last = options.is_last_chunk and number == len(messages)
            chunk = replace(options, is_last_chunk=is_last)
            steps = self.context.model.streaming.prefill(session, message, chunk)
            prompts.append(await self.context.run(steps))
            self._count_input(session)
        return prompts

    # --- replies ---

    async def stream_reply(
        self,
        session_id: str,
        settings: GenerationSettings,
        *,
        enable_speculative_snapshot: bool = False,
    ) -> AsyncGenerator[StreamingChunk, None]:
        """Answer what was fed, piece by piece; the last chunk is final and empty.

        `stop` ends it soon; a stream that is closed stops the reply, too. `reply_end` describes it
        afterwards. `enable_speculative_snapshot` keeps a point to roll back to. Raises
        `OutOfOrderError` if nothing was fed into this session.
        """
        session, before = self._expect(session_id), self.kv_cache_length
        if settings.generate_audio:
            await self._open_voice(session, self._voice)
        if enable_speculative_snapshot:
            session.take_snapshot()
        stream = self.context.begin(self.context.model.streaming.generate(session, settings))
        ended_s, index = time.perf_counter(), 0
        try:
            async with aclosing(_chunks(session, stream)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    ended_s, index = time.perf_counter(), chunk.chunk_index + 1
        finally:
            session.stop.clear()
            self._has_replied = True
        result = stream.result
        self._count_reply(session, len(result.ids))
        self.reply_end = ReplyEnd(
            text=result.text,
            generated_tokens=len(result.ids),
            stopped=result.was_stopped,
            is_begun=self.kv_cache_length != before,
        )
        spent_ms = (time.perf_counter() - ended_s) * MS_PER_S
        yield StreamingChunk(chunk_index=index, is_final=True, duration_ms=spent_ms)

    async def _session_for(self, session_id: str) -> Session:
        if self._session is None or self._session.id != session_id:
            await self.reset(session_id)
        self.session.stop.clear()
        return self.session

    def _expect(self, session_id: str) -> Session:
        if self._session is None or self._session.id != session_id:
            raise OutOfOrderError("Nothing was prefilled for this session.")
        return self._session

    async def _open_voice(self, session: Session, voice: FloatArray | None) -> None:
        voice = self.context.default_voice if voice is None else voice
        if session.speech.vocoder is None and voice is not None and self.context.model.can_speak:
            await self.context.run(open_voice(session, voice))

    def _count_input(self, session: Session) -> None:
        before = TokenStats() if self._has_replied else self.token_stats
        fed = before.input_tokens + session.window.rounds[-1].length
        total = session.kv.length
        self._has_replied = False
        self.token_stats = TokenStats(
            cached_tokens=max(total - fed, 0), input_tokens=fed, total_tokens=total
        )

    def _count_reply(self, session: Session, n_tokens: int) -> None:
        counts = {"generated_tokens": n_tokens, "total_tokens": session.kv.length}
        self.token_stats = self.token_stats.model_copy(update=counts)
        self._has_replied = True


def open_voice(session: Session, voice: FloatArray) -> Steps[None]:
    """Open a voice, [T] float32 at 16 kHz; speech of a running turn is dropped."""
    session.speech.vocoder = yield OpenVoice(voice, session.sampler.generator)
    session.reset_speech()


async def _chunks(
    session: Session, stream: Task[ReplyResult]
) -> AsyncGenerator[StreamingChunk, None]:
    """Convert the pieces of a reply to chunks; closed early, the reply is stopped in order."""
    last_s, index = time.perf_counter(), 0
    with model_errors():
        async for piece in stream:
            now_s = time.perf_counter()
            try:
                wave = piece.waveform
                yield StreamingChunk(
                    chunk_index=index,
                    text_delta=piece.text or None,
                    audio_data=None if wave is None or not wave.size else to_pcm(wave),
                    duration_ms=(now_s - last_s) * MS_PER_S,
                )
            except GeneratorExit:
                session.stop.set()  # so that the cache holds exactly what was said
                async for _ in stream:
                    pass
                raise
            last_s, index = now_s, index + 1


def _try_voice(voice: FloatArray) -> Steps[None]:
    yield OpenVoice(voice, None)
