"""What chat and streaming have in common: a kept session, its voice, replies and their counts."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from core.audio import FloatArray
from core.errors import OutOfOrderError
from core.processors.base import View, ViewContext
from core.processors.content import model_messages, read_voice
from core.processors.results import MS_PER_S, SpokenPiece
from core.schemas.common import Message as WireMessage
from core.schemas.common import TokenStats
from core.schemas.streaming import StreamingChunk
from MiniCPMO45.chat import ChatReply
from MiniCPMO45.message_input import PieceOptions
from MiniCPMO45.processing_minicpmo import Message
from MiniCPMO45.reply_speech import ReplyPiece
from MiniCPMO45.session import Session
from MiniCPMO45.settings import GenerationSettings
from MiniCPMO45.steps import OpenVoice, Steps
from MiniCPMO45.streaming import ReplyResult


@dataclass(frozen=True)
class TurnOptions:
    """How the turn at hand is read and answered unless a call says otherwise.

    Attributes:
        pieces: how messages are read.
        reply: how text and speech are drawn.
    """

    pieces: PieceOptions = PieceOptions()
    reply: GenerationSettings = GenerationSettings()


class TurnView(View):
    """A turn-based conversation over one kept session."""

    def __init__(self, context: ViewContext, session: Session | None = None) -> None:
        """Look at a session; see `View`."""
        super().__init__(context, session)
        self._voice: FloatArray | None = None
        self._options = TurnOptions()
        self._stats = TokenStats()
        self._has_replied = True

    @property
    def token_stats(self) -> TokenStats:
        """What the turn at hand cost, in tokens."""
        return self._stats

    @property
    def cached_tokens(self) -> int:
        """Tokens that were cached before the turn."""
        return self._stats.cached_tokens

    @property
    def input_tokens(self) -> int:
        """Tokens fed for the turn."""
        return self._stats.input_tokens

    @property
    def generated_tokens(self) -> int:
        """Tokens of the turn's reply."""
        return self._stats.generated_tokens

    def init_ref_audio(self, ref_audio_path: str | Path | None = None) -> None:
        """Choose the voice of replies.

        Args:
            ref_audio_path: a sound file; None goes back to the default voice.

        Raises:
            AudioError: the file cannot be read or cannot serve as a voice.
        """
        if ref_audio_path is not None:
            self.init_ref_audio_from_data(read_voice(ref_audio_path))
            return
        self._take_voice(None)

    def init_ref_audio_from_data(self, ref_audio: FloatArray) -> None:
        """Choose the voice of replies.

        Args:
            ref_audio: [T] float32 at 16 kHz, from 0.5 s; 16.88 s of it are used.

        Raises:
            AudioError: it cannot serve as a voice; the voice chosen before stays.
            GenerationFailedError: the checkpoint has no vocoder.
        """
        self.context.run(_try_voice(ref_audio))
        self._take_voice(ref_audio)

    def reset_session(self, session_id: str) -> None:
        """Forget the conversation and begin another; the chosen voice stays."""
        self._start(session_id)
        self._stats, self._has_replied = TokenStats(), True

    def stream_reply(
        self,
        session_id: str,
        settings: GenerationSettings,
        *,
        enable_speculative_snapshot: bool = False,
    ) -> Generator[SpokenPiece, None, ReplyResult]:
        """Answer what was prefilled, piece by piece.

        `stop` brings the end near; a generator that is closed stops the reply, too.

        Args:
            session_id: the conversation.
            settings: how text and speech are drawn. Without a vocoder the reply is text only.
            enable_speculative_snapshot: keep a point to roll back to.

        Returns:
            The whole reply.

        Raises:
            OutOfOrderError: nothing was prefilled for this session.
        """
        session, model = self._expect(session_id), self.context.model
        if settings.generate_audio:
            self._open_voice(session)
        steps = model.streaming_generate(
            session, settings, enable_speculative_snapshot=enable_speculative_snapshot
        )
        try:
            result = yield from self._timed(session, steps)
        finally:
            session.stop.clear()
            self._has_replied = True
        self._count_reply(session, len(result.ids))
        return result

    def write_reply(self, session_id: str, settings: GenerationSettings) -> ChatReply:
        """Answer what was prefilled as a whole; arguments and errors as in `stream_reply`."""
        session = self._expect(session_id)
        if settings.generate_audio:
            self._open_voice(session)
        try:
            reply = self.context.run(self.context.model.non_streaming_generate(session, settings))
        finally:
            session.stop.clear()
        self._count_reply(session, reply.n_tokens)
        return reply

    def feed(
        self, session_id: str, messages: Sequence[Message], options: PieceOptions
    ) -> list[str]:
        """Feed decoded messages one by one behind what the cache holds.

        Args:
            session_id: another one than before begins a fresh conversation.
            messages: sound [T] float32 at 16 kHz, pictures RGB.
            options: how they are read; `is_last_chunk` is about the last one.

        Returns:
            The text fed for each, media as markers.

        Raises:
            BadPayloadError: a part of a message cannot be used.
            ContextFullError: the conversation is too long for the model.
        """
        session = self._session_for(session_id)
        self._options = replace(self._options, pieces=options)
        prompts = []
        for number, message in enumerate(messages, start=1):
            is_last = options.is_last_chunk and number == len(messages)
            piece = replace(options, is_last_chunk=is_last)
            steps = self.context.model.streaming_prefill(session, message, piece)
            prompts.append(self.context.run(steps))
            self._count_input(session)
        return prompts

    def feed_history(
        self, session_id: str, messages: Sequence[WireMessage], options: PieceOptions
    ) -> str:
        """Feed a whole closed history into a fresh session; errors as in `feed`."""
        return self.feed_decoded_history(
            session_id, model_messages(messages, self.context.read_media), options
        )

    def feed_decoded_history(
        self, session_id: str, messages: Sequence[Message], options: PieceOptions
    ) -> str:
        """Do the same with decoded messages."""
        self.reset_session(session_id)
        self._options = replace(self._options, pieces=options)
        model, session = self.context.model, self.session
        prompt = self.context.run(model.non_streaming_prefill(session, messages, options))
        self._count_input(session)
        return prompt

    def _session_for(self, session_id: str) -> Session:
        """The session of that id, a fresh one if another was going on; a new turn may begin."""
        if self._session is None or self._session.id != session_id:
            self.reset_session(session_id)
        self.session.stop.clear()
        return self.session

    def _expect(self, session_id: str) -> Session:
        if self._session is None or self._session.id != session_id:
            raise OutOfOrderError("Nothing was prefilled for this session.")
        return self._session

    def _take_voice(self, voice: FloatArray | None) -> None:
        self._voice = voice
        if self._session is not None:
            self._session.speech.vocoder = None

    def _open_voice(self, session: Session) -> None:
        """Give the session its voice unless it has one, or there is none to give."""
        voice = self.context.default_voice if self._voice is None else self._voice
        model = self.context.model
        if session.speech.vocoder is None and voice is not None and model.can_speak:
            self.context.run(model.init_token2wav_cache(session, voice))

    def _chunks(
        self, pieces: Generator[SpokenPiece, None, ReplyResult]
    ) -> Generator[StreamingChunk, None, ReplyResult]:
        """The pieces as the wire has them, and a last one that is final and empty."""
        started_s, index = time.perf_counter(), 0
        with closing(pieces):
            while True:
                try:
                    piece = next(pieces)
                except StopIteration as end:
                    result: ReplyResult = end.value
                    break
                yield piece.to_chunk()
                started_s, index = time.perf_counter(), piece.index + 1
        spent_ms = (time.perf_counter() - started_s) * MS_PER_S
        yield StreamingChunk(chunk_index=index, is_final=True, duration_ms=spent_ms)
        return result

    def _timed(
        self, session: Session, steps: Steps[ReplyResult]
    ) -> Generator[SpokenPiece, None, ReplyResult]:
        stream, last_s, index = self.context.stream(steps), time.perf_counter(), 0
        while True:
            try:
                piece: ReplyPiece = next(stream)
            except StopIteration as end:
                result: ReplyResult = end.value
                return result
            now_s = time.perf_counter()
            try:
                yield SpokenPiece(index, piece.text, piece.waveform, (now_s - last_s) * MS_PER_S)
            except GeneratorExit:
                # Abandoned: stop properly, so that the cache holds exactly what was said.
                session.stop.set()
                for _ in stream:
                    pass
                raise
            last_s, index = time.perf_counter(), index + 1

    def _count_input(self, session: Session) -> None:
        before = TokenStats() if self._has_replied else self._stats
        fed = before.input_tokens + session.window.rounds[-1].length
        total = session.kv.length
        self._has_replied = False
        self._stats = TokenStats(
            cached_tokens=max(total - fed, 0), input_tokens=fed, total_tokens=total
        )

    def _count_reply(self, session: Session, n_tokens: int) -> None:
        counts = {"generated_tokens": n_tokens, "total_tokens": session.kv.length}
        self._stats = self._stats.model_copy(update=counts)
        self._has_replied = True


def _try_voice(voice: FloatArray) -> Steps[None]:
    """Prepare a voice, which is then kept by its content."""
    yield OpenVoice(voice, None)
