"""Caches in a shared pool give the same results as in pools of their own.

This detects pages read or written by the wrong conversation.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import KvHandle, Rows
from MiniCPMO45.engine.steps import LlmForward
from tests.model.decoder_requests import assert_same_cache, assert_same_output
from tests.model.toy import Toy

TALKS = 3
LONGEST = 90  # tokens fed at once: more than a page
VOCABULARY = 1000

feeds = st.lists(st.integers(0, LONGEST), min_size=TALKS, max_size=TALKS).filter(any)
places = st.tuples(st.integers(0, TALKS - 1), st.integers(0, 10**6), st.integers(0, 10**6))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), feeds),
        st.tuples(st.sampled_from(["drop", "truncate", "lift", "fork", "reopen"]), places),
    ),
    min_size=2,
    max_size=8,
)


def _change(kv: KvHandle, kind: str, first: int, second: int) -> KvHandle:
    """Change a cache as capabilities do; returns the handle to go on with."""
    start = first % (kv.length + 1)
    if kind == "drop" and start < kv.length:
        kv.drop(start, start + 1 + second % (kv.length - start))
    elif kind == "truncate":
        kv.truncate(start)
    elif kind == "lift":
        tail = kv.rows(start, kv.length)
        kv.truncate(second % (start + 1))
        kv.put(tail)
    elif kind == "reopen":
        kv.close()
        return kv.store.open()
    return kv


@pytest.fixture(scope="module")
def shared(toy: Toy) -> Executor:
    return toy.small_executor()


@pytest.fixture(scope="module")
def alone(toy: Toy) -> list[Executor]:
    return [toy.executor() for _ in range(TALKS)]


@settings(max_examples=25, deadline=None)
@given(actions=actions)
def test_caches_of_one_pool_never_touch_each_other(
    shared: Executor, alone: list[Executor], actions: list[tuple[str, Any]]
) -> None:
    ours = [shared.llm_store.open() for _ in range(TALKS)]
    theirs = [each.llm_store.open() for each in alone]
    token = 0
    with torch.inference_mode():
        for kind, details in actions:
            if kind != "feed":
                talk, first, second = details
                for kvs in (ours, theirs):
                    kvs[talk] = _change(kvs[talk], kind, first, second)
                continue
            fed: dict[int, Rows] = {}
            for talk, count in enumerate(details):
                if count:
                    fed[talk] = Rows(tuple((token + n) % VOCABULARY for n in range(count)))
                token += 7 * count
            found = shared.submit([LlmForward(ours[talk], rows) for talk, rows in fed.items()])()
            expected = [
                alone[talk].submit([LlmForward(theirs[talk], rows)])()[0]
                for talk, rows in fed.items()
            ]
            for one, other in zip(found, expected, strict=True):
                assert_same_output(one, other)
        for one, other in zip(ours, theirs, strict=True):
            assert_same_cache(one, other)
    for kv in (*ours, *theirs):
        kv.close()
