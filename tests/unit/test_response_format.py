"""Answers in JSON: what may be asked for, and that nothing else passes."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import BadRequestError
from gateway_modules.openai.chat_request import InvalidAnswerError, ResponseFormat

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "friends": {"$ref": "#/$defs/names"}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"names": {"type": "array", "items": {"type": "string"}}},
}
DOUBLED = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}


def wanted(schema: dict[str, Any] | None = None) -> ResponseFormat:
    kind = "json_object" if schema is None else "json_schema"
    given = None if schema is None else {"name": "it", "schema": schema}
    return ResponseFormat.model_validate({"type": kind, "json_schema": given})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "thing"}, "not a valid JSON Schema"),
        ({"properties": {"name": {"pattern": "(a+)+$"}}}, "'pattern'"),
        ({"patternProperties": {"(a+)+$": {}}}, "'patternProperties'"),
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRequestError, match=reason):
        wanted(schema).check()
    wanted({"properties": {"pattern": {"type": "string"}}}).check()  # a property's name
    wanted(PERSON).check()


@pytest.mark.parametrize(
    ("schema", "answer", "is_right"),
    [
        (None, '{"a": [1, null]}', True),
        (None, "[1]", False),
        (None, "Sure!", False),
        (None, '{"a": NaN}', False),
        (None, '{"a": 1', False),
        (PERSON, '{"name": "Ada", "friends": ["Bob"]}', True),
        (PERSON, '{"name": "Ada", "friends": [1]}', False),
        (PERSON, '{"friends": []}', False),
        (PERSON, '{"name": "Ada", "age": 3}', False),
        ({"$ref": "https://example.org/schema"}, "{}", False),
        ({"$ref": "#"}, "{}", False),
        ({"$ref": "#/properties/a/b", "properties": {"a": {"b": "x"}}}, '{"a": 1}', False),
        ({"$ref": "#/enum/0", "enum": [{"type": "nope"}]}, "{}", False),
        ({"$ref": "#/title/x", "title": "it"}, "{}", False),
        ({"properties": {"a": {"multipleOf": 0.1}}}, '{"a": 1e999}', False),
        ({"$ref": "#/$defs/d0", "$defs": {**DOUBLED, "d40": {}}}, "{}", False),
    ],
)
def test_only_what_fits_passes(schema: dict[str, Any] | None, answer: str, is_right: bool) -> None:
    if is_right:
        wanted(schema).check_answer(answer)
        return
    with pytest.raises(InvalidAnswerError):
        wanted(schema).check_answer(answer)


def test_an_object_ends_with_its_last_bracket() -> None:
    assert wanted().end_of(' {"a": "}"} and so on') == len(' {"a": "}"}')
    assert wanted().end_of('{"a": "}"') == 0
