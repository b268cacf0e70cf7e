"""One turn of a conversation: what a worker gets, and what its cache will hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.errors import BadPayloadError, UnknownTypeError
from core.history import RawMessage, compute_history_hash
from core.schemas.streaming import WorkerPrefill
from core.store import Store
from gateway_modules.relay.traffic import (
    ChatTraffic,
    Message,
    StreamingTurn,
    TurnTraffic,
    is_long,
    names_files,
)
from gateway_modules.voices import VoiceLibrary
from tests.fakes.decoding import DecoderHere

HISTORY: list[Mapping[str, object]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "More"},
]


@pytest.fixture
def voices(tmp_path: Path) -> VoiceLibrary:
    decoder = DecoderHere()
    return VoiceLibrary(tmp_path, Store(tmp_path), decoder)


def turn_of(voices: VoiceLibrary, **fields: object) -> StreamingTurn:
    text = json.dumps({"type": "prefill", "messages": HISTORY, **fields})
    message = TurnTraffic(voices).parse(text)
    assert message.kind == "prefill" and message.turn is not None
    return message.turn


def test_a_cache_hit_sends_the_last_message_and_the_expected_hash(voices: VoiceLibrary) -> None:
    turn = turn_of(voices, max_slice_nums=4, nobody_knows="this")
    assert turn.history_hash
    hit = json.loads(turn.for_worker(is_cache_hit=True))
    assert hit == {
        "type": "prefill",
        "messages": [HISTORY[-1]],
        "max_slice_nums": 4,
        "clear_kv_cache": False,
        "expect_hash": turn.history_hash,
    }
    miss = json.loads(turn.for_worker(is_cache_hit=False))
    assert (miss["messages"], miss["clear_kv_cache"]) == (HISTORY, True)
    assert miss["expect_hash"] is None
    for text in (turn.for_worker(is_cache_hit=True), turn.for_worker(is_cache_hit=False)):
        WorkerPrefill.model_validate_json(text)


def test_the_next_turn_presents_the_retained_hash(voices: VoiceLibrary) -> None:
    done = '{"type": "done", "session_id": "s", "text": "Sure", "stopped": %s}'
    turn = turn_of(voices)
    kept = turn.hash_after(done % "false")
    answer = {"role": "assistant", "content": "Sure"}
    following: list[RawMessage] = [*HISTORY, answer, {"role": "user", "content": "x"}]
    assert turn_of(voices, messages=following).history_hash == kept
    assert turn_of(voices, messages=following, omni_mode=True).history_hash != kept
    assert turn.hash_after(done % "true") == kept
    assert compute_history_hash(following[:-1]) == kept


def test_an_uncertain_cache_is_not_retained(voices: VoiceLibrary) -> None:
    turn = turn_of(voices)
    assert turn.hash_after('{"type": "done", "session_id": "s", "stopped": true}') == ""
    assert turn.hash_after('{"type": "done"}') == ""
    assert turn_of(voices, messages=HISTORY[:1]).history_hash == ""
    assert turn_of(voices, messages=HISTORY[:3]).history_hash == ""


def test_other_messages_have_a_type_only(voices: VoiceLibrary) -> None:
    stop = '{"type": "stop"}'
    assert TurnTraffic(voices).parse(stop) == Message("stop", stop)
    with pytest.raises(UnknownTypeError):
        TurnTraffic(voices).parse('{"type": "dance"}')
    for text in ("{", "[]", '{"type": "prefill"}'):
        with pytest.raises(BadPayloadError):
            TurnTraffic(voices).parse(text)


def test_a_chat_is_unchanged_unless_it_names_files(voices: VoiceLibrary) -> None:
    request = '{"messages":[{"role":"user","content":"Hi"}], "note": 1}'
    assert ChatTraffic(voices).parse(request) == Message("prefill", request)
    assert ChatTraffic(voices).parse('{"type": "stop"}').kind == "stop"
    named = '{"messages":[{"role":"user","content":"Hi"}],"tts":{"output_path":"/tmp/x"}}'
    assert "/tmp" not in ChatTraffic(voices).parse(named).text
    with pytest.raises(UnknownTypeError):
        ChatTraffic(voices).parse('{"type": "dance"}')


def test_long_texts_and_file_names_are_handled_in_a_thread() -> None:
    assert not (is_long('{"type": "stop"}') or names_files('{"type": "stop"}'))
    assert is_long("x" * 200_000)
    assert names_files('{"ref_audio_path": "x"}')
    assert names_files('{"\\u0072ef_audio_path": "x"}')
    assert not names_files('{"text": "\\u4f60\\u597d"}'), "Chinese, as many encoders write it"
