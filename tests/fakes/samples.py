"""Values that fit a JSON schema, and values that just do not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Json = Any
Schema = dict[str, Any]


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """The schema itself, without references and without the case of `null`."""
    if "allOf" in schema:
        return resolved(schema["allOf"][0], definitions) | {
            key: value for key, value in schema.items() if key != "allOf"
        }
    if "$ref" in schema:
        return resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    cases = schema.get("oneOf") or schema.get("anyOf")
    if cases and "properties" not in schema:
        return resolved(next(case for case in cases if case.get("type") != "null"), definitions)
    return schema


def required(schema: Schema) -> set[str]:
    """The fields that must be there; of several spellings the first."""
    spellings = [case["required"][0] for case in schema.get("anyOf", []) if "required" in case]
    return {*schema.get("required", []), *spellings[:1]}


def sample(schema: Schema, definitions: Schema, *, is_full: bool) -> Json:
    """A value that fits.

    Args:
        schema: What it must fit.
        definitions: What the schema refers to.
        is_full: With every field, not only with those that must be there.
    """
    plain = resolved(schema, definitions)
    if "const" in plain:
        return plain["const"]
    if "enum" in plain:
        return plain["enum"][-1]
    match plain["type"]:
        case "object":
            fields = plain.get("properties", {})
            names = fields if is_full else required(plain)
            return {
                name: sample(field, definitions, is_full=is_full)
                for name, field in fields.items()
                if name in names and "deprecated" not in field
            }
        case "array":
            return [sample(plain["items"], definitions, is_full=is_full)]
        case "string":
            return "abcd" * 8 if "pattern" in plain else "abcd"
        case "boolean":
            return True
    # A default fits even where only one value does and the schema cannot say so.
    return schema.get("default") or plain.get("maximum") or plain.get("minimum") or 1


def beyond(value: Json, schema: Schema, definitions: Schema) -> Iterator[Json]:
    """Copies of a value, each with one number or text that is not allowed."""
    plain = resolved(schema, definitions)
    if isinstance(value, dict):
        for name, inner in value.items():
            for bad in beyond(inner, plain.get("properties", {}).get(name, {}), definitions):
                yield {**copy.deepcopy(value), name: bad}
    elif isinstance(value, list):
        if "maxItems" in plain:
            yield value * (plain["maxItems"] + 1)
        for bad in beyond(value[0], plain["items"], definitions):
            yield [bad]
    elif "maxLength" in plain:
        yield "a" * (plain["maxLength"] + 1)
    elif "enum" in plain or "const" in plain:
        yield "no such value"
    else:
        steps = {"maximum": 1, "minimum": -1, "exclusiveMinimum": 0}
        yield from (plain[bound] + step for bound, step in steps.items() if bound in plain)
