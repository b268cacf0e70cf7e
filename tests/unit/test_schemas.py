"""The library's models: names, defaults, ranges; and rules for every model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from core import schemas
from core.schemas.chat import ChatRequest
from core.schemas.common import (
    AudioContent,
    GenerationConfig,
    ImageConfig,
    ImageContent,
    Message,
    Role,
    TextContent,
    TTSConfig,
    TTSMode,
    VideoContent,
    WireModel,
)
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.limits import audio_chars, base64_chars
from core.schemas.streaming import StreamingChunk
from core.schemas.worker import WorkerHealth, WorkerStatus

HEAVY = ("numpy", "torch", "PIL", "onnxruntime", "av", "soundfile")
USER = Message(role=Role.USER, content="Hello")


def all_models(base: type[WireModel] = WireModel) -> Iterator[type[WireModel]]:
    for module in iter_modules(schemas.__path__, "core.schemas."):
        import_module(module.name)
    for model in base.__subclasses__():
        if model.__module__.startswith("core.schemas"):
            yield model
            yield from all_models(model)


def refused(model: type[BaseModel], **fields: Any) -> str:
    """Return the error for `fields`."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    return str(caught.value)


# Models of OpenAI's protocols, which have pages of their own and are in no generated document.
UNDOCUMENTED = ("core.schemas.realtime", "core.schemas.realtime_session", "core.schemas.gpt_live")


@pytest.mark.parametrize("model", list(dict.fromkeys(all_models())))
def test_every_model_is_frozen_and_every_field_is_described(model: type[WireModel]) -> None:
    assert model.model_config["frozen"] is True
    assert model.__doc__
    if model.__module__ in UNDOCUMENTED:
        return
    for name, field in model.model_fields.items():
        assert field.description, f"{model.__name__}.{name} has no description"
    for name, computed in model.model_computed_fields.items():
        assert computed.description, f"{model.__name__}.{name} has no description"


def test_importing_the_schemas_imports_nothing_heavy() -> None:
    code = (
        "import sys, core.schemas.chat, core.schemas.worker, core.endpointing;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert answer == "[]\n"


@pytest.mark.parametrize("model", [ImageContent, AudioContent, VideoContent])
def test_media_need_their_data(model: type[WireModel]) -> None:
    assert "data" in refused(model)
    assert model.model_validate({"data": "AAAA"})


def test_text_may_be_empty() -> None:
    assert TextContent(text="").text == ""
    assert TextContent(text="").type == "text"
    assert "text" in refused(TextContent)


def test_only_16_khz_is_accepted_and_the_message_says_so() -> None:
    assert AudioContent(data="AAAA").sample_rate == 16_000
    for rate in (8_000, 24_000, 44_100):
        assert "16000" in refused(AudioContent, data="AAAA", sample_rate=rate)


def test_video_frames_per_second() -> None:
    assert VideoContent(data="AAAA").stack_frames == 1
    refused(VideoContent, data="AAAA", stack_frames=0)


@pytest.mark.parametrize("role", list(Role))
def test_messages_take_text_or_items(role: Role) -> None:
    assert Message(role=role, content="text").content == "text"
    items = [{"type": "text", "text": "a"}, {"type": "audio", "data": "AAAA"}]
    message = Message.model_validate({"role": role.value, "content": items})
    assert message.content == [TextContent(text="a"), AudioContent(data="AAAA")]
    refused(Message, role=role.value, content=[{"type": "smell", "data": "AAAA"}])
    refused(Message, role="nobody", content="text")


def test_server_paths_are_distinct_from_audio() -> None:
    assert TTSConfig(enabled=True).ref_audio_path is None
    assert TTSConfig(enabled=True, ref_audio_data="AAAA").server_paths == ()
    assert TTSConfig(enabled=True, ref_audio_path="a.wav").server_paths == ("ref_audio_path",)
    refused(TTSConfig, ref_audio_max_ms=999)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("max_new_tokens", (1, 4_096), (0, 4_097)),
        ("temperature", (0.0, 2.0), (-0.1, 2.1)),
        ("length_penalty", (0.1, 5.0), (0.0, 5.1)),
        ("top_p", (0.01, 1.0), (0.0, 1.1)),
    ],
)
def test_generation_ranges(field: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        assert GenerationConfig.model_validate({field: value})
    for value in (*bad, "many", float("nan"), float("inf")):
        assert field in refused(GenerationConfig, **{field: value})


def test_chat_request() -> None:
    request = ChatRequest(messages=[USER])
    assert not request.tts.enabled
    flags = (
        request.use_tts_template,
        request.omni_mode,
        request.enable_thinking,
        request.return_prompt,
    )
    assert flags == (False, False, False, False)
    refused(ChatRequest, messages=[])
    refused(ChatRequest)
    again = ChatRequest.model_validate_json(request.to_json())
    assert again == request


def test_chat_request_from_json_with_every_kind_of_content() -> None:
    given = {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "data": "AAAA"},
                    {"type": "audio", "data": "AAAA", "sample_rate": 16_000},
                    {"type": "video", "data": "AAAA", "stack_frames": 2},
                ],
            },
        ],
        "tts": {"enabled": True, "mode": "voice_cloning", "ref_audio_data": "AAAA"},
        "surprise": 1,
    }
    request = ChatRequest.model_validate_json(json.dumps(given))
    assert [item.type for item in request.messages[1].content if not isinstance(item, str)] == [
        "text",
        "image",
        "audio",
        "video",
    ]
    assert request.tts.mode is TTSMode.VOICE_CLONING


@pytest.mark.parametrize(
    "wrong",
    [
        {"ls_mode": "implicit"},
        {"chunk_ms": 500},
        {"sample_rate": 8_000},
        {"decode_mode": "beam"},
        {"top_p": 0},
    ],
)
def test_duplex_refuses_unsupported_settings(wrong: dict[str, Any]) -> None:
    assert next(iter(wrong)) in refused(DuplexConfig, **wrong)


def test_duplex_custom_and_unknown_settings() -> None:
    given = {"force_listen_count": 0, "decode_mode": "greedy", "typo": 1, "another": 2}
    config = DuplexConfig.model_validate(given)
    assert (config.force_listen_count, config.decode_mode) == (0, "greedy")
    assert (
        config.unknown("settings") == "These settings are unknown and were ignored: another, typo."
    )
    assert DuplexConfig().unknown("settings") is None


def test_values_out_of_range_are_refused() -> None:
    refused(ImageConfig, max_slice_nums=17)
    refused(StreamingChunk, chunk_index=-1)


def test_worker_status() -> None:
    busy = {status.value for status in WorkerStatus if status.is_busy}
    assert busy == {
        "busy_chat",
        "busy_streaming",
        "busy_half_duplex",
        "duplex_active",
        "duplex_paused",
    }
    health = WorkerHealth(status="healthy", worker_status=WorkerStatus.IDLE, model_loaded=True)
    assert json.loads(health.to_json())["worker_status"] == "idle"


def test_sizes_are_limited() -> None:
    assert base64_chars(0) == 0
    assert (base64_chars(1), base64_chars(3), base64_chars(4)) == (4, 4, 8)
    assert audio_chars(2.0) == base64_chars(2 * 16_000 * 4)
    assert "at most" in refused(TTSConfig, ref_audio_data="A" * (audio_chars(30.0) + 1))
    refused(Message, role="user", content=[{"type": "text", "text": ""}] * 257)
