"""What the pages and the npm package have of the protocol: constants, and types for `tsc`.

A message narrows on its `type` under `tsc --checkJs --strict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader

from core.errors import CloseCode, ErrorCode
from core.schemas import limits
from core.schemas.export.message_schemas import (
    TYPE,
    MessageSchema,
    Schema,
    alternatives,
    definitions_of,
    meaning_of,
    messages_of,
    reference_name,
    required_fields,
    visible_fields,
)
from core.schemas.export.sockets import SOCKETS, Side
from core.schemas.queue import SESSION_ID_PATTERN

PLAIN_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "string": "string",
        "integer": "number",
        "number": "number",
        "boolean": "boolean",
        "null": "null",
    }
)
BOUNDS: Final = (("min", "minimum"), ("above", "exclusiveMinimum"), ("max", "maximum"))


def templates() -> Environment:
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)


def protocol_js() -> str:
    template = templates().get_template("protocol.js.j2")
    return template.render(
        session_id_pattern=SESSION_ID_PATTERN.pattern,
        constants=list(_constants(_schemas())),
        json=partial(json.dumps, ensure_ascii=False),
    )


def protocol_d_ts() -> str:
    definitions = definitions_of()
    texts = {name: schema["description"] for name, schema in definitions.items()}
    texts |= {name: message.text for name, message in _messages().items()}
    template = templates().get_template("protocol.d.ts.j2")
    return template.render(
        types=[(name, texts[name], schema) for name, schema in _schemas().items()],
        sockets=SOCKETS,
        Side=Side,
        messages_of=messages_of,
        definitions=definitions,
        fields=_fields,
        type_text=type_text,
        meaning_of=meaning_of,
    )


def _messages() -> dict[str, MessageSchema]:
    pairs = [(socket, side) for socket in SOCKETS for side in Side]
    return {
        message.name: message for socket, side in pairs for message in messages_of(socket, side)
    }


def _schemas() -> dict[str, Schema]:
    return definitions_of() | {name: message.schema for name, message in _messages().items()}


# --- types ---


def type_text(schema: Schema) -> str:
    cases = alternatives(schema)
    if len(cases) > 1:
        return " | ".join(dict.fromkeys(type_text(case) for case in cases))
    name = reference_name(schema)
    if name is not None:
        return name
    if "const" in schema or "enum" in schema:
        return " | ".join(json.dumps(v) for v in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            return f"Array<{type_text(schema['items'])}>"
        case "object":
            values = schema.get("additionalProperties")
            kind = type_text(values) if isinstance(values, dict) else "unknown"
            return f"Record<string, {kind}>"
        case str(plain):
            return PLAIN_TYPES[plain]
    return "unknown"


def _fields(schema: Schema) -> list[tuple[Schema, str]]:
    """Return each field's schema and its name, with a question mark if it is optional."""
    required = required_fields(schema)
    fields = visible_fields(schema).items()
    return [(field, name if name in required else f"{name}?") for name, field in fields]


# --- constants ---


# Any: a value of JSON.
def _constants(schemas: Mapping[str, Schema]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    yield "LIMITS", "Sizes and counts the server accepts.", _limits()
    errors = {code.name: code.value for code in ErrorCode}
    yield "ERROR_CODES", "The `code` of an `error` or a `warning`.", errors
    closes = {code.name: code.value for code in CloseCode}
    yield "CLOSE_CODES", "How the server closes a socket.", closes
    text = "What the settings of {} are when they are left out."
    duplex, generate = schemas["DuplexConfig"], schemas["Generate"]
    yield "DUPLEX_CONFIG_DEFAULTS", text.format("DuplexConfig"), _defaults(duplex)
    yield "GENERATE_DEFAULTS", text.format("Generate"), _defaults(generate)
    text = "Least and greatest values of Generate; `above` itself is not allowed."
    yield "GENERATE_RANGES", text, _ranges(generate)


def _limits() -> dict[str, float]:
    return {
        name: value
        for name, value in vars(limits).items()
        if name.isupper() and isinstance(value, int | float)
    }


def _defaults(schema: Schema) -> Schema:
    fields = visible_fields(schema).items()
    return {name: field.get("default") for name, field in fields if name != TYPE}


def _ranges(schema: Schema) -> Schema:
    found: Schema = {}
    for name, field in visible_fields(schema).items():
        for case in alternatives(field):
            bounds = {word: case[key] for word, key in BOUNDS if key in case}
            if bounds:
                found[name] = bounds
    return found
