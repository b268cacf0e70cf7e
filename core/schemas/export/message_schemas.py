"""JSON schemas of the wire messages, and the AsyncAPI document made of them.

Schemas of client messages describe accepted input; those of server messages what is sent, with
every field present.
Source of the format: AsyncAPI 3.0.0, https://www.asyncapi.com/docs/reference/specification/v3.0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Final, cast

from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from core.schemas.export.sockets import (
    CLOSE_TEXTS,
    PROTOCOL_VERSION,
    SOCKETS,
    TEXTS,
    Side,
    Socket,
    closes_on,
    message_type,
    public_names,
    uses_on,
)
from core.schemas.queue import SESSION_ID_PATTERN

Schema = dict[str, Any]  # Any: JSON schema is a tree of anything JSON has

REFERENCE: Final = "#/components/schemas/{model}"
OTHER_SPELLING: Final = "x-other-spelling-of"
TYPE: Final = "type"  # discriminator
DROPPED: Final = ("title", "readOnly")


@dataclass(frozen=True)
class MessageSchema:
    name: str  # unique among all messages
    message_type: str
    schema: Schema  # with a description
    definitions: Schema  # those that it references, by name


class _Generator(GenerateJsonSchema):
    """Adds what pydantic omits: aliases, and that every field of the server is sent."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if self.mode == "serialization":  # every field is sent
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    # Any: a default may be of any type.
    def encode_default(self, dft: Any) -> Any:
        """Encode a default as JSON; of a model, only values that differ from its defaults."""
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", exclude_defaults=True)
        return super().encode_default(dft)

    # Any: a field of a model, a dataclass or a typed dictionary.
    def field_is_required(self, field: Any, total: bool) -> bool:
        return self.mode == "serialization" or super().field_is_required(field, total)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        if self.mode == "validation":
            for field in cast(type[BaseModel], schema["cls"]).model_fields.values():
                if isinstance(field.validation_alias, AliasChoices):
                    first, *others = map(str, field.validation_alias.choices)
                    _add_spellings(made, first, others)
        return made


def _add_spellings(schema: Schema, first: str, others: Iterable[str]) -> None:
    properties, required = schema["properties"], schema.get("required", [])
    for name in others:
        same = {key: value for key, value in properties[first].items() if key != "default"}
        text = f"Another spelling of {first}."
        properties[name] = same | {"description": text, "deprecated": True, OTHER_SPELLING: first}
    if first in required:
        if "anyOf" in schema:
            raise ValueError(f"{first!r} is the second required field with two spellings")
        required.remove(first)
        schema["anyOf"] = [{"required": [name]} for name in (first, *others)]


def _clean(node: Any) -> Any:
    """Return a schema without titles, with lone references and AsyncAPI's discriminators.

    The field `type` of a message is first, required, and has no default.
    """
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned: Schema = {
        key: {name: _clean(field) for name, field in value.items()}
        if key == "properties"
        else _clean(value)
        for key, value in node.items()
        if key not in DROPPED
    }
    fields = cleaned.get("properties", {})
    if "const" in fields.get(TYPE, {}):
        fields[TYPE].pop("default", None)
        cleaned["properties"] = {TYPE: fields.pop(TYPE), **fields}
        others = [name for name in cleaned.get("required", []) if name != TYPE]
        cleaned["required"] = [TYPE, *others]
    if "discriminator" in cleaned:
        cleaned["discriminator"] = cleaned["discriminator"]["propertyName"]
    if "description" in cleaned:
        cleaned["description"] = " ".join(cleaned["description"].split())
    if "$ref" in cleaned and len(cleaned) > 1:
        cleaned = {"allOf": [{"$ref": cleaned.pop("$ref")}], **cleaned}
    return cleaned


def messages_of(socket: Socket, side: Side) -> tuple[MessageSchema, ...]:
    names = public_names()
    found = []
    for message in socket.messages(side):
        raw = message.model_json_schema(
            ref_template=REFERENCE,
            schema_generator=_Generator,
            mode="validation" if side is Side.CLIENT else "serialization",
        )
        definitions: Schema = _clean(raw.pop("$defs", {}))
        schema: Schema = _clean(raw)
        kind = message_type(message)
        if side is Side.CLIENT and kind == socket.implied_type:
            schema["required"].remove(TYPE)
            schema["properties"][TYPE]["default"] = kind
        found.append(MessageSchema(names[message], kind, schema, definitions))
    return tuple(found)


def all_messages() -> tuple[MessageSchema, ...]:
    found = {one.name: one for pair in product(SOCKETS, Side) for one in messages_of(*pair)}
    return tuple(found.values())


def definitions_of(sockets: Iterable[Socket] = SOCKETS, sides: Iterable[Side] = Side) -> Schema:
    """Return the schemas referenced by messages, by name; a ValueError if names collide."""
    merged: Schema = {}
    for message in chain.from_iterable(messages_of(*pair) for pair in product(sockets, sides)):
        for name, definition in message.definitions.items():
            if merged.setdefault(name, definition) != definition:
                raise ValueError(f"two definitions of {name!r}")
    return dict(sorted(merged.items()))


# --- reading a schema ---


def reference_name(schema: Schema) -> str | None:
    inner = schema.get("allOf", [schema])[0]
    return str(inner["$ref"]).rpartition("/")[2] if "$ref" in inner else None


def alternatives(schema: Schema) -> list[Schema]:
    """Return the schemas one of which holds: of a plain schema, itself."""
    found = schema.get("oneOf") or schema.get("anyOf")
    return [schema] if found is None or "properties" in schema else list(found)


def required_fields(schema: Schema) -> set[str]:
    """Return the fields that are required in one spelling or another."""
    spellings = [name for case in schema.get("anyOf", []) for name in case.get("required", [])]
    return {*schema.get("required", []), *spellings}


def visible_fields(schema: Schema) -> dict[str, Schema]:
    """Return the schemas of a message's fields, each in its first spelling."""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    return {name: field for name, field in properties.items() if OTHER_SPELLING not in field}


def meaning_of(schema: Schema, definitions: Schema) -> str:
    """Return a field's description, else that of the schema it references."""
    definition = definitions.get(reference_name(schema) or "", {})
    return str(schema.get("description") or definition.get("description", ""))


# --- the document ---

ASYNCAPI_VERSION: Final = "3.0.0"
CONTENT_TYPE: Final = "application/json"
LOCAL_HOST: Final = "localhost:8006"  # default address of the gateway

# From the gateway's view: it receives what clients send.
ACTIONS: Final = ((Side.CLIENT, "receive"), (Side.SERVER, "send"))


def asyncapi_document() -> dict[str, Any]:
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": "MiniCPM-o live conversations",
            "version": PROTOCOL_VERSION,
            "description": TEXTS["queue"].partition("\n\n")[0],
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "gateway": {
                "host": LOCAL_HOST,
                "protocol": "wss",
                "description": "Default address of the gateway; ws without TLS.",
            }
        },
        "channels": {socket.name: _channel(socket) for socket in SOCKETS},
        "operations": {
            f"{action}_{socket.name}": _operation(socket, side, action)
            for socket in SOCKETS
            for side, action in ACTIONS
        },
        "components": {
            "messages": {
                message.name: {
                    "name": message.message_type,
                    "title": message.message_type,
                    "summary": message.schema["description"],
                    "contentType": CONTENT_TYPE,
                    "payload": {k: v for k, v in message.schema.items() if k != "description"},
                }
                for message in all_messages()
            },
            "schemas": definitions_of(),
        },
    }


def _channel(socket: Socket) -> Schema:
    first_bytes, other_bytes = socket.limits_bytes
    summary, course, rules, _ = TEXTS[socket.name].split("\n\n")
    channel: Schema = {
        "address": socket.address,
        "title": socket.title,
        "summary": summary,
        "description": f"{course}\n\n{rules}",
        "messages": {
            message.message_type: {"$ref": f"#/components/messages/{message.name}"}
            for side in Side
            for message in messages_of(socket, side)
        },
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
        "x-limits": {"first_message_bytes": first_bytes, "other_message_bytes": other_bytes},
        "x-error-codes": [use.code.value for use in uses_on(socket.name)],
        "x-close-codes": {
            str(int(close)): {"text": CLOSE_TEXTS[close], "after": [code.value for code in codes]}
            for close, codes in closes_on(socket.name).items()
        },
    }
    if "{session_id}" in socket.address:
        text = f"Chosen by the client; fits `^{SESSION_ID_PATTERN.pattern}$`."
        channel["parameters"] = {"session_id": {"description": text}}
    return channel


def _operation(socket: Socket, side: Side, action: str) -> Schema:
    channel = f"#/channels/{socket.name}"
    return {
        "action": action,
        "channel": {"$ref": channel},
        "summary": f"Messages of the {side.value} on {socket.address}.",
        "messages": [
            {"$ref": f"{channel}/messages/{message.message_type}"}
            for message in messages_of(socket, side)
        ],
    }
