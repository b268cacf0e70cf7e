"""The unit loop of full duplex: D19 to D27, D31, sections 6.6 and 6.9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from MiniCPMO45.engine.policies import UnitPolicy, draw
from MiniCPMO45.engine.steps import LlmForward
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings
from tests.fakes.scripted import CODE_COUNT, ROWS_PER_SLICE, cached_labels
from tests.goldens.recorded_duplex import RecordedDuplex, RecordedUnitPolicy
from tests.model.scripted_duplex import SECOND, SETTINGS, Bench
from tests.model.toy import Toy, picture

GREEDY = replace(SETTINGS, text_repetition_penalty=1.5)


@pytest.fixture
def bench(toy: Toy) -> Bench:
    return Bench(toy)


@pytest.fixture
def ours(toy: Toy) -> UnitPolicy:
    return UnitPolicy(toy.tokenizer.special, torch.device("cpu"))


@pytest.fixture
def theirs(toy: Toy) -> RecordedUnitPolicy:
    return RecordedUnitPolicy(toy.tokenizer.special)


@pytest.fixture
def logits(toy: Toy) -> Callable[[dict[int, float]], Tensor]:
    def make(chosen: dict[int, float]) -> Tensor:
        row = torch.full((len(toy.tokenizer),), -40.0)
        for token, value in chosen.items():
            row[token] = value
        return row

    return make


def recorded_bench(toy: Toy, settings: DuplexSettings = SETTINGS) -> Bench:
    """A conversation whose units are decided and closed as in recordings."""
    bench = Bench(toy, settings)
    policy = RecordedUnitPolicy(toy.tokenizer.special)
    bench.duplex = RecordedDuplex(toy.config, toy.tokenizer, policy, settings)
    bench.session.settings = bench.duplex.defaults
    return bench


def test_d19_a_session_has_settings_of_its_own(toy: Toy) -> None:
    own = replace(SETTINGS, force_listen_count=2)
    bench = Bench(toy, own, defaults=SETTINGS)
    assert bench.session.settings == own, "the rule takes the defaults"
    for _ in range(2):
        assert bench.unit(bench.a).is_listen


def test_d20_short_audio_opens_no_unit(bench: Bench) -> None:
    bench.unit(bench.tokens.listen)
    before = bench.cached
    assert not bench.prefill(audio=SECOND[:8_000], frames=[picture(0)]).success
    rule = [*before, bench.tokens.unit_start]  # fed before the sound's length is looked at
    assert bench.cached == before != rule


def test_d21_the_tail_of_a_turn_is_said(toy: Toy, bench: Bench) -> None:
    tokens, rule = bench.tokens, recorded_bench(toy)
    decisions = (tokens.speak, bench.a, tokens.turn_eos, tokens.listen)
    said, lost = bench.unit(*decisions), rule.unit(*decisions)
    assert (lost.is_listen, lost.end_of_turn, lost.text) == (True, False, "")
    assert (said.is_listen, said.end_of_turn) == (False, True) and said.text


def test_d22_an_interruption_forgets_speech(toy: Toy, bench: Bench) -> None:
    rule = recorded_bench(toy)
    for each in (bench, rule):
        each.unit(each.tokens.speak, each.a, each.tokens.chunk_eos)
        each.unit(each.a, force_listen=True)
    assert (bench.session.speech.kv.length, bench.session.speech.codes) == (0, [])
    assert rule.session.speech.kv.length > 0


def test_d23_a_break_makes_the_next_unit_listen(bench: Bench) -> None:
    bench.unit(bench.tokens.speak, bench.a, bench.tokens.chunk_eos)
    bench.session.turn.force_next_listen = True
    result = bench.unit(bench.a)  # the rule ignores it, and says the word
    assert (result.is_listen, result.barge_in) == (True, True)


@pytest.mark.parametrize("changes", [{"listen_prob_scale": 1e30}, {"listen_top_k": 2}])
def test_d24_the_listen_options_act_on_listening(
    bench: Bench,
    ours: UnitPolicy,
    theirs: RecordedUnitPolicy,
    logits: Callable[[dict[int, float]], Tensor],
    changes: dict,
) -> None:
    tokens, settings = bench.tokens, replace(SETTINGS, **changes)
    generator = torch.Generator()
    row = logits({tokens.listen: 1.0, bench.a: 2.0})
    assert ours.decide(row, [], settings, generator) == tokens.listen
    assert theirs.decide(row.clone(), [], settings, generator) == bench.a
    row = logits({tokens.im_end: 1.0, bench.a: 2.0})
    assert theirs.decide(row, [], settings, generator) == tokens.im_end


def test_d25_a_penalty_makes_less_likely_whatever_the_sign(
    bench: Bench,
    ours: UnitPolicy,
    theirs: RecordedUnitPolicy,
    logits: Callable[[dict[int, float]], Tensor],
) -> None:
    row, generator = logits({bench.a: -1.0, bench.b: -1.2}), torch.Generator()
    theirs.decisions = [bench.b]
    assert theirs.decide(row.clone(), [], GREEDY, generator) == bench.b, "repeated, and likelier"
    assert ours.decide(row, [bench.b], GREEDY, generator) == bench.a
    history: list[int] = []
    for token in (bench.tokens.speak, bench.a):
        ours.decide(logits({token: 9.0}), history, SETTINGS, generator)
        theirs.decide(logits({token: 9.0}), [], SETTINGS, generator)
    assert history == [bench.a]
    assert theirs.decisions[-2:] == [bench.tokens.speak, bench.a], "control tokens, too"


def test_d26_decisions_are_taken_in_float32(
    bench: Bench, ours: UnitPolicy, logits: Callable[[dict[int, float]], Tensor]
) -> None:
    first, second = sorted((bench.a, bench.b))  # of equals, the argmax is the first
    row = logits({first: 2.0, second: 2.0}).bfloat16()
    penalty, rule = 1.001, row.clone()
    rule[first] /= penalty  # rounds back to 2
    assert draw(rule, None) == first
    settings = replace(SETTINGS, text_repetition_penalty=penalty)
    assert ours.decide(row, [first], settings, torch.Generator()) == second


def test_d27_speech_codes_are_filtered_when_asked_for(toy: Toy) -> None:
    chosen = replace(SETTINGS, decode_mode="sampling", tts_top_k=3, tts_repetition_penalty=1.0)
    bench, row = Bench(toy, chosen), torch.full((CODE_COUNT,), -30.0)
    row[:5] = torch.tensor([2.0, 1.9, 1.8, 1.7, 1.6])
    bench.executor.codes = [row] * 26
    bench.unit(bench.tokens.speak, bench.a, bench.tokens.chunk_eos)
    rule = {draw(row, torch.Generator().manual_seed(n)) for n in range(60)}
    drawn = cached_labels(bench.session.speech.kv)[2:]
    assert len(drawn) == 25 and set(drawn) == {0, 1, 2} < rule, "a filter leaves three of five"


def test_d31_vision_tokens_are_counted(bench: Bench) -> None:
    seen = bench.unit(bench.tokens.listen, frames=[picture(0, 900, 450)], max_slice_nums=4)
    assert seen.vision_tokens == seen.vision_slices * ROWS_PER_SLICE > 0, "the rule reports 0"


def test_a_unit_is_closed_with_the_next_ones_input(toy: Toy, bench: Bench) -> None:
    """Section 6.6."""
    rule = recorded_bench(toy)
    for each in (bench, rule):
        each.unit(each.tokens.listen)
        each.unit(each.tokens.listen)
    passes = [len(each.executor.of_kind(LlmForward)) for each in (bench, rule)]
    assert passes[0] == passes[1] - 2
    assert bench.cached == rule.cached


def test_carried_text_is_fed_again_only_when_it_changed(toy: Toy) -> None:
    """Section 6.9."""
    window = WindowSettings(mode=WindowMode.CONTEXT, context_max_units=1)
    settings = replace(SETTINGS, window=window)
    fed, caches = [], []
    for each in (Bench(toy, settings), recorded_bench(toy, settings)):
        each.unit(each.tokens.speak, each.a, each.tokens.turn_eos, each.tokens.chunk_eos)
        for _ in range(3):
            each.unit(each.tokens.listen)
        suffix = each.session.window.suffix_ids
        fed.append(sum(ids[-len(suffix) :] == suffix for ids in each.executor.fed_ids()))
        caches.append([*cached_labels(each.session.kv), *each.session.turn.closing])
    assert fed[0] < fed[1]
    assert caches[0] == caches[1]
