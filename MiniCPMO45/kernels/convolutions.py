"""Convolutions and Snake activations of the waveform generator.

Signals are [S, T, C] and zero beyond a stream's end. The plain version keeps the memory layout of
PyTorch's convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.kernels.device import fitting_stages, runs_kernels, tl, triton

SNAKE_EPS = 1e-9
SNAKE_BLOCK = 512  # values of one program


# Before the next convolution: a Snake with alpha, float32 [C], or a leaky ReLU with a slope.
Activation = Tensor | float


def inside(x: Tensor, lengths: Tensor) -> Tensor:
    """Mask of the valid frames of x [S, T, C]: ones and zeros [S, T, 1]."""
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None].to(x.dtype)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """`x + sin(a x)^2 / a` for x [..., C] with one a per channel."""
    return x + torch.sin(x * alpha).square() / (alpha + SNAKE_EPS)


@triton.jit
def snake_of(x, alpha, EPS: tl.constexpr = SNAKE_EPS):
    # The general sine handles huge arguments at great length. The square has a period of pi, and
    # after the reduction a short polynomial suffices. Source: Cephes, sinf, for pi in three parts.
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
    return x + wave * wave / (alpha + EPS)


def branch(
    x: Tensor, upsampled: Tensor | None, alphas: Tensor, lengths: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Sequence[Tensor]]:
    """Add the upsampled signal and apply the Snake of every block that follows.

    `x` is float32 [S, T, C], and a kernel adds to it in place. `upsampled` is [S, T or T - 1, C]:
    one frame too few is mirrored in front. `alphas` are those of each block, float32 [n, C]. The
    results are the sum and each block's activated signal [S, T, C], zero beyond a stream's end.
    """
    if runs_kernels(x):
        n_streams, n_frames, width = x.shape
        out = torch.empty((len(alphas), *x.shape), dtype=dtype, device=x.device)
        assert x.is_contiguous() and (upsampled is None or upsampled.is_contiguous())
        n_upsampled = n_frames if upsampled is None else upsampled.shape[1]
        sizes = lengths.stride(0), n_frames, n_upsampled, x.numel()
        grid = triton.cdiv(n_frames * width, SNAKE_BLOCK), n_streams
        _branch_blocks[grid](x, upsampled, alphas, lengths, out, *sizes, C=width, N=len(alphas))
        return x, out.unbind(0)
    if upsampled is not None:
        if upsampled.shape[1] < x.shape[1]:
            upsampled = torch.cat((upsampled[:, 1:2], upsampled), dim=1)
        x = x + upsampled
    active = [snake(x, alpha) for alpha in alphas]
    return x, [(each * inside(each, lengths)).to(dtype) for each in active]


@triton.jit(
    do_not_specialize=["length_stride", "n_frames", "n_upsampled", "size"],
    do_not_specialize_on_alignment=["lengths"],
)
def _branch_blocks(
    x, upsampled, alphas, lengths, out, length_stride, n_frames, n_upsampled, size,
    C: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr = SNAKE_BLOCK,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n_frames * C
    frame, channel = place // C, place % C
    at = stream * n_frames * C + place
    value = tl.load(x + at, mask=inside, other=0.0)
    if upsampled is not None:
        source = tl.abs(frame - (n_frames - n_upsampled))  # mirrored where one frame is missing
        value += tl.load(
            upsampled + (stream * n_upsampled + source) * C + channel, mask=inside, other=0.0
        )
        tl.store(x + at, value, mask=inside)
    counts = tl.load(lengths + stream * length_stride)
    for index in tl.static_range(N):
        alpha = tl.load(alphas + index * C + channel)
        active = tl.where(frame < counts, snake_of(value, alpha), 0.0)
        tl.store(out + index * size + at, active.to(out.dtype.element_ty), mask=inside)


SMALLEST_BLOCK = 16  # channels of a tensor core operation
CHANNEL_STEP = 32  # the kernels' smallest block of outputs; missing channels are zeros
MOST_ADDED = 3  # signals that a convolution adds to its result
UPSAMPLING_TAPS = 3  # inputs one output of an upsampling convolution can see
# Sizes that vary between batches are runtime arguments: every variant costs seconds at start.
MANY_PROGRAMS = 264  # twice the multiprocessors of the largest card; enough for large blocks


@dataclass(frozen=True)
class PackedWeights:
    """Weights in the layout of the kernel: weight [taps * C_in, C_out], bias [C_out], odd taps."""

    weight: Tensor
    bias: Tensor
    taps: int
    dilation: int

    @classmethod
    def of(
        cls, weight: Tensor, bias: Tensor, dilation: int, dtype: torch.dtype
    ) -> PackedWeights | None:
        """Pack a weight [taps, C_in, C_out]; None if the kernel does not support its size."""
        n_in, n_out = weight.shape[1:]
        if n_in % SMALLEST_BLOCK:
            return None
        missing = -n_out % CHANNEL_STEP if n_out % SMALLEST_BLOCK else 0
        packed = F.pad(weight, (0, missing)).flatten(0, 1).to(dtype).contiguous()
        return cls(packed, F.pad(bias, (0, missing)).float(), weight.shape[0], dilation)


class Convolution(nn.Conv1d):
    """A convolution that keeps the number of frames, with zero padding."""

    packed: PackedWeights | None = None

    def __init__(self, n_in: int, n_out: int, taps: int, dilation: int = 1) -> None:
        reach = (taps - 1) // 2 * dilation
        super().__init__(n_in, n_out, taps, dilation=dilation, padding=reach)

    def pack(self, dtype: torch.dtype) -> None:
        """Pack the weights for the kernel; outputs are padded to a whole block."""
        assert self.bias is not None
        weight = self.weight.detach().permute(2, 1, 0)
        self.packed = PackedWeights.of(weight, self.bias.detach(), self.dilation[0], dtype)


class Upsampling(nn.ConvTranspose1d):
    """A transposed convolution that multiplies the number of frames by `rate`."""

    packed: PackedWeights | None = None

    def __init__(self, n_in: int, n_out: int, taps: int, rate: int) -> None:
        super().__init__(n_in, n_out, taps, rate, (taps - rate) // 2)

    @property
    def rate(self) -> int:
        return self.stride[0]

    def pack(self, dtype: torch.dtype) -> None:
        """Pack the weights for the kernel: the outputs of one input are adjacent.

        Output `rate * i + r` depends on inputs i - 1, i and i + 1 at most, at kernel indices
        `r + padding - rate * d` for input i + d.
        """
        weight = self.weight.detach()  # [C_in, C_out, kernel]
        rate, padding, kernel = self.rate, self.padding[0], weight.shape[2]
        assert isinstance(padding, int) and self.bias is not None
        assert padding <= rate and kernel <= 2 * rate + padding
        by_input = F.pad(weight, (rate - padding, 2 * rate + padding - kernel))
        by_input = by_input.unflatten(2, (UPSAMPLING_TAPS, rate)).flip(2)  # [C_in, C_out, d, r]
        packed, bias = by_input.permute(2, 0, 3, 1), self.bias.detach().repeat(rate)
        self.packed = PackedWeights.of(packed.flatten(2), bias, 1, dtype)


def convolve(
    x: Tensor,
    layer: Convolution,
    lengths: Tensor,
    *,
    added: tuple[Tensor, ...] = (),
    factor: float = 1.0,
    activation: Activation | None = None,
    wants_sum: bool = True,
) -> tuple[Tensor, Tensor]:
    """Convolve, add other signals, and activate for the next convolution.

    `x` is [S, T, C], zero beyond a stream's end; up to three float32 tensors [S, T, C_out] are
    `added`, and the sum is multiplied with `factor`. The results are the sum, float32 [S, T,
    C_out], undefined beyond a stream's end, and the activated sum in the dtype of `x`, zero there.
    A result that was not requested is empty.
    """
    if layer.packed is not None and runs_kernels(x):
        return _launch_convolve(x, layer.packed, lengths, added, factor, activation, wants_sum)
    weight, bias = layer.weight.to(x.dtype), layer.bias
    assert bias is not None
    y = F.conv1d(
        x.transpose(1, 2), weight, bias.to(x.dtype), padding=layer.padding, dilation=layer.dilation
    )
    total = _in_order(y)
    for each in added:
        total = total + each
    if factor != 1.0:
        total = total * factor
    if activation is None:
        return total, x.new_empty(0)
    if isinstance(activation, Tensor):
        active = snake(total, activation)
    else:
        active = F.leaky_relu(total, activation)
    active = active * inside(active, lengths)
    return total if wants_sum else total.new_empty(0), active.to(x.dtype)


@triton.jit(
    do_not_specialize=["length_stride", "n_frames", "taps", "dilation"],
    do_not_specialize_on_alignment=["lengths"],
)
def _convolve_blocks(
    x, weight, bias, first, second, third, total, active, alpha, lengths, length_stride, n_frames,
    taps, dilation, n_in, n_out, factor, slope,
    FRAMES: tl.constexpr, CHANNELS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(2)
    frame = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    of_stream = stream.to(tl.int64) * n_frames
    result = tl.zeros((FRAMES, CHANNELS), tl.float32)
    x += of_stream * n_in
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
        result = tl.dot(rows, columns, result, input_precision="ieee")
    at = (of_stream + frame)[:, None] * n_out + channel[None, :]
    is_frame = (frame < n_frames)[:, None]
    result += tl.load(bias + channel)[None, :]
    if first is not None:
        result += tl.load(first + at, mask=is_frame, other=0.0)
    if second is not None:
        result += tl.load(second + at, mask=is_frame, other=0.0)
    if third is not None:
        result += tl.load(third + at, mask=is_frame, other=0.0)
    result *= factor
    if total is not None:
        tl.store(total + at, result, mask=is_frame)
    if active is not None:
        if alpha is not None:
            result = snake_of(result, tl.load(alpha + channel)[None, :])
        else:
            result = tl.where(result > 0, result, result * slope)
        counts = tl.load(lengths + stream.to(tl.int64) * length_stride)
        result = tl.where((frame < counts)[:, None], result, 0.0)
        tl.store(active + at, result.to(active.dtype.element_ty), mask=is_frame)


def _launch_convolve(
    x: Tensor,
    layer: PackedWeights,
    lengths: Tensor,
    added: tuple[Tensor, ...],
    factor: float,
    activation: Activation | None,
    wants_sum: bool,
) -> tuple[Tensor, Tensor]:
    n_streams, n_frames, n_in = x.shape
    n_out = layer.weight.shape[1]
    shape = (n_streams, n_frames, n_out)
    total = torch.empty(shape if wants_sum else (0,), dtype=torch.float32, device=x.device)
    active = torch.empty((0,) if activation is None else shape, dtype=x.dtype, device=x.device)
    frames, channels = _blocks(n_streams * n_frames, n_out)
    depth = math.gcd(n_in, 64)
    assert x.is_contiguous() and all(each.is_contiguous() for each in added)
    assert len(added) <= MOST_ADDED
    inputs = x, layer.weight, layer.bias, *added, *(None,) * (MOST_ADDED - len(added))
    outputs = total if wants_sum else None, None if activation is None else active
    alpha, slope = (activation, 0.0) if isinstance(activation, Tensor) else (None, activation)
    sizes = lengths.stride(0), n_frames, layer.taps, layer.dilation, n_in, n_out
    tile = {"FRAMES": frames, "CHANNELS": channels, "DEPTH": depth}
    tile["num_warps"] = 8 if frames * channels > 64 * 128 else 4
    tile["num_stages"] = fitting_stages(x, 3, depth * (frames + channels) * x.element_size())
    grid = triton.cdiv(n_frames, frames), n_out // channels, n_streams
    _convolve_blocks[grid](*inputs, *outputs, alpha, lengths, *sizes, factor, slope, **tile)
    return total, active


def _blocks(n_rows: int, n_out: int) -> tuple[int, int]:
    """Frames and channels of one program: large blocks if there are enough of them."""
    channels = math.gcd(n_out, 128)
    for frames in (128, 64):
        if n_rows // frames * (n_out // channels) >= MANY_PROGRAMS:
            return frames, channels
    return 32, math.gcd(n_out, 64)


def upsample(x: Tensor, layer: Upsampling, lengths: Tensor) -> Tensor:
    """Upsample a signal [S, T, C], zero beyond a stream's end, to float32 [S, T * rate, C_out]."""
    if layer.packed is not None and runs_kernels(x):
        wide, _ = _launch_convolve(x, layer.packed, lengths, (), 1.0, None, True)
        whole = wide[:, :, : layer.rate * layer.out_channels]  # the kernel pads to a whole block
        return whole.unflatten(2, (layer.rate, -1)).flatten(1, 2)
    weight, bias = layer.weight.to(x.dtype), layer.bias
    assert bias is not None and not isinstance(layer.padding, str)
    y = F.conv_transpose1d(
        x.transpose(1, 2), weight, bias.to(x.dtype), stride=layer.stride, padding=layer.padding
    )
    return _in_order(y)


def _in_order(y: Tensor) -> Tensor:
    """Return [S, C, T] as float32 [S, T, C], contiguous where kernels read it."""
    signal = y.transpose(1, 2).float()
    return signal.contiguous() if runs_kernels(signal) else signal
