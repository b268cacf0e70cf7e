"""Answers in JSON: the prompt that asks for them, and the check without which none is sent.

Source: OpenAI's API reference, "Create chat completion", `response_format`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, Literal

import referencing
from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.validators import extend
from pydantic import Field

from core.errors import BadRequestError, ErrorCode
from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.openai_errors import OpenAIError

Json = dict[str, Any]  # Any: a JSON object

SCHEMA: Final = "response_format.json_schema.schema"
# Client's patterns may take Python's `re` as long as they like.
REFUSED: Final = frozenset({"pattern", "patternProperties"})
REFERENCES: Final = ("$ref", "$dynamicRef")
REFERENCES_MAX: Final = 10_000  # ours: followed for one answer; a schema can nest them endlessly
PROMPT: Final = "Answer with one JSON object and nothing else, not even Markdown around it."


class InvalidAnswerError(OpenAIError):
    code = ErrorCode.GENERATION_FAILED
    openai_code = "invalid_json"


class JsonSchema(WireModel):
    """A schema that the answer fits."""

    name: str = Field(pattern=r"^[\w-]{1,64}$")
    description: str | None = Field(None, max_length=limits.TEXT_MAX_CHARS)
    schema_: Json = Field(alias="schema")


class ResponseFormat(WireModel):
    """In which form the answer is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def is_json(self) -> bool:
        return self.type != "text"

    @property
    def prompt(self) -> str:
        """Text that is added to the system message."""
        if self.json_schema is None:
            return PROMPT
        about = self.json_schema.description or ""
        written = json.dumps(self.json_schema.schema_, ensure_ascii=False)
        return "\n".join(filter(None, (PROMPT, about, f"It fits this JSON Schema:\n{written}")))

    def check(self) -> None:
        """Raises BadRequestError if the schema is missing, invalid, or has patterns."""
        if self.type != "json_schema":
            return
        if self.json_schema is None:
            raise BadRequestError("response_format.json_schema: a schema is needed.")
        refused = REFUSED & set(_keywords(self.json_schema.schema_))
        if refused:
            raise BadRequestError(f"{SCHEMA}: '{min(refused)}' is not offered.")
        try:
            Draft202012Validator.check_schema(self.json_schema.schema_)
        except (SchemaError, RecursionError) as error:
            reason = error.message if isinstance(error, SchemaError) else "nested too deep"
            raise BadRequestError(f"{SCHEMA}: this is no JSON Schema: {reason[:200]}.") from None

    def end_of(self, text: str) -> int:
        """Return where the object at the beginning of a text ends; 0 if it does not end."""
        begin = len(text) - len(text.lstrip())
        try:
            return json.JSONDecoder().raw_decode(text, begin)[1]
        except (ValueError, RecursionError):
            return 0

    def check_answer(self, text: str) -> None:
        """Raises InvalidAnswerError if a response does not have the form."""
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise InvalidAnswerError("The model's answer is not a JSON object.")
        try:
            if self.json_schema is not None:
                _validator(self.json_schema.schema_).validate(value)
        except (ValidationError, RecursionError, referencing.exceptions.Unresolvable) as error:
            reason = error.message if isinstance(error, ValidationError) else "too many references"
            raise InvalidAnswerError(
                f"The model's answer does not fit the schema: {reason[:200]}."
            ) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON.")


def _keywords(schema: object) -> Iterator[str]:
    """Yield the keys of a schema; a key whose value is a schema may be a property's name."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name == "patternProperties" or not isinstance(value, dict | bool):
                yield name
            yield from _keywords(value)
    elif isinstance(schema, list):
        for part in schema:
            yield from _keywords(part)


# Any: jsonschema has no types.
def _validator(schema: Json) -> Any:
    """Return a validator that fetches nothing and stops at endless references."""
    followed = 0

    def counted(keyword: str) -> Any:
        follow = Draft202012Validator.VALIDATORS[keyword]

        def check(*arguments: Any) -> Iterator[ValidationError]:
            nonlocal followed
            followed += 1
            if followed > REFERENCES_MAX:
                raise RecursionError
            yield from follow(*arguments) or ()

        return check

    bounded = extend(Draft202012Validator, {keyword: counted(keyword) for keyword in REFERENCES})
    return bounded(schema, registry=referencing.Registry())
