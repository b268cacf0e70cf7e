"""Messages and pictures as input rows of the language model, and the cache of system prompts."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.engine.kv_cache import KvHandle, KvRows, Rows
from MiniCPMO45.engine.session import AudioInputState, Session
from MiniCPMO45.engine.steps import EncodeClips, EncodeImages, Steps
from MiniCPMO45.model.audio_encoder import EncodeStream
from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.mel import FIRST_PAD_SAMPLES, UNIT_SAMPLES, as_samples, clip_mels, push
from MiniCPMO45.processing.pictures import Slice, slice_image
from MiniCPMO45.processing.processor import Message, MiniCPMOProcessor, Prompt, PromptOptions
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import GenerationSettings

STREAMING_SLICES = 1  # default slices per picture; source: docs/specification/model.md#4.1


@dataclass(frozen=True)
class PrefillOptions(PromptOptions):
    """Options of one message or one chunk of a user turn; only whole histories number pictures."""

    max_slice_nums: int | None = STREAMING_SLICES
    omni_mode: bool = True
    stream_input: bool = False  # the user's audio continues a live stream and is not a whole clip
    is_last_chunk: bool = False  # this chunk ends the user's turn
    enable_thinking: bool = False  # replies of this conversation begin with a thought
    use_tts_template: bool = True  # replies of this conversation can be spoken


Pieces = list[Sequence[int] | Tensor]
"""Ids, and vectors [n, hidden], to be joined by `Rows.of`."""


def render_message(
    processor: MiniCPMOProcessor, session: Session, message: Message, options: PrefillOptions
) -> Prompt:
    """Render a message as continuation of the cached text; raises `ProcessingError`.

    This and the next two need no weights, but up to seconds: a thread other than the engine's may
    run them while the session is idle.
    """
    content = message.content
    if message.role == "user" and not isinstance(content, str):
        content = list(content)
        if session.audio_input.audio_units == 0:
            pad_first_audio(content)
    frame = _frame(session.turn.opening, message.role, options)
    prompt = processor.render_content(content, frame, replace(options, use_image_id=False))
    is_live = message.role == "user" and options.stream_input
    return replace(prompt if is_live else _with_mels(prompt), roles=(message.role,))


def render_history(
    processor: MiniCPMOProcessor, messages: Sequence[Message], options: PromptOptions | None = None
) -> Prompt:
    """Render a whole history; raises `ProcessingError`. By default a line feed joins parts."""
    return _with_mels(processor.render(messages, options or PrefillOptions(omni_mode=False)))


def render_question(
    processor: MiniCPMOProcessor,
    messages: Sequence[Message],
    settings: GenerationSettings,
    options: PromptOptions | None = None,
) -> Prompt:
    """Render a whole history for `StreamingCapability.reply`; raises `ProcessingError`.

    By default pictures are sliced by the checkpoint's rules and a line feed joins parts. Raises
    `PromptTooLongError` if the prompt exceeds `settings.max_input_tokens`.
    """
    prompt = processor.render(
        messages,
        replace(options or PromptOptions(), max_tokens=settings.max_input_tokens),
        add_generation_prompt=True,
        enable_thinking=settings.enable_thinking,
        use_tts_template=settings.use_speech_template,
    )
    return _with_mels(prompt)


def _with_mels(prompt: Prompt) -> Prompt:
    return replace(prompt, mels=tuple(clip_mels(clip) for clip in prompt.clips))


def embed_stream(
    audio_input: AudioInputState, prompt: Prompt, *, is_last: bool
) -> Steps[list[Tensor]]:
    """Encode live audio unit by unit; an incomplete unit waits for the next chunk.

    The last chunk of a turn `is_last`.
    """
    audio = []
    for number, clip in enumerate(prompt.clips):
        rows: list[Tensor] = []
        parts = as_samples(clip).split(UNIT_SAMPLES)
        for index, part in enumerate(parts):
            is_end = is_last and number == len(prompt.clips) - 1 and index == len(parts) - 1
            is_first = audio_input.mel.core_end == 0  # of the turn: no context precedes its frames
            mel = push(audio_input.mel, part, is_last=is_end)
            if mel.shape[1] == 0:
                continue
            rows.append((yield EncodeStream(mel, audio_input.cache, is_first)))
            audio_input.audio_units += 1
        audio.append(torch.cat(rows) if rows else torch.zeros(0))
    return audio


def pad_first_audio(content: list) -> None:
    """Left-pad the first audio of a conversation to the length of a stream's first unit."""
    for index, part in enumerate(content):
        if isinstance(part, np.ndarray):
            content[index] = np.pad(part, (max(0, FIRST_PAD_SAMPLES - len(part)), 0))
            break


def _frame(opening: TurnOpening, role: str, options: PrefillOptions) -> Callable[[str], str]:
    """Return the function that adds the text around a message's content."""
    if role == "user":
        return lambda content: prompts.user_chunk(content, opening)
    if role == "assistant" and opening is not TurnOpening.FIRST:
        prefix = prompts.reply_prefix(
            enable_thinking=options.enable_thinking,
            use_tts_template=options.use_tts_template,
            is_user_turn_open=opening is TurnOpening.CONTINUED,
        )
        return lambda content: prefix + content
    return lambda content: prompts.message_text(role, content)


def embed_pictures(prompt: Prompt) -> Steps[list[Tensor]]:
    """Encode every slice of the prompt's pictures: one [64, hidden] per image span."""
    slices = tuple(each for picture in prompt.pictures for each in picture.slices)
    if not slices:
        return []
    return list((yield EncodeImages(slices)))


def embed_clips(
    mels: Sequence[list[Tensor]], block_frames: int | None, is_voice: bool
) -> Steps[list[Tensor]]:
    """Encode clips in attention blocks of `block_frames` encoder frames: one [t, hidden] each.

    `mels` are what `clip_mels` made of each clip. `is_voice` as for `EncodeClips`.
    """
    if not mels:
        return []
    parts = tuple(mel for of_clip in mels for mel in of_clip)
    rows = yield EncodeClips(parts, block_frames, is_voice)
    remaining = iter(rows)
    return [torch.cat([next(remaining) for _ in of_clip]) for of_clip in mels]


def lay_out(prompt: Prompt, pictures: Sequence[Tensor], audio: Sequence[Tensor]) -> Rows:
    """Replace the prompt's spans by embeddings: [64, hidden] per slice, [t, hidden] per clip."""
    images = zip(prompt.image_spans, pictures, strict=True)
    sounds = zip(prompt.audio_spans, audio, strict=True)
    pieces: Pieces = []
    position = 0
    for (start, stop), vectors in sorted((*images, *sounds), key=itemgetter(0)):
        pieces += [prompt.ids[position:start], vectors]
        position = stop
    return Rows.of(*pieces, prompt.ids[position:])


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """A picture encoded ahead of its unit."""

    rows: tuple[Tensor, ...]  # [num_queries, hidden] per slice, overview first
    max_slices: int  # the limit that it was sliced with


PreparedFrame = tuple[Slice, ...] | EncodedPicture
Frame = Image.Image | PreparedFrame
"""An RGB picture, its slices, or one that is already encoded."""


def slice_pictures(
    frames: Sequence[Frame], max_slice_nums: int | Sequence[int], config: SliceConfig
) -> list[PreparedFrame]:
    """Slice pictures that are not prepared yet."""
    limits = [max_slice_nums] * len(frames) if isinstance(max_slice_nums, int) else max_slice_nums
    if len(limits) != len(frames):
        raise ValueError(f"max_slice_nums has {len(limits)} entries for {len(frames)} frames")
    for frame in frames:
        if not isinstance(frame, Image.Image | tuple | EncodedPicture):
            raise ValueError(f"a PIL image is needed, not {type(frame).__name__}")
    return [
        slice_image(frame, limit, config).slices if isinstance(frame, Image.Image) else frame
        for frame, limit in zip(frames, limits, strict=True)
    ]


def encode_picture(slices: tuple[Slice, ...], max_slices: int) -> Steps[EncodedPicture]:
    rows = yield EncodeImages(slices)
    return EncodedPicture(tuple(rows), max_slices)


def picture_pieces(
    frames: Sequence[Frame],
    max_slice_nums: int | Sequence[int],
    config: SliceConfig,
    tokens: SpecialTokens,
) -> Steps[tuple[Pieces, int]]:
    """Encode pictures that are not encoded yet, all in one request.

    Returns the input pieces with image and slice tokens, and the number of slices.
    """
    pictures = slice_pictures(frames, max_slice_nums, config)
    unencoded = [picture for picture in pictures if isinstance(picture, tuple)]
    slices = tuple(each for picture in unencoded for each in picture)
    fresh = iter((yield EncodeImages(slices)) if slices else ())
    pieces: Pieces = []
    count = 0
    for picture in pictures:
        start, stop = tokens.image_start, tokens.image_end
        rows = picture.rows if isinstance(picture, EncodedPicture) else islice(fresh, len(picture))
        for each in rows:
            pieces += [(start,), each, (stop,)]
            start, stop = tokens.slice_start, tokens.slice_end
            count += 1
    return pieces, count


MAX_BYTES = 256 << 20  # about twenty prompts with a voice sample at the published size


def prompt_key(
    prefix: Sequence[int], suffix: Sequence[int], voice_sample: np.ndarray | None
) -> Hashable:
    voice = b"" if voice_sample is None else np.asarray(voice_sample, np.float32).tobytes()
    return tuple(prefix), tuple(suffix), hashlib.sha256(voice).digest()


class PromptCache:
    """Keys and values of system prompts; beyond `max_bytes` the least recently used is evicted."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._prompts: OrderedDict[Hashable, KvRows] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._prompts.values())

    def load(self, key: Hashable, kv: KvHandle) -> bool:
        """Copy a prompt into an empty KV cache; return False on a miss."""
        assert kv.length == 0, "a prompt begins a conversation"
        rows = self._prompts.get(key)
        if rows is None:
            return False
        self._prompts.move_to_end(key)
        kv.put(rows)
        return True

    def store(self, key: Hashable, kv: KvHandle) -> None:
        """Store a copy of a whole KV cache, unless it exceeds `max_bytes`."""
        rows = kv.rows(0, kv.length)
        if rows.nbytes > self.max_bytes:
            return
        self._prompts[key] = rows
        while self.nbytes > self.max_bytes:
            self._prompts.popitem(last=False)
