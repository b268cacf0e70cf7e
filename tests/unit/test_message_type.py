"""Types of messages without reading them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.schemas import duplex, half_duplex, streaming
from core.schemas.common import WireModel
from core.schemas.queue import ErrorMessage, WarningMessage
from gateway_modules.web.messages import parse_type, peek_type

BIG = "A" * 200_000

SERVER_MESSAGES: list[WireModel] = [
    streaming.PrefillDone(cached_tokens=0, input_tokens=1),
    streaming.Chunk(chunk_index=0, audio_data=BIG, text_delta="x"),
    streaming.Done(session_id="s", text='{"type":"error"} ' * 1_000),
    streaming.CacheMiss(),
    half_duplex.TurnDone(turn_index=0, text="x" * 5_000),
    half_duplex.Stopped(session_id="s"),
    duplex.Prepared(),
    duplex.Paused(timeout=1),
    duplex.Timeout(elapsed_s=1, session_id="s"),
    ErrorMessage(message='"type":"done"'),
    WarningMessage.model_validate({"code": "bad_frame", "message": "x"}),
]


@pytest.mark.parametrize("message", SERVER_MESSAGES, ids=lambda message: message.type)
def test_the_type_of_every_worker_message_is_found(message: WireModel) -> None:
    text = message.to_json()
    assert peek_type(text) == parse_type(text) == json.loads(text)["type"]


def test_a_type_in_the_middle_is_found_if_the_message_is_not_too_long() -> None:
    long = {"a": "x" * 1_000, "type": "done", "b": "x" * 1_000}
    assert peek_type(json.dumps(long)) == "done"
    assert peek_type(json.dumps({"a": BIG, "type": "done", "b": BIG})) == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '"type"', '{"type": 5}', "{}", "[" * 100_000])
def test_messages_without_a_type_have_none(text: str) -> None:
    assert peek_type(text) == parse_type(text) == ""


@given(st.text(), st.sampled_from(["done", "error"]), st.booleans())
def test_no_nested_text_is_mistaken_for_a_type(said: str, kind: str, is_first: bool) -> None:
    hidden = f'{said}"type":"stopped"{said}'
    fields = {"text": hidden}
    message = {"type": kind, **fields} if is_first else {**fields, "type": kind}
    assert peek_type(json.dumps(message)) == kind
