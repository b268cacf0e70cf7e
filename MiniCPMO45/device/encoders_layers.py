"""Weights of a pre-norm transformer layer as both encoders have it, packed for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from MiniCPMO45.device.packed_linear import Affine, PackedLinear, pack_norm


@dataclass(frozen=True)
class PackedLayer:
    """Weights of one layer; only queries, keys and values are copied.

    Attributes:
        norms: scale and shift in front of attention and feed-forward, float32 [width].
        qkv: queries, keys and values.
        out: output projection of the attention.
        up: first layer of the feed-forward.
        down: second layer.
    """

    norms: tuple[Affine, Affine]
    qkv: PackedLinear
    out: PackedLinear
    up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(
        cls, norms: tuple[nn.LayerNorm, nn.LayerNorm], qkv: Sequence[nn.Linear], *others: nn.Linear
    ) -> PackedLayer:
        """Pack a layer.

        Args:
            norms: in front of attention and feed-forward.
            qkv: queries, keys and values; a missing bias is zeros.
            others: output projection, both layers of the feed-forward.
        """
        dtype = qkv[0].weight.dtype
        weights = [linear.weight.detach() for linear in qkv]
        biases = [
            weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()
            for weight, linear in zip(weights, qkv, strict=True)
        ]
        return cls(
            (pack_norm(norms[0]), pack_norm(norms[1])),
            PackedLinear.of(torch.cat(weights), torch.cat(biases), dtype),
            *(PackedLinear.of(linear.weight, linear.bias, dtype) for linear in others),
        )
