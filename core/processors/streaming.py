"""Conversations by turns: messages or speech segments in, replies out, a turn undone.

view = StreamingView(context)
await view.feed_request(request)                 # new messages, after those in the cache
async for chunk in view.reply(): ...             # its outcome is `view.reply_end`
view.stop()                                      # end the reply under way
await view.roll_back()                           # undo the turn that `mark` began
await view.close()

In half duplex `begin` opens the conversation; then come `feed_segment` and `answer` for each turn.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from core.audio import FloatArray
from core.engine.engine import run_inline
from core.modes import Chunks, Threads
from core.processors.content import Item, model_messages, override, sent_voice
from core.processors.turns import TurnView
from core.processors.view import iterate_inline, model_errors
from core.schemas.common import ContentItem, Role
from core.schemas.common import Message as WireMessage
from core.schemas.half_duplex import HalfDuplexConfig
from core.schemas.streaming import Generate, RollbackResult, StreamingChunk, StreamingRequest
from MiniCPMO45.engine.session import Session, SnapshotError
from MiniCPMO45.modes.prompt_input import STREAMING_SLICES, PrefillOptions, render_message
from MiniCPMO45.processing.processor import Message, Prompt
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.settings import GenerationSettings, SpeechSampling


class StreamingView(TurnView):
    """Turns over a retained cache; the documented half-duplex view is the same class."""

    async def feed_request(self, request: StreamingRequest) -> str:
        """Feed the request's messages; return the text fed, with media as markers.

        Another session id than before begins a fresh conversation. The request's settings are those
        of the reply that follows unless `reply` gets others. Raises `AudioError` if the voice
        cannot be used, `BadPayloadError` if a part of a message cannot be, and `ContextFullError`
        if the conversation is too long for the model.
        """
        threads = self.context.threads

        def decode() -> tuple[list[Message], FloatArray | None]:
            messages = model_messages(request.messages, threads.read_media)
            return messages, sent_voice(request.streaming)

        messages, voice = await threads.run(decode)
        await self._session_for(request.session_id)
        self._check_voice(voice)
        if voice is not None and self.context.model.can_speak:
            await self.choose_voice(voice)
        speech = override(SpeechSampling(), request.streaming.tts_sampling)
        base = GenerationSettings(
            use_speech_template=request.use_tts_template,
            generate_audio=request.streaming.generate_audio,
            speech=speech,
        )
        self._drawing = override(override(base, request), request.generation)
        slices = request.image.max_slice_nums or STREAMING_SLICES
        options = override(PrefillOptions(max_slice_nums=slices), request)
        return await self._feed(messages, options)

    def reply(self, wanted: Generate | None = None) -> Chunks:
        """Stream the reply; None takes the settings of the request that was fed."""
        return self.stream_reply(None, override(self._drawing, wanted))

    def use_threads(self, threads: Threads) -> None:
        """Use these threads, and the default voice: one that was sent was another client's."""
        super().use_threads(threads)
        if self._voice is not None:
            run_inline(self.choose_voice(None))

    async def mark(self) -> None:
        if self._session is None:
            await self.reset()
        await self.context.engine.call(self.session.take_snapshot)

    async def roll_back(self) -> None:
        result = await self.context.engine.call(self.rollback)
        if not result.success and self._session is not None:
            await self.reset(self._session.id)

    # --- half duplex ---

    async def begin(
        self,
        system_content: str | Sequence[Item],
        *,
        voice: FloatArray | None = None,
        config: HalfDuplexConfig | None = None,
    ) -> str:
        """Begin a fresh conversation, freeing the one before; return the text fed.

        The system content is decoded, best as text, voice sample, text. `voice` is the voice of
        replies, [T] float32 at 16 kHz; None takes the first clip of that content, else the default.
        Raises as `feed_request`.
        """
        chosen = config or HalfDuplexConfig()
        speaks = chosen.tts.enabled
        self._check_voice(voice)
        await self.reset()
        clips = (part for part in system_content if isinstance(part, np.ndarray))
        sample = next(clips, None) if voice is None else voice
        has_own_voice = speaks and sample is not None and self.context.model.can_speak
        await self.choose_voice(sample if has_own_voice else None)
        base = GenerationSettings(generate_audio=speaks, use_speech_template=speaks)
        self._drawing = override(base, chosen.generation)
        content = system_content if isinstance(system_content, str) else list(system_content)
        return await self._feed([Message(Role.SYSTEM.value, content)])

    def decode_items(self, items: Sequence[ContentItem]) -> list[Item]:
        system = WireMessage(role=Role.SYSTEM, content=list(items))
        [message] = model_messages([system], self.context.threads.read_media)
        return list(message.content)

    async def feed_segment(self, segment: FloatArray, frames: Sequence[Image.Image] = ()) -> None:
        """Feed a segment of speech, [T] float32 at 16 kHz, and RGB pictures as the user's turn.

        Raises `NotPreparedError` before `begin`; else as `feed_request`.
        """
        content: list[Item] = [*frames, segment]
        await self._feed([Message(Role.USER.value, content)])

    def answer(self, *, sets_rollback_point: bool = True) -> Chunks:
        return self.stream_reply(self.session.id, self._drawing, takes_snapshot=sets_rollback_point)

    # --- the documented synchronous form ---

    def prefill(self, request: StreamingRequest) -> str:
        """Feed messages as `feed_request` does, and set a rollback point.

        The point lies before a user's turn, so that a turn that fails can be undone, and after
        anything else, such as the system prompt.
        """
        is_turn = request.messages[-1].role is Role.USER
        session = run_inline(self._session_for(request.session_id))
        if is_turn and session.turn.opening is not TurnOpening.CONTINUED:
            session.take_snapshot()
        prompt = run_inline(self.feed_request(request))
        if not is_turn:
            session.take_snapshot()
        return prompt

    def generate(
        self,
        session_id: str,
        generate_audio: bool | None = None,
        max_new_tokens: int | None = None,
        do_sample: bool | None = None,
        enable_speculative_snapshot: bool = False,
        length_penalty: float | None = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        use_tts_template: bool | None = None,
    ) -> Generator[StreamingChunk, None, None]:
        """Iterate over `stream_reply`; None takes the value of the request that was fed.

        A `length_penalty` above 1 makes replies longer.
        """
        wanted: dict[str, Any] = {
            "generate_audio": generate_audio,
            "max_new_tokens": max_new_tokens,
            "do_sample": do_sample,
            "length_penalty": length_penalty,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "use_speech_template": use_tts_template,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        settings = replace(self._drawing, **given)
        stream = self.stream_reply(session_id, settings, takes_snapshot=enable_speculative_snapshot)
        return iterate_inline(stream)

    def rollback(self) -> RollbackResult:
        """Return to the rollback point, which is used up."""
        if self._session is None:
            return RollbackResult(success=False, reason="There is no session.")
        try:
            position = self._session.rollback()
        except SnapshotError as error:
            return RollbackResult(success=False, reason=str(error))
        return RollbackResult(success=True, restored_position=position)

    def clear_rollback_point(self) -> None:
        if self._session is not None:
            self._session.snapshot = None

    async def _session_for(self, session_id: str) -> Session:
        if self._session is None or self._session.id != session_id:
            await self.reset(session_id)
        return self.session

    async def _feed(
        self, messages: Sequence[Message], options: PrefillOptions | None = None
    ) -> str:
        """Feed messages one by one after those in the cache; return the text fed.

        By default they are rendered for a reply as it is drawn. `options.is_last_chunk` applies to
        the last message.
        """
        session, text = self.session, ""
        session.stop.clear()
        options = options or PrefillOptions(use_tts_template=self._drawing.use_speech_template)
        for message in messages:
            is_last = options.is_last_chunk and message is messages[-1]
            chunk = replace(options, is_last_chunk=is_last)
            prompt = await self._rendered(session, message, chunk)
            steps = self.context.model.streaming.prefill(session, prompt, chunk)
            text += await self.context.run(steps)
        return text

    async def _rendered(
        self, session: Session, message: Message, options: PrefillOptions
    ) -> Prompt:
        """Render a message on a thread, so that no other conversation is delayed."""
        processor = self.context.model.processor
        most = session.kv.store.shape.max_position_embeddings
        limited = replace(options, max_tokens=most)

        def render() -> Prompt:
            with model_errors():
                return render_message(processor, session, message, limited)

        return await self.context.threads.run(render)


HalfDuplexView = StreamingView
