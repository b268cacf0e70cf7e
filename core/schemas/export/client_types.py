"""Generated client code: constants, and types for TypeScript and Python.

A message narrows on its `type` under `tsc --checkJs --strict`. In Python, events are dataclasses
and settings typed dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader

from core.errors import CloseCode, ErrorCode
from core.schemas import limits
from core.schemas.export.message_schemas import (
    TYPE,
    Schema,
    all_messages,
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


@dataclass(frozen=True)
class Language:
    """Type syntax of a language."""

    plain: Mapping[str, str]  # types that are named otherwise than in JSON schemas
    values: str  # literal type
    between: str  # separator of its values
    array: str
    record: str
    anything: str


TYPESCRIPT: Final = Language(
    {"integer": "number"}, "{}", " | ", "Array<{}>", "Record<string, {}>", "unknown"
)
PYTHON: Final = Language(
    {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"},
    "Literal[{}]",
    ", ",
    "list[{}]",
    "dict[str, object]",
    "object",
)


def type_text(schema: Schema, language: Language = TYPESCRIPT) -> str:
    cases = alternatives(schema)
    if len(cases) > 1:
        return " | ".join(dict.fromkeys(type_text(case, language) for case in cases))
    name = reference_name(schema)
    if name is not None:
        return name
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return language.values.format(language.between.join(map(json.dumps, values)))
    match schema.get("type"):
        case "array":
            return language.array.format(type_text(schema["items"], language))
        case "object":
            values = schema.get("additionalProperties")
            kind = type_text(values, language) if isinstance(values, dict) else language.anything
            return language.record.format(kind)
        case str(plain):
            return language.plain.get(plain, plain)
    return language.anything


BOUNDS: Final = (("min", "minimum"), ("above", "exclusiveMinimum"), ("max", "maximum"))


def templates() -> Environment:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    functions = (messages_of, visible_fields, required_fields, type_text, meaning_of)
    environment.globals |= {function.__name__: function for function in functions}
    environment.globals |= {"Side": Side, "PYTHON": PYTHON, "definitions": definitions_of()}
    return environment


def protocol_js() -> str:
    template = templates().get_template("protocol.js.j2")
    return template.render(
        session_id_pattern=SESSION_ID_PATTERN.pattern,
        constants=_constants(),
        json=partial(json.dumps, ensure_ascii=False),
    )


def protocol_d_ts() -> str:
    template = templates().get_template("protocol.d.ts.j2")
    types = definitions_of() | {message.name: message.schema for message in all_messages()}
    return template.render(types=types, sockets=SOCKETS)


# --- constants ---


# Any: a value of JSON.
def _constants() -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return names, descriptions and values."""
    duplex = definitions_of()["DuplexConfig"]
    generate = next(one.schema for one in all_messages() if one.name == "Generate")
    bounds = {
        name: {word: field[key] for word, key in BOUNDS if key in field}
        for name, field in visible_fields(generate).items()
    }
    sizes = {name: value for name, value in vars(limits).items() if name.isupper()}
    return [
        ("LIMITS", "Sizes and counts the server accepts.", sizes),
        ("ERROR_CODES", "The `code` of an `error` or a `warning`.", ErrorCode.__members__),
        ("CLOSE_CODES", "Close codes of the server.", CloseCode.__members__),
        ("DUPLEX_CONFIG_DEFAULTS", "Defaults of DuplexConfig.", _defaults(duplex)),
        ("GENERATE_DEFAULTS", "Defaults of Generate.", _defaults(generate)),
        (
            "GENERATE_RANGES",
            "Ranges of Generate; `above` is exclusive.",
            {name: found for name, found in bounds.items() if found},
        ),
    ]


def _defaults(schema: Schema) -> Schema:
    fields = visible_fields(schema).items()
    return {name: field.get("default") for name, field in fields if name != TYPE}


# --- Python ---


SERVED: Final = frozenset({"streaming", "half_duplex", "duplex"})  # sockets of the client
SETTINGS: Final = frozenset({"prepare", "prefill", "generate"})  # messages whose fields users set


def events_py() -> str:
    sockets = [socket for socket in SOCKETS if socket.name in SERVED]
    sent = {
        message.name: message.schema
        for socket in sockets
        for message in messages_of(socket, Side.CLIENT)
        if message.message_type in SETTINGS
    }
    events = {socket.name: messages_of(socket, Side.SERVER) for socket in sockets}
    said = {one.name: one.schema for messages in events.values() for one in messages}
    inner = definitions_of(sockets, [Side.SERVER])
    given = {k: v for k, v in definitions_of(sockets, [Side.CLIENT]).items() if k not in inner}
    definitions = given | inner
    template = templates().get_template("events.py.j2")
    return template.render(
        aliases=[
            (name, type_text(schema, PYTHON), schema["description"])
            for name, schema in definitions.items()
            if "properties" not in schema
        ],
        settings={k: v for k, v in given.items() if "properties" in v} | sent,
        events={k: v for k, v in inner.items() if "properties" in v} | said,
        nested={
            reference_name(field)
            for schema in said.values()
            for field in schema["properties"].values()
            if "properties" in definitions.get(reference_name(field) or "", {})
        },
        sockets=events,
        given=given,
    )
