"""Sliding windows over a real decoder: rebuilt rows equal a fresh prefill, others are moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import KvHandle, KvRows, Rows
from MiniCPMO45.engine.session import WindowState, maintain_units
from MiniCPMO45.engine.steps import LlmForward
from MiniCPMO45.settings import WindowMode, WindowSettings
from tests.model.toy import Toy, assert_close

PREFIX, SUFFIX, MARKER = (40, 41, 42, 43, 44, 45), (50, 51, 52), (60, 61, 62)
WIDE = WindowSettings(mode=WindowMode.CONTEXT, context_max_units=99)
SPOKEN = (3, 0, 4, 2, 0, 5)  # text tokens of each unit
UNIT_TOKENS = 9


class Talk:
    """A duplex conversation of tokens over the toy language model."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.kv = executor.llm_store.open()
        self.feed(self.kv, PREFIX + SUFFIX)
        self.window = WindowState(len(PREFIX + SUFFIX), len(PREFIX), SUFFIX, MARKER)
        for number, n_spoken in enumerate(SPOKEN):
            ids = unit_ids(number)
            self.feed(self.kv, ids)
            self.window.add_unit(len(ids), ids[:n_spoken])

    def feed(self, kv: KvHandle, ids: tuple[int, ...]) -> Any:
        [answer] = self.executor.submit([LlmForward(kv, Rows(ids))])()
        return answer

    def maintain(self, limits: WindowSettings) -> None:
        run_alone(maintain_units(self.kv, self.window, limits), self.executor)

    def fresh(self, ids: tuple[int, ...]) -> KvRows:
        kv = self.executor.llm_store.open()
        self.feed(kv, ids)
        return kv.rows(0, kv.length)


def unit_ids(number: int) -> tuple[int, ...]:
    return tuple(300 + 20 * number + i for i in range(UNIT_TOKENS))


def said(*numbers: int) -> tuple[int, ...]:
    return tuple(token for number in numbers for token in unit_ids(number)[: SPOKEN[number]])


@pytest.fixture
def executor(toy: Toy) -> Executor:
    return toy.executor()


def _part(rows: KvRows, start: int, stop: int) -> tuple[Tensor, Tensor]:
    return rows.keys[:, :, start:stop], rows.values[:, :, start:stop]


def test_the_rebuilt_part_equals_a_fresh_forward_and_kept_units_are_moved(
    executor: Executor,
) -> None:
    talk = Talk(executor)
    before = talk.kv.rows(0, talk.kv.length)
    talk.maintain(replace(WIDE, context_max_units=2))
    after = talk.kv.rows(0, talk.kv.length)

    carried = said(0, 1, 2, 3)
    assert talk.window.carried_ids == carried
    head = PREFIX + MARKER + carried + SUFFIX
    assert talk.window.preserved == len(head)
    fresh = talk.fresh(head)
    for mine, theirs in zip(_part(after, 0, len(head)), (fresh.keys, fresh.values), strict=True):
        assert_close(mine, theirs)

    old_start = len(PREFIX + SUFFIX) + 4 * UNIT_TOKENS
    old_keys, old_values = _part(before, old_start, talk.kv.store.shape.max_position_embeddings)
    keys, values = _part(after, len(head), talk.kv.length)
    assert torch.equal(values, old_values)
    moved = executor.llm_store.rope.move(old_keys, old_start, len(head))
    assert_close(keys, moved)

    as_if_new = talk.fresh(head + unit_ids(4) + unit_ids(5))
    assert_close(after.keys[0], as_if_new.keys[0])
    assert_close(after.values[0], as_if_new.values[0])


def test_carrying_text_a_second_time_replaces_the_first(executor: Executor) -> None:
    talk = Talk(executor)
    talk.maintain(replace(WIDE, context_max_units=5))
    talk.maintain(replace(WIDE, context_max_units=3))
    talk.maintain(replace(WIDE, context_max_units=1, context_previous_max_tokens=4))
    head = PREFIX + MARKER + said(0, 1, 2, 3, 4)[-4:] + SUFFIX
    after, fresh = talk.kv.rows(0, len(head)), talk.fresh(head)
    assert_close(after.keys, fresh.keys)
    assert_close(after.values, fresh.values)
    assert talk.window.tokens == talk.kv.length


def test_the_basic_window_keeps_the_head_bit_for_bit(executor: Executor) -> None:
    talk = Talk(executor)
    before = talk.kv.rows(0, talk.kv.length)
    head = len(PREFIX + SUFFIX)
    talk.maintain(WindowSettings(mode=WindowMode.BASIC, basic_high_tokens=50, basic_low_tokens=40))
    assert [unit.text_ids for unit in talk.window.units] == [said(number) for number in (3, 4, 5)]
    assert talk.kv.length == talk.window.tokens == head + 3 * UNIT_TOKENS
    after = talk.kv.rows(0, talk.kv.length)
    for mine, theirs in zip(_part(after, 0, head), _part(before, 0, head), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(after.values[:, :, head:], before.values[:, :, head + 3 * UNIT_TOKENS :])
    fresh = talk.fresh(PREFIX + SUFFIX + unit_ids(3) + unit_ids(4) + unit_ids(5))
    assert_close(after.keys[0], fresh.keys[0])
    assert_close(after.values[0], fresh.values[0])
