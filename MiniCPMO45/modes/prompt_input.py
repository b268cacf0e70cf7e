"""From messages to the rows the language model is fed; system prompts are kept by content."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig, SliceConfig
from MiniCPMO45.engine.kv_cache import KvHandle, KvRows
from MiniCPMO45.engine.session import AudioInputState, Session
from MiniCPMO45.engine.steps import Embeddings, EncodeClips, EncodeImages, Steps, TokenIds
from MiniCPMO45.model.audio_encoder import EncodeStream
from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.mel import (
    CONTEXT_FRAMES,
    FIRST_PAD_SAMPLES,
    UNIT_SAMPLES,
    as_samples,
    clip_mels,
    push,
)
from MiniCPMO45.processing.pictures import Slice, slice_image
from MiniCPMO45.processing.processor import Message, MiniCPMOProcessor, Prompt, PromptOptions
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.processing.tokenizer import SpecialTokens

STREAMING_SLICES = 1  # slices per picture where the caller does not say; source: spec, 4.1


@dataclass(frozen=True)
class PieceOptions(PromptOptions):
    """How one message or piece is read; its pictures are numbered in a whole history alone.

    Attributes:
        stream_input: the user's audio is the next part of a live stream, not a whole clip.
        is_last_chunk: nothing follows this piece in the user's turn.
        enable_thinking: the replies of this conversation begin with a thought.
        use_tts_template: the replies of this conversation can be spoken.
    """

    max_slice_nums: int | None = STREAMING_SLICES
    omni_mode: bool = True
    stream_input: bool = False
    is_last_chunk: bool = False
    enable_thinking: bool = False
    use_tts_template: bool = True


class MessageInput:
    def __init__(self, config: MiniCPMOConfig, processor: MiniCPMOProcessor) -> None:
        self.config = config
        self.processor = processor

    def render_message(self, session: Session, message: Message, options: PieceOptions) -> Prompt:
        """Lay out a message behind what the cache ends with; raises `ProcessingError`."""
        content = message.content
        if message.role == "user" and not isinstance(content, str):
            content = self._led_by_silence(session.audio_input, list(content))
        frame = _frame(session, message.role, options)
        return self.processor.render_piece(content, frame, replace(options, use_image_id=False))

    def render_history(self, messages: Sequence[Message], options: PieceOptions) -> Prompt:
        """Lay out a closed history; raises `ProcessingError` or `PromptTooLongError`."""
        return self.processor.render(messages, options)

    def embed_message(
        self, session: Session, prompt: Prompt, role: str, options: PieceOptions
    ) -> Steps[Pieces]:
        """Encode a message's media; only a user's live stream continues in the session."""
        pictures = yield from embed_pictures(prompt)
        if options.stream_input and role == "user":
            audio = yield from self._embed_stream(session.audio_input, prompt, options)
        else:
            audio = yield from embed_clips(prompt, block_frames=None)
        return lay_out(prompt, pictures, audio)

    def embed_history(self, session: Session, prompt: Prompt) -> Steps[Pieces]:
        """Encode the media of a whole history, audio in blocks of a second."""
        pictures = yield from embed_pictures(prompt)
        audio = yield from embed_clips(prompt, self.config.audio_block_frames)
        return lay_out(prompt, pictures, audio)

    def _led_by_silence(self, audio_input: AudioInputState, content: list) -> list:
        """Lead the first audio of a conversation by zeros up to the first chunk's length."""
        if audio_input.audio_units > 0:
            return content
        for index, part in enumerate(content):
            if isinstance(part, np.ndarray):
                missing = max(0, FIRST_PAD_SAMPLES - len(part))
                content[index] = np.pad(part, (missing, 0))
                break
        return content

    def _embed_stream(
        self, audio_input: AudioInputState, prompt: Prompt, options: PieceOptions
    ) -> Steps[list[Tensor]]:
        """Encode live audio second by second; what is not a whole unit yet waits."""
        audio = []
        for number, clip in enumerate(prompt.clips):
            is_last_clip = options.is_last_chunk and number == len(prompt.clips) - 1
            rows: list[Tensor] = []
            parts = as_samples(clip).split(UNIT_SAMPLES)
            for index, part in enumerate(parts):
                is_last = is_last_clip and index == len(parts) - 1
                mel = push(audio_input.mel, part, is_last=is_last)
                if mel.shape[1] == 0:
                    continue
                prefix = 0 if audio_input.audio_units == 0 else CONTEXT_FRAMES
                rows.append((yield EncodeStream(mel, audio_input.cache, prefix, CONTEXT_FRAMES)))
                audio_input.audio_units += 1
            audio.append(torch.cat(rows) if rows else torch.zeros(0, self.config.hidden_size))
        return audio


def _frame(session: Session, role: str, options: PieceOptions) -> Callable[[str], str]:
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


Pieces = tuple[TokenIds | Embeddings, ...]


def embed_pictures(prompt: Prompt) -> Steps[list[Tensor]]:
    """Encode every slice of the prompt's pictures; one [64, hidden] per image span."""
    slices = tuple(each for picture in prompt.pictures for each in picture.slices)
    if not slices:
        return []
    rows = yield EncodeImages(slices)
    return list(rows)


def embed_clips(prompt: Prompt, block_frames: int | None) -> Steps[list[Tensor]]:
    """Encode clips in attention blocks of `block_frames` encoder frames: one [t, hidden] each.

    A clip above 30 s is encoded in pieces and joined.
    """
    mels = [clip_mels(clip) for clip in prompt.clips]
    if not mels:
        return []
    rows = yield EncodeClips(tuple(mel for of_clip in mels for mel in of_clip), block_frames)
    remaining = iter(rows)
    return [torch.cat([next(remaining) for _ in of_clip]) for of_clip in mels]


def lay_out(prompt: Prompt, pictures: Sequence[Tensor], audio: Sequence[Tensor]) -> Pieces:
    """Put embeddings, [64, hidden] per picture slice and [t, hidden] per clip, in their slots."""
    slots = sorted(
        [*zip(prompt.image_spans, pictures, strict=True)]
        + [*zip(prompt.audio_spans, audio, strict=True)],
        key=lambda slot: slot[0],
    )
    pieces: list[TokenIds | Embeddings] = []
    position = 0
    for (start, stop), rows in slots:
        pieces.append(TokenIds(prompt.ids[position:start]))
        if len(rows):
            pieces.append(Embeddings(rows))
        position = stop
    if position < len(prompt.ids):
        pieces.append(TokenIds(prompt.ids[position:]))
    return tuple(pieces)


@dataclass(frozen=True, eq=False)
class SlicedPicture:
    slices: tuple[Slice, ...]


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """A picture encoded ahead of its unit, sliced by the limit `max_slices`.

    `rows` are [num_queries, hidden] of each slice: the whole picture first, then its parts.
    """

    rows: tuple[Tensor, ...]
    max_slices: int


PreparedFrame = SlicedPicture | EncodedPicture
"""A picture of which at least the slices are made."""

Frame = Image.Image | PreparedFrame
"""An RGB picture, prepared or not."""


def slice_pictures(
    frames: Sequence[Frame], max_slice_nums: int | Sequence[int], config: SliceConfig
) -> list[PreparedFrame]:
    """Cut pictures into slices, but for those that are prepared already.

    Raises:
        ValueError: a list of limits whose length differs from the frames'.
    """
    limits = [max_slice_nums] * len(frames) if isinstance(max_slice_nums, int) else max_slice_nums
    if len(limits) != len(frames):
        raise ValueError(f"max_slice_nums has {len(limits)} entries for {len(frames)} frames")
    return [
        SlicedPicture(slice_image(frame, limit, config).slices)
        if isinstance(frame, Image.Image)
        else frame
        for frame, limit in zip(frames, limits, strict=True)
    ]


def encode_picture(picture: SlicedPicture, max_slices: int) -> Steps[EncodedPicture]:
    rows = yield EncodeImages(picture.slices)
    return EncodedPicture(tuple(rows), max_slices)


def picture_pieces(
    frames: Sequence[Frame],
    max_slice_nums: int | Sequence[int],
    config: SliceConfig,
    tokens: SpecialTokens,
) -> Steps[tuple[list[TokenIds | Embeddings], int]]:
    """Encode pictures, unless that was done ahead, and lay them out between their marks.

    Returns the prompt pieces, and the number of slices.
    """
    pictures = slice_pictures(frames, max_slice_nums, config)
    unencoded = [each for each in pictures if isinstance(each, SlicedPicture)]
    slices = tuple(each for picture in unencoded for each in picture.slices)
    encoded = iter((yield EncodeImages(slices)) if slices else ())
    pieces: list[TokenIds | Embeddings] = []
    count = 0
    for picture in pictures:
        if isinstance(picture, EncodedPicture):
            rows = picture.rows
        else:
            rows = tuple(islice(encoded, len(picture.slices)))
        pieces += _between_marks(rows, tokens)
        count += len(rows)
    return pieces, count


def _between_marks(rows: Sequence[Tensor], tokens: SpecialTokens) -> list[TokenIds | Embeddings]:
    pieces: list[TokenIds | Embeddings] = []
    for index, each in enumerate(rows):
        is_source = index == 0
        opening = tokens.image_start if is_source else tokens.slice_start
        closing = tokens.image_end if is_source else tokens.slice_end
        pieces += [TokenIds((opening,)), Embeddings(each), TokenIds((closing,))]
    return pieces


MAX_BYTES = 256 << 20  # some twenty prompts with a voice sample at the published size


def prompt_key(
    prefix: Sequence[int], suffix: Sequence[int], voice_sample: np.ndarray | None
) -> str:
    digest = hashlib.sha256()
    for part in (prefix, suffix):
        digest.update(np.array([len(part), *part], np.int64).tobytes())
    if voice_sample is not None:
        digest.update(np.asarray(voice_sample, np.float32).tobytes())
    return digest.hexdigest()


class PromptCache:
    """The rows of the prompts used last; the least recently used is evicted first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._prompts: OrderedDict[str, KvRows] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._prompts.values())

    def recall(self, key: str, kv: KvHandle) -> bool:
        """Copy a prompt into an empty cache; False if it is not kept."""
        assert kv.length == 0, "a prompt begins a conversation"
        rows = self._prompts.get(key)
        if rows is None:
            return False
        self._prompts.move_to_end(key)
        kv.put(rows)
        return True

    def keep(self, key: str, kv: KvHandle) -> None:
        """Keep a copy of all that a cache holds, unless it is larger than `max_bytes`."""
        rows = kv.rows(0, kv.length)
        if rows.nbytes > self.max_bytes:
            return
        self._prompts[key] = rows
        while self.nbytes > self.max_bytes:
            self._prompts.popitem(last=False)
