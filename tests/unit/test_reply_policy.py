"""The next token of a turn-based reply, from hand-made logits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from MiniCPMO45.engine.policies import REPLY_PENALTY_WINDOW as PENALTY_WINDOW
from MiniCPMO45.engine.policies import ReplyPolicy
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens
from MiniCPMO45.settings import GenerationSettings
from tests.fakes.words import tiny_tokenizer

GREEDY = GenerationSettings(do_sample=False, repetition_penalty=1.0, length_penalty=1.0)


@pytest.fixture(scope="module")
def tokenizer() -> MiniCPMOTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def tokens(tokenizer: MiniCPMOTokenizerFast) -> SpecialTokens:
    return tokenizer.special


@pytest.fixture(scope="module")
def words(tokenizer: MiniCPMOTokenizerFast) -> list[int]:
    return [tokenizer.encode(word)[0] for word in (" hear", " river", " seven")]


class Chooser:
    """A policy with a generator."""

    def __init__(self, tokenizer: MiniCPMOTokenizerFast) -> None:
        self.policy = ReplyPolicy(tokenizer.special, torch.device("cpu"))
        self.size = len(tokenizer)
        self.generator = torch.Generator().manual_seed(0)

    def row(self, chosen: dict[int, float]) -> torch.Tensor:
        logits = torch.full((self.size,), -30.0)
        for token, value in chosen.items():
            logits[token] = value
        return logits

    def __call__(
        self, chosen: dict[int, float], settings: GenerationSettings, said: tuple[int, ...] = ()
    ) -> int:
        return self.policy.next_token(self.row(chosen), said, settings, self.generator)

    def one_shot(
        self, chosen: dict[int, float], settings: GenerationSettings, said: tuple[int, ...] = ()
    ) -> int:
        given = self.row(chosen), said, settings, self.generator
        return self.policy.next_token(*given, is_one_shot=True)


@pytest.fixture
def choose(tokenizer: MiniCPMOTokenizerFast) -> Chooser:
    return Chooser(tokenizer)


def test_marks_nobody_can_pronounce_are_forbidden_in_speech_only(
    choose: Chooser, tokens: SpecialTokens, words: list[int]
) -> None:
    silent = replace(GREEDY, generate_audio=False)
    for mark in (*tokens.ascii_mark_ids, tokens.bad_token_ids[0], tokens.unk):
        assert choose({mark: 2.0, words[0]: 1.0}, GREEDY) == words[0]
        assert choose({mark: 2.0, words[0]: 1.0}, silent) == mark
        assert choose.one_shot({mark: 2.0, words[0]: 1.0}, GREEDY) == mark


@pytest.mark.parametrize("forbids", [False, True])
def test_full_width_marks_are_forbidden_on_request(
    choose: Chooser, tokenizer: MiniCPMOTokenizerFast, words: list[int], forbids: bool
) -> None:
    settings = replace(GREEDY, forbid_full_width_marks=forbids)
    bad = set(tokenizer.bad_token_ids)
    marks = [mark for mark in tokenizer.special.full_width_mark_ids if mark not in bad]
    assert marks
    for mark in marks:
        chosen = choose({mark: 2.0, words[0]: 1.0}, settings)
        assert chosen == (words[0] if forbids else mark)


def test_a_reply_does_not_end_before_its_least_length(
    choose: Chooser, tokens: SpecialTokens, words: list[int]
) -> None:
    settings = replace(GREEDY, min_new_tokens=2)
    for end in tokens.reply_terminators:
        assert choose({end: 9.0, words[0]: 1.0}, settings, (1,)) == words[0]
        assert choose({end: 9.0, words[0]: 1.0}, settings, (1, 1)) == end
    for end in tokens.chat_terminators:
        assert choose.one_shot({end: 9.0, words[0]: 1.0}, settings, (1,)) == words[0]
        assert choose.one_shot({end: 9.0, words[0]: 1.0}, settings, (1, 1)) == end


def test_the_last_128_tokens_are_penalised(choose: Chooser, words: list[int]) -> None:
    settings = replace(GREEDY, repetition_penalty=2.0)
    chosen = {words[0]: 3.0, words[1]: 2.0}
    filler = (words[2],) * (PENALTY_WINDOW - 1)
    assert choose(chosen, settings, (words[0], *filler)) == words[1]
    assert choose(chosen, settings, (words[0], words[2], *filler)) == words[0]
    assert choose.one_shot(chosen, settings, (words[0], words[2], *filler)) == words[1]


def test_the_length_penalty_acts_on_terminators_of_streamed_replies(
    choose: Chooser, tokens: SpecialTokens, words: list[int]
) -> None:
    settings = replace(GREEDY, length_penalty=1.5)
    for end in tokens.reply_terminators:
        assert choose({end: 1.2, words[0]: 1.0}, GREEDY) == end
        assert choose({end: 1.2, words[0]: 1.0}, settings) == words[0]
        assert choose.one_shot({end: 1.2, words[0]: 1.0}, settings) == end


def test_the_callers_sampling_options_count(choose: Chooser, words: list[int]) -> None:
    """Three even words, of which the caller wants only one."""
    settings = replace(GREEDY, do_sample=True, top_k=1)
    chosen = {words[0]: 1.0, words[1]: 0.99, words[2]: 0.98}
    drawn = Counter(choose(chosen, settings) for _ in range(50))
    assert set(drawn) == {words[0]}


def test_temperature_zero_takes_the_likeliest(choose: Chooser, words: list[int]) -> None:
    settings = replace(GREEDY, do_sample=True, temperature=0.0, top_k=0, top_p=1.0)
    chosen = {words[0]: 1.0, words[1]: 0.99}
    assert {choose(chosen, settings) for _ in range(20)} == {words[0]}
