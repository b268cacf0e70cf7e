"""Isolation of conversations from each other and of the model from them; closing frees memory."""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.machine import session_bytes
from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.session import Session
from MiniCPMO45.settings import CacheKind, DuplexSettings
from tests.fakes.batching import at_once, run_together
from tests.fakes.decoders import held_tokens
from tests.model.talks import Talk, UnitRecord
from tests.model.toy import Toy, speech
from tests.pairing import by_default

MakeExecutor = Callable[[], Executor]


WAVE_STEPS = 2
"""Steps of 16 bits by which a sample may differ in a batch, where phases add up reordered sums."""


@pytest.fixture(scope="module", params=CacheKind)
def make(toy: Toy, request: pytest.FixtureRequest) -> MakeExecutor:
    return partial(toy.executor, request.param)


with_one_cache = pytest.mark.parametrize(
    "make", by_default([CacheKind.BF16], list(CacheKind)), indirect=True, scope="module"
)
"""For what the format of the cache does not touch; `--all` tries the others."""


def _open(toy: Toy, make: MakeExecutor) -> tuple[Executor, list[Talk]]:
    executor = make()
    return executor, [Talk(toy, executor, number) for number in range(3)]


@pytest.fixture(scope="module")
def alone(toy: Toy, make: MakeExecutor) -> list[list[UnitRecord]]:
    """Each conversation by itself, on an executor of its own."""
    records = []
    for number in range(3):
        executor = make()
        talk = Talk(toy, executor, number)
        run_alone(talk.whole(), executor)
        records.append(talk.records)
    return records


def _assert_same(
    found: list[list[UnitRecord]], expected: list[list[UnitRecord]], wave_steps: int
) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.facts for each in mine] == [each.facts for each in theirs]
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(one.wave, other.wave, rtol=0, atol=wave_steps / 32_768)


def test_the_conversations_are_worth_comparing(alone: list[list[UnitRecord]]) -> None:
    """They listen, speak, end turns, are interrupted, and differ."""
    results = [each.facts for records in alone for each in records]
    for name in ("is_listen", "end_of_turn", "barge_in"):
        assert {facts[name] for facts in results} == {True, False}, name
    texts = [tuple(each.facts["text"] for each in records) for records in alone]
    assert len(set(texts)) == 3


@with_one_cache
def test_alone_equals_interleaved_unit_by_unit(
    toy: Toy, make: MakeExecutor, alone: list[list[UnitRecord]]
) -> None:
    executor, talks = _open(toy, make)
    for parts in zip(*(talk.parts() for talk in talks), strict=True):
        for part in parts:
            run_alone(part, executor)
    _assert_same([talk.records for talk in talks], alone, wave_steps=0)


class OneByOne:
    """Answers the requests of a group in separate passes."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    @at_once
    def submit(self, requests: Any) -> list[Any]:
        return [self.executor.submit([request])()[0] for request in requests]


def test_alone_equals_interleaved_request_by_request(
    toy: Toy, make: MakeExecutor, alone: list[list[UnitRecord]]
) -> None:
    executor, talks = _open(toy, make)
    run_together([talk.whole() for talk in talks], OneByOne(executor))
    _assert_same([talk.records for talk in talks], alone, wave_steps=0)


def test_alone_equals_batched(toy: Toy, make: MakeExecutor, alone: list[list[UnitRecord]]) -> None:
    """The same tokens; samples may differ in the last of their 16 bits, as sums are reordered."""
    executor, talks = _open(toy, make)
    run_together([talk.whole() for talk in talks], executor)
    _assert_same([talk.records for talk in talks], alone, WAVE_STEPS)


@with_one_cache
def test_a_seed_repeats_a_conversation_and_another_changes_it(
    toy: Toy, make: MakeExecutor, alone: list[list[UnitRecord]]
) -> None:
    executor = make()
    again, other = Talk(toy, executor, 0), Talk(toy, executor, 0)
    other.session.sampler.generator.manual_seed(7)
    for talk in (again, other):
        run_alone(talk.whole(), executor)
    _assert_same([again.records], alone[:1], wave_steps=0)
    assert [each.facts for each in other.records] != [each.facts for each in alone[0]]


def _fingerprint(*modules: nn.Module) -> str:
    """Digest of every module's attributes, parameters and buffers."""
    digest = hashlib.sha256()
    for module in itertools.chain.from_iterable(each.modules() for each in modules):
        for name, value in sorted(vars(module).items()):
            digest.update(name.encode())
            tensors = value.items() if name in {"_parameters", "_buffers"} else [("", value)]
            for key, tensor in tensors:
                digest.update(key.encode())
                if isinstance(tensor, Tensor):
                    digest.update(repr((tensor.dtype, tensor.shape)).encode())
                    digest.update(tensor.detach().numpy().tobytes())
                elif name != "_modules":
                    digest.update(repr(tensor).encode())
                else:
                    digest.update(repr([(k, id(v)) for k, v in tensor.items()]).encode())
    return digest.hexdigest()


@with_one_cache
def test_a_conversation_changes_nothing_of_the_model(toy: Toy, make: MakeExecutor) -> None:
    executor, talks = _open(toy, make)
    before = _fingerprint(toy.model, toy.vocoder.flow, toy.vocoder.hift)
    head = executor._speech.head.clone()
    run_together([talk.whole() for talk in talks], executor)
    for talk in talks:
        talk.session.close()
    assert _fingerprint(toy.model, toy.vocoder.flow, toy.vocoder.hift) == before
    assert torch.equal(executor._speech.head, head)
    assert not any(each.training or each._forward_hooks for each in toy.model.modules())


def test_the_fingerprint_sees_a_change(toy: Toy) -> None:
    before = _fingerprint(toy.model)
    weight = toy.model.apm.conv1.weight
    with torch.no_grad():
        value = weight[3].clone()
        weight[3] += 1e-3
        assert _fingerprint(toy.model) != before
        weight[3] = value
    assert _fingerprint(toy.model) == before


@with_one_cache
def test_a_conversation_changes_nothing_of_the_capability(toy: Toy, make: MakeExecutor) -> None:
    """All it learns is in the session."""
    executor = make()
    talk = Talk(toy, executor, 0)
    duplex = talk.duplex
    parts = (duplex, duplex.policy)
    before = [{name: id(value) for name, value in vars(part).items()} for part in parts]
    defaults = duplex.defaults
    run_alone(talk.whole(), executor)
    assert [{name: id(value) for name, value in vars(part).items()} for part in parts] == before
    assert duplex.defaults == defaults == DuplexSettings()


def _tensors_of(session: Session) -> dict[str, Tensor]:
    vocoder, logits = session.speech.vocoder, session.turn.logits
    assert vocoder is not None and logits is not None
    return {
        "audio encoder": session.audio_input.cache.kv,
        "mel": session.audio_input.mel.samples,
        "logits": logits,
        "vocoder": vocoder.memory.caches[0],
        "vocoder tail": vocoder.memory.tails,
    }


def test_closing_frees(toy: Toy) -> None:
    executor = toy.executor()
    stores = executor.llm_store, executor.tts_store
    start = [held_tokens(store) for store in stores]
    talk = Talk(toy, executor, 1)
    run_alone(talk.whole(), executor)
    session = talk.session
    session.take_snapshot()
    run_alone(talk.duplex.streaming_prefill(session, speech(1.0)), executor)
    assert session_bytes(session) > 0 and held_tokens(stores[0]) > start[0]

    alive = {name: weakref.ref(tensor) for name, tensor in _tensors_of(session).items()}
    del talk.voice
    session.close()
    assert [held_tokens(store) for store in stores] == start == [0, 0]
    assert [name for name, tensor in alive.items() if tensor() is not None] == []
    assert session_bytes(session) == 0, "the session itself is still held"


@with_one_cache
def test_closing_one_leaves_the_others(
    toy: Toy, make: MakeExecutor, alone: list[list[UnitRecord]]
) -> None:
    executor, (first, second, _) = _open(toy, make)
    mine, theirs = first.parts(), second.parts()
    for _ in range(4):
        run_alone(next(mine), executor)
        run_alone(next(theirs), executor)
    first.session.close()
    for part in theirs:
        run_alone(part, executor)
    _assert_same([second.records], alone[1:2], wave_steps=0)
