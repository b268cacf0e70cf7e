"""Weights of the waveform generator's convolutions, laid out channel by channel.

Holds tensors only; what is done with them is the business of `wave_ops`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.device.packed_linear import all_of
from MiniCPMO45.token2wav.hift import ResBlock, Snake

CHANNEL_STEP = 32  # the kernels' smallest block; missing channels are zeros
UPSAMPLING_TAPS = 3  # inputs one output of an upsampling convolution can see


@dataclass(frozen=True)
class Activation:
    """What is done to a signal before the next convolution.

    Attributes:
        alpha: of a Snake, float32 [C]; None for a leaky ReLU.
        slope: of the leaky ReLU.
    """

    alpha: Tensor | None = None
    slope: float = 0.0


@dataclass(frozen=True)
class PackedConvolution:
    """A convolution that gives as many frames as it takes, zeros around the signal.

    Attributes:
        weight: [taps * C_in, C_out].
        bias: float32 [C_out].
        taps: odd.
        dilation: frames between taps.
    """

    weight: Tensor
    bias: Tensor
    taps: int
    dilation: int

    @classmethod
    def of(cls, layer: nn.Conv1d, dtype: torch.dtype, *, step: int = 1) -> PackedConvolution:
        """Pack a convolution; zeros are added to its outputs up to a multiple of `step`."""
        weight = layer.weight.detach().permute(2, 1, 0)  # [taps, C_in, C_out]
        assert layer.bias is not None and layer.stride == (1,)
        missing = -weight.shape[2] % step
        return cls(
            F.pad(weight, (0, missing)).flatten(0, 1).to(dtype).contiguous(),
            F.pad(layer.bias.detach(), (0, missing)).float(),
            weight.shape[0],
            layer.dilation[0],
        )

    @classmethod
    def of_upsampling(cls, layer: nn.ConvTranspose1d, dtype: torch.dtype) -> PackedConvolution:
        """Pack a transposed convolution: the outputs of one input stand side by side.

        Output `rate * i + r` sees inputs i - 1, i and i + 1 at most, at kernel places
        `r + padding - rate * d` for input i + d.
        """
        weight = layer.weight.detach()  # [C_in, C_out, kernel]
        rate, padding, kernel = layer.stride[0], layer.padding[0], weight.shape[2]
        assert isinstance(padding, int) and layer.bias is not None
        assert padding <= rate and kernel <= 2 * rate + padding
        packed = weight.new_zeros(UPSAMPLING_TAPS, weight.shape[0], rate, weight.shape[1])
        for tap in range(UPSAMPLING_TAPS):
            for phase in range(rate):
                place = phase + padding - rate * (tap - 1)
                if 0 <= place < kernel:
                    packed[tap, :, phase] = weight[:, :, place]
        return cls(
            packed.flatten(2).flatten(0, 1).to(dtype).contiguous(),
            layer.bias.detach().float().repeat(rate),
            UPSAMPLING_TAPS,
            1,
        )


@dataclass(frozen=True)
class PackedResBlock:
    """Weights of a residual block.

    Attributes:
        alphas: Snakes in front of the convolutions, two by two, float32 [2 n, C].
        convolutions: two by two.
    """

    alphas: Tensor
    convolutions: tuple[PackedConvolution, ...]

    @classmethod
    def of(cls, block: ResBlock, dtype: torch.dtype) -> PackedResBlock:
        """Pack a block."""
        pairs = zip(block.activations1, block.activations2, strict=True)
        snakes = all_of(Snake, chain.from_iterable(pairs))
        layers = all_of(
            nn.Conv1d, chain.from_iterable(zip(block.convs1, block.convs2, strict=True))
        )
        return cls(
            torch.stack([snake.alpha.detach() for snake in snakes]).float(),
            tuple(PackedConvolution.of(layer, dtype) for layer in layers),
        )


def pack_strided(layer: nn.Conv1d) -> tuple[Tensor, Tensor]:
    """Weight of a strided convolution as a product over its taps side by side.

    Returns:
        float32 [kernel * C_in, C_out] and bias [C_out].
    """
    assert layer.bias is not None
    return layer.weight.detach().permute(2, 1, 0).flatten(0, 1).contiguous(), layer.bias.detach()
