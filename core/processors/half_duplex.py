"""Half duplex: a conversation whose user turns are segments of speech cut from a live sound.

view = processor.set_half_duplex_mode()
await view.begin("Be brief.")
await view.mark()                              # where a turn that fails is undone to
await view.feed_segment(segment)                       # the user's turn
async for chunk in view.answer(): ...          # the model's
view.stop()                                    # end the answer under way
await view.close()
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import numpy as np
from PIL import Image

from core.audio import FloatArray
from core.engine.engine import run_inline
from core.processors.content import Item, generation_settings, model_items
from core.processors.streaming import StreamingView
from core.processors.turns import TurnOptions
from core.schemas.common import ContentItem, Role
from core.schemas.half_duplex import HalfDuplexConfig
from core.schemas.streaming import StreamingChunk, StreamingRequest
from MiniCPMO45.modes.prompt_input import PieceOptions
from MiniCPMO45.processing.processor import Message
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.settings import GenerationSettings

HALF_DUPLEX_SESSION = "half_duplex"


class HalfDuplexView(StreamingView):
    # --- the conversation ---

    async def begin(
        self,
        system_content: str | Sequence[Item],
        *,
        voice: FloatArray | None = None,
        config: HalfDuplexConfig | None = None,
        session_id: str = HALF_DUPLEX_SESSION,
    ) -> str:
        """Begin a fresh conversation, freeing the one before; return the text fed.

        The system content is decoded, best as text, voice sample, text. `voice` is spoken with,
        [T] float32 at 16 kHz; None takes the first sound of that content, else the default voice.

        Raises:
            AudioError: the recording cannot serve as a voice.
            BadPayloadError: a part of the content cannot be used.
        """
        chosen = config or HalfDuplexConfig()
        speaks = chosen.tts.enabled
        self._check_voices(voice)
        await self.reset(session_id)
        sample = voice
        if sample is None and not isinstance(system_content, str):
            sample = next((part for part in system_content if isinstance(part, np.ndarray)), None)
        has_own_voice = speaks and sample is not None and self.context.model.can_speak
        await self.choose_voice(sample if has_own_voice else None)
        base = GenerationSettings(generate_audio=speaks, use_speech_template=speaks)
        self._options = TurnOptions(reply=generation_settings(chosen.generation, base))
        options = PieceOptions(use_tts_template=speaks)
        content = system_content if isinstance(system_content, str) else list(system_content)
        [prompt] = await self.feed(session_id, [Message(Role.SYSTEM.value, content)], options)
        self._has_replied = True  # what follows is a turn of its own in the counts
        return prompt

    def decode_items(self, items: Sequence[ContentItem]) -> list[Item]:
        """Decode the parts of the system content; blocks. Errors as of `model_items`."""
        return model_items(items, self.context.threads.read_media)

    async def feed_segment(self, segment: FloatArray, frames: Sequence[Image.Image] = ()) -> None:
        """Feed one segment of speech, [T] float32 at 16 kHz, as the user's turn, with RGB pictures.

        Raises:
            NotPreparedError: the conversation has not begun.
            BadPayloadError: the segment cannot be used.
            ContextFullError: the conversation is too long for the model.
        """
        content: list[Item] = [*frames, segment]
        message = Message(Role.USER.value, content)
        await self.feed(self.session.id, [message], self._options.pieces)

    def answer(self, *, sets_rollback_point: bool = True) -> AsyncGenerator[StreamingChunk, None]:
        """Answer the user's turn, piece by piece; see `stream_reply`.

        With `sets_rollback_point` the point before the answer replaces the one to roll back to.
        """
        return self.stream_reply(
            self.session.id,
            self._options.reply,
            enable_speculative_snapshot=sets_rollback_point,
        )

    # --- the documented synchronous form ---

    def prefill(self, request: StreamingRequest) -> str:
        """Feed messages and keep a point to roll back to.

        The point lies in front of a user's turn, so that a turn that fails can be undone, and
        behind anything else, such as the system prompt. Arguments and errors are those of
        `StreamingView.feed_request`.
        """
        is_turn = request.messages[-1].role is Role.USER
        session = run_inline(self._session_for(request.session_id))
        if is_turn and session.turn.opening is not TurnOpening.CONTINUED:
            session.take_snapshot()
        prompt = super().prefill(request)
        if not is_turn:
            self.set_rollback_point()
        return prompt
