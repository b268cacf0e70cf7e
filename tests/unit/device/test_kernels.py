"""Each kernel agrees with its plain version.

Without a card the kernels run in Triton's interpreter; `-m gpu` runs them compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.kernels.attention import (
    NO_POSITION,
    PAGE_TOKENS,
    AttentionPlan,
    RowMap,
    attend,
    attend_by_kernels,
)
from MiniCPMO45.kernels.cached_rows import decode_rows, encode_rows
from MiniCPMO45.kernels.product_plans import FewRowsPlan, OneRowPlan, plans_of
from MiniCPMO45.kernels.products import multiply, rms_norm
from MiniCPMO45.kernels.row_products import multiply_by_plan, silu_gate

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs  # noqa: E402  (only where it is installed)

T = TypeVar("T")
EPS = 1e-6
FLOAT32, BFLOAT16 = 2e-6, 8e-3  # relative distance that rounding explains
SOME_TOKENS = 4 * PAGE_TOKENS  # longest sequence of a case is shorter

on_both = pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param(
            "cpu",
            torch.float32,
            marks=pytest.mark.skipif(not knobs.runtime.interpret, reason="kernels are compiled"),
        ),
        pytest.param("cuda", torch.float32, marks=pytest.mark.gpu),
        pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
    ],
)


def assert_near(answer: Tensor, wanted: Tensor, float32_limit: float = FLOAT32) -> None:
    limit = float32_limit if answer.dtype == torch.float32 else BFLOAT16
    distance = (answer.double() - wanted.double()).norm() / wanted.double().norm()
    assert answer.dtype == wanted.dtype
    assert distance < limit


ONE_ROW_PLANS = {
    "even pieces": OneRowPlan(4, 64, 1),
    "uneven pieces": OneRowPlan(4, 128, 2),
    "one piece": OneRowPlan(8, 256, 4),
}
INPUTS, COLUMNS = 192, 21


Draw = Callable[..., Tensor]


@pytest.fixture
def draw(device: str, dtype: torch.dtype) -> Draw:
    return lambda *shape: torch.randn(*shape, device=device).to(dtype)


@on_both
@pytest.mark.parametrize("plan", ONE_ROW_PLANS.values(), ids=ONE_ROW_PLANS)
@pytest.mark.parametrize("has_norm", [True, False], ids=["norm", "no norm"])
class TestProductOfOneRow:
    def test_plain(self, draw: Draw, has_norm: bool, plan: OneRowPlan) -> None:
        x, norm = 3 * draw(1, INPUTS), draw(INPUTS) if has_norm else None
        weight = draw(COLUMNS, INPUTS)
        answer = multiply_by_plan(plan, x, weight, norm, EPS)
        assert_near(answer, multiply(x, weight, norm, EPS))

    def test_gated(self, draw: Draw, has_norm: bool, plan: OneRowPlan) -> None:
        x, norm = draw(1, INPUTS), draw(INPUTS) if has_norm else None
        weight = draw(2 * COLUMNS, INPUTS) * INPUTS**-0.5
        answer = multiply_by_plan(plan, x, weight, norm, EPS, is_gated=True)
        # In bfloat16 the plain version rounds four times on the way, the kernel once.
        scale = None if norm is None else norm.float()
        gate, up = multiply(x.float(), weight.float(), scale, EPS).chunk(2, dim=-1)
        assert_near(answer, (F.silu(gate) * up).to(x.dtype))

    def test_residual_is_added_out_of_place(
        self, draw: Draw, has_norm: bool, plan: OneRowPlan
    ) -> None:
        x, norm = draw(1, INPUTS), draw(INPUTS) if has_norm else None
        weight, residual = draw(COLUMNS, INPUTS), draw(1, COLUMNS)
        before = residual.clone()
        answer = multiply_by_plan(plan, x, weight, norm, EPS, residual)
        assert_near(answer, residual + multiply(x, weight, norm, EPS))
        assert torch.equal(residual, before)


@on_both
@pytest.mark.parametrize("rows", [3, 19, 70])
class TestProductOfFewRows:
    PLAN = FewRowsPlan(16, 64, 4, 3)

    def test_plain(self, draw: Draw, rows: int) -> None:
        x, weight = draw(rows, INPUTS), draw(COLUMNS, INPUTS)
        answer = multiply_by_plan(self.PLAN, x, weight)
        assert_near(answer, F.linear(x, weight))

    def test_gated(self, draw: Draw, rows: int) -> None:
        x, weight = draw(rows, INPUTS), draw(2 * COLUMNS, INPUTS) * INPUTS**-0.5
        answer = multiply_by_plan(self.PLAN, x, weight, is_gated=True)
        gate, up = F.linear(x, weight).chunk(2, dim=-1)
        assert_near(answer, F.silu(gate) * up)

    def test_residual_is_added_out_of_place(self, draw: Draw, rows: int) -> None:
        x, weight, residual = draw(rows, INPUTS), draw(COLUMNS, INPUTS), draw(rows, COLUMNS)
        before = residual.clone()
        answer = multiply_by_plan(self.PLAN, x, weight, residual=residual)
        assert_near(answer, multiply(x, weight, residual=residual))
        assert torch.equal(residual, before)


def with_kernels(run: Callable[..., T], *arguments: Any) -> T:
    """Run an operation that is plain otherwise, on a card since gradients are recorded."""
    with ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if name.startswith("MiniCPMO45.kernels.") and "runs_kernels" in vars(module):
                patches.enter_context(patch.object(module, "runs_kernels", lambda _: True))
        return run(*arguments)


@on_both
class TestRowwiseSteps:
    def test_norm(self, draw: Draw) -> None:
        x, weight = draw(5, 100), draw(100)
        assert_near(with_kernels(rms_norm, x, weight, EPS), rms_norm(x, weight, EPS))

    def test_gate(self, draw: Draw) -> None:
        gate_up = draw(3, 2 * 1100)
        gate, up = gate_up.chunk(2, dim=-1)
        assert_near(silu_gate(gate_up), F.silu(gate) * up)


def row_map(
    device: str, held: list[int], new: list[int], rows_per_tile: int, padding: int
) -> RowMap:
    """Lay out sequences with `held` tokens that bring `new` rows each; pages are out of order."""
    max_pages = SOME_TOKENS // PAGE_TOKENS
    pages = torch.randperm(len(held) * max_pages).view(len(held), max_pages)
    order = torch.randperm(len(held)).tolist()
    positions: list[int] = []
    sequences: list[int] = []
    tiles: list[tuple[int, int]] = []
    for sequence in order:
        for start in range(0, new[sequence], rows_per_tile):
            tiles.append((len(positions) + start, min(rows_per_tile, new[sequence] - start)))
        positions += range(held[sequence], held[sequence] + new[sequence])
        sequences += [sequence] * new[sequence]
    positions += [NO_POSITION] * padding
    sequences += [0] * padding
    tiles += [(0, 0)] * padding
    first, count = zip(*tiles, strict=True)

    def on_device(values: Any) -> Tensor:
        return torch.as_tensor(values).to(device, torch.int32)

    return RowMap(
        on_device(positions),
        on_device(sequences),
        on_device(pages),
        on_device(first),
        on_device(count),
        rows_per_tile,
    )


def pool(rows: RowMap, kv_heads: int, d: int, held: list[int], dtype: torch.dtype) -> Tensor:
    """One layer of pages with random tokens; whatever is not held is NaN."""
    layer = torch.full(
        (rows.page_table.numel(), 2, kv_heads, PAGE_TOKENS, d),
        float("nan"),
        device=rows.positions.device,
        dtype=dtype,
    )
    for sequence, count in enumerate(held):
        for position in range(count):
            page = int(rows.page_table[sequence, position // PAGE_TOKENS])
            layer[page, :, :, position % PAGE_TOKENS] = torch.randn(2, kv_heads, d).to(layer)
    return layer


LENGTHS = {
    "first tokens": ([0, 0], [1, 2]),
    "around a page's end": ([63, 64], [1, 1]),
    "several pages, many rows": ([0, 120], [5, 18]),
}
CUTS = {"uncut": (1, 8), "cut": (2, 16)}


def assert_attends(
    rows: RowMap,
    held: list[int],
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    splits: int,
    has_norm: bool,
    is_coded: bool,
) -> None:
    device = rows.positions.device
    h, kv_heads, d = heads
    count = rows.positions.shape[0]
    qkv = torch.randn(count, (h + 2 * kv_heads) * d, device=device).to(dtype)
    norm_weights = torch.randn(2, d, device=device).to(dtype)
    both = (norm_weights[0], norm_weights[1]) if has_norm else None
    angles = 7 * torch.rand(SOME_TOKENS, d, device=device)
    layer, scales = pool(rows, kv_heads, d, held, dtype), None
    if is_coded:
        layer, scales = encode_rows(layer)  # entries not held have a scale of NaN
    plain_layer, plain_scales = layer.clone(), None if scales is None else scales.clone()
    tables = angles.cos(), angles.sin()
    plan = AttentionPlan(splits, warps=4, stages=3, early_pages=splits)
    pages = layer, scales
    answer = attend_by_kernels(qkv, both, EPS, tables, rows, *pages, plan)
    wanted = attend(qkv, both, EPS, tables, rows, plain_layer, plain_scales)
    assert_near(answer, wanted)
    padding = rows.positions == NO_POSITION
    assert torch.equal(answer[padding], torch.zeros_like(answer[padding]))
    if scales is not None:
        assert plain_scales is not None
        layer = decode_rows(layer, scales, dtype)
        plain_layer = decode_rows(plain_layer, plain_scales, dtype)
    written = ~plain_layer.isnan()
    assert torch.equal(written, ~layer.isnan())
    assert_near(layer[written], plain_layer[written])


@on_both
@pytest.mark.parametrize("is_coded", [True, False], ids=["codes", "values"])
@pytest.mark.parametrize(
    ("heads", "has_norm"),
    [((4, 2, 16), True), ((3, 3, 12), False)],
    ids=["grouped, norm", "not grouped, no norm"],
)
class TestAttention:
    @pytest.mark.parametrize(("held", "new"), LENGTHS.values(), ids=LENGTHS)
    @pytest.mark.parametrize(("splits", "tile"), CUTS.values(), ids=CUTS)
    def test_many_rows_of_a_sequence(
        self,
        device: str,
        dtype: torch.dtype,
        heads: tuple[int, int, int],
        has_norm: bool,
        is_coded: bool,
        held: list[int],
        new: list[int],
        splits: int,
        tile: int,
    ) -> None:
        rows = row_map(device, held, new, tile, padding=1)
        assert_attends(rows, held, heads, dtype, splits, has_norm, is_coded)

    @pytest.mark.parametrize("splits", [1, 4])
    def test_one_row_of_each_sequence(
        self,
        device: str,
        dtype: torch.dtype,
        heads: tuple[int, int, int],
        has_norm: bool,
        is_coded: bool,
        splits: int,
    ) -> None:
        held = [0, 63, 64, 200]
        rows = row_map(device, held, [1] * len(held), 1, padding=1)
        assert_attends(rows, held, heads, dtype, splits, has_norm, is_coded)


@on_both
@pytest.mark.parametrize("rows", [1, 5, 20])
def test_chosen_plans_fit_a_decoder(draw: Draw, rows: int) -> None:
    width, inner = 128, 192
    x, norm, residual = draw(rows, width), draw(width), draw(rows, width)
    gate_up, down, head = draw(2 * inner, width) / 11, draw(width, inner) / 14, draw(37, width)
    middle = with_kernels(partial(multiply, is_gated=True), x, gate_up, norm, EPS)
    assert_near(middle, multiply(x, gate_up, norm, EPS, is_gated=True))
    answer = with_kernels(partial(multiply, residual=residual), middle, down)
    assert_near(answer, multiply(middle, down, residual=residual))
    answer = with_kernels(multiply, x, head, norm, EPS)
    assert_near(answer, multiply(x, head, norm, EPS))


def measured_sizes(kind: str) -> list[tuple[int, int]]:
    """Return columns and inputs of the products of bfloat16 rows with plans for an H200."""
    names = [name.rsplit(" ", 1) for name in plans_of("NVIDIA H200")]
    sizes = [size.split("x") for found, size in names if found == kind]
    return [(int(columns), int(inputs)) for columns, inputs in sizes]


@pytest.mark.gpu
@pytest.mark.parametrize(("columns", "inputs"), measured_sizes("bfloat16"))
@pytest.mark.parametrize("rows", [1, 2, 16, 33])
def test_measured_plans_are_right(columns: int, inputs: int, rows: int) -> None:
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    norm = torch.randn(inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(columns, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
    answer = with_kernels(multiply, x, weight, norm, EPS)
    assert_near(answer, multiply(x, weight, norm, EPS))


@pytest.mark.gpu
def test_a_captured_step_follows_its_map() -> None:
    """Positions and pages are read when a graph is replayed, not when it is captured."""
    h, kv_heads, d = 4, 2, 64
    held = [5, 130]
    rows = row_map("cuda", held, [1, 1], 1, padding=0)
    later = row_map("cuda", [70, 3], [1, 1], 1, padding=0)
    x, norm = torch.randn(2, 256, device="cuda"), torch.randn(256, device="cuda")
    weight = torch.randn((h + 2 * kv_heads) * d, 256, device="cuda") / 16
    angles = torch.rand(SOME_TOKENS, d, device="cuda")
    layer = torch.randn(rows.page_table.numel(), 2, kv_heads, PAGE_TOKENS, d, device="cuda")

    tables = angles.cos(), angles.sin()

    def step(pages: Tensor) -> Tensor:
        qkv = multiply(x, weight, norm, EPS)
        return attend(qkv, None, EPS, tables, rows.fresh(), pages)

    with_kernels(step, layer.clone())
    pages = layer.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = with_kernels(step, pages)
    for now in (rows, later):
        rows.positions.copy_(now.positions)
        rows.sequences.copy_(now.sequences)
        rows.page_table.copy_(now.page_table)
        pages.copy_(layer)
        graph.replay()
        assert_near(answer, step(layer.clone()))
