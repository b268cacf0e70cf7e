"""Requests for tests of decoder passes, and comparison of their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import KvHandle, KvStore, Rows
from MiniCPMO45.engine.policies import CodeRule, UnitPolicy
from MiniCPMO45.engine.steps import (
    DrawCodes,
    LlmForward,
    LlmOutput,
    TextDecision,
)
from MiniCPMO45.settings import DuplexSettings
from tests.model.toy import Toy, assert_close

GREEDY = DuplexSettings(decode_mode="greedy")
GREEDY_CODES = CodeRule(temperature=0.8, repetition_penalty=1.05, is_greedy=True)


def vectors(toy: Toy, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, toy.config.hidden_size, generator=generator).to(toy.device)


def text_rounds(toy: Toy) -> list[Callable[[Sequence[KvHandle]], list[LlmForward]]]:
    """Return the requests of six conversations in rounds: prefills, decode steps, and both."""
    rows = vectors(toy, 150)

    def mixed(kvs: Sequence[KvHandle]) -> list[LlmForward]:
        return [
            LlmForward(kvs[0], Rows.of((1, 2), rows[:30], (4,))),
            LlmForward(kvs[1], Rows((9,)), wants_logits=False),
            LlmForward(kvs[2], Rows.of(rows, (1, 2, 3))),  # several passes long
            LlmForward(kvs[3], Rows((9,))),
            LlmForward(kvs[4], Rows.of(rows[:1])),
            LlmForward(kvs[5], Rows((5,))),
        ]

    def decode(kvs: Sequence[KvHandle]) -> list[LlmForward]:
        return [LlmForward(kv, Rows((7 + n,))) for n, kv in enumerate(kvs)]

    def one(kvs: Sequence[KvHandle]) -> list[LlmForward]:
        return [LlmForward(kvs[3], Rows((3,)))]

    return [mixed, decode, one, mixed, decode]


def code_rounds(toy: Toy, executor: Executor) -> Iterator[list[DrawCodes]]:
    """Return runs of different lengths, some of which may end, and their continuations."""
    kvs = [executor.tts_store.open() for _ in range(6)]
    hidden, eos = vectors(toy, 9, seed=3), toy.config.tts_config.speech_eos_id
    first = toy.config.tts_config.num_text_tokens + 3
    generator = torch.Generator(toy.device).manual_seed(0)
    for is_first in (True, False, True):
        yield [
            DrawCodes(
                kv,
                Rows((5, 6 + n, 7), ((0, hidden[n : n + 2]),)) if is_first else Rows((first + n,)),
                GREEDY_CODES,
                tuple(range(n)),
                eos,
                generator,
                count=12 + n,
                least=0 if n % 2 else 12 + n,
            )
            for n, kv in enumerate(kvs)
        ]


def greedy_decisions(toy: Toy, count: int) -> list[TextDecision]:
    policy = UnitPolicy(toy.tokenizer.special, toy.device)
    return [
        TextDecision(policy, [5, 6, 7][:n], GREEDY, torch.Generator(toy.device).manual_seed(n))
        for n in range(count)
    ]


def assert_same_output(found: LlmOutput, expected: LlmOutput) -> None:
    assert (found.logits is None) is (expected.logits is None)
    if found.logits is not None:
        assert_close(found.logits, expected.logits)
    assert_close(found.hidden, expected.hidden)


def assert_same_cache(found: KvHandle, expected: KvHandle) -> None:
    assert found.length == expected.length
    mine, theirs = found.rows(0, found.length), expected.rows(0, expected.length)
    assert_close(mine.keys, theirs.keys)
    assert_close(mine.values, theirs.values)


def scatter_pages(store: KvStore) -> None:
    """Occupy every second page of a store, so that caches get scattered pages."""
    taken = store.take_pages(store.free_pages)
    store.release([], taken[::2])
