"""Pages of the protocol: Jinja templates over sockets, messages, codes and transition tables."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from core.protocols import (
    duplex,
    duplex_units,
    gpt_live,
    half_duplex,
    realtime,
    realtime_items,
    streaming,
)
from core.protocols.tables import SAME, Table, ends_of_all, mermaid
from core.schemas.export.client_types import templates
from core.schemas.export.message_schemas import (
    OTHER_SPELLING,
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
from core.schemas.export.sockets import (
    CLOSE_TEXTS,
    SOCKETS,
    TEXTS,
    USES,
    CodeUse,
    Side,
    Socket,
    close_codes_of,
    closes_on,
    text_of,
    uses_on,
)
from core.schemas.limits import MIB

SHARED_PAGE: Final = "queue"
SHORT_ENUM: Final = 8  # values listed one by one
# Of a dataclass's source: comment above, name, comment beside.
LIMIT: Final = re.compile(r"((?:^    # .+\n)*)^    (\w+): \w+ = [^#\n]+(?:# (.+))?$", re.MULTILINE)
EMPTY_LINES: Final = re.compile(r"\n{3,}")
UNITS: Final = (
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minimum", "maximum", ""),
)


class Machine(NamedTuple):
    """A transition table and the class of its limits."""

    table: Table
    limits: type[Any]  # Any: a dataclass


MACHINES: Final[Mapping[str, Machine]] = {
    "streaming": Machine(streaming.TABLE, streaming.StreamingLimits),
    "half_duplex": Machine(half_duplex.TABLE, half_duplex.HalfDuplexLimits),
    "duplex": Machine(duplex.TABLE, duplex_units.DuplexLimits),
    "chat": Machine(streaming.CHAT_TABLE, streaming.ChatLimits),
    "live": Machine(gpt_live.TABLE, duplex_units.DuplexLimits),
    "realtime": Machine(realtime.TABLE, realtime_items.RealtimeLimits),
}


def pages() -> dict[str, str]:
    sent = [messages_of(socket, Side.SERVER) for socket in SOCKETS]
    environment = templates()
    functions = (definitions_of, table, codes, mermaid, ends_of_all, sizes)
    rows = (code_rows, close_rows, event_rows, limit_rows)
    environment.globals |= {function.__name__: function for function in (*functions, *rows)}
    environment.globals |= {
        "shared": [one for one in sent[0] if all(one in others for others in sent)],
        "sockets": SOCKETS,
        "fields": partial(_fields, definitions_of()),
    }
    sockets = {socket.name: socket for socket in SOCKETS}
    written = {}
    for name in (SHARED_PAGE, *MACHINES):
        kind = "page" if name in sockets or name == SHARED_PAGE else "events"
        text = environment.get_template(f"{kind}.md.j2").render(
            name=name,
            socket=sockets.get(name),
            machine=MACHINES.get(name),
            texts=TEXTS[name].split("\n\n"),
        )
        written[name] = EMPTY_LINES.sub("\n\n", text).strip() + "\n"
    return written


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, or nothing if it has no rows; no cell can break it."""
    lines = [" | ".join(cell.replace("|", r"\|") or " " for cell in row) for row in rows]
    if not lines:
        return ""
    rule = "|" + "---|" * len(head)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {line} |" for line in lines)])


def codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def sizes(socket: Socket) -> str:
    first, other = (size // MIB for size in socket.limits_bytes)
    if first == other:
        return f"A message has at most {other} MiB"
    return f"`prepare` has at most {first} MiB, any other message {other} MiB"


# --- fields ---


def _fields(definitions: Schema, schema: Schema, side: Side, *, is_object: bool = False) -> str:
    required = required_fields(schema)
    rows = []
    for name, field in visible_fields(schema).items():
        if name == TYPE and not is_object:
            continue  # the heading is the message's type
        default = "required" if name in required else f"`{_json(field.get('default'))}`"
        words = type_words(field, definitions)
        rest = range_words(field), meaning_of(field, definitions)
        row = (_names(name, schema), words, default, *rest)
        rows.append(row if side is Side.CLIENT else (row[0], row[1], *rest))
    head = ("field", "type", "default", "range", "meaning")
    return table(head if side is Side.CLIENT else (*head[:2], *head[3:]), rows)


def _names(name: str, schema: Schema) -> str:
    fields = schema.get("properties", {}).items()
    others = [other for other, field in fields if field.get(OTHER_SPELLING) == name]
    return f"`{name}`" + (f" (or {codes(others)})" if others else "")


def type_words(schema: Schema, definitions: Schema) -> str:
    """Return a type in words, with links to the headings of definitions."""
    cases = alternatives(schema)
    if len(cases) > 1:
        return " or ".join(type_words(case, definitions) for case in cases)
    name = reference_name(schema)
    if name is not None:
        values = definitions[name].get("enum", [])
        if 0 < len(values) <= SHORT_ENUM:
            return _values(values)
        return "[code](#codes)" if name == "ErrorCode" else f"[{name}](#{name.lower()})"
    if "const" in schema or "enum" in schema:
        return _values(schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        items = type_words(schema["items"], definitions)
        return f"list of ({items})" if " or " in items else f"list of {items}"
    return str(schema.get("type", "anything"))


def range_words(schema: Schema) -> str:
    """Return which values are allowed, in words; empty if all of the type are."""
    return " or ".join(words for case in alternatives(schema) if (words := _bounds(case)))


def _bounds(schema: Schema) -> str:
    words = []
    for low_key, high_key, unit in UNITS:
        low, high = schema.get(low_key), schema.get(high_key)
        parts = []
        if low_key == "minimum" and "exclusiveMinimum" in schema:
            parts.append(f"above {_number(schema['exclusiveMinimum'])}")
        if low is not None and high is not None:
            parts.append(f"{_number(low)} to {_number(high)}")
        elif low is not None:
            parts.append(f"at least {_number(low)}")
        elif high is not None:
            parts.append(f"at most {_number(high)}")
        words += [", ".join(parts) + unit] if parts else []
    return "; ".join(words)


def _number(value: float) -> str:
    return f"{int(value) if value == int(value) else value:,}"


def _values(values: list[Any]) -> str:
    return " or ".join(f"`{_json(value)}`" for value in values)


# Any: a value of JSON.
def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- machines ---


def event_rows(rows: Table) -> Iterator[Sequence[str]]:
    for row in rows:
        targets = "" if row.targets == SAME else ", ".join(row.targets.split())
        effects = () if row.effects is None else (codes(row.effects.split()),)
        for event in row.events.split():
            yield f"`{event}`", ", ".join(row.phases.split()), targets, *effects


# Any: a dataclass.
def limit_rows(limits: type[Any]) -> Iterator[Sequence[str]]:
    kinds = (kind for kind in limits.__mro__ if dataclasses.is_dataclass(kind))
    found = LIMIT.findall("".join(inspect.getsource(kind) for kind in kinds))
    texts = {name: above.replace("    # ", " ") + beside for above, name, beside in found}
    for limit in dataclasses.fields(limits):
        text = " ".join(texts[limit.name].split()).removesuffix("; ours").removesuffix(".")
        yield f"`{limit.name}`", f"`{_json(limit.default)}`", f"{text[0].upper()}{text[1:]}."


# --- codes ---


def code_rows(socket: Socket | None) -> Iterator[Sequence[str]]:
    if socket is None:
        for use in USES:
            places = _places(use.errors), _places(use.warnings)
            yield f"`{use.code}`", *places, _closes(use) if use.errors else "", text_of(use)
        return
    for use in uses_on(socket.name):
        severities = (("error", use.errors), ("warning", use.warnings))
        words = codes(word for word, names in severities if socket.name in names)
        closes = _closes(use) if socket.name in use.errors else ""
        yield f"`{use.code}`", words, closes, text_of(use)


def close_rows(socket: Socket | None) -> Iterator[Sequence[str]]:
    after = {} if socket is None else closes_on(socket.name)
    for close, text in CLOSE_TEXTS.items():
        cells = () if socket is None else (codes(after[close]),)
        yield str(int(close)), text, *cells


def _closes(use: CodeUse) -> str:
    return " or ".join(str(int(close)) for close in close_codes_of(use.code))


def _places(names: Sequence[str]) -> str:
    return "all" if len(names) == len(SOCKETS) else ", ".join(names)
