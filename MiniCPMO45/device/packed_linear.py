"""Weights as the device computes with them: linear layers, convolutions as such, norms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

M = TypeVar("M", bound=nn.Module)
Affine = tuple[Tensor, Tensor]  # scale and shift of a norm


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


def pack_norm(norm: nn.LayerNorm) -> Affine:
    """Scale and shift, float32 [width] each."""
    return norm.weight.detach().float(), norm.bias.detach().float()


def all_of(kind: type[M], modules: Iterable[nn.Module]) -> list[M]:
    """Return modules as what they are; torch's containers only promise modules."""
    found = list(modules)
    assert all(isinstance(module, kind) for module in found)
    return found  # type: ignore[return-value]
