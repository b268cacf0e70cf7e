"""Norms and matrix products of a decoder layer, and which kernel computes which shape.

Plans are measured on one H200, see benchmarks/README.md. A plan is a constant: nothing is tuned at
run time, so every start runs the same code. Figures are from `python -m benchmarks.kernels`:
weights of several layers in turn, inside a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.kernels.launch import (
    await_rows,
    let_next_start,
    overlaps_launches,
    runs_kernels,
    tl,
    triton,
)
from MiniCPMO45.kernels.row_products import FewRowsPlan, OneRowPlan, multiply_row, multiply_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis with float32 statistics.

    Args:
        x: [M, K].
        weight: [K].
        eps: added to the mean square.

    Returns:
        The shape and dtype of `x`.
    """
    if runs_kernels(x):
        return normalise_rows(x, weight, eps)
    return normalise(x, weight, eps)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise as `rms_norm` does, whatever the number of axes, in plain PyTorch."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Tensor) -> Tensor:
    """Multiply the normalised rows with a weight.

    Args:
        x: [M, K] contiguous.
        norm_weight: [K], or None to leave the norm out.
        eps: of the norm.
        weight: [N, K] contiguous.

    Returns:
        [M, N] in the dtype of `x`.
    """
    if runs_kernels(x):
        plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, norm_weight, eps, weight, None, is_gated=False, plan=plan)
        if plan is not None:
            normed = x if norm_weight is None else rms_norm(x, norm_weight, eps)
            return multiply_rows(normed, weight, None, is_gated=False, plan=plan)
    return F.linear(x if norm_weight is None else rms_norm(x, norm_weight, eps), weight)


def norm_swiglu(x: Tensor, norm_weight: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """Return silu(n @ gate.T) * (n @ up.T) of the normalised rows n.

    Args:
        x: [M, K] contiguous.
        norm_weight: [K].
        eps: of the norm.
        gate_up: [2F, K] contiguous; the first F rows are the gate.

    Returns:
        [M, F] in the dtype of `x`.
    """
    if runs_kernels(x):
        plan = product_plan(x.shape[0], gate_up.shape[0] // 2, x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, norm_weight, eps, gate_up, None, is_gated=True, plan=plan)
        normed = rms_norm(x, norm_weight, eps)
        if plan is None:
            return silu_gate(F.linear(normed, gate_up))
        return multiply_rows(normed, gate_up, None, is_gated=True, plan=plan)
    gate, up = F.linear(rms_norm(x, norm_weight, eps), gate_up).chunk(2, dim=-1)
    return F.silu(gate) * up


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Return residual + x @ weight.T; the residual is left as it is.

    Args:
        x: [M, K] contiguous.
        weight: [N, K] contiguous.
        residual: [M, N] contiguous.

    Returns:
        [M, N] in the dtype of `x`.
    """
    if runs_kernels(x):
        plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, None, 0.0, weight, residual, is_gated=False, plan=plan)
        if plan is None:
            return torch.addmm(residual, x, weight.t())
        return multiply_rows(x, weight, residual, is_gated=False, plan=plan)
    return residual + F.linear(x, weight)


NORM_WARPS = 8
GATE_BLOCK = 1024  # values of one program


@triton.jit
def _normalise_row(
    x, weight, out, eps, K: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):
    let_next_start(OVERLAPS)
    k = tl.arange(0, BLOCK)
    factors = tl.load(weight + k, mask=k < K, other=0.0)
    await_rows(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * K + k
    values = tl.load(x + at, mask=k < K, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / K + eps)
    kind = out.dtype.element_ty
    tl.store(out + at, factors * (values * scale).to(kind), mask=k < K)


def normalise_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows [M, K]."""
    count, k = x.shape
    out = x.new_empty(count, k)
    overlaps = overlaps_launches(x)
    _normalise_row[(count,)](
        x,
        weight,
        out,
        eps,
        K=k,
        BLOCK=triton.next_power_of_2(k),
        OVERLAPS=overlaps,
        num_warps=NORM_WARPS,
        launch_pdl=overlaps,
    )
    return out


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
    overlaps = overlaps_launches(gate_up)
    _gate[(count, triton.cdiv(width, GATE_BLOCK))](
        gate_up, out, width, BLOCK=GATE_BLOCK, OVERLAPS=overlaps, launch_pdl=overlaps
    )
    return out


@dataclass(frozen=True)
class ProductPlan:
    """How one shape is multiplied.

    Attributes:
        one_row: for one row.
        few_rows: for more rows, where the library is slower.
        most_rows: rows up to which it is.
    """

    one_row: OneRowPlan
    few_rows: FewRowsPlan
    most_rows: int


DEEP = FewRowsPlan(64, 128, 4, 6)
SHALLOW = FewRowsPlan(64, 128, 4, 4)  # two weights at a time, or so many columns that it suffices
NARROW = FewRowsPlan(16, 128, 2, 6)  # few columns

PRODUCTS: dict[tuple[int, int], ProductPlan] = {
    # (columns, inputs) of the language model
    (6144, 4096): ProductPlan(OneRowPlan(8, 1024, 4), DEEP, 64),  # queries, keys, values
    (4096, 4096): ProductPlan(OneRowPlan(1, 4096, 4), DEEP, 32),  # attention output
    (12288, 4096): ProductPlan(OneRowPlan(4, 256, 1), SHALLOW, 16),  # gate and up
    (4096, 12288): ProductPlan(OneRowPlan(2, 4096, 8), DEEP, 32),  # down
    # The library has no fast kernel for rows of 151,748 values, which are not aligned.
    (151748, 4096): ProductPlan(OneRowPlan(8, 512, 2), SHALLOW, 1024),  # head
    # of the speech decoder, where one row takes all inputs at once
    (2304, 768): ProductPlan(OneRowPlan(2, 1024, 1), NARROW, 64),
    (768, 768): ProductPlan(OneRowPlan(2, 1024, 4), SHALLOW, 64),
    (3072, 768): ProductPlan(OneRowPlan(1, 1024, 1), NARROW, 64),
    (768, 3072): ProductPlan(OneRowPlan(1, 4096, 8), NARROW, 64),
}
MEASURED_BYTES = 2  # of a value
OTHER_PRODUCTS = ProductPlan(OneRowPlan(4, 256, 1), FewRowsPlan(32, 64, 4, 3), 16)


def product_plan(
    rows: int, columns: int, inputs: int, dtype: torch.dtype
) -> OneRowPlan | FewRowsPlan | None:
    """Choose the kernel of a product; None is the library's.

    Args:
        rows: M.
        columns: N, of the gate alone where there is one.
        inputs: K.
        dtype: of the values; wider ones than were measured would need more shared memory.
    """
    is_measured = dtype.itemsize == MEASURED_BYTES
    plan = PRODUCTS.get((columns, inputs), OTHER_PRODUCTS) if is_measured else OTHER_PRODUCTS
    if rows == 1:
        return plan.one_row
    if rows > plan.most_rows or inputs % plan.few_rows.block_k:
        return None
    return plan.few_rows
