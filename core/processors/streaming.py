"""Turn-based chat over a kept cache: feed messages, stream the reply, roll back a guess.

view = StreamingView(context)
await view.feed_request(request)                 # new messages, behind what the cache holds
async for chunk in view.reply("session", Generate()): ...   # what it came to is `view.reply_end`
view.stop()                                      # end the reply under way
await view.roll_back()                           # undo the turn that `mark` began
await view.close()
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import replace
from typing import Any, Final

from core.audio import FloatArray, decode_voice
from core.capabilities import ProcessorMode
from core.engine.engine import run_inline
from core.processors.content import generation_settings, read_voice, speech_sampling
from core.processors.turns import TurnOptions, TurnView
from core.processors.view import iterate_inline
from core.schemas.streaming import (
    Generate,
    RollbackResult,
    StreamingChunk,
    StreamingConfig,
    StreamingRequest,
)
from MiniCPMO45.engine.session import SnapshotError
from MiniCPMO45.modes.prompt_input import STREAMING_SLICES, PieceOptions
from MiniCPMO45.settings import GenerationSettings

REPLY_FIELDS: Final = set(
    "generate_audio max_new_tokens do_sample length_penalty temperature top_p top_k "
    "reply_start".split()
)
"""Fields of a `Generate` that are settings of the model under the same name."""


class StreamingView(TurnView):
    mode = ProcessorMode.STREAMING

    # --- the conversation ---

    async def feed_request(self, request: StreamingRequest) -> str:
        """Feed messages one by one behind what the cache holds; return the text, media as markers.

        The request's generation and speech settings are those of the reply that follows unless
        `reply` says otherwise.

        Raises:
            BadPayloadError: a part of a message cannot be used.
            ContextFullError: the conversation is too long for the model.
        """
        messages = await self.decode(request.messages)
        await self._session_for(request.session_id)
        await self._use_voice_of(request.streaming)
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
        return "".join(await self.feed(request.session_id, messages, options))

    def reply(self, session_id: str, wanted: Generate) -> AsyncGenerator[StreamingChunk, None]:
        """Answer what was fed, piece by piece; see `stream_reply`."""
        return self.stream_reply(
            session_id, self._settings(wanted.model_dump(include=REPLY_FIELDS))
        )

    async def mark(self, session_id: str) -> None:
        """Keep the present point to roll back to, instead of one kept before."""
        if self._session is None:
            await self.reset(session_id)
        await self.context.engine.call(self.set_rollback_point)

    async def roll_back(self) -> None:
        """Return to the point kept; without one, begin afresh."""
        result = await self.context.engine.call(self.rollback)
        if not result.success and self._session is not None:
            await self.reset(self._session.id)

    # --- the documented synchronous form ---

    def prefill(self, request: StreamingRequest) -> str:
        return run_inline(self.feed_request(request))

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
    ) -> Generator[StreamingChunk, None, None]:
        """Iterate over `reply`; what is None is as the prefill said.

        A `length_penalty` above 1 makes replies longer; `enable_speculative_snapshot` keeps a point
        to roll back to.

        Raises:
            OutOfOrderError: nothing was prefilled for this session.
        """
        settings = self._settings(
            {
                "generate_audio": generate_audio,
                "max_new_tokens": max_new_tokens,
                "do_sample": do_sample,
                "length_penalty": length_penalty,
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "use_speech_template": use_tts_template,
            }
        )
        return iterate_inline(
            self.stream_reply(
                session_id, settings, enable_speculative_snapshot=enable_speculative_snapshot
            )
        )

    def set_rollback_point(self) -> None:
        self.session.take_snapshot()

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
        if self._session is not None:
            self._session.snapshot = None

    def _settings(self, wanted: Mapping[str, Any]) -> GenerationSettings:
        """Return how the reply is drawn; what `wanted` leaves open is as the prefill said."""
        pieces = self._options.pieces
        usual = replace(
            self._options.reply,
            use_speech_template=pieces.use_tts_template,
            enable_thinking=pieces.enable_thinking,
        )
        return replace(usual, **{key: value for key, value in wanted.items() if value is not None})

    async def _use_voice_of(self, config: StreamingConfig) -> None:
        """Choose the voice that a request brings, if it brings one that can be used."""
        path, data = config.ref_audio_path, config.ref_audio_data
        if not path and not data:
            return

        def read() -> FloatArray | None:
            return read_voice(path) if path else decode_voice(data)

        voice = await self.context.threads.run(read)
        self._check_voices(voice)
        if self.context.model.can_speak:
            await self.choose_voice(voice)
