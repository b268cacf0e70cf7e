"""The AsyncAPI document of the gateway's sockets.

Source of the format: AsyncAPI 3.0.0, https://www.asyncapi.com/docs/reference/specification/v3.0.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from core.schemas.export.codes import CLOSE_TEXTS, closes_on, uses_on
from core.schemas.export.message_schemas import (
    MessageSchema,
    Schema,
    all_messages,
    definitions_of,
    messages_of,
)
from core.schemas.export.sockets import COMMON_RULES, PROTOCOL_VERSION, SOCKETS, Side, Socket
from core.schemas.queue import SESSION_ID_PATTERN

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
            "description": _listed(COMMON_RULES),
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
            "messages": {message.name: _message(message) for message in all_messages()},
            "schemas": definitions_of(),
        },
    }


def _message(message: MessageSchema) -> Schema:
    return {
        "name": message.message_type,
        "title": message.message_type,
        "summary": message.text,
        "contentType": CONTENT_TYPE,
        "payload": message.schema,
    }


def _channel(socket: Socket) -> Schema:
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(socket.course, start=1))
    channel: Schema = {
        "address": socket.address,
        "title": socket.title,
        "summary": socket.summary,
        "description": f"{steps}\n\n{_listed(socket.rules)}",
        "messages": _references(socket),
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
        "x-limits": {
            "first_message_bytes": socket.first_bytes,
            "other_message_bytes": socket.other_bytes,
        },
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


def _references(socket: Socket) -> Schema:
    """Return a channel's messages by their type; a ValueError if both sides have one type."""
    found: Schema = {}
    for side in Side:
        for message in messages_of(socket, side):
            if message.message_type in found:
                raise ValueError(f"two messages {message.message_type!r} on {socket.name}")
            found[message.message_type] = {"$ref": f"#/components/messages/{message.name}"}
    return found


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


def _listed(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
