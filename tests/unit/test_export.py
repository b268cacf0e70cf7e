"""The exported protocol agrees with the models and tables."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter, ValidationError

from core.errors import CloseCode, ErrorCode
from core.protocols.effects import Send
from core.protocols.events import ChunkReady, EngineFailed
from core.schemas import chat, duplex
from core.schemas.common import WireModel
from core.schemas.export.__main__ import PAGES_FOLDER, exported_files
from core.schemas.export.message_schemas import asyncapi_document, definitions_of, messages_of
from core.schemas.export.sockets import (
    CLOSE_TEXTS,
    SOCKETS,
    USES,
    Side,
    Socket,
    close_codes_of,
    closes_on,
    message_type,
    public_names,
    text_of,
    uses_on,
)
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import StreamingChunk
from tests.fakes.protocols import ENDS, FAILURE, HEARD, OUTSIDE, PROTOCOLS
from tests.fakes.samples import beyond, required, sample
from tests.source_tree import ROOT

SIDES = [(socket, side) for socket in SOCKETS for side in Side]
MESSAGES = [
    pytest.param(socket, side, message, id=f"{socket.name}-{message_type(message)}")
    for socket, side in SIDES
    for message in socket.messages(side)
]
DEFINITIONS = definitions_of()
OFFICIAL = ROOT / "node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return asyncapi_document()


# --- the files ---


def test_the_committed_files_are_up_to_date() -> None:
    files = exported_files()
    for name, text in files.items():
        assert (ROOT / name).read_bytes() == text.encode(), f"{name}: run `make protocol`"
    pages = (path for path in (ROOT / PAGES_FOLDER).iterdir() if path.is_file())
    unknown = {path.relative_to(ROOT).as_posix() for path in pages} - files.keys()
    assert not unknown, "no socket has these pages"


# --- the AsyncAPI document ---


def fetched(document: dict[str, Any], reference: str) -> Any:
    """Resolve a reference inside the document."""
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for item in node for found in references(item)]
    if not isinstance(node, dict):
        return []
    below = [found for value in node.values() for found in references(value)]
    return [*below, node["$ref"]] if isinstance(node.get("$ref"), str) else below


@pytest.mark.parametrize("socket", SOCKETS, ids=lambda socket: socket.name)
def test_every_message_of_the_unions_is_there(socket: Socket, document: dict[str, Any]) -> None:
    name = socket.name
    channel = document["channels"][name]
    assert channel["address"] == f"/ws/{name}" + ("" if name == "chat" else "/{session_id}")
    for action, side in (("receive", Side.CLIENT), ("send", Side.SERVER)):
        operation = document["operations"][f"{action}_{name}"]
        assert operation["action"] == action
        assert fetched(document, operation["channel"]["$ref"]) is channel
        told = [
            fetched(document, fetched(document, message["$ref"])["$ref"])
            for message in operation["messages"]
        ]
        classes = socket.messages(side)
        assert [message["name"] for message in told] == [message_type(one) for one in classes]
        for message, one in zip(told, classes, strict=True):
            assert message["summary"] == " ".join((one.__doc__ or "").split())
            shown = message["payload"]["properties"]
            assert set(shown) >= {*one.model_fields} | {
                *(one.model_computed_fields if action == "send" else ())
            }


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    found = references(document)
    assert len(found) > 100
    for reference in found:
        assert fetched(document, reference), reference
    unused = {f"#/components/messages/{name}" for name in document["components"]["messages"]}
    unused |= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert unused - set(found) == set()


def test_the_document_has_the_form_of_its_standard(document: dict[str, Any]) -> None:
    """Requirements of AsyncAPI 3.0.0 for the parts used here."""
    assert document["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= document["info"].keys()
    for server in document["servers"].values():
        assert {"host", "protocol"} <= server.keys()
    for channel in document["channels"].values():
        placeholders = re.findall(r"{(\w+)}", channel["address"])
        assert list(channel.get("parameters", {})) == placeholders
        assert {"x-limits", "x-error-codes", "x-close-codes", "description"} <= channel.keys()
    for operation in document["operations"].values():
        channel = fetched(document, operation["channel"]["$ref"])
        ours = [f"{operation['channel']['$ref']}/messages/{name}" for name in channel["messages"]]
        assert {message["$ref"] for message in operation["messages"]} <= set(ours)
    for message in document["components"]["messages"].values():
        jsonschema.Draft7Validator.check_schema(message["payload"])
        assert isinstance(message["payload"]["properties"]["type"]["const"], str)
    for name in (*document["components"]["messages"], *document["components"]["schemas"]):
        assert re.fullmatch(r"[\w.-]+", name)


def test_the_standards_own_schema_accepts_it(document: dict[str, Any]) -> None:
    schema = json.loads(OFFICIAL.read_text(encoding="utf8"))
    jsonschema.Draft7Validator(schema).validate(document)


def test_names_are_unique() -> None:
    names = list(public_names().values())
    assert len({*names, *DEFINITIONS}) == len(names) + len(DEFINITIONS)


# --- schemas against models ---


def validator(schema: dict[str, Any]) -> Any:
    return jsonschema.Draft7Validator(schema | {"components": {"schemas": DEFINITIONS}})


def schema_of(socket: Socket, side: Side, message: type[WireModel]) -> dict[str, Any]:
    told = messages_of(socket, side)
    return next(one.schema for one in told if one.message_type == message_type(message))


def is_accepted(union: Any, value: Any) -> bool:
    try:
        TypeAdapter(union).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("socket", "side", "message"), MESSAGES)
def test_schema_and_model_agree(socket: Socket, side: Side, message: type[WireModel]) -> None:
    schema, definitions = schema_of(socket, side, message), DEFINITIONS
    check = validator(schema)
    union = socket.client if side is Side.CLIENT else socket.server
    for is_full in (True, False):
        value = sample(schema, definitions, is_full=is_full)
        check.validate(value)
        parsed = TypeAdapter(union).validate_python(value)
        assert type(parsed) is message
        if side is Side.SERVER:
            sent = parsed.model_dump(mode="json")
            check.validate(sent)
            assert set(sent) == set(schema["properties"]) == set(schema["required"])


@pytest.mark.parametrize(
    ("socket", "message"), [(s, m) for s in SOCKETS for m in s.messages(Side.CLIENT)]
)
def test_both_refuse_the_same(socket: Socket, message: type[WireModel]) -> None:
    schema, definitions = schema_of(socket, Side.CLIENT, message), DEFINITIONS
    check, whole = validator(schema), sample(schema, definitions, is_full=True)
    bad = [{k: v for k, v in whole.items() if k != name} for name in required(schema)]
    bad += beyond(whole, schema, definitions)
    for value in bad:
        assert not check.is_valid(value), value
        assert not is_accepted(socket.client, value), value


def test_optional_fields_have_the_models_default() -> None:
    for socket in SOCKETS:
        for message in socket.messages(Side.CLIENT):
            schema = schema_of(socket, Side.CLIENT, message)
            least = sample(schema, DEFINITIONS, is_full=False)
            bare = TypeAdapter(socket.client).validate_python(least)
            defaults = {
                name: field["default"]
                for name, field in schema["properties"].items()
                if "default" in field
            }
            assert TypeAdapter(socket.client).validate_python(defaults | least) == bare
            optional = bare.model_dump().keys() - required(schema)
            assert optional == defaults.keys(), message


def test_other_spellings_are_accepted() -> None:
    schema = schema_of(SOCKETS[2], Side.CLIENT, duplex.AudioChunk)
    check = validator(schema)
    for spelling in ("audio", "audio_base64"):
        value = {"type": "audio_chunk", spelling: "abcd"}
        assert check.is_valid(value) and is_accepted(duplex.ClientMessage, value)
    assert not check.is_valid({"type": "audio_chunk"})


def test_the_one_message_without_a_type() -> None:
    value = {"messages": [{"role": "user", "content": "a"}]}
    assert validator(schema_of(SOCKETS[3], Side.CLIENT, chat.ChatSocketRequest)).is_valid(value)
    assert is_accepted(chat.ClientMessage, value)


# --- codes ---


UNTOLD = frozenset(
    {
        ErrorCode.APP_DISABLED,
        ErrorCode.ORIGIN_REFUSED,
        ErrorCode.UNAUTHORIZED,
        ErrorCode.FORBIDDEN,
        ErrorCode.STILL_WRITING,
        ErrorCode.NOT_AVAILABLE,
        ErrorCode.DISK_FULL,
    }
)
"""Codes without a message on a socket: HTTP errors, or refused handshakes."""


def test_every_code_is_documented() -> None:
    told = [use.code for use in USES]
    assert len(told) == len(set(told))
    assert {*told, *UNTOLD} == set(ErrorCode) and not {*told} & UNTOLD
    assert set(CLOSE_TEXTS) == set(CloseCode)
    for use in USES:
        assert use.errors or use.warnings
        assert text_of(use)
        assert not use.errors or close_codes_of(use.code)


@pytest.mark.parametrize("socket", SOCKETS, ids=lambda socket: socket.name)
def test_each_socket_documents_how_too_many_connections_are_refused(socket: Socket) -> None:
    assert socket.name in next(use for use in USES if use.code is ErrorCode.RATE_LIMITED).errors
    assert ErrorCode.RATE_LIMITED in closes_on(socket.name)[CloseCode.TRY_LATER]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_machines_use_only_documented_codes(name: str) -> None:
    """Every phase, every event, as far as one step goes."""
    protocol = PROTOCOLS[name]
    errors = {use.code for use in uses_on(name) if name in use.errors}
    warnings = {use.code for use in uses_on(name) if name in use.warnings}
    piece = ChunkReady(StreamingChunk(chunk_index=0))
    answers = [event for events in ENDS.values() for event in events]
    events = [*protocol.said(), *OUTSIDE, *HEARD, *answers, piece, EngineFailed(FAILURE)]
    for phase in protocol.paths:
        for event in events:
            scene, _ = protocol.lead_to(phase)
            scene.engine_may_lie = True
            scene.tell(event)
            for message in (effect.message for effect in scene.history if isinstance(effect, Send)):
                if isinstance(message, ErrorMessage):
                    assert message.code in errors
                elif isinstance(message, WarningMessage):
                    assert message.code in warnings
