"""The messages of every socket: spellings, defaults, precedence, and what is refused how."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from core.errors import (
    AudioError,
    BadConfigError,
    BadPayloadError,
    InvalidSessionIdError,
    OmniError,
    PictureError,
    QueueFullError,
    TooBigError,
    UnknownTypeError,
)
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.common import AudioContent, TextContent, parse_message
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.limits import JSON_VALUES_MAX, TEXT_MAX_CHARS, audio_bytes
from core.schemas.openai_errors import FieldError
from core.schemas.queue import (
    ErrorMessage,
    Queued,
    RequestType,
    SocketKind,
    Stop,
    WarningMessage,
    check_session_id,
)
from core.schemas.realtime import parse_event

DUPLEX: TypeAdapter[duplex.ClientMessage] = TypeAdapter(duplex.ClientMessage)
HALF_DUPLEX: TypeAdapter[half_duplex.ClientMessage] = TypeAdapter(half_duplex.ClientMessage)
STREAMING: TypeAdapter[streaming.ClientMessage] = TypeAdapter(streaming.ClientMessage)
CHAT: TypeAdapter[chat.ClientMessage] = TypeAdapter(chat.ClientMessage)
SERVERS: list[TypeAdapter[Any]] = [
    TypeAdapter(module.ServerMessage) for module in (duplex, half_duplex, streaming, chat)
]
CLIENTS: list[TypeAdapter[Any]] = [DUPLEX, HALF_DUPLEX, STREAMING, CHAT]

SOUND = base64.b64encode(bytes(64)).decode()
HISTORY = [{"role": "user", "content": "Hello"}]


def parse(adapter: TypeAdapter[Any], **fields: Any) -> Any:
    return parse_message(adapter, json.dumps(fields))


@pytest.mark.parametrize("adapter", [DUPLEX, HALF_DUPLEX])
@pytest.mark.parametrize("key", ["audio", "audio_base64"])
def test_both_spellings_of_audio(adapter: TypeAdapter[Any], key: str) -> None:
    chunk = parse(adapter, type="audio_chunk", **{key: SOUND})
    heard = chunk.audio if isinstance(chunk, duplex.AudioChunk) else chunk.audio_base64
    assert heard == base64.b64decode(SOUND)


def test_frames_alone_and_inside_a_chunk() -> None:
    for key in ("frame", "frame_base64"):
        assert parse(DUPLEX, type="video_frame", **{key: "AAAA"}).frame == "AAAA"
    chunk = parse(DUPLEX, type="audio_chunk", audio=SOUND, frame_base64_list=["A", "B"])
    assert chunk.frame_base64_list == ["A", "B"]
    assert parse(DUPLEX, type="audio_chunk", audio=SOUND).frame_base64_list is None


@pytest.mark.parametrize(
    ("given_prompts", "effective"),
    [
        ({"prefix_system_prompt": "a"}, "a"),
        ({"system_prompt": "b"}, "b"),
        ({"prefix_system_prompt": "a", "system_prompt": "b"}, "a"),
        ({"prefix_system_prompt": "", "system_prompt": "b"}, "b"),
        ({"prefix_system_prompt": "a", "system_prompt": ""}, "a"),
        ({"prefix_system_prompt": None, "system_prompt": None}, ""),
        ({}, ""),
    ],
)
def test_both_spellings_of_the_duplex_prompt(given_prompts: dict[str, Any], effective: str) -> None:
    assert parse(DUPLEX, type="prepare", **given_prompts).prefix_system_prompt == effective


def test_duplex_prepare_defaults_and_voices() -> None:
    prepare = parse(DUPLEX, type="prepare")
    assert prepare.config == DuplexConfig()
    assert (prepare.deferred_finalize, prepare.slice_limit) == (True, 1)
    assert prepare.voice_base64 is None
    voiced = duplex.Prepare(ref_audio_base64="A", max_slice_nums=4)
    assert (voiced.voice_base64, voiced.slice_limit) == ("A", 4)
    assert duplex.Prepare(ref_audio_base64="A", tts_ref_audio_base64="B").voice_base64 == "B"


def test_wait_and_error_are_sent_under_both_names() -> None:
    queued = Queued(ticket_id="q_1", position=2, estimated_wait_s=7.5, queue_length=3)
    sent = json.loads(queued.to_json())
    assert sent["eta_seconds"] == sent["estimated_wait_s"] == 7.5
    error = json.loads(ErrorMessage.of(QueueFullError("Queue full (3 requests)")).to_json())
    assert error["message"] == error["error"] == "Queue full (3 requests)"
    assert (error["code"], error["fatal"]) == ("queue_full", True)
    assert json.loads(ErrorMessage.of(KeyError("secret")).to_json())["code"] == "internal"


@pytest.mark.parametrize("adapter", SERVERS)
def test_shared_server_messages_survive_the_way(adapter: TypeAdapter[Any]) -> None:
    for message in (
        Queued(ticket_id="q_1", position=1, estimated_wait_s=1, queue_length=1),
        ErrorMessage.of(QueueFullError()),
        WarningMessage.of(UnknownTypeError()),
    ):
        assert adapter.validate_json(message.to_json()) == message
    old = adapter.validate_python({"type": "error", "error": "only this key"})
    assert old.message == "only this key"


def test_a_listening_result_carries_no_sound() -> None:
    sent = json.loads(duplex.Result(is_listen=True, current_time=1_000).to_json())
    assert (sent["type"], sent["audio_data"], sent["text"]) == ("result", "", "")
    assert (sent["cost_tts_ms"], sent["current_time"]) == (0.0, 1_000)
    documented = (
        "is_listen text audio_data end_of_turn current_time cost_llm_ms cost_tts_ms cost_all_ms "
        "cost_tts_prep_ms cost_token2wav_ms n_tokens n_tts_tokens server_send_ts wall_clock_ms "
        "kv_cache_length vision_slices vision_tokens prefill_ms turn_id step barge_in"
    )
    assert set(documented.split()) <= set(sent)


def test_half_duplex_defaults() -> None:
    config = parse(HALF_DUPLEX, type="prepare").config
    assert config.model_dump() == {
        "vad": {
            "threshold": 0.8,
            "min_speech_duration_ms": 128,
            "min_silence_duration_ms": 800,
            "speech_pad_ms": 30,
        },
        "generation": {"max_new_tokens": 256, "length_penalty": 1.1, "temperature": 0.7},
        "tts": {"enabled": True},
        "session": {"timeout_s": 180},
    }


def test_half_duplex_system_content_precedence() -> None:
    content = [TextContent(text="x"), AudioContent(data="A"), TextContent(text="y")]
    full = half_duplex.Prepare(system_content=content, system_prompt="p", ref_audio_base64="B")
    assert full.system_items("Use this voice.", "Be helpful.") == content
    assert full.voice_base64 == "A"
    built = half_duplex.Prepare(system_prompt="p", ref_audio_base64="B")
    assert built.system_items("Use this voice.", "Be helpful.") == [
        TextContent(text="Use this voice."),
        AudioContent(data="B"),
        TextContent(text="p"),
    ]
    assert built.voice_base64 == "B"
    plain = half_duplex.Prepare(system_prompt="p")
    assert plain.system_items("v", "d") == [TextContent(text="p")]
    assert half_duplex.Prepare().system_items("v", "d") == [TextContent(text="d")]
    assert half_duplex.Prepare(system_content=content, tts_ref_audio_base64="C").voice_base64 == "C"


def test_streaming_defaults_and_older_places() -> None:
    prefill = parse(STREAMING, type="prefill", messages=HISTORY)
    assert (prefill.is_last_chunk, prefill.enable_thinking) == (True, False)
    assert (prefill.voice_base64, prefill.slice_limit) == (None, None)
    generate = parse(STREAMING, type="generate").with_defaults(prefill)
    assert (generate.generate_audio, generate.max_new_tokens) == (True, 256)
    assert generate.length_penalty == 1.1
    older = parse(
        STREAMING,
        type="prefill",
        messages=HISTORY,
        generation={"max_new_tokens": 77, "temperature": 0.2},
        image={"max_slice_nums": 4},
        tts={"enabled": False, "ref_audio_data": "A"},
    )
    assert (older.voice_base64, older.slice_limit) == ("A", 4)
    merged = parse(STREAMING, type="generate", temperature=0.9).with_defaults(older)
    assert (merged.max_new_tokens, merged.temperature) == (77, 0.9)
    assert not merged.generate_audio


def test_the_first_voice_given_is_used() -> None:
    both = streaming.Prefill.model_validate(
        {"messages": HISTORY, "tts_ref_audio_base64": "A", "ref_audio_base64": "B"}
    )
    assert both.voice_base64 == "A"


def test_a_secret_fits_into_a_header() -> None:
    """A line feed would fail every connection to a worker, which would be out of service then."""
    shown = parse(STREAMING, type="prefill", messages=HISTORY, session_secret="0" * 48)
    assert shown.session_secret == "0" * 48
    for secret in ("0" * 48 + "\n", "\n" + "0" * 32, "0" * 40):
        with pytest.raises(BadPayloadError, match="session_secret"):
            parse(STREAMING, type="prefill", messages=HISTORY, session_secret=secret)


def test_the_worker_hop_adds_the_cache_fields() -> None:
    worker: TypeAdapter[Any] = TypeAdapter(streaming.WorkerClientMessage)
    prefill = parse(worker, type="prefill", messages=HISTORY, clear_kv_cache=True, expect_hash="h")
    assert isinstance(prefill, streaming.WorkerPrefill)
    assert (prefill.clear_kv_cache, prefill.expect_hash) == (True, "h")
    assert not parse(worker, type="prefill", messages=HISTORY).clear_kv_cache
    answer: TypeAdapter[Any] = TypeAdapter(streaming.WorkerServerMessage)
    assert isinstance(answer.validate_json('{"type":"cache_miss"}'), streaming.CacheMiss)


def test_a_chat_request_needs_no_type() -> None:
    request = parse(CHAT, messages=HISTORY)
    assert isinstance(request, chat.ChatSocketRequest)
    assert request.streaming
    assert request.to_request().generation.max_new_tokens == 256
    partly = parse(CHAT, messages=HISTORY, generation={"temperature": 0.1}).to_request()
    assert (partly.generation.max_new_tokens, partly.generation.temperature) == (256, 0.1)
    assert parse(CHAT, messages=HISTORY, generation={"max_new_tokens": 512}).to_request()
    assert isinstance(parse(CHAT, type="stop"), Stop)
    with pytest.raises(UnknownTypeError):
        parse(CHAT, type="chatter", messages=HISTORY)
    assert CHAT.validate_python(request) == request


@pytest.mark.parametrize("adapter", CLIENTS)
def test_every_socket_takes_stop_and_a_heartbeat(adapter: TypeAdapter[Any]) -> None:
    assert parse(adapter, type="stop", unknown_field=1).type == "stop"
    assert parse(adapter, type="heartbeat").type == "heartbeat"


def test_diagnostics_are_free_form() -> None:
    message = parse(DUPLEX, type="client_diagnostic", metrics={"gap_ms": 3}, rtt=1)
    assert message.metrics == {"gap_ms": 3}
    assert json.loads(message.to_json())["rtt"] == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", BadPayloadError),
        ("[]", BadPayloadError),
        ("3", BadPayloadError),
        ('{"type":"telepathy"}', UnknownTypeError),
        ("{}", UnknownTypeError),
        ('{"type":"audio_chunk"}', AudioError),
        ('{"type":"audio_chunk","audio":7}', AudioError),
        ('{"type":"video_frame"}', PictureError),
        ('{"type":"audio_chunk","audio":"AAAA","frame_base64_list":[1]}', PictureError),
        ('{"type":"prepare","config":{"top_k":"many"}}', BadConfigError),
        ('{"type":"prepare","config":{"sample_rate":8000}}', BadConfigError),
        ('{"type":"prepare","ref_audio_base64":7}', AudioError),
        ('{"type":"pause","timeout":-1}', BadPayloadError),
    ],
)
def test_refusals_have_the_right_code(text: str, error: type[OmniError]) -> None:
    with pytest.raises(error) as caught:
        parse_message(DUPLEX, text)
    assert caught.value.code is error.code


def test_a_chunk_may_last_two_seconds() -> None:
    longest, longer = (base64.b64encode(bytes(audio_bytes(2.0) + more)).decode() for more in (0, 4))
    assert parse(DUPLEX, type="audio_chunk", audio=longest)
    with pytest.raises(AudioError, match=r"audio: The audio is longer than 2 s\."):
        parse(DUPLEX, type="audio_chunk", audio=longer)


@pytest.mark.parametrize("audio", [7, None, ["AAAA"]])
def test_audio_of_another_type_is_told_what_is_expected(audio: object) -> None:
    with pytest.raises(AudioError, match="audio: Input should be a Base64 string"):
        parse(DUPLEX, type="audio_chunk", audio=audio)
    with pytest.raises(FieldError, match="'audio': Input should be a Base64 string"):
        parse_event(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))


DATA = {"data": "AAAA"}
PLACE = r"messages\.0\.content\.items\.0\.image\.data"
WRONG_CONFIG = {"type": "prepare", "config": {"vad": {"min_silence_duration_ms": 10_001}}}


def with_item(item: dict[str, Any], kind: str = "prefill") -> dict[str, Any]:
    return {"type": kind, "messages": [{"role": "user", "content": [item]}]}


@pytest.mark.parametrize(
    ("adapter", "message", "error", "told"),
    [
        (HALF_DUPLEX, WRONG_CONFIG, BadConfigError, "min_silence_duration_ms"),
        (
            STREAMING,
            with_item({"type": "audio", "sample_rate": 8_000, **DATA}),
            AudioError,
            "16000",
        ),
        (STREAMING, with_item({"type": "smell"}), BadPayloadError, "content"),
        (STREAMING, with_item({"type": "image"}), BadPayloadError, PLACE),
        (CHAT, with_item({"type": "image"}, "chat"), BadPayloadError, PLACE),
    ],
)
def test_a_mistake_is_told_by_its_place(
    adapter: TypeAdapter[Any], message: dict[str, Any], error: type[OmniError], told: str
) -> None:
    with pytest.raises(error, match=told) as caught:
        parse(adapter, **message)
    assert caught.value.code is error.code


@pytest.mark.parametrize("bomb", ["[],", "{", '{"":[', ",", '"",'])
def test_more_values_than_allowed_are_refused_before_they_are_parsed(bomb: str) -> None:
    counted = len(re.findall(r"[,\[{]", bomb))
    most = bomb * (JSON_VALUES_MAX // counted)
    with pytest.raises(BadPayloadError) as caught:  # counted, then found to be no JSON
        parse_message(STREAMING, most)
    assert not isinstance(caught.value, TooBigError)
    for text in (most + bomb, (most + bomb).encode()):
        with pytest.raises(TooBigError, match=str(JSON_VALUES_MAX)):
            parse_message(STREAMING, text)


def test_the_longest_text_may_be_a_table() -> None:
    table = "1,2,3,4\n" * (TEXT_MAX_CHARS // 8)
    assert parse(CHAT, messages=[{"role": "user", "content": table}])


def test_refusals_never_repeat_what_was_sent() -> None:
    with pytest.raises(OmniError) as caught:
        parse(STREAMING, type="prefill", messages="private words")
    assert "private" not in str(caught.value)


@given(st.sampled_from(CLIENTS), st.binary(max_size=200) | st.text(max_size=200))
def test_garbage_is_always_one_of_our_errors(adapter: TypeAdapter[Any], text: str | bytes) -> None:
    with pytest.raises(OmniError):
        parse_message(adapter, text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "data", "vad", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
message_types = st.sampled_from(["prepare", "prefill", "audio_chunk", "video_frame", "pause"])
field_names = st.sampled_from(
    ["audio", "config", "messages", "tts", "frame", "system_content", "timeout", "system_prompt"]
)


@given(
    st.sampled_from(CLIENTS), message_types, st.dictionaries(field_names, json_values, max_size=4)
)
def test_nonsense_fields_never_raise_anything_else(
    adapter: TypeAdapter[Any], kind: str, fields: dict[str, Any]
) -> None:
    try:
        parse_message(adapter, json.dumps({"type": kind, **fields}))
    except OmniError as error:
        assert error.message


def test_session_ids() -> None:
    assert check_session_id("omni_Ab-9") == "omni_Ab-9"
    for wrong in ("", "a b", "../x", "a" * 65, "ä", "a\n"):
        with pytest.raises(InvalidSessionIdError):
            check_session_id(wrong)


@pytest.mark.parametrize(
    ("session_id", "kind"),
    [
        ("omni_1", RequestType.OMNI_DUPLEX),
        ("adx_1", RequestType.AUDIO_DUPLEX),
        ("audio_duplex_1", RequestType.AUDIO_DUPLEX),
        ("anything", RequestType.OMNI_DUPLEX),
    ],
)
def test_the_prefix_tells_the_duplex_variant(session_id: str, kind: RequestType) -> None:
    assert SocketKind.DUPLEX.request_type(session_id) is kind
