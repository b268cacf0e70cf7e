"""The device samplers decide like the plain rules, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.policies import CodeRule, UnitPolicy
from MiniCPMO45.engine.speech_runner import CodeSampler
from MiniCPMO45.engine.steps import DrawCodes, TextDecision
from MiniCPMO45.engine.text_runner import UnitSampler
from MiniCPMO45.kernels.code_choice import pick
from MiniCPMO45.settings import DuplexSettings
from tests.fakes.scripted import ScriptedExecutor
from tests.model.distributions import same_distribution
from tests.model.toy import Toy
from tests.pairing import by_default, taking_turns

CPU = torch.device("cpu")
GREEDY = DuplexSettings(decode_mode="greedy")
SAMPLING = DuplexSettings()
N_CODES, EOS = 300, 299
N_DRAWS = 3_000


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_comparison_of_distributions_can_tell_them_apart() -> None:
    random = np.random.default_rng(0)
    fair = [int(n) for n in random.integers(0, 10, N_DRAWS)]
    again = [int(n) for n in random.integers(0, 10, N_DRAWS)]
    loaded = [int(n) for n in random.choice(10, N_DRAWS, p=[0.15] + [0.85 / 9] * 9)]
    assert same_distribution(fair, again)
    assert not same_distribution(fair, loaded)


@pytest.mark.parametrize("uniform", [0.0, 0.0999, 0.1, 0.5, 1 - 2**-24])
def test_a_weight_of_nothing_is_never_picked(uniform: float) -> None:
    weights = torch.tensor([[0.0, 0.1, 0.0, 0.6, 0.3, 0.0]])
    for scale in (1.0, 1.5, 1e-20, 1.0000001, 3e7):
        picked = pick(weights * scale, torch.tensor([[uniform]]))
        assert picked.shape == (1, 1)
        assert float(weights.gather(1, picked)) > 0
    expected = 1 if uniform < 0.1 else 3 if uniform < 0.7 else 4
    assert int(pick(weights, torch.tensor([[uniform]]))) == expected


# Text


@pytest.fixture(scope="module")
def policy(toy: Toy) -> UnitPolicy:
    return UnitPolicy(toy.tokenizer.special, CPU)


TEXT_SETTINGS = {
    "usual": {},
    "no penalty": {"text_repetition_penalty": 1.0, "length_penalty": 1.0},
    "strong penalty": {"text_repetition_penalty": 2.0},
    "short memory": {"text_repetition_penalty": 2.0, "text_repetition_window_size": 2},
    "no memory": {"text_repetition_penalty": 2.0, "text_repetition_window_size": 0},
    "longer": {"length_penalty": 2.5},
    "shorter": {"length_penalty": 0.4},
    "listens more": {"listen_prob_scale": 40.0},
    "listens less": {"listen_prob_scale": 0.02},
    "never listens": {"listen_prob_scale": 0.0},
    "listens by rank": {"listen_top_k": 4},
    "no rank": {"listen_top_k": 0},
    "cold": {"temperature": 0.0},
    "hot": {"temperature": 1.8, "top_k": 40, "top_p": 0.99},
    "one": {"top_k": 1},
    "widest": {"top_k": 256, "top_p": 1.0},
    "narrow": {"top_p": 0.1, "top_k": 50},
    "nucleus of nothing": {"top_p": 0.0},
}


def _row(policy: UnitPolicy, size: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random logits in which the control tokens matter."""
    random = _generator(seed)
    row = torch.randn(size, generator=random) * 2
    tokens = policy.tokens
    for token in (tokens.chunk_eos, tokens.turn_eos, tokens.listen, tokens.tts_pad):
        row[token] = 3.0 + 3.0 * torch.randn((), generator=random)
    return row.to(dtype)


def _history(size: int, seed: int, length: int = 30) -> list[int]:
    return torch.randint(0, size, (length,), generator=_generator(seed)).tolist()


def _decide(
    sampler: UnitSampler, decisions: Sequence[TextDecision | None], logits: Tensor
) -> list[int]:
    """Load, choose and settle as the engine does."""
    sampler.load(decisions)
    tokens = sampler.choose(logits).tolist()
    return [
        decision.policy.settle(token, decision.history)
        for decision, token in zip(decisions, tokens, strict=False)
        if decision is not None
    ]


@pytest.mark.parametrize(
    ("name", "dtype"), taking_turns(list(TEXT_SETTINGS), [torch.float32, torch.bfloat16])
)
def test_a_greedy_decision_is_the_policys(
    toy: Toy, policy: UnitPolicy, name: str, dtype: torch.dtype
) -> None:
    settings = replace(GREEDY, **TEXT_SETTINGS[name])  # type: ignore[arg-type]
    size, rows = len(toy.tokenizer), 48
    logits = torch.stack([_row(policy, size, seed, dtype) for seed in range(rows)])
    likeliest = logits.float().topk(3).indices.tolist()
    histories = [[*_history(size, seed), *likeliest[seed][:2]] for seed in range(rows)]
    ours, theirs = [list(each) for each in histories], [list(each) for each in histories]
    decisions = [TextDecision(policy, each, settings, _generator(0)) for each in ours]
    assert all(UnitSampler.covers(each) for each in decisions)
    found = _decide(UnitSampler(rows, size, CPU), decisions, logits)
    expected = [
        policy.decide(row, history, settings, _generator(0))
        for row, history in zip(logits, theirs, strict=True)
    ]
    assert found == expected
    assert ours == theirs
    assert len(set(expected)) > 3, "the logits leave something to decide"


@pytest.mark.parametrize("name", by_default(list(TEXT_SETTINGS)[:4], list(TEXT_SETTINGS)))
def test_drawn_tokens_are_distributed_as_the_policys(
    toy: Toy, policy: UnitPolicy, name: str
) -> None:
    settings = replace(SAMPLING, **TEXT_SETTINGS[name])  # type: ignore[arg-type]
    if not 1 <= settings.top_k:
        pytest.skip("drawn by the policy itself")
    size = len(toy.tokenizer)
    logits = _row(policy, size, 5)
    logits[policy.tokens.chunk_eos] = logits.logsumexp(-1) - 1.5
    likely = logits.topk(6).indices.tolist()
    rows, generator = 500, _generator(1)
    sampler = UnitSampler(rows, size, CPU)
    ours: list[int] = []
    while len(ours) < N_DRAWS:
        decisions = [TextDecision(policy, list(likely[:3]), settings, generator)] * rows
        sampler.load(decisions)
        ours += sampler.choose(logits.expand(rows, -1)).tolist()
    generator = _generator(2)
    theirs = [policy.decide(logits, list(likely[:3]), settings, generator) for _ in range(N_DRAWS)]
    assert same_distribution(ours, theirs)


def test_a_decision_does_not_depend_on_the_other_rows(toy: Toy, policy: UnitPolicy) -> None:
    size, rows = len(toy.tokenizer), len(TEXT_SETTINGS)
    logits = torch.stack([_row(policy, size, seed) for seed in range(rows)])
    chosen = [
        replace(GREEDY if index % 3 == 0 else SAMPLING, **changes)  # type: ignore[arg-type]
        for index, changes in enumerate(TEXT_SETTINGS.values())
    ]

    def decisions() -> list[TextDecision]:
        return [
            TextDecision(policy, _history(size, row, length=row), each, _generator(row))
            for row, each in enumerate(chosen)
        ]

    together = _decide(UnitSampler(rows, size, CPU), decisions(), logits)
    reverse = _decide(
        UnitSampler(rows + 3, size, CPU),
        [None, *decisions()[::-1]],
        torch.cat((torch.full((1, size), torch.nan), logits.flip(0), torch.zeros(2, size))),
    )
    alone = UnitSampler(1, size, CPU)
    apart = [
        _decide(alone, [decision], row[None])[0]
        for decision, row in zip(decisions(), logits, strict=True)
    ]
    assert together == apart == reverse[::-1]


def test_only_draws_take_numbers_from_the_generator(toy: Toy, policy: UnitPolicy) -> None:
    size = len(toy.tokenizer)
    sampler, logits = UnitSampler(2, size, CPU), torch.zeros(2, size)
    greedy, drawn = _generator(0), _generator(0)
    _decide(
        sampler,
        [TextDecision(policy, [], GREEDY, greedy), TextDecision(policy, [], SAMPLING, drawn)],
        logits,
    )
    untouched = _generator(0)
    assert torch.equal(greedy.get_state(), untouched.get_state())
    torch.rand(2, generator=untouched)
    assert torch.equal(drawn.get_state(), untouched.get_state())


def test_logits_are_left_alone(toy: Toy, policy: UnitPolicy) -> None:
    size = len(toy.tokenizer)
    logits = _row(policy, size, 0)[None]
    before = logits.clone()
    _decide(UnitSampler(1, size, CPU), [TextDecision(policy, [1], SAMPLING, _generator(0))], logits)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("settings", "is_covered"),
    [
        (SAMPLING, True),
        (GREEDY, True),
        (replace(SAMPLING, top_k=0), False),
        (replace(SAMPLING, top_k=257), False),
        (replace(GREEDY, top_k=0), True),
        (replace(GREEDY, text_repetition_window_size=513), False),
    ],
)
def test_what_it_cannot_decide_it_says(
    toy: Toy, settings: DuplexSettings, is_covered: bool
) -> None:
    policy = UnitPolicy(toy.tokenizer.special, CPU)
    decision = TextDecision(policy, [], settings, _generator(0))
    assert UnitSampler.covers(decision) is is_covered


def test_a_policy_with_a_rule_of_its_own_decides_itself(toy: Toy) -> None:
    class AlwaysListens(UnitPolicy):
        def decide(self, *args: Any) -> int:
            return self.tokens.listen

    policy = AlwaysListens(toy.tokenizer.special, CPU)
    assert not UnitSampler.covers(TextDecision(policy, [], GREEDY, _generator(0)))


# Speech codes

CODE_RULES = {
    "duplex": {},
    "streamed": {"top_p": 0.85, "top_k": 25},
    "strong penalty": {"repetition_penalty": 1.6},
    "cold": {"temperature": 0.0},
    "fewest": {"top_p": 0.01, "top_k": 1},
    "no nucleus": {"top_k": 5},
    "wide": {"top_p": 0.99, "top_k": 200, "temperature": 1.5},
}


def _request(rule: CodeRule, seed: int, **changes: Any) -> DrawCodes:
    request = DrawCodes(
        ScriptedExecutor(1).tts_store.open(),
        Rows((1,)),
        rule,
        (),
        EOS,
        _generator(seed),
        count=20,
        least=0,
    )
    return replace(request, **changes)


def _draw(sampler: CodeSampler, requests: Sequence[DrawCodes], logits: Tensor) -> list[list[int]]:
    """A run per row from logits [steps, rows, codes], the end included."""
    sampler.load(requests)
    for row in logits:
        sampler.choose(row)
    return [
        codes[: codes.index(EOS) + 1] if EOS in codes else codes
        for codes in sampler.drawn[: len(requests), : len(logits)].tolist()
    ]


def _choose(request: DrawCodes, logits: Tensor) -> list[int]:
    """The same by the rule, from logits [steps, codes]."""
    codes: list[int] = []
    for step, row in enumerate(logits):
        code = request.rule.choose(
            row, [*request.recent, *codes], EOS, request.generator, may_end=step >= request.least
        )
        codes.append(code)
        if code == EOS:
            break
    return codes


def _code_logits(steps: int, rows: int, seed: int) -> Tensor:
    """Logits between few codes so that they repeat, and an end that is likely now and then."""
    logits = torch.randn(steps, rows, N_CODES, generator=_generator(seed))
    logits[..., :8] += 6.0
    logits[..., EOS] += 5.0
    return logits


@pytest.mark.parametrize(("name", "n_heard"), taking_turns(list(CODE_RULES), [0, 5, 16, 40]))
def test_greedy_codes_are_the_rules(name: str, n_heard: int) -> None:
    rule = replace(CodeRule(0.8, 1.05, is_greedy=True), **CODE_RULES[name])  # type: ignore[arg-type]
    rows, steps = 24, 20
    logits = _code_logits(steps, rows, 3)
    requests = [
        _request(
            rule,
            row,
            recent=tuple(torch.randint(0, 10, (n_heard,), generator=_generator(row)).tolist()),
            least=row % 21,
        )
        for row in range(rows)
    ]
    sampler = CodeSampler(rows, CPU)
    assert all(CodeSampler.covers(each) for each in requests)
    found = _draw(sampler, requests, logits)
    expected = [_choose(request, logits[:, row]) for row, request in enumerate(requests)]
    assert found == expected
    assert sampler.has_ended.tolist() == [EOS in codes for codes in expected]
    assert any(EOS in codes for codes in expected)
    assert any(EOS not in codes for codes in expected)


@pytest.mark.parametrize(("name", "may_end"), taking_turns(list(CODE_RULES), [False, True]))
def test_drawn_codes_are_distributed_as_the_rules(name: str, may_end: bool) -> None:
    """With a history of three codes."""
    rule = replace(CodeRule(0.8, 1.05), **CODE_RULES[name])  # type: ignore[arg-type]
    rows, least = 500, 0 if may_end else 20
    logits = torch.randn(N_CODES, generator=_generator(7)) * 1.5
    logits[EOS] = logits.max() + 0.1
    history = tuple(logits.topk(4).indices.tolist()[1:])
    request = _request(rule, 1, recent=history, least=least)
    sampler = CodeSampler(rows, CPU)
    ours: list[int] = []
    while len(ours) < N_DRAWS:
        ours += [codes[0] for codes in _draw(sampler, [request] * rows, logits.expand(1, rows, -1))]
    generator = _generator(2)
    theirs = [rule.choose(logits, history, EOS, generator, may_end=may_end) for _ in range(N_DRAWS)]
    assert same_distribution(ours, theirs)
    assert (EOS in ours) is may_end


def test_a_run_does_not_depend_on_the_other_rows() -> None:
    names = list(CODE_RULES)
    rows = len(names)
    logits = _code_logits(20, rows, 5)

    def requests() -> list[DrawCodes]:
        return [
            _request(
                replace(CodeRule(0.8, 1.05), **CODE_RULES[name]),  # type: ignore[arg-type]
                row,
                least=3 * row,
                recent=tuple(range(row)),
            )
            for row, name in enumerate(names)
        ]

    together = _draw(CodeSampler(rows, CPU), requests(), logits)
    sampler = CodeSampler(rows + 2, CPU)
    padding = torch.full((20, 2, N_CODES), torch.nan)
    backwards = _draw(sampler, requests()[::-1], torch.cat((logits.flip(1), padding), dim=1))
    alone = CodeSampler(1, CPU)
    apart = [
        _draw(alone, [request], logits[:, row : row + 1])[0]
        for row, request in enumerate(requests())
    ]
    assert together == apart == backwards[::-1]


def test_a_run_takes_a_number_per_code_it_may_draw() -> None:
    """Also if the run ends early, so that generators advance equally in a batch and alone."""
    request, untouched = _request(CodeRule(0.8, 1.05), 4, count=7), _generator(4)
    CodeSampler(1, CPU).load([request])
    torch.rand(7, generator=untouched)
    assert torch.equal(request.generator.get_state(), untouched.get_state())


@pytest.mark.parametrize(
    ("changes", "is_covered"),
    [
        ({"top_p": 0.9}, False),
        ({"top_p": 0.9, "top_k": 256}, True),
        ({"top_k": 257}, False),
        ({"top_p": 0.9, "is_greedy": True}, True),
    ],
)
def test_which_rules_are_covered(changes: dict[str, Any], is_covered: bool) -> None:
    request = _request(replace(CodeRule(0.8, 1.05), **changes), 0)
    assert CodeSampler.covers(request) is is_covered
    assert not CodeSampler.covers(replace(request, count=27))
