"""From what is on the wire to what the model takes: settings, text, pictures, audio, voices.

Files are read for library use only; a network service refuses paths before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from PIL import Image
from pydantic import BaseModel

from core.audio import FloatArray, decode_voice, decode_wire_audio, read_audio
from core.errors import BadConfigError
from core.images import FRAME_LIMITS, decode_wire_picture
from core.media import Media, MediaReader, read_media
from core.schemas.common import (
    AudioContent,
    ContentItem,
    GenerationConfig,
    ImageContent,
    Role,
    TextContent,
    TTSConfig,
    TTSSamplingParams,
    VideoContent,
)
from core.schemas.common import Message as WireMessage
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.half_duplex import TurnGenerationConfig
from core.schemas.limits import CHAT_AUDIO_MAX_S, INPUT_SAMPLE_RATE_HZ, REFERENCE_MAX_S
from core.video import VideoClip
from MiniCPMO45.processing.processor import Message, Part
from MiniCPMO45.processing.prompts import Language, system_prompt
from MiniCPMO45.processing.video import video_parts
from MiniCPMO45.settings import DuplexSettings, GenerationSettings, SpeechSampling

MS_PER_S = 1_000

Item = Part | list[Part]
"""One content item; the parts of a film clip stand in a list of their own."""


def model_items(items: Sequence[ContentItem], read: MediaReader = read_media) -> list[Item]:
    """Decode content items in order.

    Text stays as it is, audio is [T] float32 at 16 kHz, a picture RGB, a video the list of its
    pictures and pieces of audio in time order.

    Raises:
        AudioError: audio cannot be used.
        PictureError: a picture or a video cannot be used, or all are too large together.
    """
    media = _read_all(items, read)
    return [_item(each, media) for each in items]


def model_messages(
    messages: Sequence[WireMessage], read: MediaReader = read_media
) -> list[Message]:
    """Decode the messages of one request; a text stays as it is. Errors as of `model_items`."""
    items = [
        item for each in messages if not isinstance(each.content, str) for item in each.content
    ]
    media = _read_all(items, read)
    return [
        Message(
            each.role.value,
            each.content
            if isinstance(each.content, str)
            else [_item(item, media) for item in each.content],
        )
        for each in messages
    ]


def with_voice_prompt(
    messages: list[Message], tts: TTSConfig, voice: FloatArray | None
) -> list[Message]:
    """Put the model's own system prompt in front unless the caller gave a system message.

    Raises `BadConfigError` for an unknown language, or voice cloning without a sample.
    """
    if not tts.enabled or any(each.role == Role.SYSTEM.value for each in messages):
        return messages
    try:
        prompt = system_prompt(tts.mode.value, Language(tts.language), has_voice=voice is not None)
    except ValueError as error:
        raise BadConfigError(f"The voice prompt cannot be made: {error}.") from error
    return [Message(Role.SYSTEM.value, prompt.parts(voice)), *messages]


def resolve_voice(tts: TTSConfig, default: FloatArray | None) -> FloatArray | None:
    """Return a request's voice, [T] float32 at 16 kHz: the file, else the samples, the default."""
    voice = default
    if tts.ref_audio_path:
        voice = read_voice(tts.ref_audio_path)
    elif tts.ref_audio_data:
        voice = decode_voice(tts.ref_audio_data)
    if voice is None or tts.ref_audio_max_ms is None:
        return voice
    return voice[: tts.ref_audio_max_ms * INPUT_SAMPLE_RATE_HZ // MS_PER_S]


def read_voice(path: str | Path) -> FloatArray:
    return read_audio(path, max_duration_s=REFERENCE_MAX_S)


def decode_frames(frames: Sequence[Image.Image | str]) -> list[Image.Image]:
    return [
        decode_wire_picture(frame, allowed=FRAME_LIMITS) if isinstance(frame, str) else frame
        for frame in frames
    ]


def _read_all(items: Sequence[ContentItem], read: MediaReader) -> Iterator[Media]:
    """Decode all pictures and videos at once: they have one budget."""
    media = [item for item in items if isinstance(item, ImageContent | VideoContent)]
    return iter(read(media) if media else ())


def _item(item: ContentItem, media: Iterator[Media]) -> Item:
    match item:
        case TextContent():
            return item.text
        case AudioContent():
            return decode_wire_audio(item.data, max_duration_s=CHAT_AUDIO_MAX_S)
        case ImageContent():
            picture = next(media)
            assert isinstance(picture, Image.Image)
            return picture
        case VideoContent():
            clip = next(media)
            assert isinstance(clip, VideoClip)
            duration_s = max(clip.duration_s, clip.times_s[-1])
            return list(
                video_parts(
                    clip.frames,
                    clip.times_s,
                    clip.audio,
                    duration_s,
                    frames_per_piece=item.stack_frames,
                )
            )


RENAMED: Final = {"max_inp_length": "max_input_tokens"}
"""Wire names whose word the model layer does not use."""


def duplex_settings(config: DuplexConfig, base: DuplexSettings | None = None) -> DuplexSettings:
    """Return the settings of one duplex session.

    What the client left out takes the wire's default; `base` holds the operator's choice for what
    the wire does not name, such as the window.
    """
    return replace(base or DuplexSettings(), **_by_name(config, DuplexSettings))


def generation_settings(
    config: GenerationConfig | TurnGenerationConfig, base: GenerationSettings | None = None
) -> GenerationSettings:
    """Return how the text of a reply is drawn; `base` holds what `config` does not name."""
    return replace(base or GenerationSettings(), **_by_name(config, GenerationSettings))


def speech_sampling(params: TTSSamplingParams | None) -> SpeechSampling:
    if params is None:
        return SpeechSampling()
    return replace(SpeechSampling(), **_by_name(params, SpeechSampling))


def _by_name(
    config: BaseModel, kind: type[DuplexSettings | GenerationSettings | SpeechSampling]
) -> dict[str, Any]:
    # Any: each value has the type of its field, which no dictionary can say.
    known = {field.name for field in fields(kind)}
    values = {name: value for name, value in config if name in type(config).model_fields}
    renamed = {RENAMED.get(name, name): value for name, value in values.items()}
    return {name: value for name, value in renamed.items() if name in known}
