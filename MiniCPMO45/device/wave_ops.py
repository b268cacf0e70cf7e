"""The operations of the waveform generator: Triton kernels on a card, plain twins elsewhere.

Signals lie channel by channel in each sample, [S, T, C], and are zero behind a stream's end.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from MiniCPMO45.device import wave_plain
from MiniCPMO45.device.wave_layers import Activation, PackedConvolution
from MiniCPMO45.token2wav.source import HarmonicSource

SMALLEST_BLOCK = 16  # channels; what a tensor core takes at once
HAS_TRITON = find_spec("triton") is not None


def _waves(x: Tensor) -> ModuleType:
    if x.is_cuda and HAS_TRITON:
        from MiniCPMO45.device.kernels import waves

        return waves
    return wave_plain


def _transforms(x: Tensor) -> ModuleType:
    if x.is_cuda and HAS_TRITON:
        from MiniCPMO45.device.kernels import wave_transforms

        return wave_transforms
    return wave_plain


def convolve(
    x: Tensor,
    layer: PackedConvolution,
    lengths: Tensor,
    *,
    added: tuple[Tensor, ...] = (),
    factor: float = 1.0,
    activation: Activation | None = None,
    wants_sum: bool = True,
) -> tuple[Tensor, Tensor]:
    """Convolve, add what runs beside, and activate for the next convolution.

    Args:
        x: [S, T, C], zero behind a stream's end.
        layer: weights; as many frames come out as go in.
        lengths: frames that count, int64 [S].
        added: up to two float32 tensors [S, T, C_out] that are added to the result.
        factor: what the sum is multiplied with.
        activation: what the next convolution wants to be done first.
        wants_sum: whether the sum itself is needed.

    Returns:
        The sum, float32 [S, T, C_out], behind a stream's end anything; and the activated sum in
        the dtype of `x`, zero there. What was not asked for is empty.
    """
    channels = (x.shape[2], layer.weight.shape[1])
    fits = all(n % SMALLEST_BLOCK == 0 for n in channels)
    twin = _waves(x) if fits else wave_plain
    return twin.convolve(
        x,
        layer,
        lengths,
        added=added,
        factor=factor,
        activation=activation,
        wants_sum=wants_sum,
    )


def branch(
    x: Tensor, upsampled: Tensor | None, alphas: Tensor, lengths: Tensor, dtype: torch.dtype
) -> Tensor:
    """Add the upsampled signal, in place, and apply the Snake of every block that follows.

    Args:
        x: float32 [S, T, C]; becomes `x + upsampled`.
        upsampled: float32 [S, T or T - 1, C]; one frame too few is mirrored in front. None adds
            nothing.
        alphas: of each block, float32 [n, C].
        lengths: frames that count, int64 [S].
        dtype: of the result.

    Returns:
        [n, S, T, C], zero behind a stream's end.
    """
    return _waves(x).branch(x, upsampled, alphas, lengths, dtype)


def excite(source: HarmonicSource, f0: Tensor, noise: Tensor) -> Tensor:
    """Make the excitation.

    Args:
        source: weights.
        f0: fundamental in Hz, float32 [S, F].
        noise: standard normal draws [S, L, harmonics + 1].

    Returns:
        float32 [S, L].
    """
    return _transforms(f0).excite(source, f0, noise)


def polar(x: Tensor, n_columns: Tensor, n_bins: int) -> Tensor:
    """Turn log magnitudes and phases into real and imaginary parts.

    Args:
        x: float32 [S, columns, at least 2 * n_bins].
        n_columns: columns that count, int64 [S].
        n_bins: frequencies.

    Returns:
        float32 [S, columns, 2 * n_bins], zero behind a stream's end.
    """
    return _transforms(x).polar(x, n_columns, n_bins)


def overlap_add(pieces: Tensor, n_columns: Tensor, squared_window: Tensor, hop: int) -> Tensor:
    """Sum windowed pieces one hop apart and divide by the windows that reach each sample.

    Args:
        pieces: float32 [S, columns, n_fft].
        n_columns: columns that count, int64 [S].
        squared_window: float32 [n_fft].
        hop: samples between pieces, a divisor of n_fft.

    Returns:
        float32 [S, hop * (columns - 1)]: half a window is left out at either end.
    """
    return _transforms(pieces).overlap_add(pieces, n_columns, squared_window, hop)
