"""What each kind of socket accepts, and which limits the configuration gives it."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from config import Settings
from core.errors import AudioTooLongError
from core.metrics import WorkerMetrics
from core.protocols.duplex_units import DuplexLimits
from core.protocols.events import Opened, Received
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.machine import SessionIds
from core.schemas import half_duplex
from core.schemas.gpt_live import SessionStart
from core.schemas.queue import RequestType, SocketKind
from core.serving.openai_clients import live_names
from core.serving.session_kinds import SessionBuilder, duplex_limits, endpoint_of
from core.serving.slots import Owner, Slots

SECOND = base64.b64encode(bytes(4 * 16_000)).decode()
HELLO = [{"role": "user", "content": "Hello"}]
SPOKEN = [{"role": "user", "content": [{"type": "audio", "data": SECOND}]}]


def configured(**sections: object) -> Settings:
    return Settings.model_validate(sections)


@pytest.mark.parametrize(
    ("session_id", "variant", "kind"),
    [
        ("adx_1", None, RequestType.AUDIO_DUPLEX),
        ("omni_1", None, RequestType.OMNI_DUPLEX),
        ("whatever", None, RequestType.OMNI_DUPLEX),
        ("omni_1", "audio", RequestType.AUDIO_DUPLEX),
        ("adx_1", "omni", RequestType.OMNI_DUPLEX),
        ("adx_1", "nonsense", RequestType.AUDIO_DUPLEX),
    ],
)
def test_the_gateway_names_the_kind_of_duplex(
    session_id: str, variant: str | None, kind: RequestType
) -> None:
    assert SocketKind.DUPLEX.request_type(session_id, variant) is kind


def test_other_kinds_have_one_request_type() -> None:
    assert SocketKind.CHAT.request_type("adx_1", "omni") is RequestType.CHAT
    assert SocketKind.STREAMING.request_type("x", None) is RequestType.STREAMING
    assert SocketKind.HALF_DUPLEX.request_type("x", None) is RequestType.HALF_DUPLEX_AUDIO
    live = [kind for kind in SocketKind if not kind.has_turns]
    assert live == ["half_duplex", "duplex", "live", "realtime"]


def test_limits_come_from_the_configuration() -> None:
    made = configured(
        limits={"prepare_bytes": 5_000, "live_message_bytes": 4_000},
        duplex={"pause_timeout": 7, "max_session_s": 9, "frame_grace_ms": 50},
        half_duplex={"max_session_s": 11},
    )
    endpoint = endpoint_of(SocketKind.DUPLEX, made)
    assert (endpoint.prepare_bytes, endpoint.message_bytes) == (5_000, 4_000)
    limits = duplex_limits(made.duplex, None)
    assert (limits.pause_timeout_s, limits.max_session_s) == (7, 9)
    assert limits.frame_grace_s == 0.05 and made.half_duplex.max_session_s == 11


@pytest.mark.parametrize(
    ("kind", "message", "field"),
    [
        (SocketKind.DUPLEX, {"type": "audio_chunk", "audio": SECOND}, "audio"),
        (SocketKind.HALF_DUPLEX, {"type": "audio_chunk", "audio_base64": SECOND}, "audio_base64"),
        (SocketKind.DUPLEX, {"type": "prepare", "ref_audio_base64": SECOND}, "ref_audio_base64"),
        (
            SocketKind.HALF_DUPLEX,
            {"type": "prepare", "system_content": [{"type": "audio", "data": SECOND}]},
            "data",
        ),
        (
            SocketKind.STREAMING,
            {"type": "prefill", "messages": HELLO, "streaming": {"ref_audio_data": SECOND}},
            "ref_audio_data",
        ),
        (SocketKind.CHAT, {"messages": SPOKEN}, "data"),
    ],
)
def test_configured_audio_limits_apply(
    kind: SocketKind, message: dict[str, object], field: str
) -> None:
    limits = {"chunk_max_s": 0.5, "reference_max_s": 0.5, "chat_audio_max_s": 0.5}
    text = json.dumps(message)
    assert endpoint_of(kind, configured()).read(text)
    with pytest.raises(AudioTooLongError, match=rf"^{field}: .* 0\.5 s"):
        endpoint_of(kind, configured(limits=limits)).read(text)


def test_a_voice_sample_in_the_system_content_has_the_limit_of_voices() -> None:
    content = [{"type": "audio", "data": SECOND}]
    text = json.dumps({"type": "prepare", "system_content": content})
    longer = {"reference_max_s": 1, "chat_audio_max_s": 0.5}
    assert endpoint_of(SocketKind.HALF_DUPLEX, configured(limits=longer)).read(text)
    shorter = {"reference_max_s": 0.5, "chat_audio_max_s": 1}
    with pytest.raises(AudioTooLongError, match=r"^data: .* 0\.5 s"):
        endpoint_of(SocketKind.HALF_DUPLEX, configured(limits=shorter)).read(text)


def test_a_short_model_context_shortens_conversations() -> None:
    duplex = configured().duplex
    for context_tokens in (None, 1_000_000):
        assert duplex_limits(duplex, context_tokens).max_kv_tokens == duplex.max_kv_tokens
    assert duplex_limits(duplex, 1_000).max_kv_tokens == 1_000


def prepared(made: Settings, config: object) -> half_duplex.HalfDuplexConfig:
    text = json.dumps({"type": "prepare", "config": config})
    message = endpoint_of(SocketKind.HALF_DUPLEX, made).read(text)
    assert isinstance(message, half_duplex.Prepare)
    return message.config


def test_a_prepare_overrides_the_configured_defaults_one_by_one() -> None:
    made = configured(half_duplex={"vad_threshold": 0.5, "vad_speech_pad_ms": 99, "timeout_s": 44})
    plain = prepared(made, {})
    assert (plain.vad.threshold, plain.vad.speech_pad_ms, plain.session.timeout_s) == (0.5, 99, 44)
    told = prepared(made, {"vad": {"threshold": 0.9}, "session": {"timeout_s": 55}})
    assert (told.vad.threshold, told.vad.speech_pad_ms, told.session.timeout_s) == (0.9, 99, 55)
    assert told.vad.min_silence_duration_ms == 800


def test_the_messages_of_a_gpt_live_client_are_counted() -> None:
    registry = CollectorRegistry()
    runtime: Any = SimpleNamespace(slots=Slots(1, lambda: 0.0))
    builder = SessionBuilder(runtime, configured(), WorkerMetrics(registry), None, None)
    machine = GptLiveMachine(
        SessionIds("s"), DuplexLimits(), live_names("s", ""), lambda text: len(text)
    )
    [metrics] = builder._observers(machine, Owner("s", RequestType.AUDIO_DUPLEX))
    start = SessionStart.model_validate({"session": {"model": "gpt-live-1"}})
    for event in (Opened(), Received(start, size_bytes=500)):
        metrics.observe(event, machine.handle(event))
    mode = {"mode": "audio_duplex"}
    assert registry.get_sample_value("omni_worker_received_bytes_total", mode) == 500
    assert registry.get_sample_value("omni_worker_sessions", mode) == 1
