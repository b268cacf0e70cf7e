"""Pages of the protocol: Jinja templates over sockets, messages, codes and transition tables."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from core.protocols import (
    duplex,
    duplex_units,
    gpt_live,
    half_duplex,
    queueing,
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
    COMMON_RULES,
    SOCKETS,
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
ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)
EMPTY_LINES: Final = re.compile(r"\n{3,}")
UNITS: Final = (
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minimum", "maximum", ""),
)


@dataclass(frozen=True)
class Machine:
    """Documentation of one transition table."""

    table: Table
    limits: type[Any]  # Any: a dataclass
    text: str  # introduction
    otherwise: str = (
        "A message without a row for the phase is ignored with the `warning` `out_of_order`."
    )

    def rows(self) -> Iterator[Sequence[str]]:
        for row in self.table:
            targets = "" if row.targets == SAME else ", ".join(row.targets.split())
            for event in row.events.split():
                yield (
                    f"`{event}`",
                    ", ".join(row.phases.split()),
                    targets,
                    codes(row.effects.split()),
                )

    def limit_rows(self) -> Iterator[Sequence[str]]:
        kinds = (kind for kind in self.limits.__mro__ if dataclasses.is_dataclass(kind))
        documented = "\n".join(inspect.cleandoc(kind.__doc__ or "") for kind in kinds)
        texts = dict(ATTRIBUTE.findall(documented))
        for limit in dataclasses.fields(self.limits):
            text = " ".join(texts[limit.name].split()).removesuffix(" Ours.")
            yield f"`{limit.name}`", f"`{_json(limit.default)}`", text[0].upper() + text[1:]


MACHINES: Final[Mapping[str, Machine]] = {
    "queue": Machine(
        queueing.TABLE,
        queueing.QueueingLimits,
        "The gateway's part, common to all sockets. A streaming or chat socket queues for each "
        "turn, any other when it opens. Once `relaying`, the gateway forwards messages both "
        "ways, and the phases of the socket's own page apply.",
    ),
    "streaming": Machine(
        streaming.TABLE,
        streaming.StreamingLimits,
        "The worker's part of a turn. The gateway's `prefill` also names the history that the "
        "cache should contain; `cache_miss` requests the whole history from the gateway and is "
        "never sent to the client.",
    ),
    "half_duplex": Machine(
        half_duplex.TABLE, half_duplex.HalfDuplexLimits, "The worker's part, for the whole session."
    ),
    "duplex": Machine(
        duplex.TABLE,
        duplex_units.DuplexLimits,
        "The worker's part, for the whole session. Besides the phase there is the unit: a "
        "`Step` and its `Finalize`, one at a time.",
    ),
    "chat": Machine(
        streaming.CHAT_TABLE,
        streaming.ChatLimits,
        "The worker's part, from the request to the end of its reply.",
    ),
    "live": Machine(
        gpt_live.TABLE,
        duplex_units.DuplexLimits,
        "The worker's part, for the whole session; the phases are those of the duplex machine "
        "inside. `audio_received` and `fixture` are appends of audio, decoded.",
        "An event without a row for the phase has no effect.",
    ),
    "realtime": Machine(
        realtime.TABLE,
        realtime_items.RealtimeLimits,
        "The worker's part, for the whole session. Besides the phase there are the open "
        "segment of speech, and the reply in generation, which may belong to a response that "
        "has ended. `speech_scored` is the result of detection in appended audio.",
        "Every event of a client has a row.",
    ),
}


EVENT_PAGES: Final = {
    "live": ("GPT-Live", "/v1/live/sessions", "openai-live.md"),
    "realtime": ("Realtime", "/v1/realtime", "openai-realtime.md"),
}
"""OpenAI's protocols: title, path, and the page with their events."""


def pages() -> dict[str, str]:
    environment = templates()
    environment.globals |= {
        "Side": Side,
        "sockets": SOCKETS,
        "messages_of": messages_of,
        "fields": partial(_fields, definitions_of()),
        "table": table,
        "codes": codes,
        "mermaid": mermaid,
        "ends_of_all": ends_of_all,
        "code_rows": _code_rows,
        "close_rows": _close_rows,
    }
    page, events = (environment.get_template(f"{name}.md.j2") for name in ("page", "events"))
    sent = [messages_of(socket, Side.SERVER) for socket in SOCKETS]
    shared = [one for one in sent[0] if all(one in others for others in sent)]
    texts = {
        name: events.render(machine=MACHINES[name], title=title, path=path, page=linked)
        for name, (title, path, linked) in EVENT_PAGES.items()
    }
    machine = MACHINES[SHARED_PAGE]
    texts[SHARED_PAGE] = page.render(rules=COMMON_RULES, own=shared, machine=machine)
    for socket, messages in zip(SOCKETS, sent, strict=True):
        texts[socket.name] = page.render(
            socket=socket,
            rules=(*socket.rules, f"{_sizes(socket)}; more closes the connection with 1009."),
            own=[one for one in messages if one not in shared],
            shared=shared,
            objects=[
                (name, schema, side)
                for side in Side
                for name, schema in definitions_of([socket], [side]).items()
                if "properties" in schema
            ],
            machine=MACHINES[socket.name],
        )
    return {name: EMPTY_LINES.sub("\n\n", text).strip() + "\n" for name, text in texts.items()}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, or nothing if it has no rows; no cell can break it."""
    lines = [" | ".join(cell.replace("|", r"\|") or " " for cell in row) for row in rows]
    if not lines:
        return ""
    rule = "|" + "---|" * len(head)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {line} |" for line in lines)])


def codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _sizes(socket: Socket) -> str:
    first, other = socket.first_bytes // MIB, socket.other_bytes // MIB
    if first == other:
        return f"A message has at most {other} MiB"
    return f"`prepare` has at most {first} MiB, any other message {other} MiB"


# --- fields ---


def _fields(definitions: Schema, schema: Schema, side: Side) -> str:
    required = required_fields(schema)
    is_object = "description" in schema  # a message's description stands above its table
    rows = []
    for name, field in visible_fields(schema).items():
        if name == TYPE and not is_object:
            continue
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


# --- codes ---


def _code_rows(socket: Socket | None) -> Iterator[Sequence[str]]:
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


def _close_rows(socket: Socket | None) -> Iterator[Sequence[str]]:
    after = {} if socket is None else closes_on(socket.name)
    for close, text in CLOSE_TEXTS.items():
        cells = () if socket is None else (codes(after[close]),)
        yield str(int(close)), text, *cells


def _closes(use: CodeUse) -> str:
    return " or ".join(str(int(close)) for close in close_codes_of(use.code))


def _places(names: Sequence[str]) -> str:
    return "all" if len(names) == len(SOCKETS) else ", ".join(names)
