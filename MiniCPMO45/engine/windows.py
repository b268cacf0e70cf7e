"""Which part of the past leaves the cache: rounds of a chat, units of a duplex conversation.

The plans are pure; `maintain_units` and `maintain_rounds` carry them out on one cache.
Positions stay dense: what is behind a hole moves up and its keys are rotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from MiniCPMO45.engine.kv_cache import KvHandle
from MiniCPMO45.engine.steps import LlmForward, Steps, TokenIds
from MiniCPMO45.settings import WindowMode, WindowSettings


@dataclass(frozen=True)
class Unit:
    """One finalized duplex unit inside the cache.

    Attributes:
        index: running number since the conversation began.
        length: cached tokens.
        text_ids: spoken ids without control tokens; empty for a listen unit.
    """

    index: int
    length: int
    text_ids: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """One message of a chat inside the cache.

    Attributes:
        number: user turn it belongs to, from 0.
        role: "system", "user" or "assistant".
        length: cached tokens.
    """

    number: int
    role: str
    length: int


@dataclass
class WindowState:
    """What a cache consists of.

    Attributes:
        preserved: leading tokens that never leave (system prompt and carried text).
        prefix: leading tokens before the carried text.
        suffix_ids: ids that follow the carried text.
        marker_ids: ids put before the carried text.
        carried_ids: text of dropped units, without the marker.
        units: units in the cache, oldest first.
        rounds: messages in the cache, oldest first.
        next_unit: number the next unit gets.
        evictions: how often something was dropped.
    """

    preserved: int = 0
    prefix: int = 0
    suffix_ids: tuple[int, ...] = ()
    marker_ids: tuple[int, ...] = ()
    carried_ids: tuple[int, ...] = ()
    units: list[Unit] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    next_unit: int = 0
    evictions: int = 0

    def clone(self) -> WindowState:
        """Return an independent copy."""
        copy = WindowState(**vars(self))
        copy.units, copy.rounds = list(self.units), list(self.rounds)
        return copy

    @property
    def tokens(self) -> int:
        """Tokens the bookkeeping accounts for in a duplex conversation."""
        return self.preserved + sum(unit.length for unit in self.units)

    def add_unit(self, length: int, text_ids: Sequence[int]) -> None:
        """Register a finalized unit."""
        self.units.append(Unit(self.next_unit, length, tuple(text_ids)))
        self.next_unit += 1


def units_to_drop(window: WindowState, settings: WindowSettings) -> int:
    """Return how many of the oldest units must leave the cache now."""
    if settings.mode is WindowMode.CONTEXT:
        return max(0, len(window.units) - settings.context_max_units)
    if settings.mode is WindowMode.OFF or window.tokens <= settings.basic_high_tokens:
        return 0
    excess, count = window.tokens - settings.basic_low_tokens, 0
    for unit in window.units:
        if excess <= 0:
            break
        excess -= unit.length
        count += 1
    return count


def maintain_units(kv: KvHandle, window: WindowState, settings: WindowSettings) -> Steps[None]:
    """Apply the duplex window after a unit was finalized.

    Args:
        kv: the conversation's cache; `window.tokens` long.
        window: its bookkeeping, updated in place.
        settings: which policy and its limits.

    Source: docs/specification/model.md#6.9.
    """
    count = units_to_drop(window, settings)
    if count == 0:
        return
    window.evictions += 1
    if settings.mode is WindowMode.BASIC:
        _drop_oldest_units(kv, window, count)
    else:
        yield from _carry_and_drop(kv, window, settings, count)


def _drop_oldest_units(kv: KvHandle, window: WindowState, count: int) -> None:
    length = sum(unit.length for unit in window.units[:count])
    kv.drop(window.preserved, window.preserved + length)
    del window.units[:count]


def _carry_and_drop(
    kv: KvHandle, window: WindowState, settings: WindowSettings, count: int
) -> Steps[None]:
    said = tuple(token for unit in window.units[:count] for token in unit.text_ids)
    carried = window.carried_ids + said
    window.carried_ids = carried[max(0, len(carried) - settings.context_previous_max_tokens) :]
    if not window.carried_ids or not said:
        _drop_oldest_units(kv, window, count)
        return
    length = sum(unit.length for unit in window.units[:count])
    kept = kv.rows(window.preserved + length, kv.length)
    kv.truncate(window.prefix)
    rebuilt = window.marker_ids + window.carried_ids + window.suffix_ids
    yield LlmForward(kv, (TokenIds(rebuilt),), wants_logits=False)
    window.preserved = kv.length
    kv.put(kept)
    del window.units[:count]


def rounds_to_drop(
    window: WindowState, length: int, settings: WindowSettings
) -> list[tuple[int, int]]:
    """Return which messages must leave, oldest first, whole rounds only.

    Rounds that contain a system message stay, and so does the newest round.

    Args:
        window: bookkeeping; `rounds` oldest first.
        length: cached tokens now.
        settings: high and low limits.

    Returns:
        Ranges [first, last) of `window.rounds`, with messages that stay between them.
    """
    rounds = window.rounds
    if length <= settings.text_high_tokens or not rounds:
        return []
    staying = {each.number for each in rounds if each.role == "system"} | {rounds[-1].number}
    ranges: list[tuple[int, int]] = []
    first = 0
    for number, messages in groupby(rounds, key=lambda each: each.number):
        lengths = [each.length for each in messages]
        last = first + len(lengths)
        if number not in staying and length > settings.text_low_tokens:
            length -= sum(lengths)
            joins = bool(ranges) and ranges[-1][1] == first
            ranges.append((ranges.pop()[0] if joins else first, last))
        first = last
    return ranges


def maintain_rounds(kv: KvHandle, window: WindowState, settings: WindowSettings) -> int:
    """Drop whole old rounds of a chat when the cache is too long.

    Args:
        kv: the conversation's cache.
        window: its bookkeeping, updated in place.
        settings: high and low limits.

    Returns:
        The number of tokens dropped.

    Source: docs/specification/model.md#5.8.
    """
    before = kv.length
    ranges = rounds_to_drop(window, kv.length, settings)
    for first, last in reversed(ranges):  # from the end, so that earlier places stay where they are
        start = sum(each.length for each in window.rounds[:first])
        kv.drop(start, start + sum(each.length for each in window.rounds[first:last]))
        del window.rounds[first:last]
    window.evictions += bool(ranges)
    return before - kv.length
