"""A message's fields as a person reads them: name, type, default, range, meaning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.schemas.export.message_schemas import OTHER_SPELLING, Schema

REQUIRED: Final = "required"
TYPE: Final = "type"  # the field that says which message it is
SHORT_ENUM: Final = 8  # values that a table names one by one
UNITS: Final = (
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minimum", "maximum", ""),
)


@dataclass(frozen=True)
class FieldRow:
    """One field.

    Attributes:
        name: on the wire.
        other_names: spellings that are accepted too.
        type: in words.
        default: as JSON, or that the field is required.
        range: which values are allowed, empty if all are.
        text: what it means.
    """

    name: str
    other_names: tuple[str, ...]
    type: str
    default: str
    range: str
    text: str


def reference_name(schema: Schema) -> str | None:
    """Return the name of the definition a schema refers to."""
    inner = schema.get("allOf", [schema])[0]
    return str(inner["$ref"]).rpartition("/")[2] if "$ref" in inner else None


def alternatives(schema: Schema) -> list[Schema]:
    """Return the schemas one of which holds: of a plain schema, itself."""
    found = schema.get("oneOf") or schema.get("anyOf")
    return [schema] if found is None or "properties" in schema else list(found)


def required_fields(schema: Schema) -> set[str]:
    """Return the fields that must be given in one spelling or another."""
    spellings = [name for case in schema.get("anyOf", []) for name in case.get("required", [])]
    return {*schema.get("required", []), *spellings}


def visible_fields(schema: Schema) -> dict[str, Schema]:
    """Return the schemas of a message's fields, each in its first spelling."""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    return {name: field for name, field in properties.items() if OTHER_SPELLING not in field}


def meaning_of(schema: Schema, definitions: Schema) -> str:
    """Return what a field means: its own description, else that of what it refers to."""
    definition = definitions.get(reference_name(schema) or "", {})
    return str(schema.get("description") or definition.get("description", ""))


def field_rows(schema: Schema, definitions: Schema) -> list[FieldRow]:
    """Return a row for each field of a message or object.

    Args:
        schema: Of the message or object.
        definitions: What it may refer to, by name.
    """
    required = required_fields(schema)
    others = {
        name: field[OTHER_SPELLING]
        for name, field in schema.get("properties", {}).items()
        if OTHER_SPELLING in field
    }
    return [
        FieldRow(
            name,
            tuple(other for other, first in others.items() if first == name),
            type_words(field, definitions),
            REQUIRED if name in required else json_text(field.get("default")),
            range_words(field),
            meaning_of(field, definitions),
        )
        for name, field in visible_fields(schema).items()
    ]


# Any: a value of JSON.
def json_text(value: Any) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, ensure_ascii=False)


def type_words(schema: Schema, definitions: Schema) -> str:
    """Return a type in words, with names of definitions in square brackets."""
    cases = alternatives(schema)
    if len(cases) > 1:
        return " or ".join(type_words(case, definitions) for case in cases)
    name = reference_name(schema)
    if name is not None:
        values = definitions[name].get("enum", [])
        return _values(values) if 0 < len(values) <= SHORT_ENUM else f"[{name}]"
    if "const" in schema or "enum" in schema:
        return _values(schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        items = type_words(schema["items"], definitions)
        return f"list of ({items})" if " or " in items else f"list of {items}"
    return str(schema.get("type", "anything"))


def _values(values: list[Any]) -> str:
    return " or ".join(f"`{json_text(value)}`" for value in values)


def range_words(schema: Schema) -> str:
    """Return which values are allowed, in words; empty if all of the type are."""
    return " or ".join(words for case in alternatives(schema) if (words := _bounds(case)))


def _bounds(schema: Schema) -> str:
    words = []
    for low_key, high_key, unit in UNITS:
        low, high = schema.get(low_key), schema.get(high_key)
        above = schema.get("exclusiveMinimum") if low_key == "minimum" else None
        parts = [
            f"{_number(low)} to {_number(high)}" if None not in (low, high) else "",
            f"at least {_number(low)}" if low is not None and high is None else "",
            f"above {_number(above)}" if above is not None else "",
            f"at most {_number(high)}" if low is None and high is not None else "",
        ]
        told = ", ".join(part for part in parts if part)
        words += [f"{told}{unit}"] if told else []
    return "; ".join(words)


def _number(value: Any) -> str:
    return f"{value:,}"
