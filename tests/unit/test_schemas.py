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
from pydantic import ValidationError

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


def all_models(base: type[WireModel] = WireModel) -> Iterator[type[WireModel]]:
    for module in iter_modules(schemas.__path__, "core.schemas."):
        import_module(module.name)
    for model in base.__subclasses__():
        if model.__module__.startswith("core.schemas"):
            yield model
            yield from all_models(model)


# Models of OpenAI's protocols, which have pages of their own and are in no generated document.
UNDOCUMENTED = ("core.schemas.realtime", "core.schemas.realtime_session", "core.schemas.gpt_live")


@pytest.mark.parametrize("model", list(dict.fromkeys(all_models())))
def test_every_model_is_frozen_and_every_field_is_described(model: type[WireModel]) -> None:
    assert model.model_config["frozen"] is True
    if model.__module__ in UNDOCUMENTED:
        return
    assert model.__doc__
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


MEDIA = {"data": "AAAA"}
SAID = {"role": "user"}


@pytest.mark.parametrize(
    ("model", "fields", "told"),
    [
        (TextContent, {}, "text"),
        (ImageContent, {}, "data"),
        (AudioContent, {}, "data"),
        (VideoContent, {}, "data"),
        (AudioContent, {**MEDIA, "sample_rate": 8_000}, "16000"),
        (AudioContent, {**MEDIA, "sample_rate": 44_100}, "16000"),
        (VideoContent, {**MEDIA, "stack_frames": 0}, "stack_frames"),
        (Message, {"role": "nobody", "content": "text"}, "role"),
        (Message, {**SAID, "content": [{"type": "smell", **MEDIA}]}, "type"),
        (Message, {**SAID, "content": [{"type": "text", "text": ""}] * 257}, "at most 256"),
        (TTSConfig, {"ref_audio_max_ms": 999}, "ref_audio_max_ms"),
        (TTSConfig, {"ref_audio_data": "A" * (audio_chars(30.0) + 1)}, "at most"),
        (GenerationConfig, {"max_new_tokens": 4_097}, "max_new_tokens"),
        (GenerationConfig, {"length_penalty": 0.0}, "length_penalty"),
        (GenerationConfig, {"temperature": float("nan")}, "temperature"),
        (GenerationConfig, {"temperature": float("inf")}, "temperature"),
        (GenerationConfig, {"top_p": 0.0}, "top_p"),
        (GenerationConfig, {"top_p": "many"}, "top_p"),
        (ImageConfig, {"max_slice_nums": 17}, "max_slice_nums"),
        (StreamingChunk, {"chunk_index": -1}, "chunk_index"),
        (ChatRequest, {}, "messages"),
        (ChatRequest, {"messages": []}, "messages"),
        (DuplexConfig, {"ls_mode": "implicit"}, "ls_mode"),
        (DuplexConfig, {"chunk_ms": 500}, "chunk_ms"),
        (DuplexConfig, {"sample_rate": 8_000}, "sample_rate"),
        (DuplexConfig, {"decode_mode": "beam"}, "decode_mode"),
    ],
)
def test_what_is_refused_is_named(
    model: type[WireModel], fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        model.model_validate(fields)


def test_generation_accepts_its_bounds() -> None:
    for fields in (
        {"max_new_tokens": 1, "temperature": 0.0, "length_penalty": 0.1, "top_p": 0.01},
        {"max_new_tokens": 4_096, "temperature": 2.0, "length_penalty": 5.0, "top_p": 1.0},
    ):
        assert GenerationConfig.model_validate(fields).model_dump(include=set(fields)) == fields


@pytest.mark.parametrize("role", list(Role))
def test_messages_take_text_or_items(role: Role) -> None:
    assert Message(role=role, content="text").content == "text"
    items = [{"type": "text", "text": ""}, {"type": "audio", **MEDIA}]
    message = Message.model_validate({"role": role.value, "content": items})
    assert message.content == [TextContent(text=""), AudioContent(data="AAAA", sample_rate=16_000)]


def test_server_paths_are_distinct_from_audio() -> None:
    assert TTSConfig(enabled=True).ref_audio_path is None
    assert TTSConfig(enabled=True, ref_audio_data="AAAA").server_paths == ()
    assert TTSConfig(enabled=True, ref_audio_path="a.wav").server_paths == ("ref_audio_path",)


def test_a_chat_request_has_defaults_and_takes_every_kind_of_content() -> None:
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", **MEDIA},
        {"type": "audio", **MEDIA, "sample_rate": 16_000},
        {"type": "video", **MEDIA, "stack_frames": 2},
    ]
    given = {
        "messages": [{"role": "system", "content": "Be kind."}, {**SAID, "content": content}],
        "tts": {"mode": "voice_cloning", "ref_audio_data": "AAAA"},
        "surprise": 1,
    }
    request = ChatRequest.model_validate_json(json.dumps(given))
    assert json.loads(request.to_json())["messages"][1]["content"] == content
    assert request.tts.mode is TTSMode.VOICE_CLONING and not request.tts.enabled
    assert not (request.use_tts_template or request.omni_mode)
    assert not (request.enable_thinking or request.return_prompt)
    assert ChatRequest.model_validate_json(request.to_json()) == request


def test_duplex_custom_and_unknown_settings() -> None:
    given = {"force_listen_count": 0, "decode_mode": "greedy", "typo": 1, "another": 2}
    config = DuplexConfig.model_validate(given)
    assert (config.force_listen_count, config.decode_mode) == (0, "greedy")
    assert (
        config.unknown("settings") == "These settings are unknown and were ignored: another, typo."
    )
    assert DuplexConfig().unknown("settings") is None


def test_the_beginning_of_a_reply_is_no_longer_than_what_is_spoken_at_once() -> None:
    said = {"messages": [{"role": "user", "content": "Hello"}]}
    longest = "a" * 4_096
    assert ChatRequest(**said, reply_start=longest).reply_start == longest
    with pytest.raises(ValidationError, match="reply_start"):
        ChatRequest(**said, reply_start=longest + "a")


def test_worker_status() -> None:
    busy = {status.value for status in WorkerStatus if status.is_busy}
    named = "busy_chat busy_streaming busy_half_duplex duplex_active duplex_paused"
    assert busy == set(named.split())
    health = WorkerHealth(status="healthy", worker_status=WorkerStatus.IDLE, model_loaded=True)
    assert json.loads(health.to_json())["worker_status"] == "idle"


def test_base64_has_whole_groups() -> None:
    assert [base64_chars(size) for size in (0, 1, 3, 4)] == [0, 4, 4, 8]
    assert audio_chars(2.0) == base64_chars(2 * 16_000 * 4)
