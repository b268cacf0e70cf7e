"""Types and constants for the browser: one JavaScript module of JSDoc typedefs.

A message narrows on its `type` under `tsc --checkJs --strict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

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
from core.schemas.export.sockets import PROTOCOL_VERSION, SOCKETS, Side, Socket
from core.schemas.queue import SESSION_ID_PATTERN

HEAD: Final = """\
// @ts-check
/**
 * Messages, settings and limits of the protocol.
 *
 * Generated from the server's own models by `python -m core.schemas.export`; do not edit.
 */
"""
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


def protocol_js() -> str:
    """Return the text of the module."""
    definitions = definitions_of()
    messages: dict[str, MessageSchema] = {}
    for socket in SOCKETS:
        for side in Side:
            messages |= {message.name: message for message in messages_of(socket, side)}
    parts = [
        HEAD,
        *(
            _typedef(name, schema, schema["description"], definitions)
            for name, schema in definitions.items()
        ),
        *(
            _typedef(name, message.schema, message.text, definitions)
            for name, message in messages.items()
        ),
        *(_union(socket, side) for socket in SOCKETS for side in Side),
        *_constants(definitions, messages),
    ]
    return "\n".join(parts)


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
            return "Record<string, unknown>"
        case str(plain):
            return PLAIN_TYPES[plain]
    return "unknown"


def _typedef(name: str, schema: Schema, text: str, definitions: Schema) -> str:
    if "properties" not in schema:
        return f"/** {text}\n * @typedef {{{type_text(schema)}}} {name}\n */\n"
    required = required_fields(schema)
    lines = [f"/** {text}", f" * @typedef {{Object}} {name}"]
    for field_name, field in visible_fields(schema).items():
        shown = field_name if field_name in required else f"[{field_name}]"
        meaning = meaning_of(field, definitions)
        lines.append(f" * @property {{{type_text(field)}}} {shown} {meaning}".rstrip())
    return "\n".join([*lines, " */", ""])


def _union(socket: Socket, side: Side) -> str:
    name = f"{_camel(socket.name)}{side.value.title()}Message"
    members = " | ".join(message.name for message in messages_of(socket, side))
    return (
        f"/** What the {side.value} says on {socket.address}.\n"
        f" * @typedef {{{members}}} {name}\n */\n"
    )


def _camel(name: str) -> str:
    return name.title().replace("_", "")


# --- constants ---


def _constants(definitions: Schema, messages: Mapping[str, MessageSchema]) -> Iterable[str]:
    schemas = definitions | {name: message.schema for name, message in messages.items()}
    settings = {name: schema for name, schema in schemas.items() if _is_settings(schema)}
    yield _constant("PROTOCOL_VERSION", PROTOCOL_VERSION, "Version of the protocol.")
    yield _constant(
        "SOCKET_PATHS",
        {socket.name: socket.address for socket in SOCKETS},
        "Paths of the sockets; the session's id goes into the braces.",
    )
    yield (
        "/** What a session's id must match. */\n"
        f"export const SESSION_ID_PATTERN = /^{SESSION_ID_PATTERN.pattern}$/;\n"
    )
    yield _constant("LIMITS", _limits(), "Sizes and counts the server accepts.")
    yield _constant(
        "ERROR_CODES",
        {code.name: code.value for code in ErrorCode},
        "The `code` of an `error` or a `warning`.",
    )
    yield _constant(
        "CLOSE_CODES",
        {code.name: code.value for code in CloseCode},
        "How the server closes a socket.",
    )
    yield _constant(
        "DEFAULTS",
        {name: _defaults(schema, definitions) for name, schema in settings.items()},
        "What settings are when they are left out.",
    )
    ranges = {name: _ranges(schema) for name, schema in settings.items()}
    yield _constant(
        "RANGES",
        {name: found for name, found in ranges.items() if found},
        "Least and greatest values of settings; `above` itself is not allowed.",
    )


# Any: a value of JSON.
def _constant(name: str, value: Any, text: str) -> str:
    literal = json.dumps(value, indent=2, ensure_ascii=False)
    return f"/** {text} */\nexport const {name} = /** @type {{const}} */ ({literal});\n"


def _limits() -> dict[str, float]:
    """Return every number of `core.schemas.limits` by its name."""
    return {
        name: value
        for name, value in vars(limits).items()
        if name.isupper() and isinstance(value, int | float)
    }


def _is_settings(schema: Schema) -> bool:
    """Whether all but the type may be left out, and there is more than the type."""
    is_optional = required_fields(schema) <= {TYPE}
    return is_optional and bool(visible_fields(schema).keys() - {TYPE})


def _defaults(schema: Schema, definitions: Schema) -> Schema:
    """Return the value of each field that is left out, objects filled in."""
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
