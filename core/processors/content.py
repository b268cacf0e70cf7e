"""Converts wire content and settings to the model's: text, pictures, audio, voices.

Files are read for library use only; the service removes paths from requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from PIL import Image
from pydantic import BaseModel

from core.audio import FloatArray, decode_voice, decode_wire_audio, read_audio
from core.errors import BadConfigError
from core.media import Media, MediaReader, read_media
from core.schemas.common import (
    MS_PER_S,
    AudioContent,
    Content,
    ContentItem,
    ImageContent,
    Role,
    TextContent,
    TTSConfig,
    VideoContent,
)
from core.schemas.common import Message as WireMessage
from core.schemas.limits import CHAT_AUDIO_MAX_S, INPUT_SAMPLE_RATE_HZ, REFERENCE_MAX_S
from core.schemas.streaming import StreamingConfig
from core.video import VideoClip
from MiniCPMO45.modes.prompt_input import PrefillOptions
from MiniCPMO45.processing.pictures import video_parts
from MiniCPMO45.processing.processor import Message, Part
from MiniCPMO45.processing.prompts import Language, system_prompt
from MiniCPMO45.settings import DuplexSettings, GenerationSettings, SpeechSampling

Item = Part | Sequence[Part]
"""One content item; a video clip is the list of its parts."""


def model_messages(
    messages: Sequence[WireMessage], read: MediaReader = read_media
) -> list[Message]:
    """Decode the messages of one request.

    Text is unchanged, audio becomes [T] float32 at 16 kHz, a picture RGB, a video the list of its
    pictures and audio segments in time order. Raises `AudioError` or `PictureError` if a part
    cannot be used, or all are too large together.
    """
    # Pictures and videos together, since they share one pixel budget.
    contents = [each.content for each in messages if not isinstance(each.content, str)]
    items = chain.from_iterable(contents)
    found = [item for item in items if isinstance(item, ImageContent | VideoContent)]
    media = iter(read(found) if found else ())

    def decoded(content: Content) -> str | list[Item]:
        return content if isinstance(content, str) else [_item(item, media) for item in content]

    return [Message(each.role.value, decoded(each.content)) for each in messages]


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
    sent = sent_voice(tts)
    voice = default if sent is None else sent
    if voice is None or tts.ref_audio_max_ms is None:
        return voice
    return voice[: tts.ref_audio_max_ms * INPUT_SAMPLE_RATE_HZ // MS_PER_S]


def sent_voice(config: TTSConfig | StreamingConfig) -> FloatArray | None:
    path = config.ref_audio_path
    return read_voice(path) if path else decode_voice(config.ref_audio_data)


def read_voice(path: str | Path) -> FloatArray:
    return read_audio(path, max_duration_s=REFERENCE_MAX_S)


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
            sound, duration_s = clip.audio, max(clip.duration_s, clip.times_s[-1])
            parts = video_parts(
                clip.frames, clip.times_s, sound, duration_s, frames_per_piece=item.stack_frames
            )
            return list(parts)


RENAMED: Final = {"max_inp_length": "max_input_tokens"}
"""Wire names that the model layer calls differently."""

SettingsT = TypeVar("SettingsT", DuplexSettings, GenerationSettings, PrefillOptions, SpeechSampling)


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
