"""What leaves a cache and what stays, on caches that remember what was fed into them."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.engine.passes import run_alone
from MiniCPMO45.engine.kv_cache import KvHandle, Rows
from MiniCPMO45.engine.session import (
    Round,
    WindowState,
    maintain_rounds,
    maintain_units,
    units_to_drop,
)
from MiniCPMO45.engine.steps import LlmForward
from MiniCPMO45.settings import WindowMode, WindowSettings
from tests.fakes.scripted import ScriptedExecutor, cached_angles, cached_labels

PREFIX, SUFFIX, MARKER = (11, 12, 13, 14), (21, 22), (31, 32)
FIRST_UNIT_LABEL = 1000  # labels of unit u are 1000 u, 1000 u + 1, ...
ROUNDING = 2e-3  # radians a key may be off after many moves in float32


def _feed(executor: ScriptedExecutor, kv: KvHandle, labels: tuple[int, ...]) -> None:
    executor.submit([LlmForward(kv, Rows(labels), wants_logits=False)])()


def _assert_dense(kv: KvHandle) -> None:
    """Every key sits at its own place 0 ... length-1."""
    wanted = torch.arange(kv.length, dtype=torch.float64)
    off = (cached_angles(kv).double() - wanted + math.pi) % (2 * math.pi) - math.pi
    assert not len(off) or off.abs().max() < ROUNDING


class Conversation:
    """A prepared duplex conversation and an account of what should be cached."""

    def __init__(self, limits: WindowSettings) -> None:
        self.executor = ScriptedExecutor(1)
        self.kv = self.executor.llm_store.open()
        self.limits = limits
        _feed(self.executor, self.kv, PREFIX + SUFFIX)
        self.window = WindowState(
            preserved=len(PREFIX + SUFFIX),
            prefix=len(PREFIX),
            suffix_ids=SUFFIX,
            marker_ids=MARKER,
        )
        self.units: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.dropped_text: tuple[int, ...] = ()

    def add_unit(self, length: int, n_spoken: int) -> None:
        """Feed a unit of `length` tokens, some of them spoken, and keep the window."""
        number = len(self.units) + 1
        labels = tuple(FIRST_UNIT_LABEL * number + i for i in range(length))
        spoken = labels[:n_spoken]
        self.units.append((labels, spoken))
        _feed(self.executor, self.kv, labels)
        self.window.add_unit(length, spoken)
        before = list(self.window.units)
        run_alone(maintain_units(self.kv, self.window, self.limits), self.executor)
        after = self.window.units
        newest = before[len(before) - len(after) :]
        assert all(map(operator.is_, newest, after)), "only the oldest units leave"
        for _, text in self.units[number - len(before) : number - len(after)]:
            self.dropped_text += text

    def check(self) -> None:
        window, kv = self.window, self.kv
        assert window.tokens == kv.length
        carried = MARKER + window.carried_ids if window.carried_ids else ()
        held = self.units[len(self.units) - len(window.units) :]
        kept = [label for labels, _ in held for label in labels]
        assert cached_labels(kv) == [*PREFIX, *carried, *SUFFIX, *kept]
        assert window.preserved == len(PREFIX) + len(carried) + len(SUFFIX)
        _assert_dense(kv)


units = st.lists(
    st.integers(1, 30).flatmap(
        lambda length: st.tuples(st.just(length), st.just(0) | st.integers(0, length))
    ),
    min_size=1,
    max_size=40,
)


@given(units, st.integers(0, 120), st.integers(0, 120))
def test_basic_window(units: list[tuple[int, int]], low: int, above: int) -> None:
    limits = WindowSettings(
        mode=WindowMode.BASIC, basic_low_tokens=low, basic_high_tokens=low + above
    )
    talk = Conversation(limits)
    for unit in units:
        length = talk.kv.length + unit[0]
        talk.add_unit(*unit)
        talk.check()
        if length <= limits.basic_high_tokens:
            assert talk.kv.length == length, "dropped below the high mark"
        else:
            assert talk.kv.length <= low or not talk.window.units
            oldest_dropped = talk.units[-len(talk.window.units) - 1]
            assert talk.kv.length + len(oldest_dropped[0]) > low, "dropped more than needed"


@given(units, st.integers(0, 5), st.integers(0, 25))
def test_context_window(units: list[tuple[int, int]], max_units: int, max_carried: int) -> None:
    limits = WindowSettings(
        mode=WindowMode.CONTEXT,
        context_max_units=max_units,
        context_previous_max_tokens=max_carried,
    )
    talk = Conversation(limits)
    for unit in units:
        talk.add_unit(*unit)
        talk.check()
        assert len(talk.window.units) == min(len(talk.units), max_units)
        said = talk.dropped_text
        assert talk.window.carried_ids == said[max(0, len(said) - max_carried) :]


@given(units)
def test_without_a_window_everything_stays(units: list[tuple[int, int]]) -> None:
    talk = Conversation(WindowSettings(basic_high_tokens=1, context_max_units=0))
    for unit in units:
        talk.add_unit(*unit)
    talk.check()
    assert len(talk.window.units) == len(units)
    assert talk.window.evictions == 0


def _context(talk_units: list[tuple[int, int]]) -> Conversation:
    limits = WindowSettings(mode=WindowMode.CONTEXT, context_max_units=2)
    talk = Conversation(limits)
    for unit in talk_units:
        talk.add_unit(*unit)
    return talk


def _rebuilds(talk: Conversation) -> int:
    feeds = talk.executor.fed_ids()
    return sum(labels[: len(MARKER)] == MARKER for labels in feeds)


def test_a_dropped_listen_unit_costs_no_forward_pass() -> None:
    talk = _context([(5, 2), (5, 0), (5, 0), (5, 0), (5, 0)])
    assert talk.window.evictions == 3
    assert _rebuilds(talk) == 1, "only the unit that spoke is carried over"


def test_nothing_said_means_no_marker() -> None:
    talk = _context([(5, 0)] * 6)
    assert _rebuilds(talk) == 0
    talk.check()


@given(units, st.integers(0, 60), st.integers(0, 60))
def test_the_plan_changes_nothing(units: list[tuple[int, int]], low: int, high: int) -> None:
    window = WindowState(preserved=6)
    for length, n_spoken in units:
        window.add_unit(length, range(n_spoken))
    before = window.clone()
    for mode in WindowMode:
        units_to_drop(window, WindowSettings(mode=mode, basic_low_tokens=low))
    assert window == before


def test_a_clone_goes_its_own_way() -> None:
    window = WindowState(preserved=6, rounds=[Round(0, "user", 3)])
    window.add_unit(4, (1,))
    copy = window.clone()
    copy.add_unit(5, ())
    copy.rounds.append(Round(1, "user", 2))
    assert (len(window.units), len(window.rounds)) == (1, 1)


# A chat: (role, tokens, begins a new round) per message.
messages = st.lists(
    st.tuples(
        st.sampled_from(["user", "user", "user", "assistant", "system"]),
        st.integers(1, 30),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("can_be_system", [False, True])
@given(messages, st.integers(0, 100), st.integers(0, 100))
def test_text_window(
    can_be_system: bool, messages: list[tuple[str, int, bool]], low: int, above: int
) -> None:
    executor, window, number = ScriptedExecutor(1), WindowState(), 0
    kv = executor.llm_store.open()
    limits = WindowSettings(text_low_tokens=low, text_high_tokens=low + above)
    labels_of: dict[int, list[int]] = {}
    pinned: set[int] = set()
    for index, (role, length, is_new) in enumerate(messages):
        role = role if can_be_system or index == 0 or role != "system" else "user"
        number += is_new and index > 0
        labels = tuple(FIRST_UNIT_LABEL * (index + 1) + i for i in range(length))
        _feed(executor, kv, labels)
        window.rounds.append(Round(number, role, length))
        labels_of.setdefault(number, []).extend(labels)
        if role == "system":
            pinned.add(number)
        before = kv.length
        held = dict.fromkeys(each.number for each in window.rounds)
        with torch.inference_mode():
            dropped = maintain_rounds(kv, window, limits)
        left = dict.fromkeys(each.number for each in window.rounds)
        assert kv.length == before - dropped == sum(each.length for each in window.rounds)
        expected = [label for held_round in left for label in labels_of[held_round]]
        assert cached_labels(kv) == expected, "whole rounds only"
        _assert_dense(kv)
        assert number in left, "the round being written stays"
        gone = [each for each in held if each not in left]
        assert not pinned & set(gone), "a round with a system message stays"
        droppable = [each for each in held if each not in pinned and each != number]
        assert gone == droppable[: len(gone)], "the oldest leave first"
        if before <= limits.text_high_tokens:
            assert dropped == 0
        else:
            assert kv.length <= low or gone == droppable
            if gone:
                assert kv.length + len(labels_of[gone[-1]]) > low, "dropped more than needed"
