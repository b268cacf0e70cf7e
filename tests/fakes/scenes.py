"""A stage for one machine: passes events, records effects, checks the table."""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from core.protocols.effects import Release, Send, ServerMessage, label
from core.protocols.events import Event, Opened, Received, TimerFired, TimerName
from core.protocols.tables import SAME, Row
from core.schemas import chat, duplex, half_duplex, streaming

DUPLEX: TypeAdapter[Any] = TypeAdapter(duplex.ClientMessage)
HALF_DUPLEX: TypeAdapter[Any] = TypeAdapter(half_duplex.ClientMessage)
STREAMING: TypeAdapter[Any] = TypeAdapter(streaming.WorkerClientMessage)
CHAT: TypeAdapter[Any] = TypeAdapter(chat.ClientMessage)


def audio(duration_ms: int, rate_hz: int = 16_000) -> str:
    """Base64 of silence."""
    return base64.b64encode(bytes(4 * (duration_ms * rate_hz // 1_000))).decode()


words = functools.cache(str.split)
"""The words of a row; each of them is looked at for every event of every test."""


def has_row(table: Sequence[Row], before: Any, event: Event, labels: list[str], after: Any) -> bool:
    """Return whether an event has a row; if so, check its effects and the phase after it."""
    kind = event.kind
    rows = [row for row in table if before in words(row.phases) and kind in words(row.events)]
    assert len(rows) <= 1
    if not rows:
        return False
    targets = [str(before) if name == SAME else name for name in rows[0].targets.split()]
    assert after in targets, f"{event.kind}: {before} → {after}, not {targets}"
    if rows[0].effects is not None:
        unlisted = set(labels) - set(rows[0].effects.split())
        assert not unlisted, f"{event.kind} in {before}: {unlisted} is not in the table"
    return True


class Scene:
    """Runs a machine on a manual clock."""

    without_row: tuple[list[str], ...] = ([], ["Send(warning)"])  # effects of other events

    # Any: a machine of the worker or of the gateway.
    def __init__(self, machine: Any, table: Sequence[Row], adapter: TypeAdapter[Any]) -> None:
        self.machine = machine
        self.table = table
        self.adapter = adapter
        self.now_s = 0.0
        self.engine_may_lie = False  # unrequested results are ignored, with or without a row
        self.effects: list[Any] = []  # of the last event
        self.history: list[Any] = []
        self.told: Event = Opened()

    def tell(self, event: Event, after_s: float = 0.0) -> list[str]:
        self.now_s += after_s
        phase = self.machine.phase
        self.told = replace(event, at_s=self.now_s)
        self.effects = list(self.machine.handle(self.told))
        self.history += self.effects
        labels = [label(effect) for effect in self.effects]
        self._check_table(phase, event, labels)
        return labels

    def say(self, message_type: str, after_s: float = 0.0, **fields: Any) -> list[str]:
        message = self.adapter.validate_python({"type": message_type, **fields})
        return self.tell(Received(message), after_s)

    def fire(self, name: str, after_s: float = 0.0) -> list[str]:
        return self.tell(TimerFired(TimerName(name)), after_s)

    @property
    def sent(self) -> list[ServerMessage]:
        return [effect.message for effect in self.effects if isinstance(effect, Send)]

    def only(self, kind: type[Any]) -> Any:
        """Return the only effect or message of a type from the last event."""
        found = [item for item in [*self.effects, *self.sent] if isinstance(item, kind)]
        assert len(found) == 1, f"{len(found)} of {kind.__name__} in {self.effects}"
        return found[0]

    @property
    def releases(self) -> int:
        return sum(isinstance(effect, Release) for effect in self.history)

    def _check_table(self, phase: Any, event: Event, labels: list[str]) -> None:
        after = self.machine.phase
        if self.engine_may_lie and after == phase and not labels:
            return
        if not has_row(self.table, phase, event, labels, after):
            assert after == phase, f"{event.kind} in {phase} is not in the table"
            assert labels in self.without_row
