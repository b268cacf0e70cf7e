"""What happens to each row by itself between two products: norm, gate, rounding to e4m3."""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.kernels.device import (
    await_rows,
    let_next_start,
    overlaps_launches,
    runs_kernels,
    tl,
    triton,
)
from MiniCPMO45.kernels.quantised import DTYPES, LARGEST, Scheme, scale_each_row

LARGEST_E4M3 = tl.constexpr(LARGEST[Scheme.FP8])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis of x [M, K] with float32 statistics, in the dtype of `x`."""
    if runs_kernels(x):
        return normalise_rows(x, weight, eps)
    return normalise(x, weight, eps)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise as `rms_norm` does, whatever the number of axes, in plain PyTorch."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


NORM_WARPS = 8
GATE_BLOCK = 1024  # values of one program


@triton.jit
def _normalise_row(
    x, weight, out, scales, eps, K: tl.constexpr, BLOCK: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_SCALES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """With HAS_SCALES the row, rounded as without, is divided by its scale and becomes e4m3."""
    let_next_start(OVERLAPS)
    k = tl.arange(0, BLOCK)
    if HAS_NORM:
        factors = tl.load(weight + k, mask=k < K, other=0.0)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    at = row * K + k
    values = tl.load(x + at, mask=k < K, other=0.0)
    if HAS_NORM:
        wide = values.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 0) / K + eps)
        values = factors * (wide * scale).to(values.dtype)
    if HAS_SCALES:
        wide = values.to(tl.float32)
        scale = tl.max(tl.abs(wide), 0) / LARGEST_E4M3
        values = tl.div_rn(wide, tl.where(scale > 0, scale, 1.0))
        tl.store(scales + row, scale)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=k < K)


def normalise_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows [M, K]."""
    out = torch.empty_like(x)
    _launch(x, weight, eps, out, None)
    return out


def _launch(
    x: Tensor, weight: Tensor | None, eps: float, out: Tensor, scales: Tensor | None
) -> None:
    count, k = x.shape
    overlaps = overlaps_launches(x)
    _normalise_row[(count,)](
        x,
        weight,
        out,
        scales,
        eps,
        K=k,
        BLOCK=triton.next_power_of_2(k),
        HAS_NORM=weight is not None,
        HAS_SCALES=scales is not None,
        OVERLAPS=overlaps,
        num_warps=NORM_WARPS,
        launch_pdl=overlaps,
    )


def scale_rows(x: Tensor, norm: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Round rows [M, K], contiguous and normalised first if there is a norm, to e4m3.

    Returns:
        float8_e4m3fn [M, K], and the scale of each row, float32 [M].
    """
    if not runs_kernels(x):
        return scale_each_row((x if norm is None else normalise(x, norm, eps)).float(), Scheme.FP8)
    values, scales = (
        torch.empty_like(x, dtype=DTYPES[Scheme.FP8]),
        x.new_empty(len(x), dtype=torch.float32),
    )
    _launch(x, norm, eps, values, scales)
    return values, scales


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
