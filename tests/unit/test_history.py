"""Equal conversations give equal hashes, different ones do not."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.history import CacheOptions, compute_history_hash, next_history_hash, request_history_hash
from core.schemas.common import Message

SYSTEM = {"role": "system", "content": "You are kind."}
USER = {"role": "user", "content": "Hello"}
SOUND = base64.b64encode(b"\0\0\0\0\0\0\x80?").decode()


def test_an_empty_history_has_no_hash() -> None:
    assert compute_history_hash([]) == ""


def test_the_canonical_form_is_fixed() -> None:
    """What is written here may not change: gateway and worker of two versions must agree."""
    text = '[{"content":[{"text":"Grüße 你好","type":"text"}],"role":"user"}]'
    expected = hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert compute_history_hash([{"role": "user", "content": "Grüße 你好"}]) == expected


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def video(**more: int) -> dict[str, Any]:
    return user([{"type": "video", "data": SOUND, **more}])


def sound(data: str) -> dict[str, Any]:
    return user([{"type": "audio", "data": data}])


@pytest.mark.parametrize(
    ("spelled", "other"),
    [
        (user([{"type": "text", "text": "Hello"}]), USER),
        (user([{"type": "text", "text": text} for text in ("", "Hello", "")]), USER),
        (user(""), user([])),
        ({"timestamp": 7, "content": "Hello", "role": "user"}, USER),
        (sound(SOUND[:6] + "\n" + SOUND[6:]), sound(SOUND)),
        (video(), video(stack_frames=1)),
    ],
)
def test_equivalent_spellings_have_one_hash(spelled: dict[str, Any], other: dict[str, Any]) -> None:
    assert compute_history_hash([spelled]) == compute_history_hash([other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": "Hello"}, USER),
        (user("hello"), USER),
        (user([{"type": "text", "text": "Hel"}, {"type": "text"}]), USER),
        (sound(SOUND), USER),
        (user([{"type": "image", "data": SOUND}]), sound(SOUND)),
        (user(None), USER),
        (sound(SOUND), sound(base64.b64encode(b"\0\0\0\0").decode())),
        (sound("not Base64 é"), sound("not Base64 è")),
        (video(), video(stack_frames=2)),
    ],
)
def test_anything_else_counts(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert compute_history_hash([one]) != compute_history_hash([other])


def test_order_and_split_of_messages_count() -> None:
    assert compute_history_hash([SYSTEM, USER]) != compute_history_hash([USER, SYSTEM])
    assert compute_history_hash([SYSTEM, USER]) != compute_history_hash([SYSTEM])


def test_parsed_messages_hash_like_raw_ones() -> None:
    said = user([{"type": "audio", "data": SOUND}, {"type": "text", "text": "?"}])
    raw: list[dict[str, Any]] = [SYSTEM, said, video()]
    parsed = [Message.model_validate(message) for message in raw]
    assert compute_history_hash(parsed) == compute_history_hash(raw)


def test_a_lone_surrogate_is_hashed_too() -> None:
    raw = json.loads('{"role": "user", "content": "\\ud800"}')
    assert len(compute_history_hash([raw])) == 64


def test_options_that_change_the_cache_are_part_of_the_key() -> None:
    plain = compute_history_hash([USER])
    assert compute_history_hash([USER], CacheOptions()) == plain
    options = [
        CacheOptions(omni_mode=True),
        CacheOptions(use_tts_template=True),
        CacheOptions(enable_thinking=True),
        CacheOptions(max_slice_nums=1),
        CacheOptions(max_slice_nums=2),
    ]
    keys = {compute_history_hash([USER], one) for one in options}
    assert len(keys | {plain}) == len(options) + 1
    assert compute_history_hash([], CacheOptions(omni_mode=True)) == ""


def test_the_key_of_a_request_leaves_the_new_message_out() -> None:
    assert request_history_hash([SYSTEM, USER]) == compute_history_hash([SYSTEM])
    assert request_history_hash([USER]) == ""
    assert request_history_hash([]) == ""
    assert request_history_hash([USER, {"role": "assistant", "content": "Hi"}]) == ""


@given(st.text(), st.text(), st.builds(CacheOptions, st.booleans(), st.booleans()))
def test_what_is_stored_after_a_turn_is_what_the_next_turn_asks_for(
    reply: str, question: str, options: CacheOptions
) -> None:
    turn = [SYSTEM, USER]
    following = [*turn, {"role": "assistant", "content": reply}, user(question)]
    assert next_history_hash(turn, reply, options) == request_history_hash(following, options)
