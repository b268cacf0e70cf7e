"""Equal conversations give equal hashes, different ones do not."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.history import (
    CacheOptions,
    compute_history_hash,
    next_history_hash,
    request_history_hash,
)
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


def test_a_string_equals_one_text_item() -> None:
    items = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    assert compute_history_hash([items]) == compute_history_hash([USER])


def test_empty_text_items_do_not_count() -> None:
    texts = [{"type": "text", "text": text} for text in ("", "Hello", "")]
    assert compute_history_hash([{"role": "user", "content": texts}]) == compute_history_hash(
        [USER]
    )
    nothing = {"role": "assistant", "content": ""}
    assert compute_history_hash([nothing]) == compute_history_hash(
        [{"role": "assistant", "content": []}]
    )


def test_unknown_fields_and_key_order_do_not_count() -> None:
    spelled = {"timestamp": 7, "content": "Hello", "role": "user"}
    assert compute_history_hash([spelled]) == compute_history_hash([USER])


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "hello"},
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text"}]},
        {"role": "user", "content": [{"type": "audio", "data": SOUND}]},
        {"role": "user", "content": [{"type": "image", "data": SOUND}]},
        {"role": "user", "content": None},
    ],
)
def test_anything_else_counts(other: dict[str, Any]) -> None:
    assert compute_history_hash([other]) != compute_history_hash([USER])


def test_order_and_split_of_messages_count() -> None:
    assert compute_history_hash([SYSTEM, USER]) != compute_history_hash([USER, SYSTEM])
    assert compute_history_hash([SYSTEM, USER]) != compute_history_hash([SYSTEM])


def test_media_count_by_their_bytes() -> None:
    def sound(data: str) -> str:
        return compute_history_hash(
            [{"role": "user", "content": [{"type": "audio", "data": data}]}]
        )

    assert sound(SOUND) == sound(SOUND[:6] + "\n" + SOUND[6:])
    assert sound(SOUND) != sound(base64.b64encode(b"\0\0\0\0").decode())
    assert sound("not Base64 é") != sound("not Base64 è")


def test_the_frames_of_a_video_count() -> None:
    def video(**more: int) -> str:
        item = {"type": "video", "data": SOUND, **more}
        return compute_history_hash([{"role": "user", "content": [item]}])

    assert video() == video(stack_frames=1)
    assert video() != video(stack_frames=2)


def test_parsed_messages_hash_like_raw_ones() -> None:
    raw: list[dict[str, Any]] = [
        SYSTEM,
        {
            "role": "user",
            "content": [{"type": "audio", "data": SOUND}, {"type": "text", "text": "?"}],
        },
        {"role": "user", "content": [{"type": "video", "data": SOUND}]},
    ]
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
    following = [
        *turn,
        {"role": "assistant", "content": reply},
        {"role": "user", "content": question},
    ]
    assert next_history_hash(turn, reply, options) == request_history_hash(following, options)
