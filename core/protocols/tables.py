"""Transition tables, which drive the machines and their diagrams.

A pair of phase and event without a row is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any, Final, Generic, NamedTuple, TypeVar

MachineT = TypeVar("MachineT", contravariant=True)
EffectT = TypeVar("EffectT")

SAME: Final = "same"
"""As a target: the phase does not change."""


@dataclass(frozen=True)
class Row(Generic[MachineT, EffectT]):
    """A row of a transition table."""

    phases: tuple[StrEnum, ...]  # phases it applies to
    events: str  # the events' kinds, separated by spaces
    targets: str  # phases it may lead to, separated by spaces; `SAME` stands for staying
    effects: str  # all possible effects, named by `effects.label`, separated by spaces
    # Any: the row's event kind decides the event's class, which the type of a table cannot say.
    action: Callable[[MachineT, Any], list[EffectT]]  # returns the effects


Index = Mapping[tuple[str, str], Row[MachineT, EffectT]]
"""Rows by phase and event."""

# Any: reading a table needs neither the machine nor the effects it is for.
Table = Sequence[Row[Any, Any]]


class Transition(NamedTuple):
    """An arrow of the diagram."""

    phase: str
    event: str
    target: str


def index_rows(table: Sequence[Row[MachineT, EffectT]]) -> Index[MachineT, EffectT]:
    """Return the rows by phase and event.

    Raises:
        ValueError: Two rows are for the same pair, or a row leads to a phase that does not exist.
    """
    rows: dict[tuple[str, str], Row[MachineT, EffectT]] = {}
    for row in table:
        unknown = {*row.targets.split()} - {SAME, *type(row.phases[0])}
        if unknown:
            raise ValueError(f"{row.events!r} leads to {unknown}")
        for phase, event in product(row.phases, row.events.split()):
            if (phase, event) in rows:
                raise ValueError(f"two rows for {event!r} in {phase!r}")
            rows[phase, event] = row
    return rows


def transitions(table: Table) -> list[Transition]:
    """Return the arrows of a table: one for each row, event, phase and target."""
    return [
        Transition(phase.value, event, phase.value if target == SAME else target)
        for row in table
        for event in row.events.split()
        for phase in row.phases
        for target in row.targets.split()
    ]


def ends_of_all(table: Table) -> tuple[str, ...]:
    """Return the events that may end every phase: that lead from each to a last one."""
    arrows = transitions(table)
    phases, last = _phases(arrows)
    ending = [arrow for arrow in arrows if arrow.target in last]
    ended = {event: set[str]() for event in dict.fromkeys(arrow.event for arrow in ending)}
    for arrow in ending:
        ended[arrow.event].add(arrow.phase)
    return tuple(event for event, from_phases in ended.items() if from_phases >= phases)


def mermaid(table: Table) -> str:
    """Return the phases of a table as a Mermaid state diagram.

    It begins at the first phase of the first row. Left out are events that change no phase, and
    those that may end every phase.
    """
    arrows = transitions(table)
    _, last = _phases(arrows)
    common = ends_of_all(table)
    events: dict[tuple[str, str], dict[str, None]] = {}
    for arrow in arrows:
        is_common = arrow.event in common and arrow.target in last
        if arrow.phase != arrow.target and not is_common:
            events.setdefault((arrow.phase, arrow.target), {})[arrow.event] = None
    lines = ["stateDiagram-v2", f"    [*] --> {arrows[0].phase}"]
    lines += [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in events.items()]
    return "\n".join([*lines, *(f"    {end} --> [*]" for end in sorted(last))]) + "\n"


def _phases(arrows: Sequence[Transition]) -> tuple[set[str], set[str]]:
    """Return the phases that can be left, and those that cannot."""
    left = {arrow.phase for arrow in arrows if arrow.phase != arrow.target}
    return left, {arrow.target for arrow in arrows} - left
