"""Transition tables, which drive the machines and their diagrams.

A pair of phase and event without a row is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, Final, NamedTuple

SAME: Final = "same"
"""As a target: the phase does not change."""
CLOSED: Final = "closed"
"""The last phase of every machine."""


class Phase(StrEnum):
    """Phases of the worker's machines, each of which has some of them."""

    OPEN = "open"  # streaming: between turns
    WAITING = "waiting"  # for the first message
    PREPARING = "preparing"
    ACTIVE = "active"  # duplex
    PAUSED = "paused"
    LISTENING = "listening"  # half duplex
    PREFILLING = "prefilling"
    READY = "ready"  # prefilled
    GENERATING = "generating"
    CANCELLING = "cancelling"  # stopped while prefilling
    STOPPING = "stopping"  # waits for running work to end
    IDLE = "idle"  # Realtime
    RESPONDING = "responding"  # a response is active
    CLOSED = "closed"


@dataclass(frozen=True)
class Row:
    """A row of a transition table; all but the action are words separated by spaces."""

    phases: str  # phases it applies to
    events: str  # the events' kinds
    targets: str  # phases it may lead to; `SAME` stands for staying
    # Any: the row decides the classes of machine, event and effects, which no type can say.
    action: Callable[[Any, Any], list[Any]]  # of machine and event; returns the effects
    # All possible effects, named by `effects.label`; None if not listed, as for OpenAI's protocols,
    # whose own pages say what follows an event.
    effects: str | None = None


Table = Sequence[Row]


class Transition(NamedTuple):
    phase: str
    event: str
    target: str


def index_rows(table: Table) -> Mapping[tuple[str, str], Row]:
    """Return the rows by phase and event.

    Raises:
        ValueError: Two rows are for the same pair, or a row leads to a phase that does not exist.
    """
    rows: dict[tuple[str, str], Row] = {}
    known = {SAME, CLOSED}.union(*(row.phases.split() for row in table))
    for row in table:
        if unknown := {*row.targets.split()} - known:
            raise ValueError(f"{row.events!r} leads to {unknown}")
        for phase, event in product(row.phases.split(), row.events.split()):
            if (phase, event) in rows:
                raise ValueError(f"two rows for {event!r} in {phase!r}")
            rows[phase, event] = row
    return rows


def transitions(table: Table) -> list[Transition]:
    """Return the arrows of a table: one for each row, event, phase and target."""
    return [
        Transition(phase, event, phase if target == SAME else target)
        for row in table
        for event in row.events.split()
        for phase in row.phases.split()
        for target in row.targets.split()
    ]


def ends_of_all(table: Table) -> tuple[str, ...]:
    """Return the events that may end every phase: that lead from each to the last one."""
    arrows = transitions(table)
    phases = {arrow.phase for arrow in arrows} - {CLOSED}
    ended: dict[str, set[str]] = {}
    for arrow in arrows:
        if arrow.target == CLOSED:
            ended.setdefault(arrow.event, set()).add(arrow.phase)
    return tuple(event for event, from_phases in ended.items() if from_phases >= phases)


def mermaid(table: Table) -> str:
    """Return the phases of a table as a Mermaid state diagram.

    It begins at the first phase of the first row. Left out are events that change no phase, and
    those that may end every phase.
    """
    arrows, common = transitions(table), ends_of_all(table)
    events: dict[tuple[str, str], dict[str, None]] = {}
    for arrow in arrows:
        is_common = arrow.event in common and arrow.target == CLOSED
        if arrow.phase != arrow.target and not is_common:
            events.setdefault((arrow.phase, arrow.target), {})[arrow.event] = None
    lines = ["stateDiagram-v2", f"    [*] --> {arrows[0].phase}"]
    lines += [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in events.items()]
    return "\n".join([*lines, f"    {CLOSED} --> [*]"]) + "\n"
