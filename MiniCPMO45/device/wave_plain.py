"""Plain PyTorch twins of the waveform generator's kernels, same signatures, any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.device.wave_layers import Activation, PackedConvolution
from MiniCPMO45.token2wav.hift import LARGEST_MAGNITUDE, SNAKE_EPS
from MiniCPMO45.token2wav.source import HarmonicSource

SMALLEST_ENVELOPE = 1e-11  # below it no window has reached a sample, as in torch.istft


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
    weight = layer.weight.unflatten(0, (layer.taps, -1)).permute(2, 1, 0)  # [C_out, C_in, taps]
    reach = (layer.taps - 1) // 2 * layer.dilation
    y = F.conv1d(
        x.transpose(1, 2), weight, layer.bias.to(x.dtype), padding=reach, dilation=layer.dilation
    )
    total = y.transpose(1, 2).float().contiguous()
    for each in added:
        total = total + each
    if factor != 1.0:
        total = total * factor
    if activation is None:
        return total, x.new_empty(0)
    if activation.alpha is not None:
        active = _snake(total, activation.alpha)
    else:
        active = F.leaky_relu(total, activation.slope)
    active = (active * inside(active, lengths)).to(x.dtype)
    return total if wants_sum else total.new_empty(0), active


def branch(
    x: Tensor, upsampled: Tensor | None, alphas: Tensor, lengths: Tensor, dtype: torch.dtype
) -> Tensor:
    """See `wave_ops.branch`."""
    if upsampled is not None:
        if upsampled.shape[1] < x.shape[1]:
            upsampled = torch.cat((upsampled[:, 1:2], upsampled), dim=1)
        x += upsampled
    counts = inside(x, lengths)
    return torch.stack([(_snake(x, alpha) * counts).to(dtype) for alpha in alphas])


def excite(source: HarmonicSource, f0: Tensor, noise: Tensor) -> Tensor:
    """See `wave_ops.excite`."""
    return source(f0, noise)[:, 0]


def polar(x: Tensor, n_columns: Tensor, n_bins: int) -> Tensor:
    """See `wave_ops.polar`."""
    magnitude = x[:, :, :n_bins].exp().clamp(max=LARGEST_MAGNITUDE)
    angle = x[:, :, n_bins : 2 * n_bins].sin()
    parts = torch.cat((magnitude * angle.cos(), magnitude * angle.sin()), dim=2)
    return parts * inside(parts, n_columns)


def overlap_add(pieces: Tensor, n_columns: Tensor, squared_window: Tensor, hop: int) -> Tensor:
    """See `wave_ops.overlap_add`."""
    half = pieces.shape[2] // 2
    windows = inside(pieces, n_columns) * squared_window
    wave, envelope = _sum_shifted(pieces, hop), _sum_shifted(windows, hop)
    envelope = torch.where(envelope > SMALLEST_ENVELOPE, envelope, 1.0)
    return (wave / envelope)[:, half : wave.shape[1] - half]


def inside(x: Tensor, lengths: Tensor) -> Tensor:
    """Ones before a stream's end, zeros behind it, for x [S, T, C]: [S, T, 1]."""
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None].to(x.dtype)


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    return x + torch.sin(x * alpha).square() / (alpha + SNAKE_EPS)


def _sum_shifted(pieces: Tensor, hop: int) -> Tensor:
    """Sum pieces [S, columns, n_fft] one hop apart: [S, hop * (columns - 1) + n_fft]."""
    parts = pieces.unflatten(2, (-1, hop))  # [S, columns, n_fft / hop, hop]
    last = parts.shape[2] - 1
    shifted = [F.pad(parts[:, :, index], (0, 0, index, last - index)) for index in range(last + 1)]
    return torch.stack(shifted).sum(0).flatten(1)
