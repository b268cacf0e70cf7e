"""Layers of the causal vocoder; every one takes what lies before its input from a tape.

Weights only: where a stream stands is told by the tape, never by a module.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

F0_LAYERS = 5
SNAKE_EPS = 1e-9


class Snake(nn.Module):
    """`x + sin(a x)^2 / a` with one a per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, T] to [B, C, T]."""
        alpha = self.alpha[:, None]
        return x + torch.sin(x * alpha).square() / (alpha + SNAKE_EPS)


class ContextTape:
    """The ends of what every convolution saw before, in the order the convolutions run.

    One pass over one piece of a stream makes a new tape from the last one.

    Attributes:
        new: the contexts for the next piece, filled while a pass runs.
    """

    def __init__(self, old: list[Tensor]) -> None:
        """Begin a pass.

        Args:
            old: the previous pass's `new`; empty at the start of a stream.
        """
        self._old = old
        self.new: list[Tensor] = []

    def extend(self, x: Tensor, start_zeros: int, keep: int) -> Tensor:
        """Put the stored context before `x` and store the end of the result.

        Args:
            x: [B, C, T].
            start_zeros: zeros that stand for the past at the start of a stream.
            keep: how much of the end the next piece needs.

        Returns:
            [B, C, context + T].
        """
        if self._old:
            left = self._old[len(self.new)]
        else:
            left = x.new_zeros(x.shape[0], x.shape[1], start_zeros)
        joined = torch.cat((left, x), dim=2)
        # A copy, because a view would keep the whole piece in memory.
        self.new.append(joined[:, :, joined.shape[2] - keep :].clone())
        return joined


class LookAheadConv(nn.Conv1d):
    """A convolution over the present and the future; the caller adds what comes after."""

    def __init__(self, channels_in: int, channels_out: int, look_right: int) -> None:
        super().__init__(channels_in, channels_out, look_right + 1)

    @property
    def look_right(self) -> int:
        return self.kernel_size[0] - 1

    def forward(self, x: Tensor) -> Tensor:
        """Convolve [B, C, T + look_right] to [B, C_out, T], in the dtype of the input."""
        return _convolve(self, x)


class CausalConv(nn.Conv1d):
    """A convolution over the present and the past."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel_size: int, dilation: int = 1
    ) -> None:
        super().__init__(channels_in, channels_out, kernel_size, dilation=dilation)

    def forward(self, x: Tensor, tape: ContextTape) -> Tensor:  # type: ignore[override]
        """Convolve [B, C, T] to [B, C_out, T], in the dtype of the input."""
        reach = (self.kernel_size[0] - 1) * self.dilation[0]
        return _convolve(self, tape.extend(x, reach, reach))


class CausalUpsample(nn.Conv1d):
    """Repeats every frame, then smooths the steps with a convolution over the past."""

    def __init__(self, channels_in: int, channels_out: int, kernel_size: int, factor: int) -> None:
        super().__init__(channels_in, channels_out, kernel_size)
        self.factor = factor

    def forward(self, x: Tensor, tape: ContextTape) -> Tensor:  # type: ignore[override]
        """Convolve [B, C, T] to [B, C_out, T * factor]."""
        reach = self.kernel_size[0] - 1
        return _convolve(self, tape.extend(x.repeat_interleave(self.factor, dim=2), reach, reach))


class CausalDownsample(nn.Conv1d):
    """One output for every `stride` inputs, or a plain 1x1 convolution where the stride is 1."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__(channels_in, channels_out, 1 if stride == 1 else 2 * stride, stride)

    def forward(self, x: Tensor, tape: ContextTape) -> Tensor:  # type: ignore[override]
        """Convolve [B, C, T] to [B, C_out, T // stride].

        The first piece of a stream brings one input more than a multiple of the stride.
        """
        stride = self.stride[0]
        return _convolve(self, tape.extend(x, stride - 1, self.kernel_size[0] - stride))


class CausalResBlock(nn.Module):
    """Pairs of convolutions around residual connections."""

    def __init__(self, channels: int, kernel_size: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            weight_norm(CausalConv(channels, channels, kernel_size, dilation))
            for dilation in dilations
        )
        self.convs2 = nn.ModuleList(
            weight_norm(CausalConv(channels, channels, kernel_size)) for _ in dilations
        )
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor, tape: ContextTape) -> Tensor:
        """Map [B, C, T] to the same shape."""
        layers = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for snake1, conv1, snake2, conv2 in layers:
            x = x + conv2(snake2(conv1(snake1(x), tape)), tape)
        return x


class CausalF0Predictor(nn.Module):
    """Fundamental frequency of every mel frame; looks three mel frames ahead.

    Runs in float64: the phase of the excitation adds up every error made here.
    """

    LOOK_RIGHT = 3
    KERNEL = 3

    def __init__(self, channels_in: int, channels: int, n_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            weight_norm(LookAheadConv(channels_in, channels, self.LOOK_RIGHT)),
            nn.ELU(),
        ]
        for _ in range(F0_LAYERS - 1):
            layers += [weight_norm(CausalConv(channels, channels, self.KERNEL)), nn.ELU()]
        self.condnet = nn.ModuleList(layers)
        self.classifier = nn.Linear(channels, n_classes)

    def forward(self, mel: Tensor, tape: ContextTape) -> Tensor:
        """Predict the frequency of each mel frame that has its future.

        Args:
            mel: [B, C, T + 3].
            tape: the stream so far.

        Returns:
            float64 [B, T] in Hz, not negative.
        """
        x = mel.double()
        for layer in self.condnet:
            x = layer(x, tape) if isinstance(layer, CausalConv) else layer(x)
        weight, bias = self.classifier.weight.double(), self.classifier.bias.double()
        return F.linear(x.transpose(1, 2), weight, bias).squeeze(-1).abs()


def _convolve(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """Convolve in the dtype of `x`, without padding."""
    bias = None if conv.bias is None else conv.bias.to(x.dtype)
    return F.conv1d(x, conv.weight.to(x.dtype), bias, conv.stride, 0, conv.dilation)
