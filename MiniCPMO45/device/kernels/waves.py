"""Triton kernels of the waveform generator; imported only for tensors on a card.

Each has a twin of the same signature in `wave_plain`, which says in plain words what it
does.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from MiniCPMO45.device.wave_layers import Activation, PackedConvolution
from MiniCPMO45.token2wav.hift import SNAKE_EPS

# Sizes that differ from batch to batch are not compiled in: every variant costs seconds at start.
MANY_PROGRAMS = 264  # twice the processors of the largest card: then blocks may be large
BLOCK = 512  # values of one program of the pointwise kernels


@triton.jit
def _snake(x, alpha, eps):
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


@triton.jit
def _sum_of_taps(
    x,
    weight,
    result,
    frame,
    channel,
    n_frames,
    taps,
    dilation,
    n_in,
    n_out,
    PRECISION: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Add the products of a block of frames with the weights of a block of channels."""
    inner = tl.arange(0, DEPTH)
    for start in range(0, taps * n_in, DEPTH):
        tap = start // n_in
        seen = frame + (tap - taps // 2) * dilation
        rows = tl.load(
            x + seen[:, None] * n_in + (start - tap * n_in + inner)[None, :],
            mask=((seen >= 0) & (seen < n_frames))[:, None],
            other=0.0,
        )
        columns = tl.load(weight + (start + inner)[:, None] * n_out + channel[None, :])
        result = tl.dot(rows, columns, result, input_precision=PRECISION)
    return result


@triton.jit(
    do_not_specialize=["length_stride", "n_frames", "taps", "dilation"],
    do_not_specialize_on_alignment=["lengths"],
)
def _convolve(
    x,
    weight,
    bias,
    first,
    second,
    total,
    active,
    alpha,
    lengths,
    length_stride,
    n_frames,
    taps,
    dilation,
    n_in,
    n_out,
    factor,
    slope,
    eps,
    N_ADDED: tl.constexpr,
    HAS_SUM: tl.constexpr,
    HAS_SNAKE: tl.constexpr,
    HAS_LEAKY: tl.constexpr,
    PRECISION: tl.constexpr,
    FRAMES: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    stream = tl.program_id(2)
    frame = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    of_stream = stream.to(tl.int64) * n_frames
    result = tl.zeros((FRAMES, CHANNELS), tl.float32)
    x += of_stream * n_in
    result = _sum_of_taps(
        x, weight, result, frame, channel, n_frames, taps, dilation, n_in, n_out, PRECISION, DEPTH
    )
    at = (of_stream + frame)[:, None] * n_out + channel[None, :]
    is_frame = (frame < n_frames)[:, None]
    result += tl.load(bias + channel)[None, :]
    if N_ADDED > 0:
        result += tl.load(first + at, mask=is_frame, other=0.0)
    if N_ADDED > 1:
        result += tl.load(second + at, mask=is_frame, other=0.0)
    result *= factor
    if HAS_SUM:
        tl.store(total + at, result, mask=is_frame)
    if HAS_SNAKE or HAS_LEAKY:
        if HAS_SNAKE:
            result = _snake(result, tl.load(alpha + channel)[None, :], eps)
        else:
            result = tl.where(result > 0, result, result * slope)
        counts = tl.load(lengths + stream.to(tl.int64) * length_stride)
        result = tl.where((frame < counts)[:, None], result, 0.0)
        tl.store(active + at, result.to(active.dtype.element_ty), mask=is_frame)


def convolve(
    x: Tensor,
    layer: PackedConvolution,
    lengths: Tensor,
    *,
    added: tuple[Tensor, ...],
    factor: float,
    activation: Activation | None,
    wants_sum: bool,
) -> tuple[Tensor, Tensor]:
    """See `wave_ops.convolve`."""
    n_streams, n_frames, n_in = x.shape
    n_out = layer.weight.shape[1]
    shape = (n_streams, n_frames, n_out)
    nothing = (0,)
    total = torch.empty(shape if wants_sum else nothing, dtype=torch.float32, device=x.device)
    active = torch.empty(shape if activation else nothing, dtype=x.dtype, device=x.device)
    frames, channels = _blocks(n_streams * n_frames, n_out)
    depth = math.gcd(n_in, 64)
    assert x.is_contiguous() and all(each.is_contiguous() for each in added)
    _convolve[(triton.cdiv(n_frames, frames), n_out // channels, n_streams)](
        x,
        layer.weight,
        layer.bias,
        added[0] if added else x,
        added[1] if len(added) > 1 else x,
        total,
        active,
        layer.bias if activation is None or activation.alpha is None else activation.alpha,
        lengths,
        lengths.stride(0),
        n_frames,
        layer.taps,
        layer.dilation,
        n_in,
        n_out,
        factor,
        0.0 if activation is None else activation.slope,
        SNAKE_EPS,
        N_ADDED=len(added),
        HAS_SUM=wants_sum,
        HAS_SNAKE=activation is not None and activation.alpha is not None,
        HAS_LEAKY=activation is not None and activation.alpha is None,
        PRECISION="ieee",
        FRAMES=frames,
        CHANNELS=channels,
        DEPTH=depth,
        num_warps=8 if frames * channels > 64 * 128 else 4,
        num_stages=3,
    )
    return total, active


def _blocks(n_rows: int, n_out: int) -> tuple[int, int]:
    """Frames and channels of one program: large blocks where there are enough of them."""
    channels = math.gcd(n_out, 128)
    for frames in (128, 64):
        if n_rows // frames * (n_out // channels) >= MANY_PROGRAMS:
            return frames, channels
    return 32, math.gcd(n_out, 64)


@triton.jit(
    do_not_specialize=["length_stride", "n_frames", "n_upsampled", "size"],
    do_not_specialize_on_alignment=["lengths"],
)
def _branch(
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
        active = tl.where(frame < counts, _snake(value, alpha, eps), 0.0)
        tl.store(out + index * size + at, active.to(out.dtype.element_ty), mask=inside)


def branch(
    x: Tensor, upsampled: Tensor | None, alphas: Tensor, lengths: Tensor, dtype: torch.dtype
) -> Tensor:
    """See `wave_ops.branch`."""
    n_streams, n_frames, width = x.shape
    out = torch.empty((len(alphas), *x.shape), dtype=dtype, device=x.device)
    assert x.is_contiguous() and (upsampled is None or upsampled.is_contiguous())
    _branch[(triton.cdiv(n_frames * width, BLOCK), n_streams)](
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
