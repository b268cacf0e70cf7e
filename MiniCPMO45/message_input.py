"""The input side of a turn-based conversation: one message or piece as prompt rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45 import prompts
from MiniCPMO45.audio_features import as_samples
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig, StreamTiming
from MiniCPMO45.processing_minicpmo import Message, MiniCPMOProcessor, Prompt, PromptOptions
from MiniCPMO45.prompt_embedding import Pieces, embed_clips, embed_pictures, lay_out
from MiniCPMO45.prompts import TurnOpening
from MiniCPMO45.session import HearingState, Session
from MiniCPMO45.steps import EncodeStream, Steps
from MiniCPMO45.streaming_mel import push

STREAMING_SLICES = 1  # slices per picture where the caller does not say; source: spec, 4.1


@dataclass(frozen=True)
class PieceOptions:
    """How one message or piece is read.

    Attributes:
        max_slice_nums: most slices per picture.
        omni_mode: join parts with nothing between them instead of a line feed.
        stream_input: the user's sound is the next part of a live stream, not a whole clip.
        is_last_chunk: nothing follows this piece in the user's turn.
        enable_thinking: the replies of this conversation begin with a thought.
        use_tts_template: the replies of this conversation can be spoken.
        use_image_id: number the pictures of a whole history; None for the folder's default.
        max_tokens: refuse a longer prompt; None for no limit.
    """

    max_slice_nums: int = STREAMING_SLICES
    omni_mode: bool = True
    stream_input: bool = False
    is_last_chunk: bool = False
    enable_thinking: bool = False
    use_tts_template: bool = True
    use_image_id: bool | None = None
    max_tokens: int | None = None


class MessageInput:
    """Renders and embeds messages; holds no conversation."""

    def __init__(self, config: MiniCPMOConfig, processor: MiniCPMOProcessor) -> None:
        self.config = config
        self.processor = processor
        self.timing = StreamTiming()

    def render_message(self, session: Session, message: Message, options: PieceOptions) -> Prompt:
        """Lay out one message behind what the cache ends with.

        Raises:
            ProcessingError: a part of the message cannot be used.
        """
        content = message.content
        if message.role == "user" and not isinstance(content, str):
            content = self._led_by_silence(session.hearing, list(content))
        return self.processor.render_piece(
            content, _frame(session, message.role, options), self._prompt_options(options)
        )

    def render_history(self, messages: Sequence[Message], options: PieceOptions) -> Prompt:
        """Lay out a whole closed history with the chat template.

        Raises:
            ProcessingError: a part of a message cannot be used.
            PromptTooLongError: the prompt exceeds `options.max_tokens`.
        """
        numbered = replace(self._prompt_options(options), use_image_id=options.use_image_id)
        return self.processor.render(messages, numbered)

    def embed_message(
        self, session: Session, prompt: Prompt, role: str, options: PieceOptions
    ) -> Steps[Pieces]:
        """Encode one message's media and put them in their slots.

        Args:
            session: the conversation; a live stream's state goes on.
            prompt: what `render_message` returned.
            role: only the user's sound may be a live stream.
            options: how the piece is read.
        """
        pictures = yield from embed_pictures(prompt)
        if options.stream_input and role == "user":
            sounds = yield from self._embed_stream(session.hearing, prompt, options)
        else:
            sounds = yield from embed_clips(prompt, block_frames=None)
        return lay_out(prompt, pictures, sounds)

    def embed_history(self, session: Session, prompt: Prompt) -> Steps[Pieces]:
        """Encode the media of a whole history, sound in blocks of a second."""
        pictures = yield from embed_pictures(prompt)
        sounds = yield from embed_clips(prompt, self.config.audio_block_frames)
        return lay_out(prompt, pictures, sounds)

    def _prompt_options(self, options: PieceOptions) -> PromptOptions:
        return PromptOptions(
            max_slice_nums=options.max_slice_nums,
            use_image_id=False,
            omni_mode=options.omni_mode,
            max_tokens=options.max_tokens,
        )

    def _led_by_silence(self, hearing: HearingState, content: list) -> list:
        """Lead the first sound of a conversation by zeros up to the first chunk's length."""
        if hearing.audio_units > 0:
            return content
        for index, part in enumerate(content):
            if isinstance(part, np.ndarray):
                missing = max(0, self.timing.first_pad_samples - len(part))
                content[index] = np.pad(part, (missing, 0))
                break
        return content

    def _embed_stream(
        self, hearing: HearingState, prompt: Prompt, options: PieceOptions
    ) -> Steps[list[Tensor]]:
        """Encode live sound second by second; what is not a whole unit yet waits."""
        context = self.timing.redundancy_frames
        sounds = []
        for number, clip in enumerate(prompt.clips):
            is_last_clip = options.is_last_chunk and number == len(prompt.clips) - 1
            rows: list[Tensor] = []
            parts = as_samples(clip).split(self.timing.unit_samples)
            for index, part in enumerate(parts):
                is_last = is_last_clip and index == len(parts) - 1
                mel = push(hearing.mel, part, is_last=is_last, timing=self.timing)
                if mel.shape[1] == 0:
                    continue
                prefix = 0 if hearing.audio_units == 0 else context
                rows.append((yield EncodeStream(mel, hearing.cache, prefix, context)))
                hearing.audio_units += 1
            sounds.append(torch.cat(rows) if rows else torch.zeros(0, self.config.hidden_size))
        return sounds


def _frame(session: Session, role: str, options: PieceOptions) -> Callable[[str], str]:
    """The text around one message's content, given what the cache ends with."""
    opening = session.turn.opening
    if role == "user":
        return lambda content: prompts.user_piece(content, opening)
    if role == "assistant" and opening is not TurnOpening.FIRST:
        prefix = prompts.reply_prefix(
            enable_thinking=options.enable_thinking,
            use_tts_template=options.use_tts_template,
            is_user_turn_open=opening is TurnOpening.CONTINUED,
        )
        return lambda content: prefix + content
    return lambda content: prompts.message_text(role, content)
