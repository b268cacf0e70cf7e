"""Row-wise steps around the library's matrix products, which many rows use."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from MiniCPMO45.device.kernels.launch import await_rows, let_next_start, overlaps_launches

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
    """Normalise rows [M, K]; see `ops.rms_norm`."""
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
