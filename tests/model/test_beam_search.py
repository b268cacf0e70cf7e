"""Beam search: better than greedy, equal to trying everything, and gone without a trace."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from MiniCPMO45.beam_search import UNSAMPLED_REPETITION_PENALTY, BeamSearch, Draft
from MiniCPMO45.processing_minicpmo import Message
from MiniCPMO45.sampling import penalise_repetition
from MiniCPMO45.session import Session
from MiniCPMO45.settings import GenerationSettings
from MiniCPMO45.steps import Answers, LlmForward, LlmOutput, Request, TokenIds, run_alone
from tests.fakes.scripted import ScriptedExecutor
from tests.model.toy import Toy
from tests.model.turns import Stopping, ToyTurns

SETTINGS = GenerationSettings(do_sample=False, generate_audio=False)
QUESTIONS = ("hello", "tell me", "what is it", "go on", "good morning")


class TableExecutor:
    """A model whose next token depends on the last two; every cache holds its own history."""

    def __init__(self, size: int, seed: int, end_bias: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(size + 1, size + 1, size, generator=generator) * 2.0
        self.table[..., 0] += end_bias
        self.size = size
        self.inner = ScriptedExecutor(size)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits [size] after some tokens."""
        padded = [self.size, self.size, *ids]
        return self.table[padded[-2], padded[-1]]

    def answer(self, requests: Sequence[Request]) -> list[Any]:
        """Feed the cache, and look up what comes after all it holds."""
        answers = []
        for request in requests:
            assert isinstance(request, LlmForward)
            self.inner.decisions = [0]
            [fed] = self.inner.answer([request])
            held = request.kv.rows(0, request.kv.length).values[0, 0, :, 0].int().tolist()
            answers.append(LlmOutput(self.logits(held[1:]), fed.hidden))
        return answers


def start(executor: TableExecutor, seed: int = 0) -> tuple[Session, Tensor]:
    """A session whose prompt is one row, and the logits after it."""
    session = executor.inner.open_session(seed=seed)
    [output] = executor.answer([LlmForward(session.kv, (TokenIds((executor.size,)),))])
    return session, output.logits


def search(
    executor: TableExecutor, n_beams: int, settings: GenerationSettings, seed: int = 0
) -> Draft:
    """One search; terminator 0."""
    session, logits = start(executor, seed)
    found = run_alone(BeamSearch(n_beams, settings, frozenset({0})).run(session, logits), executor)
    assert session.kv.length == 1
    assert set(executor.inner.llm_store.handles) == {session.kv}
    session.close()
    return found


def score_of(executor: TableExecutor, ids: Sequence[int]) -> float:
    """Sum of penalised log-probabilities."""
    total = 0.0
    for index, token in enumerate(ids):
        scores = executor.logits(ids[:index]).log_softmax(-1)
        scores = penalise_repetition(scores, ids[:index], UNSAMPLED_REPETITION_PENALTY)
        total += float(scores[token])
    return total


@pytest.mark.parametrize("seed", range(6))
def test_with_enough_beams_it_finds_the_best_reply_there_is(seed: int) -> None:
    size, length = 4, 3
    executor = TableExecutor(size, seed)
    settings = replace(SETTINGS, max_new_tokens=length)
    found = search(executor, size**length, settings)
    candidates: list[tuple[float, tuple[int, ...]]] = []
    for ids in itertools.product(range(1, size), repeat=length):
        candidates.append((score_of(executor, ids) / length, ids))
        for n in range(length):
            ended = (*ids[:n], 0)
            candidates.append((score_of(executor, ended) / len(ended), ended))
    _, expected = max(candidates)
    ids = (*found.ids, 0) if found.has_ended else found.ids
    assert ids == expected


@pytest.mark.parametrize("seed", range(20))
def test_eight_beams_score_no_worse_than_greedy(seed: int) -> None:
    """Replies of one length: across lengths the score is per token and may prefer a short one."""
    executor = TableExecutor(8, seed, end_bias=-60.0)
    settings = replace(SETTINGS, max_new_tokens=6)
    greedy: list[int] = []
    for _ in range(6):
        scores = executor.logits(greedy).log_softmax(-1)
        scores = penalise_repetition(scores, greedy, UNSAMPLED_REPETITION_PENALTY)
        greedy.append(int(scores.argmax()))
    found = search(executor, 8, settings)
    assert len(found.ids) == len(greedy)
    assert score_of(executor, found.ids) >= score_of(executor, greedy) - 1e-4


@pytest.mark.parametrize("question", QUESTIONS)
def test_on_the_toy_model_it_scores_no_worse_than_greedy(toy: Toy, question: str) -> None:
    settings = replace(SETTINGS, min_new_tokens=8, max_new_tokens=8)
    scores = []
    for n_beams in (1, 4):
        talk = ToyTurns(toy)
        penalty = UNSAMPLED_REPETITION_PENALTY if n_beams == 1 else SETTINGS.repetition_penalty
        chosen = replace(settings, num_beams=n_beams, repetition_penalty=penalty)
        message = Message("user", question)
        reply = talk.run(talk.model.chat.reply(talk.session, [message], chosen))
        scores.append(_toy_score(toy, question, reply.ids))
    assert scores[1] >= scores[0] - 1e-4


def _toy_score(toy: Toy, question: str, ids: Sequence[int]) -> float:
    talk = ToyTurns(toy)
    settings = replace(SETTINGS, max_new_tokens=1)
    talk.run(talk.model.chat.reply(talk.session, [Message("user", question)], settings))
    total = 0.0
    kv = talk.session.kv
    kv.truncate(kv.length - 1)
    prompt = talk.recorder.of_kind(LlmForward)[0].pieces[-1].ids[-1]
    for index, token in enumerate(ids):
        fed = prompt if index == 0 else ids[index - 1]
        [output] = talk.recorder.answer([LlmForward(kv, (TokenIds((fed,)),))])
        scores = output.logits.float().log_softmax(-1)
        scores = penalise_repetition(scores, ids[:index], UNSAMPLED_REPETITION_PENALTY)
        total += float(scores[token])
    return total


@pytest.mark.parametrize("do_sample", [False, True])
def test_one_beam_is_the_plain_reply(toy: Toy, do_sample: bool) -> None:
    replies = []
    for compat, n_beams in ((False, None), (True, 1), (False, 1)):
        talk = ToyTurns(toy, seed=4, three_beams=compat)
        settings = replace(SETTINGS, do_sample=do_sample, num_beams=n_beams, max_new_tokens=12)
        messages = [Message("user", "tell me")]
        replies.append(talk.run(talk.model.chat.reply(talk.session, messages, settings)))
    assert replies[0].ids
    assert replies[0] is not replies[1]
    assert {reply.ids for reply in replies} == {replies[0].ids}
    assert {reply.text for reply in replies} == {replies[0].text}


def test_sampling_repeats_with_its_seed(toy: Toy) -> None:
    settings = replace(SETTINGS, do_sample=True, max_new_tokens=8, temperature=1.5, top_p=1.0)
    drawn = [search(TableExecutor(30, 1), 3, settings, seed).ids for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_sampling_goes_on_where_the_filters_leave_little() -> None:
    settings = replace(SETTINGS, do_sample=True, max_new_tokens=5, temperature=0.01, top_p=0.1)
    assert search(TableExecutor(6, 1, end_bias=-30.0), 4, settings).ids


def test_a_reply_has_at_least_the_tokens_asked_for() -> None:
    executor = TableExecutor(6, 2, end_bias=60.0)
    found = search(executor, 3, replace(SETTINGS, min_new_tokens=4, max_new_tokens=9))
    assert (len(found.ids), found.has_ended, found.hit_limit) == (4, True, False)


def test_the_limit_is_reported() -> None:
    found = search(TableExecutor(6, 2, end_bias=-60.0), 3, replace(SETTINGS, max_new_tokens=5))
    assert (len(found.ids), found.has_ended, found.hit_limit) == (5, False, True)


def test_the_leading_states_are_kept_in_order() -> None:
    """D8 takes the states of whichever candidate led, so there is one per pass."""
    executor = TableExecutor(6, 3, end_bias=-60.0)
    found = search(executor, 3, replace(SETTINGS, max_new_tokens=5))
    assert [int(row[1]) for row in found.hidden] == [1, 2, 3, 4], "their positions"


@pytest.mark.parametrize("n_passes", [0, 1, 5])
def test_a_stop_ends_the_search_with_what_there_is(n_passes: int) -> None:
    executor = TableExecutor(6, 2, end_bias=-60.0)
    session, logits = start(executor)
    steps = BeamSearch(3, replace(SETTINGS, max_new_tokens=50), frozenset({0})).run(session, logits)
    found = run_alone(steps, Stopping(executor, session, n_passes))
    assert found.was_stopped and not found.hit_limit
    assert len(found.ids) < 5
    assert set(executor.inner.llm_store.handles) == {session.kv}


class _Failing:
    """An executor that fails in the middle."""

    def __init__(self, executor: Answers) -> None:
        self.executor = executor
        self.left = 4

    def answer(self, requests: Sequence[Request]) -> list[Any]:
        """Answer a few times."""
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("out of memory")
        return self.executor.answer(requests)


def test_forks_are_closed_when_the_search_fails_or_is_abandoned() -> None:
    for is_abandoned in (False, True):
        executor = TableExecutor(6, 2, end_bias=-60.0)
        session, logits = start(executor)
        steps = BeamSearch(3, SETTINGS, frozenset({0})).run(session, logits)
        if is_abandoned:
            steps.send(None)
            assert len(executor.inner.llm_store.handles) > 1
            steps.close()
        else:
            with pytest.raises(RuntimeError, match="out of memory"):
                run_alone(steps, _Failing(executor))
        assert set(executor.inner.llm_store.handles) == {session.kv}
        assert session.kv.length == 1


def test_a_fork_goes_its_own_way() -> None:
    executor = TableExecutor(6, 0)
    session, _ = start(executor)
    fork = session.kv.fork()
    executor.answer([LlmForward(fork, (TokenIds((1, 2)),))])
    executor.answer([LlmForward(session.kv, (TokenIds((3,)),))])
    values = [kv.rows(0, kv.length).values[0, 0, :, 0].tolist() for kv in (session.kv, fork)]
    assert values == [[6, 3], [6, 1, 2]]
    fork.close()
    assert set(executor.inner.llm_store.handles) == {session.kv}
