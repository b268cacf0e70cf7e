"""Types for the Python client: events as dataclasses, and settings as typed dictionaries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from core.schemas.export.message_schemas import (
    TYPE,
    MessageSchema,
    Schema,
    alternatives,
    definitions_of,
    meaning_of,
    messages_of,
    reference_name,
    visible_fields,
)
from core.schemas.export.sockets import SOCKETS, Side
from core.schemas.export.typedefs import templates

SERVED: Final = frozenset({"streaming", "half_duplex", "duplex"})  # what the client speaks
SETTINGS: Final = frozenset({"prepare", "prefill", "generate"})  # messages whose fields users give
PLAIN_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
)


def events_py() -> str:
    sockets = [socket for socket in SOCKETS if socket.name in SERVED]
    sent = {
        message.name: message
        for socket in sockets
        for message in messages_of(socket, Side.CLIENT)
        if message.message_type in SETTINGS
    }
    events = {socket.name: messages_of(socket, Side.SERVER) for socket in sockets}
    said = {message.name: message for messages in events.values() for message in messages}
    inner = definitions_of(sockets, [Side.SERVER])
    given = {k: v for k, v in definitions_of(sockets, [Side.CLIENT]).items() if k not in inner}
    definitions = given | inner
    template = templates().get_template("events.py.j2")
    return template.render(
        aliases=[
            (name, type_text(schema), schema["description"])
            for name, schema in definitions.items()
            if "properties" not in schema
        ],
        settings=[
            *(_parts(name, schema) for name, schema in given.items() if "properties" in schema),
            *(_parts(name, message) for name, message in sent.items()),
        ],
        events=[
            *(_parts(name, schema) for name, schema in inner.items() if "properties" in schema),
            *(_parts(name, message) for name, message in said.items()),
        ],
        nested={
            reference_name(field)
            for message in said.values()
            for field in message.schema["properties"].values()
            if "properties" in definitions.get(reference_name(field) or "", {})
        },
        sockets=events,
        given=given,
        fields=lambda schema: _fields(schema, definitions),
    )


def type_text(schema: Schema) -> str:
    cases = alternatives(schema)
    if len(cases) > 1:
        return " | ".join(dict.fromkeys(type_text(case) for case in cases))
    name = reference_name(schema)
    if name is not None:
        return name
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return f"Literal[{', '.join(json.dumps(value) for value in values)}]"
    match schema.get("type"):
        case "array":
            return f"list[{type_text(schema['items'])}]"
        case "object":
            return "dict[str, object]"
        case str(plain):
            return PLAIN_TYPES[plain]
    return "object"


def _parts(name: str, described: MessageSchema | Schema) -> tuple[str, str, Schema]:
    if isinstance(described, MessageSchema):
        return name, described.text, described.schema
    return name, described["description"], described


def _fields(schema: Schema, definitions: Schema) -> Iterator[tuple[str, str, str]]:
    for name, field in visible_fields(schema).items():
        yield name, type_text(field), "" if name == TYPE else meaning_of(field, definitions)
