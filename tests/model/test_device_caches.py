"""Whatever several conversations do to their caches, the engine computes what the plain path does.

They share one pool, so a page that is read or written by the wrong one would show.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from MiniCPMO45.kv_cache import KvHandle
from MiniCPMO45.steps import LlmForward, TokenIds
from tests.model.device_requests import assert_same_cache, assert_same_output
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


@settings(max_examples=25, deadline=None)
@given(actions=actions)
def test_caches_of_one_pool_never_touch_each_other(
    toy: Toy, actions: list[tuple[str, Any]]
) -> None:
    executors = toy.executor(), toy.device_executor()
    caches = [[each.llm_store.open() for _ in range(TALKS)] for each in executors]
    token = 0
    with torch.inference_mode():
        for kind, details in actions:
            if kind != "feed":
                talk, first, second = details
                for kvs in caches:
                    kvs[talk] = _change(kvs[talk], kind, first, second)
                continue
            fed = []
            for count in details:
                fed.append(TokenIds(tuple((token + n) % VOCABULARY for n in range(count))))
                token += 7 * count
            plain, device = (
                executor.answer(
                    [LlmForward(kv, (ids,)) for kv, ids in zip(kvs, fed, strict=True) if ids.ids]
                )
                for executor, kvs in zip(executors, caches, strict=True)
            )
            for found, expected in zip(device, plain, strict=True):
                assert_same_output(found, expected)
        for found, expected in zip(*reversed(caches), strict=True):
            assert_same_cache(found, expected)
