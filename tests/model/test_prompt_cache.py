"""The prompt cache: a hit copies the rows without a request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import KvHandle, KvRows, KvStore
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import LlmForward
from MiniCPMO45.modes.duplex import DuplexCapability
from MiniCPMO45.modes.prompt_input import PromptCache, prompt_key
from MiniCPMO45.settings import DuplexSettings
from tests.fakes.decoders import decoder_shape
from tests.fakes.scripted import cached_labels
from tests.model.scripted_duplex import SETTINGS, Bench
from tests.model.toy import Toy, UnitInput, prepare, run_unit, speech

VOICE = speech(2.0, 3)
SHAPE = decoder_shape(16, layers=2, heads=2, kv_heads=2, head_dim=8, positions=1024)
ROW_BYTES = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, floats of a head


def _store() -> KvStore:
    cpu = torch.device("cpu")
    return KvStore(SHAPE, device=cpu, dtype=torch.float32, pages=8, can_grow=True)


def _filled(store: KvStore, tokens: int, seed: int = 0) -> KvHandle:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, SHAPE.num_hidden_layers, 2, tokens, 8, generator=generator)
    kv = store.open()
    kv.put(KvRows(keys, values, 0))
    return kv


def test_rows_come_back_exactly_and_into_caches_of_their_own() -> None:
    store, prompts = _store(), PromptCache()
    fed = _filled(store, 70)
    expected = fed.rows(0, 70)
    prompts.store("a", fed)
    fed.close()
    first, second = store.open(), store.open()
    assert prompts.load("a", first)
    first.truncate(10)
    first.put(_filled(_store(), 5, seed=9).rows(0, 5))
    assert prompts.load("a", second)
    rows = second.rows(0, second.length)
    assert torch.equal(rows.keys, expected.keys)
    assert torch.equal(rows.values, expected.values)
    assert second.length == 70


def test_an_unknown_prompt_is_not_recalled() -> None:
    kv = _store().open()
    assert not PromptCache().load("a", kv)
    assert kv.length == 0


def test_the_prompts_used_last_stay() -> None:
    store, prompts = _store(), PromptCache(max_bytes=25 * ROW_BYTES)
    for name in "ab":
        prompts.store(name, _filled(store, 10))
    assert prompts.nbytes == 20 * ROW_BYTES
    prompts.load("a", store.open())
    prompts.store("c", _filled(store, 10))
    assert [prompts.load(name, store.open()) for name in "abc"] == [True, False, True]
    prompts.store("a", _filled(store, 12))
    assert prompts.nbytes == 22 * ROW_BYTES


def test_a_prompt_larger_than_the_room_for_all_is_not_kept() -> None:
    store, prompts = _store(), PromptCache(max_bytes=25 * ROW_BYTES)
    prompts.store("a", _filled(store, 10))
    prompts.store("b", _filled(store, 26))
    assert prompts.load("a", store.open())
    assert not prompts.load("b", store.open())


def test_a_key_names_everything_the_rows_depend_on() -> None:
    """The boundaries between parts are included."""
    other = VOICE.copy()
    other[7] += 1e-6
    keys = {
        prompt_key((1, 2), (3,), VOICE),
        prompt_key((1,), (2, 3), VOICE),
        prompt_key((1, 2), (4,), VOICE),
        prompt_key((1, 2), (3,), other),
        prompt_key((1, 2), (3,), None),
    }
    assert len(keys) == 5
    assert prompt_key([1, 2], [3], VOICE.astype(np.float64)) in keys


def test_a_known_prompt_asks_for_nothing(toy: Toy) -> None:
    bench = Bench(toy)
    sessions = [bench.executor.open_session() for _ in range(3)]
    for session, voice in zip(sessions, (VOICE, VOICE, VOICE[:16_000]), strict=True):
        bench.executor.requests.clear()
        bench.do(prepare(bench.duplex, session, SETTINGS, None, voice))
        is_known = session is sessions[1]
        assert (bench.executor.requests == []) is is_known
    first, second, _ = sessions
    assert cached_labels(first.kv) == cached_labels(second.kv)
    assert first.window == second.window
    assert second.window.preserved == second.kv.length


def test_the_marker_of_the_window_is_the_sessions_own(toy: Toy) -> None:
    bench = Bench(toy)
    window = replace(SETTINGS.window, context_marker=" before: ")
    session = bench.executor.open_session()
    bench.executor.requests.clear()
    bench.do(prepare(bench.duplex, session, replace(SETTINGS, window=window)))
    assert bench.executor.requests == []
    assert session.window.marker_ids == tuple(toy.tokenizer.encode(" before: "))


def test_the_toy_model_goes_on_from_a_copied_prompt_as_from_a_fed_one(toy: Toy) -> None:
    executor, duplex = toy.executor(), toy.duplex()

    def talk(duplex: DuplexCapability, executor: Executor) -> tuple[Session, list[str]]:
        session = executor.open_session("toy", seed=0)
        settings = DuplexSettings(force_listen_count=0)
        run_alone(prepare(duplex, session, settings, None, VOICE), executor)
        return session, [
            run_alone(run_unit(duplex, session, UnitInput(speech(1.0, number))), executor).text
            for number in range(3)
        ]

    fed, said = talk(duplex, executor)
    stored = duplex.prompts.nbytes
    copied, again = talk(duplex, executor)
    assert said == again and duplex.prompts.nbytes == stored > 0
    one, other = (each.kv.rows(0, each.kv.length) for each in (fed, copied))
    assert torch.equal(one.keys, other.keys)
    assert torch.equal(one.values, other.values)


def test_a_prompt_that_failed_is_not_kept(toy: Toy) -> None:
    executor, duplex = toy.executor(), toy.duplex()
    session = executor.open_session("toy", seed=0)
    steps = duplex.feed_prompt(session, "a", "b")
    assert isinstance(next(steps), LlmForward)
    with pytest.raises(RuntimeError, match="full"):
        steps.throw(RuntimeError("full"))
    assert duplex.prompts.nbytes == 0
