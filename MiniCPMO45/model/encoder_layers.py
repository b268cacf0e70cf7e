"""What the pre-norm transformer layers of both encoders are made of.

On a card, without gradients, a residual is added and normalised by one kernel. Otherwise the same
functions compute with PyTorch alone, out of place, so that gradients can be recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.kernels.device import runs_kernels
from MiniCPMO45.kernels.stream_norms import gated_norm


class Attention(Protocol):
    """Decides which rows of a batch attend to which."""

    def buffer(self, layer: int) -> Tensor | None:
        """Return where a layer's queries, keys and values are to be written, if that matters."""

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Attend.

        Args:
            layer: index of the layer.
            qkv: queries, keys and values [B, T, 3 * heads * d].

        Returns:
            [B, T, heads * d].
        """


@dataclass(frozen=True, eq=False)
class DenseAttention:
    """Every row attends to the rows of its own batch item that a mask allows.

    Attributes:
        heads: attention heads.
        mask: bool, broadcast to [B, heads, T, T], True where attention is allowed; or None.
    """

    heads: int
    mask: Tensor | None

    def buffer(self, layer: int) -> None:
        """Nothing is kept."""

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """See `Attention`."""
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)  # [B, heads, T, d]
        return mixed.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Projections of one self-attention; one product makes queries, keys and values.

    Args:
        width: of the rows.
        heads: attention heads; divides the width.
        key_bias: whether keys have a bias.

    Raises:
        ValueError: the heads do not divide the width.
    """

    def __init__(self, width: int, heads: int, *, key_bias: bool) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide width {width}")
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=key_bias)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        self._fused: tuple[Tensor, Tensor] | None = None

    def forward(self, rows: Tensor, attention: Attention, layer: int) -> Tensor:
        """Attend among normalised rows [B, T, width]; returns the branch to be added."""
        weight, bias = self._joined()
        into = attention.buffer(layer)
        if into is None:
            qkv = F.linear(rows, weight, bias)
        else:
            torch.addmm(bias, rows.flatten(0, 1), weight.T, out=into.flatten(0, 1))
            qkv = into
        return self.out_proj(attention.attend(layer, qkv))

    @torch.inference_mode(False)
    @torch.no_grad()
    def fuse(self) -> None:
        """Lay the three weights side by side; the parameters become views of one tensor."""
        if not self._is_fused():
            self._fused = weight, bias = self._concatenated()
            width = len(weight) // 3
            for index, linear in enumerate((self.q_proj, self.k_proj, self.v_proj)):
                part = slice(index * width, (index + 1) * width)
                linear.weight.data = weight[part]
                if linear.bias is not None:
                    linear.bias.data = bias[part]

    def _joined(self) -> tuple[Tensor, Tensor]:
        if self._fused is None or torch.is_grad_enabled() or not self._is_fused():
            return self._concatenated()
        return self._fused

    def _is_fused(self) -> bool:
        """Whether the parameters still are the views; a conversion replaces their memory."""
        if self._fused is None:
            return False
        return self._fused[0].data_ptr() == self.q_proj.weight.data_ptr()

    def _concatenated(self) -> tuple[Tensor, Tensor]:
        q, k, v = self.q_proj, self.k_proj, self.v_proj
        key_bias = torch.zeros_like(q.bias) if k.bias is None else k.bias
        return torch.cat((q.weight, k.weight, v.weight)), torch.cat((q.bias, key_bias, v.bias))


def fuse_attention(module: nn.Module) -> None:
    """Fuse every self-attention inside a module, once its weights are loaded."""
    for part in module.modules():
        if isinstance(part, SelfAttention):
            part.fuse()


class EncoderLayer(nn.Module, ABC):
    """One pre-norm transformer layer; a subclass gives its parts their published names."""

    self_attn: SelfAttention

    @property
    @abstractmethod
    def norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        """The norms before the attention and before the feed-forward part."""

    @abstractmethod
    def feed_forward(self, x: Tensor) -> Tensor:
        """Map normalised rows [B, T, width] to what is added to them."""

    def forward(
        self, x: Tensor, change: Tensor | None, attention: Attention, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Transform rows.

        Args:
            x: residual [B, T, width].
            change: what the layer before adds to it, likewise; None adds nothing.
            attention: which rows see which.
            layer: index of this layer.

        Returns:
            The residual, and what this layer adds to it.
        """
        before, between = self.norms
        x, y = add_norm(x, change, before)
        x, y = add_norm(x, self.self_attn(y, attention, layer), between)
        return x, self.feed_forward(y)


def run_layers(
    layers: nn.ModuleList, x: Tensor, attention: Attention, norm: nn.LayerNorm
) -> Tensor:
    """Run rows [B, T, width], contiguous, through a stack of `EncoderLayer` and its last norm."""
    change: Tensor | None = None
    for index, layer in enumerate(layers):
        x, change = layer(x, change, attention, index)
    return add_norm(x, change, norm)[1]


def add_norm(x: Tensor, change: Tensor | None, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Add a branch to the residual and normalise the sum.

    Args:
        x: residual [..., width] contiguous; on a card it may be changed in place.
        change: the branch [..., width]; None adds nothing.
        norm: the norm.

    Returns:
        The sum and its norm, both in the dtype of `x`.
    """
    if runs_kernels(x):
        affine = norm.weight, norm.bias
        return x, gated_norm(x, change, None, affine, norm.eps, x.dtype)
    x = x if change is None else x + change
    return x, norm(x)


def linear_tanh_gelu(linear: nn.Linear, x: Tensor) -> Tensor:
    """Map x [..., in] to [..., out] and apply the tanh approximation of GELU, fused on a card."""
    if not x.is_cuda or torch.is_grad_enabled():
        return F.gelu(linear(x), approximate="tanh")
    flat = torch._addmm_activation(linear.bias, x.flatten(0, -2), linear.weight.T, use_gelu=True)
    return flat.unflatten(0, x.shape[:-1])
