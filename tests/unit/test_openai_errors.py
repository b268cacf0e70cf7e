"""Errors of OpenAI's interface name the field and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.schemas.openai_errors import FieldError, parse_body
from gateway_modules.openai.chat_request import CompletionRequest

HELLO: Any = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stop": ["a"] * 5}, "at most 4 items"),
        ({"stop": 5}, "valid string"),
        ({"stop": ["a", 5]}, "valid string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2_000}]},
            "at most",
        ),
    ],
)
def test_of_a_field_with_several_types_the_one_given_is_judged(fields: Any, reason: str) -> None:
    text = json.dumps({"model": "x", "messages": [HELLO], **fields})
    with pytest.raises(FieldError, match=reason):
        parse_body(CompletionRequest, text)
