"""The protocol's pages: one for each socket, and one for what all sockets share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from core.schemas.export import markdown as md
from core.schemas.export.codes import (
    CLOSE_TEXTS,
    USES,
    CodeUse,
    close_codes_of,
    closes_on,
    text_of,
    uses_on,
)
from core.schemas.export.fields import REQUIRED, TYPE, FieldRow, field_rows
from core.schemas.export.machines import MACHINES, machine_section
from core.schemas.export.message_schemas import (
    MessageSchema,
    Schema,
    definitions_of,
    messages_of,
)
from core.schemas.export.sockets import COMMON_RULES, SOCKETS, Side, Socket
from core.schemas.limits import MIB

NOTE: Final = "<!-- Written by `python -m core.schemas.export` from the models; do not edit. -->"
SHARED_PAGE: Final = "queue"
CODE_TYPE: Final = "[ErrorCode]"
CODE_LINK: Final = "[code](#codes)"


def pages() -> dict[str, str]:
    """Return every page by its name, without `.md`."""
    return {SHARED_PAGE: _shared_page(), **{socket.name: _page(socket) for socket in SOCKETS}}


def _page(socket: Socket) -> str:
    sizes = (
        f"A message has at most {socket.other_bytes // MIB} MiB"
        if socket.first_bytes == socket.other_bytes
        else f"`prepare` has at most {socket.first_bytes // MIB} MiB, any other message "
        f"{socket.other_bytes // MIB} MiB"
    )
    return md.joined(
        [
            f"# {socket.title}: `{socket.address}`",
            NOTE,
            socket.summary,
            f"What holds on every socket stands on [its own page]({SHARED_PAGE}.md): form, sound, "
            "the queue, errors.",
            "## Course",
            md.steps(socket.course),
            "## Rules",
            md.bullets([*socket.rules, f"{sizes}; more closes the connection with 1009."]),
            *_messages(socket),
            *_objects(socket),
            machine_section(socket.name) if socket.name in MACHINES else "",
            *_codes(socket),
        ]
    )


def _shared_page() -> str:
    shared = _shared_messages()
    definitions = definitions_of()
    return md.joined(
        [
            "# What all sockets share: form, queue, errors",
            NOTE,
            "Sockets: "
            + ", ".join(f"[`{socket.address}`]({socket.name}.md)" for socket in SOCKETS)
            + ".",
            "## Rules",
            md.bullets(COMMON_RULES),
            "## Messages of the server",
            "Every field is always there.",
            *(_message(message, Side.SERVER, definitions) for message in shared),
            machine_section(SHARED_PAGE),
            *_all_codes(),
        ]
    )


# --- messages ---


def _shared_messages() -> list[MessageSchema]:
    """Return the server's messages that every socket has."""
    found = [messages_of(socket, Side.SERVER) for socket in SOCKETS]
    names = set.intersection(*({message.name for message in some} for some in found))
    return [message for message in found[0] if message.name in names]


def _messages(socket: Socket) -> Iterable[str]:
    definitions = definitions_of()
    shared = [message.name for message in _shared_messages()]
    yield "## Messages of the client"
    if socket.implied_type is not None:
        yield f"A message without `type` is a `{socket.implied_type}`."
    for message in messages_of(socket, Side.CLIENT):
        yield _message(message, Side.CLIENT, definitions)
    yield "## Messages of the server"
    told = [m for m in messages_of(socket, Side.SERVER) if m.name in shared]
    others = ", ".join(
        f"[`{message.message_type}`]({SHARED_PAGE}.md#{message.message_type})" for message in told
    )
    yield f"Every field is always there. As on every socket: {others}."
    for message in messages_of(socket, Side.SERVER):
        if message.name not in shared:
            yield _message(message, Side.SERVER, definitions)


def _message(message: MessageSchema, side: Side, definitions: Schema) -> str:
    table = _fields(message.schema, side, definitions)
    is_open = message.schema.get("additionalProperties") is True
    return md.joined(
        [
            f"### `{message.message_type}`",
            message.text,
            table or "Nothing but its type.",
            "Other fields are kept." if is_open else "",
        ]
    )


def _fields(schema: Schema, side: Side, definitions: Schema) -> str:
    rows = [row for row in field_rows(schema, definitions) if row.name != TYPE or _is_item(schema)]
    if side is Side.SERVER:
        cells = [(_names(row), _type(row), row.range, row.text) for row in rows]
        return md.table(("field", "type", "range", "meaning"), cells)
    return md.table(
        ("field", "type", "default", "range", "meaning"),
        [(_names(row), _type(row), _default(row), row.range, row.text) for row in rows],
    )


def _is_item(schema: Schema) -> bool:
    """Whether it is an object inside a message: only such a one has a description of its own."""
    return "description" in schema


def _names(row: FieldRow) -> str:
    others = f" (or {md.codes(row.other_names)})" if row.other_names else ""
    return md.code(row.name) + others


def _type(row: FieldRow) -> str:
    return md.linked(row.type).replace(md.linked(CODE_TYPE), CODE_LINK)


def _default(row: FieldRow) -> str:
    return row.default if row.default == REQUIRED else md.code(row.default)


def _objects(socket: Socket) -> Iterable[str]:
    """Yield a section about what the messages are made of, each object in a table."""
    definitions = definitions_of()
    sections = []
    for side in Side:
        for name, schema in definitions_of([socket], [side]).items():
            if "properties" in schema:
                table = _fields(schema, side, definitions)
                sections.append(md.joined([f"### {name}", schema["description"], table]))
    if sections:
        yield "## Objects"
        yield from sections


# --- codes ---


def _codes(socket: Socket) -> Iterable[str]:
    yield "## Codes"
    yield md.table(
        ("code", "as", "then closes with", "meaning"),
        (
            (
                md.code(use.code),
                _severities(use, socket),
                _closes(use) if socket.name in use.errors else "",
                text_of(use),
            )
            for use in uses_on(socket.name)
        ),
    )
    yield "### Close codes"
    yield md.table(
        ("close code", "meaning", "after the error"),
        (
            (str(int(close)), CLOSE_TEXTS[close], md.codes(after))
            for close, after in closes_on(socket.name).items()
        ),
    )


def _all_codes() -> Iterable[str]:
    yield "## Codes"
    yield md.table(
        ("code", "`error` on", "`warning` on", "then closes with", "meaning"),
        (
            (
                md.code(use.code),
                _places(use.errors),
                _places(use.warnings),
                _closes(use) if use.errors else "",
                text_of(use),
            )
            for use in USES
        ),
    )
    yield "### Close codes"
    yield md.table(
        ("close code", "meaning"),
        ((str(int(close)), text) for close, text in CLOSE_TEXTS.items()),
    )


def _severities(use: CodeUse, socket: Socket) -> str:
    places = (("error", use.errors), ("warning", use.warnings))
    return md.codes(word for word, names in places if socket.name in names)


def _closes(use: CodeUse) -> str:
    return " or ".join(str(int(close)) for close in close_codes_of(use.code))


def _places(names: tuple[str, ...]) -> str:
    return "all" if len(names) == len(SOCKETS) else ", ".join(names)
