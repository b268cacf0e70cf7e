"""The operations of `device.ops` on a card: our own kernel, or the library's where it is better."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, addmm

from MiniCPMO45.device.kernels.attention import Attention
from MiniCPMO45.device.kernels.few_rows import multiply_rows
from MiniCPMO45.device.kernels.norms import rms_norm, silu_gate
from MiniCPMO45.device.kernels.one_row import OneRowPlan, multiply_row
from MiniCPMO45.device.kernels.plans import decode_plan, prefill_plan, product_plan
from MiniCPMO45.device.kernels.runs import advance_runs
from MiniCPMO45.device.kernels.shift import move_tokens
from MiniCPMO45.device.row_map import RowMap

__all__ = [
    "advance_runs",
    "attend",
    "linear_add",
    "move_tokens",
    "norm_linear",
    "norm_swiglu",
    "rms_norm",
]


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Tensor) -> Tensor:
    """Norm, then a matrix product; see `ops.norm_linear`."""
    plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
    if isinstance(plan, OneRowPlan):
        return multiply_row(x, norm_weight, eps, weight, None, is_gated=False, plan=plan)
    normed = x if norm_weight is None else rms_norm(x, norm_weight, eps)
    if plan is None:
        return F.linear(normed, weight)
    return multiply_rows(normed, weight, None, is_gated=False, plan=plan)


def norm_swiglu(x: Tensor, norm_weight: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """Norm, then the gated half of a feed-forward; see `ops.norm_swiglu`."""
    plan = product_plan(x.shape[0], gate_up.shape[0] // 2, x.shape[1], x.dtype)
    if isinstance(plan, OneRowPlan):
        return multiply_row(x, norm_weight, eps, gate_up, None, is_gated=True, plan=plan)
    normed = rms_norm(x, norm_weight, eps)
    if plan is None:
        return silu_gate(F.linear(normed, gate_up))
    return multiply_rows(normed, gate_up, None, is_gated=True, plan=plan)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Add a matrix product to the residual stream; see `ops.linear_add`."""
    plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
    if isinstance(plan, OneRowPlan):
        return multiply_row(x, None, 0.0, weight, residual, is_gated=False, plan=plan)
    if plan is None:
        return addmm(residual, x, weight.t())
    return multiply_rows(x, weight, residual, is_gated=False, plan=plan)


def attend(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    cos_table: Tensor,
    sin_table: Tensor,
    rows: RowMap,
    kv_layer: Tensor,
    scale: float,
) -> Tensor:
    """Store the new keys and values, then attend; see `ops.attend`."""
    kv_heads, d = kv_layer.shape[2], kv_layer.shape[4]
    count = qkv.shape[0]
    if rows.rows_per_tile == 1:
        plan = decode_plan(count, is_grouped=qkv.shape[1] > 3 * kv_heads * d)
    else:
        plan = prefill_plan(count, rows.rows_per_tile, kv_heads)
    return Attention(
        qkv, q_norm, k_norm, eps, cos_table, sin_table, rows, kv_layer, scale, plan
    ).run()
