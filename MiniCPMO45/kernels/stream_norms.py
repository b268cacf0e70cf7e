"""Norms fused with gated sums, activations and the input layout of causal convolutions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.kernels.device import runs_kernels, tl, triton

Affine = tuple[Tensor, Tensor]  # scale and shift of a norm
# Where a causal convolution of three taps reads: the last two frames before the chunk, the output
# for those at its end, float32 [S, group, 2, C] each, and the valid frames, int64 [S], 2 or more.
Taps = tuple[Tensor, Tensor, Tensor]


def gated_norm(
    x: Tensor,
    change: Tensor | None,
    gate: Tensor | None,
    norm: Affine,
    eps: float,
    dtype: torch.dtype,
    taps: Taps | None = None,
) -> Tensor:
    """Add a branch to the residual stream, in place, and normalise the sum.

    `x` is float32 [..., C], contiguous, and becomes `x + gate * change`; `change` has any float
    dtype, gate, scale and shift are float32 [C], and a missing gate is one. The result is the
    normalised sum [..., C]; or, with `taps` and x [S * group, T, C], unfolded for the convolution
    [S * group, T, 3 * C], the oldest tap first. Without a change, Mish precedes it.
    """
    if runs_kernels(x):
        width = x.shape[-1]
        n_rows, length, n_taps, group = 1, x.numel() // width, 1, 1
        old = new = lengths = None
        strides = (0, 0, 0)
        if taps is not None:
            (n_rows, length, _), n_taps = x.shape, 3
            old, new, lengths = taps
            group = n_rows // len(lengths)
            assert old.stride() == new.stride() and old.stride()[2:] == (width, 1)
            strides = (old.stride(0), old.stride(1), lengths.stride(0))
        out = torch.empty((*x.shape[:-1], n_taps * width), dtype=dtype, device=x.device)
        sizes = {"GROUP": group, "C": width, "BLOCK": triton.next_power_of_2(width)}
        _norm_frames[(length, n_rows)](
            x, change, gate, *norm, out, old, new, lengths, eps, length, *strides, **sizes
        )
        return out
    if change is not None and gate is not None:
        x.addcmul_(change.to(x.dtype), gate)
    elif change is not None:
        x += change.to(x.dtype)
    y = F.layer_norm(x.float(), x.shape[-1:], *norm, eps)
    if taps is None:
        return y.to(dtype)
    return _unfold_taps((F.mish(y) if change is None else y).to(dtype), *taps)


def norm_mish_unfold(x: Tensor, norm: Affine, eps: float, taps: Taps) -> Tensor:
    """Normalise x [S * group, T, C], apply Mish and unfold as `gated_norm` does."""
    return gated_norm(x, None, None, norm, eps, x.dtype, taps)


def _unfold_taps(y: Tensor, tail: Tensor, new_tail: Tensor, n_frames: Tensor) -> Tensor:
    """Unfold y [rows, T, C], preceded by its tail, to [rows, T, 3 * C]."""
    n_rows, length, width = y.shape
    joined = torch.cat((tail.flatten(0, 1).to(y.dtype), y), dim=1)  # [rows, T + 2, C]
    n_frames = n_frames.repeat_interleave(n_rows // len(n_frames))
    places = n_frames[:, None] + torch.arange(2, device=y.device)
    last = joined.gather(1, places[:, :, None].expand(-1, -1, width))
    new_tail.copy_(last.unflatten(0, new_tail.shape[:2]))
    return torch.cat([joined[:, tap : tap + length] for tap in range(3)], dim=2)


@triton.jit
def _spread(y, at, tail, frame, n_frames, inside, C: tl.constexpr):
    """Write a frame to the three rows whose taps include it, and the tail to the first two."""
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
def _norm_frames(
    x, change, gate, scale, shift, out, tail, new_tail, lengths, eps, n_frames, tail_stream,
    tail_member, length_stride, GROUP: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    frame = tl.program_id(0)
    flat = (row * n_frames + frame).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < C
    y = tl.load(x + flat * C + channel, mask=inside, other=0.0).to(tl.float32)
    if change is not None:
        delta = tl.load(change + flat * C + channel, mask=inside, other=0.0).to(tl.float32)
        if gate is not None:
            delta *= tl.load(gate + channel, mask=inside, other=0.0)
        y += delta
        tl.store(x + flat * C + channel, y, mask=inside)
    y = tl.where(inside, y - tl.sum(y, 0) / C, 0.0)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / C + eps)
    y = y * tl.load(scale + channel, mask=inside, other=0.0)
    y = y + tl.load(shift + channel, mask=inside, other=0.0)
    if tail is not None and change is None:  # Mish, its tanh(ln(1 + e^y)) without a logarithm
        grown = tl.exp(tl.minimum(y, 20.0))
        square = grown * (grown + 2.0)
        y = tl.where(y > 20.0, y, y * square / (square + 2.0))
    done = y.to(out.dtype.element_ty)
    if tail is not None:
        of_tail = (row // GROUP).to(tl.int64) * tail_stream + (row % GROUP) * tail_member + channel
        _spread(done, out + flat * (3 * C) + channel, tail + of_tail, frame, n_frames, inside, C)
        from_end = frame - tl.load(lengths + (row // GROUP).to(tl.int64) * length_stride) + 2
        if (from_end >= 0) & (from_end < 2):
            tl.store(new_tail + of_tail + from_end * C, done.to(tl.float32), mask=inside)
    else:
        tl.store(out + flat * C + channel, done, mask=inside)


def norm_heads(qkv: Tensor, weights: Tensor, eps: float, heads: int) -> Tensor:
    """Normalise queries and keys of qkv [rows, T, 3 * heads * d] per head, in place.

    `weights` are scale and shift of queries and of keys, float32 [2, 2, d].
    """
    if runs_kernels(qkv):
        _norm_each_head[(qkv.shape[0] * qkv.shape[1], 2)](
            qkv, weights, eps, HEADS=heads, D=weights.shape[-1], num_warps=2
        )
        return qkv
    head_dim = weights.shape[-1]
    parts = qkv.unflatten(2, (3, heads, head_dim))
    for part, (weight, shift) in enumerate(weights.unbind(0)):
        normed = F.layer_norm(parts[:, :, part].float(), (head_dim,), weight, shift, eps)
        parts[:, :, part] = normed.to(qkv.dtype)
    return qkv


@triton.jit
def _norm_each_head(qkv, weights, eps, HEADS: tl.constexpr, D: tl.constexpr):
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
