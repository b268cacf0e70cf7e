"""The Snake activations of the waveform generator, alone and behind a sum.

Signals lie channel by channel in each sample, [S, T, C], and are zero behind a stream's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.device.kernels.available import runs_kernels, tl, triton

SNAKE_EPS = 1e-9
BLOCK = 512  # values of one program


@dataclass(frozen=True)
class Activation:
    """What is done to a signal before the next convolution.

    Attributes:
        alpha: of a Snake, float32 [C]; None for a leaky ReLU.
        slope: of the leaky ReLU.
    """

    alpha: Tensor | None = None
    slope: float = 0.0


def inside(x: Tensor, lengths: Tensor) -> Tensor:
    """Ones before a stream's end, zeros behind it, for x [S, T, C]: [S, T, 1]."""
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None].to(x.dtype)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """`x + sin(a x)^2 / a` for x [..., C] with one a per channel."""
    return x + torch.sin(x * alpha).square() / (alpha + SNAKE_EPS)


@triton.jit
def snake_of(x, alpha, eps):
    # The general sine is long code for huge arguments; a square repeats after half a turn, and
    # what is left of it is a short polynomial. Source: Cephes, sinf, for pi in three parts.
    turn = x * alpha
    halves = tl.floor(turn * 0.3183098861837907 + 0.5)
    turn = turn - halves * 3.140625
    turn = turn - halves * 9.67502593994140625e-4
    turn = turn - halves * 1.509957990978376432e-7
    square = turn * turn
    wave = square * -2.505210838544172e-8 + 2.755731922398589e-6
    wave = square * wave - 1.984126984126984e-4
    wave = square * wave + 8.333333333333333e-3
    wave = square * wave - 0.16666666666666666
    wave = turn + turn * square * wave
    return x + wave * wave / (alpha + eps)


def branch(
    x: Tensor,
    upsampled: Tensor | None,
    alphas: Tensor,
    lengths: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Add the upsampled signal and apply the Snake of every block that follows.

    Args:
        x: float32 [S, T, C]; a kernel adds to it in place.
        upsampled: float32 [S, T or T - 1, C]; one frame too few is mirrored in front. None adds
            nothing.
        alphas: of each block, float32 [n, C].
        lengths: frames that count, int64 [S]; None if all do.
        dtype: of the activated signals.

    Returns:
        The sum; and the activated signal of each block [S, T, C], zero behind a stream's end.
    """
    if runs_kernels(x):
        assert lengths is not None
        return x, _launch_branch(x, upsampled, alphas, lengths, dtype).unbind(0)
    if upsampled is not None:
        if upsampled.shape[1] < x.shape[1]:
            upsampled = torch.cat((upsampled[:, 1:2], upsampled), dim=1)
        x = x + upsampled
    active = [snake(x, alpha) for alpha in alphas]
    if lengths is not None:
        active = [each * inside(each, lengths) for each in active]
    return x, [each.to(dtype) for each in active]


@triton.jit(
    do_not_specialize=["length_stride", "n_frames", "n_upsampled", "size"],
    do_not_specialize_on_alignment=["lengths"],
)
def _branch_blocks(
    x,
    upsampled,
    alphas,
    lengths,
    out,
    length_stride,
    n_frames,
    n_upsampled,
    size,
    eps,
    C: tl.constexpr,
    N: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n_frames * C
    frame, channel = place // C, place % C
    at = stream * n_frames * C + place
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        source = tl.abs(frame - (n_frames - n_upsampled))  # mirrored where one frame is missing
        value += tl.load(
            upsampled + (stream * n_upsampled + source) * C + channel, mask=inside, other=0.0
        )
        tl.store(x + at, value, mask=inside)
    counts = tl.load(lengths + stream * length_stride)
    for index in tl.static_range(N):
        alpha = tl.load(alphas + index * C + channel)
        active = tl.where(frame < counts, snake_of(value, alpha, eps), 0.0)
        tl.store(out + index * size + at, active.to(out.dtype.element_ty), mask=inside)


def _launch_branch(
    x: Tensor, upsampled: Tensor | None, alphas: Tensor, lengths: Tensor, dtype: torch.dtype
) -> Tensor:
    n_streams, n_frames, width = x.shape
    out = torch.empty((len(alphas), *x.shape), dtype=dtype, device=x.device)
    assert x.is_contiguous() and (upsampled is None or upsampled.is_contiguous())
    _branch_blocks[(triton.cdiv(n_frames * width, BLOCK), n_streams)](
        x,
        x if upsampled is None else upsampled,
        alphas,
        lengths,
        out,
        lengths.stride(0),
        n_frames,
        n_frames if upsampled is None else upsampled.shape[1],
        x.numel(),
        SNAKE_EPS,
        C=width,
        N=len(alphas),
        ADDS=upsampled is not None,
        BLOCK=BLOCK,
    )
    return out
