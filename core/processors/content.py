"""Converts wire content and settings to the model's: text, pictures, audio, voices.

Files are read for library use only; the service removes paths from requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final, TypeVar

from PIL import Image
from pydantic import BaseModel

from core.audio import FloatArray, decode_voice, decode_wire_audio, read_audio
from core.errors import BadConfigError
from core.images import FRAME_LIMITS, decode_wire_picture
from core.media import Media, MediaReader, read_media
from core.schemas.common import (
    MS_PER_S,
    AudioContent,
    ContentItem,
    ImageContent,
    Role,
    TextContent,
    TTSConfig,
    VideoContent,
)
from core.schemas.common import Message as WireMessage
from core.schemas.limits import CHAT_AUDIO_MAX_S, INPUT_SAMPLE_RATE_HZ, REFERENCE_MAX_S
from core.video import VideoClip
from MiniCPMO45.processing.pictures import video_parts
from MiniCPMO45.processing.processor import Message, Part
from MiniCPMO45.processing.prompts import Language, system_prompt
from MiniCPMO45.settings import DuplexSettings, GenerationSettings, SpeechSampling

Item = Part | list[Part]
"""One content item; a video clip is the list of its parts."""


def model_items(items: Sequence[ContentItem], read: MediaReader = read_media) -> list[Item]:
    """Decode content items in order.

    Text is unchanged, audio becomes [T] float32 at 16 kHz, a picture RGB, a video the list of its
    pictures and audio segments in time order.

    Raises:
        AudioError: audio cannot be used.
        PictureError: a picture or a video cannot be used, or all are too large together.
    """
    media = _read_all(items, read)
    return [_item(each, media) for each in items]


def model_messages(
    messages: Sequence[WireMessage], read: MediaReader = read_media
) -> list[Message]:
    """Decode the messages of one request; raises as `model_items`."""
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
    """Prepend the model's own system prompt unless the caller gave a system message.

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
    """Return a request's voice, [T] float32 at 16 kHz: its file, its samples, or the default."""
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
    """Decode all pictures and videos at once: they share one pixel budget."""
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
"""Wire names that the model layer calls differently."""

SettingsT = TypeVar("SettingsT", DuplexSettings, GenerationSettings, SpeechSampling)


def override(base: SettingsT, config: BaseModel | None) -> SettingsT:
    """Return `base` with the values of the fields that `config` has under the same name.

    What the client left out takes the wire's default; what the wire does not name, such as the
    duplex window, stays as the operator chose it.
    """
    if config is None:
        return base
    declared = type(config).model_fields  # unknown keys have no effect
    values = {RENAMED.get(name, name): value for name, value in config if name in declared}
    known = {field.name for field in fields(base)}
    return replace(base, **{name: value for name, value in values.items() if name in known})
