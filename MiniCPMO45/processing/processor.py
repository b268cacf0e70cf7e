"""`MiniCPMOProcessor`: messages of text, pictures and sound as token ids and media placeholders.

Runs on the CPU without weights and validates every message part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from transformers import ProcessorMixin, WhisperFeatureExtractor

from MiniCPMO45.processing.mel import (
    MIN_CLIP_SAMPLES,
    ProcessingError,
    checked_sound,
    embedding_count,
)
from MiniCPMO45.processing.pictures import (
    MiniCPMOImageProcessor,
    SlicedImage,
    slice_image,
    to_rgb,
)
from MiniCPMO45.processing.prompts import AUDIO_MARKER, IMAGE_MARKER, audio_placeholder
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast

Part = str | Image.Image | np.ndarray
Content = str | Sequence["Part | Sequence[Part]"]
Span = tuple[int, int]
"""Token positions [start, stop)."""

_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "token")

# While a prompt is rendered, Unicode noncharacters stand for media: no text may contain them, so a
# marker that a user types remains text.
_IMAGE_CODE, _AUDIO_CODE = "\ufdd0", "\ufdd1"
_NO_CODES = {ord(_IMAGE_CODE): None, ord(_AUDIO_CODE): None}
_AT_MEDIA = re.compile(f"([{_IMAGE_CODE}{_AUDIO_CODE}])")

# A longer text is encoded in pieces first, so that one far too long is refused early.
PIECE_CHARACTERS = 32_768  # ours: some 10 ms; the interpreter's lock is held for a part of them
CUT_TOKENS = 16  # ours: a piece has at most so many tokens more than its part of the whole


class PromptTooLongError(ProcessingError):
    """A prompt has more tokens than are allowed."""


@dataclass(frozen=True)
class Message:
    """One message; pictures are PIL images, sounds [n] float32 mono at 16 kHz.

    A sequence inside the content is a video clip: its parts are joined without a separator.
    """

    role: str
    content: Content


@dataclass(frozen=True)
class PromptOptions:
    """Options of prompt rendering; None takes the checkpoint's default."""

    max_slice_nums: int | None = None  # most slices per picture
    use_image_id: bool | None = None  # number the pictures
    omni_mode: bool = False  # join parts without a separator instead of a line feed
    max_tokens: int | None = None  # refuse longer prompts; None for no limit


@dataclass(frozen=True, eq=False)
class Prompt:
    """A tokenized prompt and its media."""

    text: str  # the prompt with media markers
    ids: tuple[int, ...]  # the prompt with `<unk>` for each embedding
    pictures: tuple[SlicedImage, ...]
    clips: tuple[np.ndarray, ...]
    image_spans: tuple[Span, ...]  # the `<unk>` of each slice, in order
    audio_spans: tuple[Span, ...]  # the `<unk>` of each sound, in order
    roles: tuple[str, ...] = ()  # of its messages
    mels: tuple[list[Tensor], ...] = ()  # of each whole clip, as `clip_mels`; () if not computed


class MiniCPMOProcessor(ProcessorMixin):
    def __init__(
        self,
        image_processor: MiniCPMOImageProcessor,
        feature_extractor: WhisperFeatureExtractor,
        tokenizer: MiniCPMOTokenizerFast,
    ) -> None:
        super().__init__(image_processor, feature_extractor, tokenizer)
        self.image_processor = image_processor
        self.feature_extractor = feature_extractor
        self.tokenizer = tokenizer
        self._newline = tuple(tokenizer.encode("\n"))

    @classmethod
    def of(cls, tokenizer: MiniCPMOTokenizerFast) -> MiniCPMOProcessor:
        return cls(MiniCPMOImageProcessor(), WhisperFeatureExtractor(), tokenizer)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the classes are fixed, not looked up
        cls, pretrained_model_name_or_path: str | Path, **options: Any
    ) -> MiniCPMOProcessor:
        """Load the tokenizer files and `preprocessor_config.json` of a checkpoint.

        Options are those of the hub: `cache_dir`, `revision`, `token`, `local_files_only`,
        `force_download`.

        Raises:
            TokenizerError: the tokenizer files are unusable.
            ProcessingError: `preprocessor_config.json` is missing or damaged.
        """
        hub = {name: value for name, value in options.items() if name in _HUB_OPTIONS}
        tokenizer = MiniCPMOTokenizerFast.from_pretrained(pretrained_model_name_or_path, **hub)
        try:
            return cls(
                MiniCPMOImageProcessor.from_pretrained(pretrained_model_name_or_path, **hub),
                WhisperFeatureExtractor.from_pretrained(pretrained_model_name_or_path, **hub),
                tokenizer,
            )
        except (OSError, ValueError) as error:
            raise ProcessingError(str(error)) from error

    def __call__(
        self,
        images: Any = None,
        text: Any = None,
        videos: Any = None,
        audio: Any = None,
        **options: Any,
    ) -> Any:
        """Encode text, or pictures or sounds, each without the others.

        Raises:
            ProcessingError: text with media, which would have no placeholders in it.
        """
        if text is not None and any(each is not None for each in (images, videos, audio)):
            raise ProcessingError(
                "processor(...) takes text without pictures and sounds; processor.render(messages) "
                "makes prompts of all of them"
            )
        return super().__call__(images, text, videos, audio, **options)

    def apply_chat_template(  # type: ignore[override]  # the tokenizer's options
        self,
        conversation: Sequence[Any],
        *,
        tokenize: bool = False,
        return_dict: bool = False,
        **options: Any,
    ) -> Any:
        """Apply the tokenizer's chat template to messages of text, or to lists of such messages.

        Raises:
            ProcessingError: a part is not text; `render` takes pictures and sounds.
        """
        rows = [_as_text(each) for each in conversation]
        return self.tokenizer.apply_chat_template(
            rows, tokenize=tokenize, return_dict=return_dict, **options
        )

    def render(
        self,
        messages: Sequence[Message],
        options: PromptOptions | None = None,
        *,
        add_generation_prompt: bool = False,
        enable_thinking: bool = False,
        use_tts_template: bool = False,
    ) -> Prompt:
        """Render messages with the chat template; with sound, always for a spoken reply.

        Raises:
            ProcessingError: a part cannot be used.
            PromptTooLongError: the prompt exceeds `options.max_tokens`.
        """
        options = options or PromptOptions()
        parts: list[Part] = []
        rows = [
            {"role": m.role, "content": _content_text(m.content, options, parts)} for m in messages
        ]
        has_sound = any(isinstance(part, np.ndarray) for part in parts)
        text = self.tokenizer.render_chat(
            rows,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=enable_thinking,
            use_tts_template=use_tts_template or has_sound,
        )
        return replace(self._prompt(text, parts, options), roles=tuple(m.role for m in messages))

    def render_content(
        self, content: Content, frame: Callable[[str], str], options: PromptOptions | None = None
    ) -> Prompt:
        """Render the content of one message, or a chunk of it, inside the text that `frame` adds.

        Raises as `render`.
        """
        options, parts = options or PromptOptions(), list[Part]()
        return self._prompt(frame(_content_text(content, options, parts)), parts, options)

    def _prompt(self, text: str, parts: Iterable[Part], options: PromptOptions) -> Prompt:
        slicing, special = self.image_processor.slicing, self.tokenizer.special
        max_slices = options.max_slice_nums or slicing.max_slice_nums
        pictures, clips = [], []
        for part in parts:
            if isinstance(part, Image.Image):
                try:
                    pictures.append(slice_image(part, max_slices, slicing))
                except ValueError as error:
                    raise ProcessingError(f"a picture cannot be used: {error}") from error
            elif isinstance(part, np.ndarray):
                clips.append(part)
        if (text.count(_IMAGE_CODE), text.count(_AUDIO_CODE)) != (len(pictures), len(clips)):
            raise ProcessingError("the chat template dropped or repeated a picture or a sound")
        placeholders = {
            _IMAGE_CODE: (
                self._image_placeholder(number, picture.grid, options)
                for number, picture in enumerate(pictures)
            ),
            _AUDIO_CODE: (audio_placeholder(embedding_count(len(clip)), special) for clip in clips),
        }
        ids: list[int] = []
        spans: dict[str, list[Span]] = {_IMAGE_CODE: [], _AUDIO_CODE: []}
        for segment in _AT_MEDIA.split(text):
            if segment in spans:
                for is_slot, run in groupby(next(placeholders[segment]), special.unk.__eq__):
                    start = len(ids)
                    ids += run
                    spans[segment] += [(start, len(ids))] if is_slot else []
            else:  # a listen token in the text would be read as a decision
                if options.max_tokens is not None:
                    self._check_text(segment, len(ids), options.max_tokens)
                encoded = self.tokenizer.encode(segment)
                ids += [token for token in encoded if token != special.listen]
        if options.max_tokens is not None and len(ids) > options.max_tokens:
            raise _too_long(str(len(ids)), options.max_tokens)
        return Prompt(
            text=text.replace(_IMAGE_CODE, IMAGE_MARKER).replace(_AUDIO_CODE, AUDIO_MARKER),
            ids=tuple(ids),
            pictures=tuple(pictures),
            clips=tuple(clips),
            image_spans=tuple(spans[_IMAGE_CODE]),
            audio_spans=tuple(spans[_AUDIO_CODE]),
        )

    def _check_text(self, text: str, before: int, most: int) -> None:
        """Refuse text that certainly exceeds `most` tokens, together with those `before` it."""
        for start in range(0, len(text), PIECE_CHARACTERS):
            if before > most:
                raise _too_long(f"more than {most}", most)
            if len(text) > PIECE_CHARACTERS:
                piece = text[start : start + PIECE_CHARACTERS]
                before += max(0, len(self.tokenizer.encode(piece)) - CUT_TOKENS)

    def _image_placeholder(
        self, number: int, grid: tuple[int, int] | None, options: PromptOptions
    ) -> list[int]:
        """Return the ids of a picture, with `<unk>` for the embeddings of each slice."""
        processor, special = self.image_processor, self.tokenizer.special
        slots = [special.unk] * processor.image_feature_size
        ids = [special.image_start, *slots, special.image_end]
        use_id = options.use_image_id
        if processor.use_image_id if use_id is None else use_id:
            digits = self.tokenizer.encode(str(number))
            ids = [special.image_id_start, *digits, special.image_id_end, *ids]
        columns, rows = grid or (0, 0)
        for row in range(rows):
            ids += self._newline if row else ()
            ids += [special.slice_start, *slots, special.slice_end] * columns
        return ids


def _as_text(message: Any) -> Any:
    """Return a message with the text parts of its content joined; also for lists of messages."""
    if not isinstance(message, Mapping):
        return [_as_text(each) for each in message]
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    for part, text in zip(content, texts, strict=True):
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ProcessingError(
                f"apply_chat_template takes text, not {kind}; processor.render(messages) makes "
                "prompts of pictures and sounds"
            )
    return {**message, "content": "".join(texts)}


def _too_long(count: str, most: int) -> PromptTooLongError:
    return PromptTooLongError(
        f"the prompt has {count} tokens, at most {most} are allowed;"
        " shorten the history, the audio or the pictures"
    )


def _content_text(content: Content, options: PromptOptions, parts: list[Part]) -> str:
    """Return the text with a code for each medium, and append the validated parts to `parts`."""
    texts = []
    for item in [content] if isinstance(content, str) else content:
        group = item if isinstance(item, list | tuple) else (item,)
        checked = [_checked_part(part) for part in group]
        texts.append("".join(_part_text(part) for part in checked))
        parts += checked
    return ("" if options.omni_mode else "\n").join(texts)


def _checked_part(part: object) -> Part:
    if isinstance(part, str):
        return part.translate(_NO_CODES)
    if isinstance(part, Image.Image):
        return to_rgb(part)
    if not isinstance(part, np.ndarray):
        raise ProcessingError(
            f"a message part must be text, a picture or a sound, not {type(part).__name__}"
        )
    sound = checked_sound(part)
    return np.pad(sound, (0, max(0, MIN_CLIP_SAMPLES - len(sound))))


def _part_text(part: Part) -> str:
    if isinstance(part, str):
        return part
    return _IMAGE_CODE if isinstance(part, Image.Image) else _AUDIO_CODE
