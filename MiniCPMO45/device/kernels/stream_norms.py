"""Triton kernels of norms and what stands around them; imported only for tensors on a card.

Each has a twin of the same signature in `stream_plain`, which says in plain words what it does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from MiniCPMO45.device.packed_linear import Affine


@triton.jit
def _norm_heads(qkv, weights, eps, HEADS: tl.constexpr, D: tl.constexpr):
    part = tl.program_id(1)  # queries, keys
    head = tl.arange(0, HEADS)
    channel = tl.arange(0, D)
    at = qkv + tl.program_id(0).to(tl.int64) * (3 * HEADS * D) + part * (HEADS * D)
    at = at + head[:, None] * D + channel[None, :]
    x = tl.load(at).to(tl.float32)
    x = x - tl.sum(x, 1)[:, None] / D
    x = x * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    scale = tl.load(weights + part * (2 * D) + channel)
    shift = tl.load(weights + part * (2 * D) + D + channel)
    tl.store(at, (x * scale[None, :] + shift[None, :]).to(qkv.dtype.element_ty))


def norm_heads(qkv: Tensor, weights: Tensor, eps: float, heads: int) -> Tensor:
    """See `stream_ops.norm_heads`."""
    n_rows, n_frames, _ = qkv.shape
    _norm_heads[(n_rows * n_frames, 2)](
        qkv, weights, eps, HEADS=heads, D=weights.shape[-1], num_warps=2
    )
    return qkv


@triton.jit
def _mish(y):
    grown = tl.exp(tl.minimum(y, 20.0))
    square = grown * (grown + 2.0)  # tanh(ln(1 + e^y)) without a logarithm
    return tl.where(y > 20.0, y, y * square / (square + 2.0))


@triton.jit
def _spread(y, at, tail, frame, n_frames, inside, C: tl.constexpr):
    """Write a frame to the three rows whose convolution sees it, and the past to the first two."""
    tl.store(at + 2 * C, y, mask=inside)
    if frame + 1 < n_frames:
        tl.store(at + 3 * C + C, y, mask=inside)
    if frame + 2 < n_frames:
        tl.store(at + 6 * C, y, mask=inside)
    if frame < 2:
        last = tl.load(tail + C, mask=inside).to(y.dtype)
        if frame == 0:
            first = tl.load(tail, mask=inside).to(y.dtype)
            tl.store(at, first, mask=inside)
            tl.store(at + C, last, mask=inside)
        else:
            tl.store(at, last, mask=inside)


@triton.jit(
    do_not_specialize=["n_frames", "tail_stream", "tail_member", "length_stride"],
    do_not_specialize_on_alignment=["lengths", "tail", "new_tail"],
)
def _norm(
    x,
    change,
    gate,
    scale,
    shift,
    out,
    tail,
    new_tail,
    lengths,
    eps,
    n_frames,
    tail_stream,
    tail_member,
    length_stride,
    GROUP: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_CHANGE: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_MISH: tl.constexpr,
    UNFOLDS: tl.constexpr,
):
    row = tl.program_id(1)
    frame = tl.program_id(0)
    flat = (row * n_frames + frame).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < C
    y = tl.load(x + flat * C + channel, mask=inside, other=0.0).to(tl.float32)
    if HAS_CHANGE:
        delta = tl.load(change + flat * C + channel, mask=inside, other=0.0).to(tl.float32)
        if HAS_GATE:
            delta *= tl.load(gate + channel, mask=inside, other=0.0)
        y += delta
        tl.store(x + flat * C + channel, y, mask=inside)
    y = tl.where(inside, y - tl.sum(y, 0) / C, 0.0)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / C + eps)
    y = y * tl.load(scale + channel, mask=inside, other=0.0)
    y = y + tl.load(shift + channel, mask=inside, other=0.0)
    if HAS_MISH:
        y = _mish(y)
    done = y.to(out.dtype.element_ty)
    if UNFOLDS:
        of_tail = (row // GROUP).to(tl.int64) * tail_stream + (row % GROUP) * tail_member + channel
        _spread(done, out + flat * (3 * C) + channel, tail + of_tail, frame, n_frames, inside, C)
        behind = frame - tl.load(lengths + (row // GROUP).to(tl.int64) * length_stride) + 2
        if (behind >= 0) & (behind < 2):
            tl.store(new_tail + of_tail + behind * C, done.to(tl.float32), mask=inside)
    else:
        tl.store(out + flat * C + channel, done, mask=inside)


def gated_norm(
    x: Tensor,
    change: Tensor | None,
    gate: Tensor | None,
    norm: Affine,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """See `stream_ops.gated_norm`."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    width = x.shape[-1]
    _norm[(x.numel() // width, 1)](
        x,
        x if change is None else change,
        x if gate is None else gate,
        *norm,
        out,
        x,
        x,
        x,
        eps,
        x.numel() // width,
        0,
        0,
        0,
        GROUP=1,
        C=width,
        BLOCK=triton.next_power_of_2(width),
        HAS_CHANGE=change is not None,
        HAS_GATE=gate is not None,
        HAS_MISH=False,
        UNFOLDS=False,
    )
    return out


def gated_norm_unfold(
    x: Tensor,
    change: Tensor,
    gate: Tensor,
    norm: Affine,
    eps: float,
    tails: tuple[Tensor, Tensor],
    n_frames: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """See `stream_ops.gated_norm_unfold`."""
    return _unfold(x, change, gate, norm, eps, tails, n_frames, dtype)


def norm_mish_unfold(
    x: Tensor,
    norm: Affine,
    eps: float,
    tails: tuple[Tensor, Tensor],
    n_frames: Tensor,
) -> Tensor:
    """See `stream_ops.norm_mish_unfold`."""
    return _unfold(x, None, None, norm, eps, tails, n_frames, x.dtype)


def _unfold(
    x: Tensor,
    change: Tensor | None,
    gate: Tensor | None,
    norm: Affine,
    eps: float,
    tails: tuple[Tensor, Tensor],
    n_frames: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    n_rows, length, width = x.shape
    out = torch.empty((n_rows, length, 3 * width), dtype=dtype, device=x.device)
    old, new = tails
    assert old.stride() == new.stride() and old.stride()[2:] == (width, 1)
    _norm[(length, n_rows)](
        x,
        x if change is None else change,
        x if gate is None else gate,
        *norm,
        out,
        old,
        new,
        n_frames,
        eps,
        length,
        old.stride(0),
        old.stride(1),
        n_frames.stride(0),
        GROUP=n_rows // n_frames.shape[0],
        C=width,
        BLOCK=triton.next_power_of_2(width),
        HAS_CHANGE=change is not None,
        HAS_GATE=gate is not None,
        HAS_MISH=change is None,
        UNFOLDS=True,
    )
    return out
