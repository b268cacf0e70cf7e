"""Each sampling primitive against the plain loop of its definition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from MiniCPMO45.engine.policies import (
    draw,
    keep_top_k,
    keep_top_p,
    keep_top_p_ascending,
    penalise_frequency,
    penalise_repetition,
)

SIZE = 12

finite = st.floats(-20, 20, width=32)
rows = st.lists(finite, min_size=SIZE, max_size=SIZE).map(torch.tensor)
some_ids = st.lists(st.integers(0, SIZE - 1), max_size=40)
penalties = st.floats(0.5, 2.0)


def _signed(logit: float, factor: float) -> float:
    return logit / factor if logit > 0 else logit * factor


@given(rows, some_ids, penalties)
def test_repetition_makes_each_distinct_id_less_likely(
    logits: Tensor, ids: list[int], penalty: float
) -> None:
    expected = [_signed(x, penalty) if i in ids else x for i, x in enumerate(logits.tolist())]
    torch.testing.assert_close(penalise_repetition(logits, ids, penalty), torch.tensor(expected))


@given(rows, st.lists(st.integers(0, 3), max_size=40), penalties)
def test_frequency_penalty_grows_with_each_occurrence_in_the_window(
    logits: Tensor, ids: list[int], penalty: float
) -> None:
    counts = Counter(ids[-16:])
    expected = [
        x * penalty ** counts[i] if x < 0 else x / penalty ** counts[i]
        for i, x in enumerate(logits.tolist())
    ]
    found = penalise_frequency(logits, ids, penalty)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


@given(rows, st.integers(-1, SIZE + 2))
def test_top_k_keeps_everything_not_below_the_kth(logits: Tensor, k: int) -> None:
    border = -math.inf if not 0 < k <= SIZE else sorted(logits.tolist(), reverse=True)[k - 1]
    kept = keep_top_k(logits, k)
    for before, after in zip(logits.tolist(), kept.tolist(), strict=True):
        assert after == (before if before >= border else -math.inf)


def test_top_k_keeps_all_that_tie_at_the_border() -> None:
    kept = keep_top_k(torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0]), 2)
    assert kept.isfinite().tolist() == [True, True, True, True, False]


@given(rows, st.floats(0.01, 1.2))
def test_top_p_drops_what_comes_after_more_than_p(logits: Tensor, p: float) -> None:
    order = logits.argsort(descending=True)
    mass = logits[order].softmax(-1).double()
    before = torch.cat((torch.zeros(1), mass.cumsum(0)[:-1]))
    sure = (before - p).abs() > 1e-5  # the rest may fall on either side in float32
    is_kept = before <= p
    found = keep_top_p(logits, p)[order]
    assert torch.equal(found.isfinite()[sure], is_kept[sure])
    assert torch.equal(found[found.isfinite()], logits[order][found.isfinite()])


@given(rows, st.floats(0.01, 1.2))
def test_ascending_top_p_drops_the_unlikely_end_but_keeps_three(logits: Tensor, p: float) -> None:
    order = logits.argsort(descending=False)
    mass = logits[order].softmax(-1).double().cumsum(0)
    sure = (mass - (1 - p)).abs() > 1e-5
    is_kept = (mass > 1 - p) | (torch.arange(SIZE) >= SIZE - 3)
    found = keep_top_p_ascending(logits, p)[order]
    if p >= 1:
        assert torch.equal(found, logits[order])
    else:
        assert torch.equal(found.isfinite()[sure], is_kept[sure])


CHANGES: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("penalise_repetition", lambda row: penalise_repetition(row, [0, 1], 1.5)),
    ("penalise_frequency", lambda row: penalise_frequency(row, [0, 1], 1.5)),
    ("keep_top_k", lambda row: keep_top_k(row, 1)),
    ("keep_top_p", lambda row: keep_top_p(row, 0.1)),
    ("keep_top_p_ascending", lambda row: keep_top_p_ascending(row, 0.1)),
)


@pytest.mark.parametrize("change", [each[1] for each in CHANGES], ids=[each[0] for each in CHANGES])
def test_the_input_row_stays_as_it_was(change: Callable[[Tensor], Tensor]) -> None:
    logits = torch.tensor([1.0, -1.0, 0.5, 0.25])
    before = logits.clone()
    assert not torch.equal(change(logits), before)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("penalise", [penalise_repetition, penalise_frequency])
def test_forbidden_ids_stay_forbidden(penalise: Callable[..., Tensor]) -> None:
    logits = torch.tensor([-math.inf, 1.0])
    assert penalise(logits, [0, 0, 1], 1.3)[0] == -math.inf


def test_greedy_takes_the_likeliest() -> None:
    assert draw(torch.tensor([0.0, 2.0, 1.0]), None) == 1


def test_the_same_seed_draws_the_same() -> None:
    logits = torch.zeros(50)
    draws = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(4)
        draws.append([draw(logits, generator) for _ in range(20)])
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 5


def test_draws_follow_the_distribution_and_never_hit_a_masked_id() -> None:
    logits = torch.tensor([0.7, 0.2, 0.1, 0.0]).log()
    generator = torch.Generator().manual_seed(0)
    counts = Counter(draw(logits, generator) for _ in range(2000))
    assert counts[3] == 0
    for token, chance in enumerate((0.7, 0.2, 0.1)):
        assert counts[token] / 2000 == pytest.approx(chance, abs=0.04)
