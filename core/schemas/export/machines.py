"""The transition tables on the pages: a diagram of the phases, every row, and the limits."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from core.protocols import chat, duplex, half_duplex, queueing, streaming
from core.protocols.chat import ChatLimits
from core.protocols.duplex_units import DuplexLimits
from core.protocols.hearing import HalfDuplexLimits
from core.protocols.queueing import QueueingLimits
from core.protocols.streaming import StreamingLimits
from core.protocols.tables import SAME, Table, ends_of_all, mermaid
from core.schemas.export import markdown as md
from core.schemas.export.fields import json_text

ATTRIBUTE: Final = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)
OUR_CHOICE: Final = " Ours."  # a mark for developers, of no use on a page


@dataclass(frozen=True)
class MachinePage:
    """One transition table and what stands beside it.

    Attributes:
        table: the rows.
        limits: its times and counts, with their defaults.
        text: whose phases these are.
    """

    table: Table
    limits: type[QueueingLimits | StreamingLimits | HalfDuplexLimits | DuplexLimits | ChatLimits]
    text: str


MACHINES: Final[Mapping[str, MachinePage]] = MappingProxyType(
    {
        "queue": MachinePage(
            queueing.TABLE,
            QueueingLimits,
            "The gateway's part, the same on every socket. A streaming or chat socket queues for "
            "each turn, any other one when it opens. Once `relaying`, the gateway passes on what "
            "both sides say, and the phases of the socket's own page count.",
        ),
        "streaming": MachinePage(
            streaming.TABLE,
            StreamingLimits,
            "The worker's part of a turn. The gateway's `prefill` says besides which history the "
            "cache should hold; `cache_miss` asks the gateway for everything and is never seen by "
            "the client.",
        ),
        "half_duplex": MachinePage(
            half_duplex.TABLE, HalfDuplexLimits, "The worker's part, for the whole session."
        ),
        "duplex": MachinePage(
            duplex.TABLE,
            DuplexLimits,
            "The worker's part, for the whole session. Beside the phase there is the unit: a "
            "`Step` and its `Finalize`, one at a time.",
        ),
        "chat": MachinePage(
            chat.TABLE, ChatLimits, "The worker's part, from the request to the end of its reply."
        ),
    }
)


def machine_section(name: str) -> str:
    """Return the section about one transition table."""
    page = MACHINES[name]
    left_out = md.codes(ends_of_all(page.table))
    return md.joined(
        [
            "## Phases",
            page.text,
            f"```mermaid\n{mermaid(page.table)}```",
            f"Not drawn: {left_out} lead from every phase to the last one, and events that change "
            "no phase are only in the table. An event is a message of the client by its type, a "
            "timer that ran out, or what the engine or the network did. What is asked for "
            "*may* be asked for, in this order. A message that has no row for the phase is left "
            "out with the `warning` `out_of_order`.",
            _rows(page.table),
            "### Limits",
            "Defaults; a server may be configured otherwise. Times are in seconds.",
            _limits(page),
        ]
    )


def _rows(table: Table) -> str:
    return md.table(
        ("event", "in", "leads to", "asks for"),
        (
            (
                md.code(row.event),
                ", ".join(row.phases),
                ", ".join(row.targets.split()) if row.targets != SAME else "",
                md.codes(row.effects.split()),
            )
            for row in table
        ),
    )


def _limits(page: MachinePage) -> str:
    texts = dict(ATTRIBUTE.findall(inspect.getdoc(page.limits) or ""))
    return md.table(
        ("limit", "default", "meaning"),
        (
            (md.code(field.name), md.code(json_text(field.default)), _sentence(texts[field.name]))
            for field in fields(page.limits)
        ),
    )


def _sentence(text: str) -> str:
    words = " ".join(text.split()).removesuffix(OUR_CHOICE)
    return words[0].upper() + words[1:]
