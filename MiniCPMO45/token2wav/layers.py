"""Layers of the flow, computed in another type than stored, convolutions as products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class PackedLinear:
    """A linear layer in the type it is computed in.

    Attributes:
        weight: [out, in].
        bias: [out].
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> PackedLinear:
        """Convert; shares memory with the checkpoint's tensors where the type is theirs."""
        return cls(weight.detach().to(dtype).contiguous(), bias.detach().to(dtype))

    @classmethod
    def of_convolution(cls, convolution: nn.Conv1d, dtype: torch.dtype) -> PackedLinear:
        """Turn a convolution into a product over its taps side by side, the oldest first."""
        weight = convolution.weight.permute(0, 2, 1).flatten(1)  # [out, taps * in]
        assert convolution.bias is not None
        return cls.of(weight, convolution.bias, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        return F.linear(x, self.weight, self.bias)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Map [..., in] into `out` [..., out], contiguous, and return it."""
        torch.addmm(self.bias, x.flatten(0, -2), self.weight.T, out=out.flatten(0, -2))
        return out

    def gelu(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out] and apply GELU, approximated with tanh."""
        if not x.is_cuda:
            return F.gelu(self(x), approximate="tanh")
        flat = torch._addmm_activation(self.bias, x.flatten(0, -2), self.weight.T, use_gelu=True)
        return flat.unflatten(0, x.shape[:-1])


class Linear(nn.Linear):
    """A linear layer."""

    packed: PackedLinear | None = None

    def pack(self, dtype: torch.dtype) -> None:
        """Keep the weights in the type to compute in; shares memory where it is theirs."""
        self.packed = PackedLinear.of(self.weight, self.bias, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C_in] to [..., C_out]."""
        if self.packed is None:
            return super().forward(x)
        return self.packed(x.to(self.packed.weight.dtype))

    def gelu(self, x: Tensor) -> Tensor:
        """Map [..., C_in] to [..., C_out] and apply GELU, approximated with tanh."""
        if self.packed is None:
            return F.gelu(super().forward(x), approximate="tanh")
        return self.packed.gelu(x)


class TapConvolution(nn.Conv1d):
    """A convolution without padding, as one product over its taps side by side."""

    packed: PackedLinear | None = None

    def pack(self, dtype: torch.dtype) -> None:
        """Keep the weights as a matrix in the type to compute in."""
        self.packed = PackedLinear.of_convolution(self, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map [S, T + taps - 1, C_in] to [S, T, C_out]."""
        if self.packed is not None:
            x = x.to(self.packed.weight.dtype)
        n_taps = self.kernel_size[0]
        length = x.shape[1] - n_taps + 1
        return self.product(torch.cat([x[:, tap : tap + length] for tap in range(n_taps)], dim=2))

    def product(self, rows: Tensor) -> Tensor:
        """Map rows [..., taps * C_in], the oldest tap first, to [..., C_out]."""
        if self.packed is None:
            return F.linear(rows, self.weight.permute(0, 2, 1).flatten(1), self.bias)
        return self.packed(rows.to(self.packed.weight.dtype))


def pack_all(module: nn.Module, dtype: torch.dtype) -> None:
    """Pack every layer of this file in a module."""
    for each in module.modules():
        if isinstance(each, Linear | TapConvolution):
            each.pack(dtype)


def with_past(x: Tensor, tail: Tensor, n_frames: Tensor | None) -> tuple[Tensor, Tensor]:
    """Put the past in front of a chunk.

    Args:
        x: [S, T, C].
        tail: the frames before it [S, n, C].
        n_frames: frames of x that count, int64 [S, 1]; None if all do.

    Returns:
        Both joined [S, n + T, C], and the tail for the next chunk.
    """
    joined = torch.cat((tail, x), dim=1)
    if n_frames is None:
        return joined, joined[:, -tail.shape[1] :]
    places = n_frames + torch.arange(tail.shape[1], device=x.device)  # [S, n]
    return joined, joined.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))
