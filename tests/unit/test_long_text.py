"""A long JSON text is understood without its long strings and passed on with them."""

from __future__ import annotations

import base64
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import BadPayloadError, TooBigError
from core.history import compute_history_hash
from core.schemas.limits import JSON_VALUES_MAX
from gateway_modules.web import messages as long_text
from gateway_modules.web.messages import (
    LONG_CHARS,
    PART_CHARS,
    SHORT_TEXT_CHARS,
    STRINGS_MAX,
    LongText,
    parts_of,
    read_long,
    size_chars,
    with_strings_of,
)

MEDIA = base64.b64encode(bytes(range(256)) * 400).decode()
ESCAPES = '\\"' + "\\\\" + "\\u00e4" + "\\n"
PART = 10_007  # divides nothing


def cut(text: str, at: list[int]) -> list[str]:
    places = [0, *sorted(min(place, len(text)) for place in at), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def conversation(*media: str) -> list[dict[str, object]]:
    items = [{"type": "audio", "data": each} for each in media]
    return [{"role": "user", "content": [*items, {"type": "text", "text": "Hi"}]}]


@settings(max_examples=30)
@given(
    texts=st.lists(st.tuples(st.text(max_size=20), st.integers(0, 3)), max_size=5),
    at=st.lists(st.integers(0, 200_000), max_size=6),
    are_escaped=st.booleans(),
)
def test_any_text_round_trips(
    texts: list[tuple[str, int]], at: list[int], are_escaped: bool
) -> None:
    strings = [text * (times * LONG_CHARS // 10) or text for text, times in texts]
    whole = json.dumps([{"": each} for each in strings], ensure_ascii=are_escaped)
    read = read_long(cut(whole, at))
    assert "".join(parts_of(read)) == whole
    shown = [each[""] for each in json.loads(read)]
    assert [a if len(a) <= 2 * LONG_CHARS else "" for a in shown] == shown


def test_parts_may_split_escape_sequences() -> None:
    whole = json.dumps({"a": 1}) + '"' + ESCAPES * LONG_CHARS + '"'
    for size in (1_023, 1_024):
        read = read_long(cut(whole, list(range(0, len(whole), size))))
        assert "".join(parts_of(read)) == whole
        assert isinstance(read, LongText)
        assert len(read) < 100


def test_a_text_without_long_strings_is_a_plain_one() -> None:
    assert type(read_long(['{"a": ', '"b"}'])) is str


def test_parts_are_bounded() -> None:
    whole = json.dumps(["A" * 3 * PART_CHARS, "short", "B" * LONG_CHARS * 2])
    read = read_long(cut(whole, list(range(0, len(whole), PART))))
    assert max(map(len, parts_of(read))) < PART_CHARS + PART
    assert size_chars(read) == pytest.approx(len(whole), abs=200)


def test_a_changed_text_retains_the_extracted_strings() -> None:
    read = read_long([json.dumps({"a": MEDIA, "b": MEDIA[::-1]})])
    changed = with_strings_of(read, json.dumps({"c": json.loads(read)["b"]}))
    assert json.loads("".join(parts_of(changed))) == {"c": MEDIA[::-1]}


@pytest.mark.parametrize(
    "spelled", [MEDIA, MEDIA.replace("/", "\\/"), "\\r\\n".join(cut(MEDIA, [76]))]
)
def test_media_are_hashed_independently_of_parts_and_escapes(spelled: str) -> None:
    whole = json.dumps(conversation("@")).replace("@", spelled)
    read = read_long(cut(whole, list(range(0, len(whole), PART))))
    assert isinstance(read, LongText)
    assert compute_history_hash(json.loads(read), value=read.value) == compute_history_hash(
        conversation(MEDIA)
    )


def test_other_media_have_another_hash() -> None:
    read = read_long([json.dumps(conversation(MEDIA[::-1]))])
    assert isinstance(read, LongText)
    assert compute_history_hash(json.loads(read), value=read.value) != compute_history_hash(
        conversation(MEDIA)
    )


def test_a_client_cannot_forge_a_placeholder() -> None:
    """Names are drawn anew for each text."""
    first, second = (read_long([json.dumps([MEDIA])]) for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("[" * (JSON_VALUES_MAX + 1), TooBigError),
        (" " * (SHORT_TEXT_CHARS + 1), TooBigError),
        ('""' * (STRINGS_MAX + 1), BadPayloadError),
    ],
)
def test_the_remaining_text_is_bounded(part: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_long([part])
    assert long_text.JOINED_CHARS < SHORT_TEXT_CHARS
