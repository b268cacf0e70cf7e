"""Parameter groups of the optimizer, and plain attention on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from training.nano.optimizing import Optimizer, Recipe, fast
from training.nano.voice.stage_clock import StageClock

RECIPE = Recipe(inside=("inner.",), weight_decay=0.5, undecayed=("embed",), warm_up_steps=1)
MASK = torch.ones(20, 20, dtype=torch.bool).tril()


class Model(nn.Module):
    """One parameter of each group."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 4)
        self.embed = nn.Embedding(4, 4)
        self.outer = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def test_only_matrices_decay_and_frozen_parameters_are_unchanged() -> None:
    model = Model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = Optimizer(model, 0.1, RECIPE)
    for tick in StageClock(1).ticks("test"):
        # A gradient of zero: what moves then moves by decay alone.
        sums = [p.sum() for p in model.parameters() if p.requires_grad]
        optimizer.step(0.0 * torch.stack(sums).sum(), tick)
    moved = {n for n, tensor in model.state_dict().items() if not torch.equal(tensor, before[n])}
    assert moved == {"inner.weight", "outer.weight"}


def test_muon_orthogonalises_inner_matrices() -> None:
    model = Model()
    before = model.inner.weight.detach().clone()
    optimizer = Optimizer(model, 0.1, Recipe(("inner.",), weight_decay=0.0, warm_up_steps=1))
    for tick in StageClock(1).ticks("test"):
        optimizer.step((model.inner.weight * torch.arange(16.0).view(4, 4)).sum(), tick)
    sizes = torch.linalg.svdvals(before - model.inner.weight.detach())
    assert sizes[0] < 2.5 * sizes[1]  # the gradient's own are 30 to 1: Muon makes them about equal


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": MASK}])
def test_attention_on_a_cpu_equals_the_fused_kernel(options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 2, 4, 20, 8, generator=generator)
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    with fast(torch.device("cpu")):
        given = F.scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(given.float(), expected, atol=0.03, rtol=0.03)
