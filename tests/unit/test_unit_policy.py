"""One decision of a duplex unit, from hand-made logits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from MiniCPMO45.engine.policies import UnitPolicy
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens
from MiniCPMO45.settings import DuplexSettings
from tests.fakes.words import tiny_tokenizer

GREEDY = DuplexSettings(decode_mode="greedy", text_repetition_penalty=1.0, length_penalty=1.0)
SAMPLING = replace(GREEDY, decode_mode="sampling", temperature=1.0, top_k=0, top_p=1.0)
CPU = torch.device("cpu")
DRAWS = 300


@pytest.fixture(scope="module")
def tokenizer() -> MiniCPMOTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def tokens(tokenizer: MiniCPMOTokenizerFast) -> SpecialTokens:
    return tokenizer.special


@pytest.fixture(scope="module")
def words(tokenizer: MiniCPMOTokenizerFast) -> list[int]:
    return [tokenizer.encode(word)[0] for word in (" hear", " river", " seven")]


class Decider:
    """A policy with its generator and history."""

    def __init__(self, tokens: SpecialTokens, size: int) -> None:
        self.policy = UnitPolicy(tokens, CPU)
        self.size = size
        self.history: list[int] = []
        self.generator = torch.Generator().manual_seed(0)

    def logits(self, chosen: dict[int, float], others: float = -30.0) -> Tensor:
        row = torch.full((self.size,), others)
        for token, value in chosen.items():
            row[token] = value
        return row

    def __call__(self, chosen: dict[int, float], settings: DuplexSettings) -> int:
        return self.policy.decide(self.logits(chosen), self.history, settings, self.generator)

    def chances(self, chosen: dict[int, float], settings: DuplexSettings) -> Counter[int]:
        counts = Counter(self(chosen, settings) for _ in range(DRAWS))
        return Counter({token: round(100 * n / DRAWS) for token, n in counts.items()})


@pytest.fixture
def decide(tokens: SpecialTokens, tokenizer: MiniCPMOTokenizerFast) -> Decider:
    return Decider(tokens, len(tokenizer))


def test_the_likeliest_wins_when_greedy(decide: Decider, words: list[int]) -> None:
    assert decide({words[0]: 1.0, words[1]: 2.0}, GREEDY) == words[1]


def test_chunk_end_wins_at_once_and_leaves_no_history(
    decide: Decider, tokens: SpecialTokens, words: list[int]
) -> None:
    assert decide({tokens.chunk_eos: 3.0, words[0]: 2.0}, GREEDY) == tokens.chunk_eos
    assert decide.history == []


def test_chunk_end_is_never_drawn_after_the_probe(
    decide: Decider, tokens: SpecialTokens, words: list[int]
) -> None:
    """The probe gives it its own chance; the second draw must not give it another."""
    even = {tokens.chunk_eos: 0.0, words[0]: 0.0}
    assert decide.chances(even, SAMPLING)[tokens.chunk_eos] == pytest.approx(50, abs=8)
    assert decide({tokens.chunk_eos: 1.9, words[0]: 2.0}, GREEDY) == words[0]


def test_forbidden_tokens_are_never_decided(
    decide: Decider, tokens: SpecialTokens, words: list[int]
) -> None:
    for token in (tokens.tts_pad, tokens.bad_token_ids[0], tokens.bad_token_ids[-1]):
        assert decide({token: 9.0, words[0]: 1.0}, GREEDY) == words[0]


def test_the_logits_given_are_not_changed(decide: Decider, words: list[int]) -> None:
    logits = decide.logits({words[0]: 1.0})
    before = logits.clone()
    decide.policy.decide(logits, [words[0]], SAMPLING, decide.generator)
    assert torch.equal(logits, before)


def test_text_enters_the_history_and_controls_do_not(
    decide: Decider, tokens: SpecialTokens, words: list[int]
) -> None:
    """D25."""
    for token in (words[0], tokens.speak, tokens.listen, tokens.turn_eos, words[1]):
        assert decide({token: 9.0}, GREEDY) == token
    assert decide.history == [words[0], words[1]]


def test_repeated_text_becomes_less_likely_whatever_its_sign(
    decide: Decider, words: list[int]
) -> None:
    settings = replace(GREEDY, text_repetition_penalty=1.5)
    decide.history[:] = [words[0]]
    assert decide({words[0]: 2.0, words[1]: 1.5}, settings) == words[1]
    decide.history[:] = [words[0]]
    assert decide({words[0]: -1.0, words[1]: -1.2}, settings) == words[1]


@pytest.mark.parametrize(("window", "expected"), [(1, 1), (2, 2), (0, 0)])
def test_only_the_last_decisions_are_penalised(
    decide: Decider, words: list[int], window: int, expected: int
) -> None:
    decide.history[:] = [words[0], words[1]]
    settings = replace(GREEDY, text_repetition_penalty=4.0, text_repetition_window_size=window)
    chosen = {words[1]: 3.0, words[0]: 2.9, words[2]: 2.8}
    likeliest = [words[1], words[0], words[2]]
    assert decide(chosen, settings) == likeliest[expected]


def test_the_length_penalty_makes_the_turn_end_less_likely(
    decide: Decider, tokens: SpecialTokens, words: list[int]
) -> None:
    settings = replace(GREEDY, length_penalty=1.5)
    assert decide({tokens.turn_eos: 1.2, words[0]: 1.0}, GREEDY) == tokens.turn_eos
    assert decide({tokens.turn_eos: 1.2, words[0]: 1.0}, settings) == words[0]
    assert decide({tokens.turn_eos: -1.0, words[0]: -1.2}, settings) == words[0]


def test_the_listen_scale_multiplies_the_chance_to_listen(
    decide: Decider, tokens: SpecialTokens, words: list[int]
) -> None:
    """D24: odds of 1 to 3 times a scale of 3 are even, whatever the logits' signs."""
    for shift in (-5.0, 5.0):
        chosen = {tokens.listen: shift, words[0]: shift + 1.0986}
        settings = replace(SAMPLING, listen_prob_scale=3.0)
        assert decide.chances(chosen, SAMPLING)[tokens.listen] == pytest.approx(25, abs=8)
        assert decide.chances(chosen, settings)[tokens.listen] == pytest.approx(50, abs=8)


@pytest.mark.parametrize("is_greedy", [True, False])
def test_extreme_scales_force_and_forbid_listening(
    decide: Decider, tokens: SpecialTokens, words: list[int], is_greedy: bool
) -> None:
    """D24."""
    base = GREEDY if is_greedy else SAMPLING
    forced = replace(base, listen_prob_scale=1e30)
    forbidden = replace(base, listen_prob_scale=0.0)
    for _ in range(5):
        assert decide({tokens.listen: -4.0, words[0]: 9.0}, forced) == tokens.listen
        assert decide({tokens.listen: 9.0, words[0]: -4.0}, forbidden) == words[0]


@pytest.mark.parametrize(("rank", "listens"), [(1, True), (2, True), (3, False)])
def test_listen_top_k_listens_when_listening_is_among_the_likeliest(
    decide: Decider, tokens: SpecialTokens, words: list[int], rank: int, listens: bool
) -> None:
    chosen = {word: 5.0 + i for i, word in enumerate(words[: rank - 1])} | {tokens.listen: 1.0}
    decided = decide(chosen, replace(GREEDY, listen_top_k=2))
    assert (decided == tokens.listen) is listens


def test_the_scale_acts_before_the_rank(
    decide: Decider, tokens: SpecialTokens, words: list[int]
) -> None:
    settings = replace(GREEDY, listen_top_k=1, listen_prob_scale=1e3)
    assert decide({tokens.listen: 1.0, words[0]: 5.0}, settings) == tokens.listen


def test_temperature_top_k_and_top_p_shape_the_draw(decide: Decider, words: list[int]) -> None:
    chosen = {words[0]: 1.0, words[1]: 0.5, words[2]: 0.4}
    assert set(decide.chances(chosen, SAMPLING)) == set(words)
    assert set(decide.chances(chosen, replace(SAMPLING, top_k=2))) == set(words[:2])
    assert set(decide.chances(chosen, replace(SAMPLING, top_p=0.3))) == {words[0]}
    assert set(decide.chances(chosen, replace(SAMPLING, temperature=0.0))) == {words[0]}


def test_every_decision_draws_twice(decide: Decider, words: list[int]) -> None:
    """The probe and the decision; recordings of random runs depend on it."""
    logits = decide.logits({words[0]: 1.0, words[1]: 1.0})
    decide.policy.decide(logits, [], SAMPLING, decide.generator)
    after, generator = decide.generator.get_state(), torch.Generator().manual_seed(0)
    for _ in range(2):
        torch.multinomial(logits.softmax(-1), 1, generator=generator)
    assert torch.equal(after, generator.get_state())


def test_half_precision_logits_are_decided_in_float32(decide: Decider, words: list[int]) -> None:
    """A small penalty would be lost if its result were rounded to eight bits again."""
    settings = replace(GREEDY, text_repetition_penalty=1.001)
    first, second = sorted(words[:2])  # of equals, the argmax is the first
    logits = decide.logits({first: 2.0, second: 2.0}).bfloat16()
    decided = decide.policy.decide(logits, [first], settings, decide.generator)
    assert decided == second
