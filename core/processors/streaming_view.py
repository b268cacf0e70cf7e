"""Turn-based chat over a kept cache: prefill messages, stream the reply, roll back a guess."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from core.capabilities import ProcessorMode
from core.processors.content import decode_voice, model_messages
from core.processors.turn_view import TurnOptions, TurnView
from core.processors.wire_settings import generation_settings, speech_sampling
from core.schemas.common import Message as WireMessage
from core.schemas.streaming import (
    RollbackResult,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
)
from MiniCPMO45.message_input import STREAMING_SLICES, PieceOptions
from MiniCPMO45.session import SnapshotError
from MiniCPMO45.settings import GenerationSettings
from MiniCPMO45.streaming import ReplyResult


class StreamingView(TurnView):
    """The documented methods of streaming."""

    mode = ProcessorMode.STREAMING

    def prefill(self, request: StreamingRequest) -> str:
        """Feed messages one by one behind what the cache holds.

        Args:
            request: new messages and how they are read. Its generation and speech settings are
                those of the reply that follows unless `generate` is told otherwise.

        Returns:
            The text fed, media as markers.

        Raises:
            BadPayloadError: a part of a message cannot be used.
            ContextFullError: the conversation is too long for the model.
        """
        messages = model_messages(request.messages, self.context.read_media)
        self._session_for(request.session_id)
        self._choose_voice(request.streaming)
        speech = speech_sampling(request.streaming.tts_sampling)
        reply = generation_settings(request.generation, GenerationSettings(speech=speech))
        self._options = TurnOptions(reply=reply)
        options = PieceOptions(
            max_slice_nums=request.image.max_slice_nums or STREAMING_SLICES,
            omni_mode=request.omni_mode,
            is_last_chunk=request.is_last_chunk,
            enable_thinking=request.enable_thinking,
            use_tts_template=request.use_tts_template,
        )
        return "".join(self.feed(request.session_id, messages, options))

    def non_streaming_prefill(
        self,
        session_id: str,
        msgs: Sequence[WireMessage],
        omni_mode: bool = False,
        max_slice_nums: int | None = None,
        use_tts_template: bool = True,
        enable_thinking: bool = False,
    ) -> str:
        """Feed a whole history into a fresh session as one piece.

        Args:
            session_id: its name.
            msgs: oldest first; the new user message last.
            omni_mode: join parts with nothing between them instead of a line feed.
            max_slice_nums: most slices per picture.
            use_tts_template: the reply can be spoken.
            enable_thinking: let the model think before it answers.

        Returns:
            The text fed, media as markers.

        Raises:
            BadPayloadError: a part of a message cannot be used.
            ContextFullError: the history is too long for the model.
        """
        options = PieceOptions(
            max_slice_nums=max_slice_nums or STREAMING_SLICES,
            omni_mode=omni_mode,
            enable_thinking=enable_thinking,
            use_tts_template=use_tts_template,
        )
        return self.feed_history(session_id, msgs, options)

    def generate(
        self,
        session_id: str,
        generate_audio: bool = True,
        max_new_tokens: int = 256,
        do_sample: bool = True,
        enable_speculative_snapshot: bool = False,
        length_penalty: float = 1.1,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        use_tts_template: bool | None = None,
    ) -> Generator[StreamingChunk, None, ReplyResult]:
        """Answer what was prefilled, piece by piece; the last chunk is final and empty.

        `stop` brings the end near; a generator that is closed stops the reply, too.

        Args:
            session_id: the conversation.
            generate_audio: speak the reply.
            max_new_tokens: most tokens of the reply.
            do_sample: draw at random; False takes the likeliest token.
            enable_speculative_snapshot: keep a point to roll back to.
            length_penalty: above 1 makes replies longer.
            temperature: higher is more varied; None, here and below: as the prefill said.
            top_p: nucleus.
            top_k: candidates kept.
            use_tts_template: ask for a reply that can be spoken.

        Returns:
            The whole reply.

        Raises:
            OutOfOrderError: nothing was prefilled for this session.
        """
        pieces, reply = self._options.pieces, self._options.reply
        if use_tts_template is None:
            use_tts_template = pieces.use_tts_template
        settings = replace(
            reply,
            generate_audio=generate_audio,
            max_new_tokens=max_new_tokens,
            do_sample=do_sample,
            length_penalty=length_penalty,
            temperature=reply.temperature if temperature is None else temperature,
            top_p=reply.top_p if top_p is None else top_p,
            top_k=reply.top_k if top_k is None else top_k,
            use_speech_template=use_tts_template,
            enable_thinking=pieces.enable_thinking,
        )
        spoken = self.stream_reply(
            session_id, settings, enable_speculative_snapshot=enable_speculative_snapshot
        )
        return (yield from self._chunks(spoken))

    def set_rollback_point(self) -> None:
        """Keep the present point to roll back to, instead of one kept before.

        Raises:
            NotPreparedError: there is no session.
        """
        self.session.take_snapshot()

    def can_rollback(self) -> bool:
        """Say whether there is a point to roll back to."""
        return self._session is not None and self._session.can_rollback

    def rollback(self) -> RollbackResult:
        """Return to the point kept before the reply; it is used up."""
        if self._session is None:
            return RollbackResult(success=False, reason="There is no session.")
        try:
            position = self._session.rollback()
        except SnapshotError as error:
            return RollbackResult(success=False, reason=str(error))
        self._has_replied = False
        return RollbackResult(success=True, restored_position=position)

    def clear_rollback_point(self) -> None:
        """Give up the point to roll back to."""
        if self._session is not None:
            self._session.snapshot = None

    def _choose_voice(self, config: StreamingConfig) -> None:
        if config.ref_audio_path:
            self.init_ref_audio(config.ref_audio_path)
        elif config.ref_audio_data:
            self.init_ref_audio_from_data(decode_voice(config.ref_audio_data))
