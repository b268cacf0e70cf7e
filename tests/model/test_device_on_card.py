"""The executor on a card, with captured graphs: the CPU's answers, and no hidden waiting."""

from __future__ import annotations

import gc
import warnings
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from benchmarks.rig import random_weights
from core.engine.passes import run_alone
from MiniCPMO45.configuration_minicpmo import (
    AudioConfig,
    MiniCPMOConfig,
    SliceConfig,
    TTSConfig,
    VisionConfig,
)
from MiniCPMO45.engine import executor
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import ChooseToken, EncodeImages, LlmForward
from MiniCPMO45.kernels import device
from MiniCPMO45.kernels.device import Capturable, capture_all
from MiniCPMO45.modeling_minicpmo import MiniCPMOForConditionalGeneration
from MiniCPMO45.processing.pictures import slice_image
from MiniCPMO45.settings import CacheKind, LoadOptions
from tests.fakes.batching import run_together
from tests.model.decoder_requests import code_rounds, greedy_decisions, text_rounds, vectors
from tests.model.stock import stock_decoder, stock_states
from tests.model.talks import facts_of, greedy_talks
from tests.model.toy import Toy, assert_close, build_toy
from tests.model.turns import VARIED, ToyTurns

pytestmark = pytest.mark.gpu

CACHE_BYTES = 1 << 28
LAYERS = 4
PROMPT_TOKENS = 500
TEACHER_FORCED_TOKENS = 1500
UNCLEAR_STEPS = 2  # of bfloat16: each path rounds both of the best logits by up to half a step
MIN_AGREEMENT = 0.999
# Of the executor, in terms of the library's noise.
MOST_NOISE = {CacheKind.BF16: 1.05, CacheKind.INT8: 1.5}


@pytest.fixture(scope="module")
def toy_on_card(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return build_toy(tmp_path_factory.mktemp("card"), device="cuda")


def _with_graphs(toy: Toy, cache: CacheKind = CacheKind.BF16) -> Executor:
    options = LoadOptions(
        slots=4,
        text_cache=cache,
        most_rows=32,
        text_cache_bytes=CACHE_BYTES,
        speech_cache_bytes=CACHE_BYTES,
        show_progress=False,
    )
    return Executor(toy.model, toy.vocoder, options=options)


@pytest.fixture(scope="module")
def engine(toy_on_card: Toy) -> Executor:
    return _with_graphs(toy_on_card)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Executor:
    return build_toy(tmp_path_factory.mktemp("cpu")).small_executor()


def test_text_is_that_of_the_cpu(toy_on_card: Toy, engine: Executor, on_cpu: Executor) -> None:
    assert_texts_are_those_of_the_cpu(toy_on_card, engine, on_cpu)


def assert_texts_are_those_of_the_cpu(toy: Toy, engine: Executor, on_cpu: Executor) -> None:
    kvs, theirs = ([each.llm_store.open() for _ in range(6)] for each in (engine, on_cpu))
    for requests in text_rounds(toy):
        asked = [replace(each, rows=_on_cpu(each.rows)) for each in requests(theirs)]
        found, expected = engine.submit(requests(kvs))(), on_cpu.submit(asked)()
        for one, other in zip(found, expected, strict=True):
            assert_close(one.hidden.cpu(), other.hidden)
            if other.logits is not None:
                assert_close(one.logits.cpu(), other.logits)


def test_codes_are_those_of_the_cpu(toy_on_card: Toy, engine: Executor, on_cpu: Executor) -> None:
    rounds = zip(code_rounds(toy_on_card, engine), code_rounds(toy_on_card, on_cpu), strict=True)
    for mine, theirs in rounds:
        asked = [replace(each, rows=_on_cpu(each.rows)) for each in theirs]
        assert engine.submit(mine)() == on_cpu.submit(asked)()


def test_a_small_card_gets_passes_for_its_slots_and_answers_alike(
    toy_on_card: Toy, on_cpu: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (device, executor):
        monkeypatch.setattr(module, "is_small_card", lambda _device: True)
    options = LoadOptions(slots=1, show_progress=False)
    small = Executor(toy_on_card.model, toy_on_card.vocoder, options=options)
    assert (small.options.conversations, small.options.most_rows) == (1, executor.SMALL_CARD_ROWS)
    assert_texts_are_those_of_the_cpu(toy_on_card, small, on_cpu)


def _on_cpu(rows: Rows) -> Rows:
    return Rows(rows.ids, tuple((start, vectors.cpu()) for start, vectors in rows.vectors))


@pytest.mark.parametrize("cache", CacheKind)
def test_alone_equals_interleaved_equals_batched(toy_on_card: Toy, cache: CacheKind) -> None:
    alone = greedy_talks(toy_on_card, engine := _with_graphs(toy_on_card, cache))
    for talk in alone:
        run_alone(talk.whole(), engine)
    interleaved = greedy_talks(toy_on_card, engine)
    for parts in zip(*(talk.parts() for talk in interleaved), strict=True):
        for part in parts:
            run_alone(part, engine)
    batched = greedy_talks(toy_on_card, engine)
    run_together([talk.whole() for talk in batched], engine)
    assert facts_of(interleaved) == facts_of(alone)
    assert facts_of(batched) == facts_of(alone)


def test_no_pass_waits_for_the_card_but_to_read_its_result(
    toy_on_card: Toy, engine: Executor
) -> None:
    kv, [decision] = engine.llm_store.open(), greedy_decisions(toy_on_card, 1)
    rows = vectors(toy_on_card, 9)
    [draws, *_] = code_rounds(toy_on_card, engine)
    [opening] = engine.submit([LlmForward(kv, Rows((5,)))])()
    pixels = np.full((720, 1280, 3), 7, np.uint8)
    seen = EncodeImages(slice_image(Image.fromarray(pixels), 1, SliceConfig()).slices)
    for request in (ChooseToken(opening.logits, decision), seen):
        engine.submit([request])()  # uploads what never changes
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            fed = LlmForward(kv, Rows.of((5,), rows), decision=decision)
            engine.submit([fed])()
            engine.submit([LlmForward(kv, Rows((6,)), decision=decision)])()
            engine.submit([seen])()
            engine.submit(draws)()
            with torch.inference_mode():
                kv.drop(2, 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [str(wait.message) for wait in waits] == []


def test_an_empty_chunk_of_a_turn_is_answered(toy_on_card: Toy) -> None:
    """A pass without rows would read a hidden state before the first, which breaks the device."""
    talk = ToyTurns(toy_on_card)
    talk.prefill("user", "hi")
    length = talk.session.kv.length
    talk.prefill("user", "")
    assert talk.session.kv.length == length
    assert len(talk.generate(VARIED)[1].ids) >= VARIED.min_new_tokens


def _full_width() -> MiniCPMOForConditionalGeneration:
    """A few layers of the published width, in bfloat16."""
    config = MiniCPMOConfig(
        num_hidden_layers=LAYERS,
        audio_config=AudioConfig(
            d_model=64, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=64
        ),
        vision_config=VisionConfig(
            hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
        ),
        tts_config=TTSConfig(num_hidden_layers=1),
    )
    with torch.device("meta"):
        model = MiniCPMOForConditionalGeneration(config)
    random_weights(model, device="cuda", dtype=torch.bfloat16, seed=0)
    return model


def _teacher_forced(executor: Executor, ids: list[int]) -> Tensor:
    """Logits after each token behind the prompt, float32 [TEACHER_FORCED_TOKENS, vocabulary]."""
    kv = executor.llm_store.open()
    executor.submit([LlmForward(kv, Rows(tuple(ids[:PROMPT_TOKENS])))])()
    steps = [LlmForward(kv, Rows((token,))) for token in ids[PROMPT_TOKENS:]]
    return torch.stack([executor.submit([step])()[0].logits.float() for step in steps])


def _is_clear(logits: Tensor) -> Tensor:
    """Decisions that rounding the logits to bfloat16 cannot turn, nor make a tie."""
    best, second = logits.topk(2).values.unbind(1)
    step = torch.finfo(torch.bfloat16).eps * torch.exp2(best.log2().floor())
    return best - second > UNCLEAR_STEPS * step


def _stock_logits(model: MiniCPMOForConditionalGeneration, ids: list[int]) -> Tensor:
    """The library's logits for the same tokens, float32."""
    llm = model.llm
    stock = stock_decoder(llm.model, model.config)
    tokens = torch.tensor(ids, device=llm.lm_head.weight.device)
    with torch.no_grad():
        states = stock_states(stock, llm.model.embed_tokens(tokens))
        return llm.lm_head(states[PROMPT_TOKENS:]).float()


@pytest.mark.parametrize("cache", CacheKind)
def test_full_width_bf16_agrees_with_the_library_token_by_token(cache: CacheKind) -> None:
    """Teacher-forced, and no farther from the same weights in float32 than the library is.

    Random weights leave near ties, which any order of sums decides: they are left out. Which are
    near ties float32 says, since either path's own rounding makes some look clear.
    """
    model = _full_width()
    generator = torch.Generator().manual_seed(0)
    n_tokens = PROMPT_TOKENS + TEACHER_FORCED_TOKENS
    ids = torch.randint(0, model.config.vocab_size, (n_tokens,), generator=generator).tolist()
    true, theirs = _stock_logits(deepcopy(model).float(), ids), _stock_logits(model, ids)
    options = LoadOptions(
        slots=1,
        text_cache=cache,
        text_cache_bytes=CACHE_BYTES * 4,
        speech_cache_bytes=CACHE_BYTES,
        show_progress=False,
    )
    mine = _teacher_forced(Executor(model, options=options), ids)
    noise, stock_noise = (float((each - true).norm() / true.norm()) for each in (mine, theirs))
    is_clear = _is_clear(true)
    agreeing = int((mine.argmax(1) == theirs.argmax(1))[is_clear].sum())
    clear = int(is_clear.sum())
    print(f"{cache}: {agreeing} of {clear} clear decisions of {TEACHER_FORCED_TOKENS} agree")
    print(f"noise {noise:.5f}, of the library {stock_noise:.5f}")
    assert noise <= MOST_NOISE[cache] * stock_noise
    assert clear > TEACHER_FORCED_TOKENS / 2
    assert agreeing >= MIN_AGREEMENT * clear


def test_a_captured_piece_is_replayed_whether_it_has_a_result_or_not() -> None:
    counter = torch.zeros(1, device="cuda")
    calls = []

    def count() -> None:
        calls.append(1)
        counter.add_(1)

    piece = Capturable("count", count)
    capture_all([[piece]], show_progress=False)
    n_calls, before = len(calls), int(counter)
    for _ in range(3):
        assert piece.run() is None
    assert int(counter) == before + 3
    assert len(calls) == n_calls, "the work was called instead of its graph"


def test_graphs_that_nobody_uses_any_more_do_not_disturb_a_capture() -> None:
    x = torch.zeros(1, device="cuda")
    unused = Capturable("unused", lambda: x.add_(1))
    capture_all([[unused]], show_progress=False)
    vars(unused)["itself"] = unused  # only the garbage collector destroys it
    del unused

    def double() -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            gc.collect()
        return x.mul(2)

    doubled = Capturable("doubled", double)
    capture_all([[doubled]], show_progress=False)
    x.fill_(3)
    assert int(doubled.run()) == 6
