"""Matrix products of one row and of a few rows, bound by reading the weight.

One row: multiply-add with many loads in flight; the norm's weight is applied to the row and its
scale to the sums, so the row is read once. A few rows: tensor cores; the weight is the first
operand, so that few rows fill the narrow side. With `model.weights: fp8` both operands are e4m3:
each row of the input has a scale of its own, whatever else is in the pass, so a conversation's
numbers do not depend on the other rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.kernels.device import (
    LINE,
    await_rows,
    dependent_launch,
    fitting_stages,
    let_next_start,
    prefetch_line,
    tl,
    triton,
)
from MiniCPMO45.kernels.product_plans import FEW_ROWS, OneRowPlan, Plan
from MiniCPMO45.kernels.quantised import (
    PLACES,
    QuantisedWeight,
    Weight,
    multiply_packed_row,
    multiply_packed_rows,
    store_tile,
)

LOADED_BYTES = 16  # per load of a thread


@triton.jit
def _sum_neighbours(x, WIDTH: tl.constexpr):
    """Sum the values that a thread loads at once: [N, K] to [N, K / WIDTH]."""
    return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // WIDTH, WIDTH)), 2)


@triton.jit
def _load(pointers, k, start, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Load the inputs start + k; zero beyond K."""
    if K % BLOCK_K == 0:
        return tl.load(pointers, mask=start + tl.zeros_like(k) < K, other=0.0)
    else:
        return tl.load(pointers, mask=start + k < K, other=0.0)


@triton.jit
def _scaled(answer, scales, n, N):
    """Multiply the results of columns n by their weight's scales, if any."""
    if scales is not None:
        answer *= tl.load(scales + n, mask=n < N, other=0.0)
    return answer


@triton.jit
def _multiply_row(
    x, norm, weight, scales, residual, out, N, eps, K: tl.constexpr, HAS_GATE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Row [K] times weight [N, K]; with HAS_GATE the weight is [2N, K], gate before up.

    `scales`, if any, are those of the weight's rows.
    """
    # A product that is neither gated nor added precedes attention, which reads positions early.
    IS_BEFORE_ATTENTION: tl.constexpr = not HAS_GATE and residual is None
    let_next_start(OVERLAPS and not IS_BEFORE_ATTENTION)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    own = weight + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K + k[None, :]
    up = own + N.to(tl.int64) * K
    tile = _load(own, k[None, :], 0, K, BLOCK_K)
    if HAS_GATE:
        up_tile = _load(up, k[None, :], 0, K, BLOCK_K)
    await_rows(OVERLAPS)
    let_next_start(OVERLAPS and IS_BEFORE_ATTENTION)
    total = tl.zeros((BLOCK_N, BLOCK_K // WIDTH), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_K // WIDTH), tl.float32)
    squares = tl.zeros((BLOCK_K,), tl.float32)
    if residual is not None:
        before = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
    for start in range(0, K, BLOCK_K):
        value = _load(x + start + k, k, start, K, BLOCK_K).to(tl.float32)
        if K > BLOCK_K:
            ahead = start + BLOCK_K
            following = _load(own + ahead, k[None, :], ahead, K, BLOCK_K)
            if HAS_GATE:
                up_following = _load(up + ahead, k[None, :], ahead, K, BLOCK_K)
        if norm is not None:
            squares += value * value
            value *= _load(norm + start + k, k, start, K, BLOCK_K).to(tl.float32)
        total += _sum_neighbours(tile.to(tl.float32) * value[None, :], WIDTH)
        if HAS_GATE:
            up_total += _sum_neighbours(up_tile.to(tl.float32) * value[None, :], WIDTH)
        if K > BLOCK_K:
            tile = following
            if HAS_GATE:
                up_tile = up_following
    scale = tl.rsqrt(tl.sum(squares, 0) / K + eps) if norm is not None else 1.0
    answer = _scaled(tl.sum(total, 1) * scale, scales, n, N)
    if HAS_GATE:
        answer = answer / (1.0 + tl.exp(-answer))
        answer *= _scaled(tl.sum(up_total, 1) * scale, scales, N + n, 2 * N)
    if residual is not None:
        answer += before
    tl.store(out + n, answer.to(out.dtype.element_ty), mask=n < N)


EARLY_INPUTS = 512  # whose weights are prefetched before the rows are awaited


@triton.jit
def _multiply_rows(
    x, weight, row_scales, scales, residual, out, M, N, K: tl.constexpr, HAS_GATE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EARLY_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Rows [M, K] times weight [N, K]; with HAS_GATE the weight is [2N, K], gate before up."""
    IS_BEFORE_ATTENTION: tl.constexpr = not HAS_GATE and residual is None  # as of one row
    let_next_start(OVERLAPS and not IS_BEFORE_ATTENTION)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)[None, :]
    own = weight + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K
    up = own + N.to(tl.int64) * K
    if EARLY_K > 0:
        lines = tl.arange(0, EARLY_K // LINE)[None, :] * LINE
        prefetch_line(own + lines, OVERLAPS)
        if HAS_GATE:
            prefetch_line(up + lines, OVERLAPS)
    await_rows(OVERLAPS)
    let_next_start(OVERLAPS and IS_BEFORE_ATTENTION)
    rows = x + m[:, None] * K + k
    is_row = (m < M)[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(0, K, BLOCK_K):
        values = tl.trans(tl.load(rows + start, mask=is_row, other=0.0))  # [K, M]
        tile = tl.load(own + start + k).to(values.dtype)
        total = tl.dot(tile, values, total, input_precision="ieee")
        if HAS_GATE:
            up_tile = tl.load(up + start + k).to(values.dtype)
            up_total = tl.dot(up_tile, values, up_total, input_precision="ieee")
    if row_scales is not None:
        factors = tl.load(row_scales + m, mask=m < M, other=0.0)[None, :]
        total *= factors
        if HAS_GATE:
            up_total *= factors
    if scales is not None:
        total *= tl.load(scales + n, mask=n < N, other=0.0)[:, None]
        if HAS_GATE:
            up_total *= tl.load(scales + N + n, mask=n < N, other=0.0)[:, None]
    store_tile(total, up_total, residual, out, m, n, M, N, HAS_GATE)


def multiply_by_plan(
    plan: Plan,
    x: Tensor,
    weight: Weight,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    row_scales: Tensor | None = None,
    *,
    is_gated: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply rows [M, K] as `products.multiply` does, with a norm only if the plan is of one row.

    With `row_scales`, float32 [M], rows and weight are e4m3, and the result is `dtype`.
    """
    count = len(x)
    n = weight.shape[0] // 2 if is_gated else weight.shape[0]
    out = x.new_empty(count, n, dtype=dtype)
    values, scales = _stored(weight)
    packed = weight if isinstance(weight, QuantisedWeight) and weight.is_packed else None
    inputs = values.shape[1]  # or words with some inputs each
    blocks = triton.cdiv(n, plan.block_n)
    options = {"HAS_GATE": is_gated, "BLOCK_N": plan.block_n, "num_warps": plan.warps}
    options |= dependent_launch(x)
    if isinstance(plan, OneRowPlan):
        given = x, norm, values, scales, residual, out, n, eps, inputs
        if packed is not None:
            options |= {"GROUP": packed.group_words, "BLOCK_W": plan.block_k // PLACES}
            multiply_packed_row[(blocks,)](*given, **options)
        else:
            options |= {"BLOCK_K": plan.block_k, "WIDTH": LOADED_BYTES // values.element_size()}
            _multiply_row[(blocks,)](*given, **options)
        return out
    block_m = min(max(triton.next_power_of_2(count), FEW_ROWS), plan.most_rows)
    grid, result = (blocks, triton.cdiv(count, block_m)), (residual, out, count, n, inputs)
    options["BLOCK_M"] = block_m
    if packed is not None:  # its groups have the size of the plan's `block_k`
        options |= {"GROUP": packed.group_words, "num_stages": plan.stages}
        multiply_packed_rows[grid](x, values, scales, *result, **options)
        return out
    columns = plan.block_n * (1 + is_gated)
    step = plan.block_k * (columns * values.element_size() + block_m * x.element_size())
    options["EARLY_K"] = EARLY_INPUTS if inputs >= EARLY_INPUTS else 0
    options |= {"BLOCK_K": plan.block_k, "num_stages": fitting_stages(x, plan.stages, step)}
    _multiply_rows[grid](x, values, row_scales, scales, *result, **options)
    return out


def _stored(weight: Weight) -> tuple[Tensor, Tensor | None]:
    if isinstance(weight, QuantisedWeight):
        return weight.values, weight.scales
    return weight, None


GATE_BLOCK = 1024  # values of one program


@triton.jit
def _gate(gate_up, out, F, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = gate_up + row * 2 * F + column
    gate = tl.load(own, mask=column < F, other=0.0).to(tl.float32)
    up = tl.load(own + F, mask=column < F, other=0.0).to(tl.float32)
    answer = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * F + column, answer.to(out.dtype.element_ty), mask=column < F)


def silu_gate(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of rows [M, 2F] whose first half is the gate: [M, F]."""
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(count, width)
    _gate[(count, triton.cdiv(width, GATE_BLOCK))](
        gate_up, out, width, BLOCK=GATE_BLOCK, **dependent_launch(gate_up)
    )
    return out
