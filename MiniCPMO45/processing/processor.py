"""Messages of text, pictures and sound into one prompt: ids, what to embed, and where.

Runs on the CPU and touches no weights; a prompt that cannot be used is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import ProcessorMixin, WhisperFeatureExtractor

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.processing.mel import MIN_CLIP_SAMPLES, embedding_count
from MiniCPMO45.processing.pictures import MiniCPMOImageProcessor, SlicedImage, slice_image
from MiniCPMO45.processing.prompts import (
    AUDIO_MARKER,
    IMAGE_MARKER,
    Placeholder,
    Span,
    audio_placeholder,
    image_placeholder,
)
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast

Part = str | Image.Image | np.ndarray
Content = str | Sequence["Part | Sequence[Part]"]

CHAT_MAX_TOKENS = 8192  # longest prompt of a one-shot chat; source: docs/specification/model.md#4.3
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "token")

# While a prompt is rendered, media stand as Unicode noncharacters, which no text may contain. So
# a user who types a marker gets text, not a slot.
_IMAGE_CODE, _AUDIO_CODE = "\ufdd0", "\ufdd1"
_NO_CODES = {ord(_IMAGE_CODE): None, ord(_AUDIO_CODE): None}
_AT_MEDIA = re.compile(f"([{_IMAGE_CODE}{_AUDIO_CODE}])")


class ProcessingError(ValueError):
    """A message's content cannot become a prompt."""


class PromptTooLongError(ProcessingError):
    """A prompt has more tokens than allowed."""

    def __init__(self, n_tokens: int, max_tokens: int) -> None:
        super().__init__(
            f"the prompt has {n_tokens} tokens, at most {max_tokens} are allowed;"
            " shorten the history, the audio or the pictures"
        )
        self.n_tokens = n_tokens
        self.max_tokens = max_tokens


@dataclass(frozen=True)
class Message:
    """One message; pictures are PIL images, sounds [n] float32 mono at 16 kHz.

    A sequence inside the content is a film clip: its parts are joined without anything between.
    """

    role: str
    content: Content


@dataclass(frozen=True)
class PromptOptions:
    """How content becomes a prompt.

    Attributes:
        max_slice_nums: most slices per picture; None for the folder's default.
        use_image_id: number the pictures; None for the folder's default.
        omni_mode: join parts with nothing between them instead of a line feed.
        max_tokens: refuse a longer prompt; None for no limit.
    """

    max_slice_nums: int | None = None
    use_image_id: bool | None = None
    omni_mode: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt ready to be embedded.

    Slots in `ids` hold `<unk>`. `image_spans` are (start, stop) of every slice, `audio_spans` those
    of every sound, in order.
    """

    text: str
    ids: tuple[int, ...]
    pictures: tuple[SlicedImage, ...]
    clips: tuple[np.ndarray, ...]
    image_spans: tuple[Span, ...]
    audio_spans: tuple[Span, ...]


@dataclass(frozen=True)
class _Media:
    images: tuple[Image.Image, ...]
    sounds: tuple[np.ndarray, ...]


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
    def from_pretrained(  # type: ignore[override]  # the parts are known, and no code is looked up
        cls, pretrained_model_name_or_path: str | Path, **options: Any
    ) -> MiniCPMOProcessor:
        """Read tokenizer and `preprocessor_config.json` of a checkpoint.

        The options say where the hub's files are: `cache_dir`, `revision`, `token`,
        `local_files_only`, `force_download`.

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

    def render(
        self,
        messages: Sequence[Message],
        options: PromptOptions | None = None,
        *,
        add_generation_prompt: bool = False,
        enable_thinking: bool = False,
        use_tts_template: bool = False,
    ) -> Prompt:
        """Render whole messages with the chat template.

        A prompt that holds sound always asks for a reply that can be spoken.

        `add_generation_prompt` ends with the start of a reply, `enable_thinking` leaves the thought
        to the model, and `use_tts_template` asks for a reply that can be spoken.

        Raises:
            ProcessingError: a part cannot be used.
            PromptTooLongError: the prompt exceeds `options.max_tokens`.
        """
        options = options or PromptOptions()
        contents = [_content_parts(m.content) for m in messages]
        media = _media_of(contents)
        rows = [
            {"role": m.role, "content": _content_text(parts, options)}
            for m, parts in zip(messages, contents, strict=True)
        ]
        text = self.tokenizer.render_chat(
            rows,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=enable_thinking,
            use_tts_template=use_tts_template or bool(media.sounds),
        )
        return self._prompt(text, media, options)

    def render_piece(
        self, content: Content, frame: Callable[[str], str], options: PromptOptions | None = None
    ) -> Prompt:
        """Render the content of one message or piece inside text of the caller's making.

        Raises:
            ProcessingError: a part cannot be used.
            PromptTooLongError: the prompt exceeds `options.max_tokens`.
        """
        options = options or PromptOptions()
        parts = _content_parts(content)
        return self._prompt(frame(_content_text(parts, options)), _media_of([parts]), options)

    def _prompt(self, text: str, media: _Media, options: PromptOptions) -> Prompt:
        sounds = media.sounds
        if (text.count(_IMAGE_CODE), text.count(_AUDIO_CODE)) != (len(media.images), len(sounds)):
            raise ProcessingError("the chat template dropped or repeated a picture or a sound")
        slicing = self.image_processor.slicing
        max_slices = options.max_slice_nums or slicing.max_slice_nums
        pictures = tuple(_sliced(image, max_slices, slicing) for image in media.images)
        special = self.tokenizer.special
        placeholders = {
            _IMAGE_CODE: (
                self._image_placeholder(number, picture.grid, options)
                for number, picture in enumerate(pictures)
            ),
            _AUDIO_CODE: (
                audio_placeholder(embedding_count(len(sound)), special) for sound in sounds
            ),
        }
        ids: list[int] = []
        spans: dict[str, list[Span]] = {_IMAGE_CODE: [], _AUDIO_CODE: []}
        for segment in _AT_MEDIA.split(text):
            if segment in spans:
                placeholder, start = next(placeholders[segment]), len(ids)
                spans[segment] += [(start + a, start + b) for a, b in placeholder.spans]
                ids += placeholder.ids
            else:  # where a listen token would read as a decision
                encoded = self.tokenizer.encode(segment)
                ids += [token for token in encoded if token != special.listen]
        if options.max_tokens is not None and len(ids) > options.max_tokens:
            raise PromptTooLongError(len(ids), options.max_tokens)
        return Prompt(
            text=text.replace(_IMAGE_CODE, IMAGE_MARKER).replace(_AUDIO_CODE, AUDIO_MARKER),
            ids=tuple(ids),
            pictures=pictures,
            clips=sounds,
            image_spans=tuple(spans[_IMAGE_CODE]),
            audio_spans=tuple(spans[_AUDIO_CODE]),
        )

    def _image_placeholder(
        self, number: int, grid: tuple[int, int] | None, options: PromptOptions
    ) -> Placeholder:
        use_id = (
            self.image_processor.use_image_id
            if options.use_image_id is None
            else options.use_image_id
        )
        ids = tuple(self.tokenizer.encode(str(number))) if use_id else None
        return image_placeholder(
            grid,
            self.image_processor.image_feature_size,
            self.tokenizer.special,
            self._newline,
            ids,
        )


_Items = list[list[Part]]


def _content_parts(content: Content) -> _Items:
    items = [content] if isinstance(content, str) else content
    groups = [list(item) if isinstance(item, list | tuple) else [item] for item in items]
    return [[_checked_part(part) for part in group] for group in groups]


def _checked_part(part: object) -> Part:
    if isinstance(part, str):
        return part.translate(_NO_CODES)
    if isinstance(part, Image.Image):
        return part.convert("RGB")
    if isinstance(part, np.ndarray):
        return _checked_sound(part)
    raise ProcessingError(
        f"a message part must be text, a picture or a sound, not {type(part).__name__}"
    )


def _checked_sound(sound: np.ndarray) -> np.ndarray:
    if sound.ndim != 1 or sound.dtype.kind != "f":
        raise ProcessingError(
            f"a sound must be mono float samples, got {sound.dtype} of shape {sound.shape}"
        )
    if not sound.size or not np.isfinite(sound).all():
        raise ProcessingError("a sound is empty or holds values that are not numbers")
    missing = max(0, MIN_CLIP_SAMPLES - len(sound))
    return np.pad(sound.astype(np.float32, copy=False), (0, missing))


def _content_text(items: _Items, options: PromptOptions) -> str:
    joiner = "" if options.omni_mode else "\n"
    return joiner.join("".join(_part_text(part) for part in parts) for parts in items)


def _part_text(part: Part) -> str:
    if isinstance(part, str):
        return part
    return _IMAGE_CODE if isinstance(part, Image.Image) else _AUDIO_CODE


def _media_of(contents: Iterable[_Items]) -> _Media:
    flat = [part for items in contents for item in items for part in item]
    return _Media(
        images=tuple(part for part in flat if isinstance(part, Image.Image)),
        sounds=tuple(part for part in flat if isinstance(part, np.ndarray)),
    )


def _sliced(image: Image.Image, max_slices: int, slicing: SliceConfig) -> SlicedImage:
    try:
        return slice_image(image, max_slices, slicing)
    except ValueError as error:
        raise ProcessingError(f"a picture cannot be used: {error}") from error
