"""Types and constants for the browser: one JavaScript module of JSDoc typedefs.

A message narrows on its `type` under `tsc --checkJs --strict`.
"""

from __future__ import annotations

import json
import re
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
    Schema,
    alternatives,
    definitions_of,
    meaning_of,
    messages_of,
    reference_name,
    required_fields,
    visible_fields,
)
from core.schemas.export.sockets import PROTOCOL_VERSION, SOCKETS, Side
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
    """Return the templates of this folder."""
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)


def protocol_js() -> str:
    definitions = definitions_of()
    pairs = [(socket, side) for socket in SOCKETS for side in Side]
    messages = {
        message.name: message for socket, side in pairs for message in messages_of(socket, side)
    }
    schemas = definitions | {name: message.schema for name, message in messages.items()}
    texts = {name: schema["description"] for name, schema in definitions.items()}
    texts |= {name: message.text for name, message in messages.items()}
    template = templates().get_template("protocol.js.j2")
    return template.render(
        types=[(name, texts[name], schema) for name, schema in schemas.items()],
        sockets=SOCKETS,
        Side=Side,
        messages_of=messages_of,
        session_id_pattern=SESSION_ID_PATTERN.pattern,
        constants=list(_constants(schemas, definitions)),
        definitions=definitions,
        fields=_fields,
        type_text=type_text,
        meaning_of=meaning_of,
        json=partial(json.dumps, indent=2, ensure_ascii=False),
    )


# --- types ---


def type_text(schema: Schema) -> str:
    """Return a schema as a TypeScript type."""
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
    """Return each field's schema and its name, in brackets if it is optional."""
    required = required_fields(schema)
    fields = visible_fields(schema).items()
    return [(field, name if name in required else f"[{name}]") for name, field in fields]


# --- constants ---


# Any: a value of JSON.
def _constants(schemas: Schema, definitions: Schema) -> Iterator[tuple[str, str, Any]]:
    settings = {name: schema for name, schema in schemas.items() if _is_settings(schema)}
    yield "PROTOCOL_VERSION", "Version of the protocol.", PROTOCOL_VERSION
    paths = {socket.name: socket.address for socket in SOCKETS}
    yield "SOCKET_PATHS", "Paths of the sockets; the session's id goes into the braces.", paths
    yield "LIMITS", "Sizes and counts the server accepts.", _limits()
    errors = {code.name: code.value for code in ErrorCode}
    yield "ERROR_CODES", "The `code` of an `error` or a `warning`.", errors
    closes = {code.name: code.value for code in CloseCode}
    yield "CLOSE_CODES", "How the server closes a socket.", closes
    # One constant each, so that a page is built with those that it uses.
    for name, schema in settings.items():
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        text = f"What the settings of {name} are when they are left out."
        yield f"{prefix}_DEFAULTS", text, _defaults(schema, definitions)
        if ranges := _ranges(schema):
            text = f"Least and greatest values of {name}; `above` itself is not allowed."
            yield f"{prefix}_RANGES", text, ranges


def _limits() -> dict[str, float]:
    return {
        name: value
        for name, value in vars(limits).items()
        if name.isupper() and isinstance(value, int | float)
    }


def _is_settings(schema: Schema) -> bool:
    """Whether all fields but the type are optional, and there are some."""
    is_optional = required_fields(schema) <= {TYPE}
    return is_optional and bool(visible_fields(schema).keys() - {TYPE})


def _defaults(schema: Schema, definitions: Schema) -> Schema:
    found: Schema = {}
    for name, field in visible_fields(schema).items():
        if name == TYPE:
            continue
        default, inner = field.get("default"), reference_name(field)
        if inner in definitions and isinstance(default, dict):
            default = _defaults(definitions[inner], definitions) | default
        found[name] = default
    return found


def _ranges(schema: Schema) -> Schema:
    found: Schema = {}
    for name, field in visible_fields(schema).items():
        for case in alternatives(field):
            bounds = {word: case[key] for word, key in BOUNDS if key in case}
            if bounds:
                found[name] = bounds
    return found
