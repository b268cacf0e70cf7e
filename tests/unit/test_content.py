"""Wire content is converted for the model's processor."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core.audio import encode_wire_audio, write_wav
from core.errors import AudioError, BadConfigError, PictureError
from core.processors.content import model_messages, resolve_voice, with_voice_prompt
from core.schemas.common import (
    AudioContent,
    ContentItem,
    ImageContent,
    Message,
    Role,
    TextContent,
    TTSConfig,
    TTSMode,
    VideoContent,
)
from MiniCPMO45.processing.processor import Message as ModelMessage
from tests.unit.media import encode_video, tone

VOICE = tone(16_000, 2.0)


def wire_picture(width: int = 8, height: int = 6) -> str:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def parts_of(*items: ContentItem) -> list[Any]:
    [message] = model_messages([Message(role=Role.USER, content=list(items))])
    return list(message.content)


def test_text_sound_and_pictures_keep_their_order() -> None:
    sound = tone(16_000, 0.5)
    text, picture, heard = parts_of(
        TextContent(text="look"),
        ImageContent(data=wire_picture()),
        AudioContent(data=encode_wire_audio(sound)),
    )
    assert text == "look"
    assert isinstance(picture, Image.Image) and (picture.size, picture.mode) == ((8, 6), "RGB")
    assert isinstance(heard, np.ndarray) and np.array_equal(heard, sound)
    assert model_messages([Message(role=Role.USER, content="hi")]) == [ModelMessage("user", "hi")]


def kinds(parts: object) -> str:
    assert isinstance(parts, list)
    return "".join("P" if isinstance(part, Image.Image) else "S" for part in parts)


@pytest.mark.parametrize(("stack_frames", "expected"), [(1, "PSPSPS"), (3, "PSPPSPPSP")])
def test_a_video_interleaves_pictures_and_sound_by_the_second(
    stack_frames: int, expected: str
) -> None:
    film = base64.b64encode(encode_video(seconds=3, sound=True)).decode()
    [parts] = parts_of(VideoContent(data=film, stack_frames=stack_frames))
    assert kinds(parts) == expected
    assert isinstance(parts, list)
    sounds = [part for part in parts if isinstance(part, np.ndarray)]
    assert [len(sound) for sound in sounds[:2]] == [16_000, 16_000]


def test_a_silent_video_is_pictures_alone() -> None:
    film = base64.b64encode(encode_video(seconds=2)).decode()
    [parts] = parts_of(VideoContent(data=film))
    assert kinds(parts) == "PP"


def test_what_cannot_be_decoded_is_refused() -> None:
    with pytest.raises(AudioError, match="Base64"):
        parts_of(AudioContent(data="?"))
    with pytest.raises(PictureError):
        parts_of(ImageContent(data="AAAA"))
    with pytest.raises(PictureError, match="Base64"):
        parts_of(VideoContent(data="?"))
    with pytest.raises(PictureError, match="not a video"):
        parts_of(VideoContent(data="AAAA"))


def test_the_models_own_system_prompt_introduces_the_voice() -> None:
    asked = [ModelMessage("user", "hi")]
    tts = TTSConfig(enabled=True, mode=TTSMode.OMNI)
    first, *rest = with_voice_prompt(asked, tts, VOICE)
    assert rest == asked
    assert first.role == "system"
    assert not isinstance(first.content, str)
    before, voice, after = first.content
    assert isinstance(before, str) and before.startswith("Clone the voice")
    assert voice is VOICE
    assert isinstance(after, str) and after.startswith("As an assistant")
    chinese, *_ = with_voice_prompt(asked, tts.model_copy(update={"language": "zh"}), VOICE)
    assert chinese.content[0] != before
    silent, *_ = with_voice_prompt(asked, tts, None)
    assert len(silent.content) == 1


def test_a_system_message_or_a_text_reply_gets_no_voice_prompt() -> None:
    told = [ModelMessage("system", "Be brief."), ModelMessage("user", "hi")]
    assert with_voice_prompt(told, TTSConfig(enabled=True), VOICE) == told
    assert with_voice_prompt(told[1:], TTSConfig(), VOICE) == told[1:]


@pytest.mark.parametrize(
    ("tts", "voice"),
    [
        (TTSConfig(enabled=True, language="tlh"), VOICE),
        (TTSConfig(enabled=True, mode=TTSMode.VOICE_CLONING), None),
    ],
)
def test_an_impossible_voice_prompt_is_a_configuration_error(
    tts: TTSConfig, voice: np.ndarray | None
) -> None:
    with pytest.raises(BadConfigError, match="voice prompt"):
        with_voice_prompt([ModelMessage("user", "hi")], tts, voice)


def test_a_voice_file_precedes_samples_and_the_default(tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    write_wav(path, tone(16_000, 3.0), 16_000)
    sent = encode_wire_audio(tone(16_000, 1.0))
    both = TTSConfig(ref_audio_path=str(path), ref_audio_data=sent)
    found = [
        resolve_voice(tts, VOICE) for tts in (both, TTSConfig(ref_audio_data=sent), TTSConfig())
    ]
    assert [len(voice) for voice in found if voice is not None] == [48_000, 16_000, 32_000]
    short = resolve_voice(TTSConfig(ref_audio_max_ms=1_500), VOICE)
    assert short is not None and len(short) == 24_000
    assert resolve_voice(TTSConfig(), None) is None
    with pytest.raises(AudioError, match="There is no audio file"):
        resolve_voice(TTSConfig(ref_audio_path="/nowhere.wav"), VOICE)
