"""SigLIP vision tower over slices of any aspect ratio (weights `vpm.*`).

Takes patch vectors, gives one feature per patch. Holds weights only; pictures of a batch never
see each other.

Source: docs/specification/model.md#1.4 and #4.2; SigLIP (arXiv:2303.15343), NaViT
(arXiv:2307.06304).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.encoder_layers import (
    Attention,
    DenseAttention,
    SelfAttention,
    add_norm,
    linear_tanh_gelu,
)

SUPPORTED_ACTIVATION = "gelu_pytorch_tanh"


class SiglipVisionEmbeddings(nn.Module):
    """Patch vectors plus learned positions."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.buckets = config.image_size // config.patch_size
        self.patch_embedding = nn.Conv2d(
            config.num_channels, config.hidden_size, config.patch_size, stride=config.patch_size
        )
        self.position_embedding = nn.Embedding(self.buckets**2, config.hidden_size)

    def forward(self, patches: Tensor, ids: Tensor) -> Tensor:
        """Embed `patches` [B, L, 588] at positions `ids` [B, L].

        A convolution whose stride is its kernel is a linear layer on each patch.
        """
        weight = self.patch_embedding.weight
        embedded = F.linear(
            patches.to(weight.dtype), weight.flatten(1), self.patch_embedding.bias
        )  # [B, L, D]
        return embedded + self.position_embedding(ids)


class SiglipMLP(nn.Module):
    """Two linear layers around a tanh-approximated GELU."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` [..., D] to [..., D]."""
        return self.fc2(linear_tanh_gelu(self.fc1, x))


class SiglipEncoderLayer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.self_attn = SelfAttention(width, config.num_attention_heads, key_bias=True)
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.mlp = SiglipMLP(config)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)

    def forward(
        self, x: Tensor, change: Tensor | None, attention: Attention, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Transform rows.

        Args:
            x: residual [B, L, D].
            change: what the layer before adds to it, likewise; None adds nothing.
            attention: which patches see which.
            layer: index of this layer.

        Returns:
            The residual, and what this layer adds to it.
        """
        x, y = add_norm(x, change, self.layer_norm1)
        x, y = add_norm(x, self.self_attn(y, attention, layer), self.layer_norm2)
        return x, self.mlp(y)


class SiglipEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: VisionConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SiglipEncoderLayer(config) for _ in range(num_layers))

    def forward(self, x: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        """Transform `x` [B, L, D]; returns the residual and what the last layer adds to it."""
        change: Tensor | None = None
        for index, layer in enumerate(self.layers):
            x, change = layer(x, change, attention, index)
        return x, change


class SiglipVisionTransformer(nn.Module):
    """The vision tower: one feature per patch, no pooling.

    Args:
        config: sizes.
        drop_last_layer: build without the last layer (`drop_vision_last_layer`).

    Raises:
        ValueError: the activation is not the one this tower implements.
    """

    def __init__(self, config: VisionConfig, *, drop_last_layer: bool = False) -> None:
        super().__init__()
        if config.hidden_act != SUPPORTED_ACTIVATION:
            raise ValueError(f"vision activation {config.hidden_act!r} is not supported")
        num_layers = config.num_hidden_layers - (1 if drop_last_layer else 0)
        self.heads = config.num_attention_heads
        self.embeddings = SiglipVisionEmbeddings(config)
        self.encoder = SiglipEncoder(config, num_layers)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, patches: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode a batch of slices.

        Args:
            patches: [B, L, 3 * 14 * 14], any float dtype.
            ids: int64 [B, L], each patch's row of the position table, see `PatchGrid`.
            mask: bool [B, 1, 1, L], False in the padding; None when nothing is padded.

        Returns:
            [B, L, D] in the weights' dtype; rows in the padding mean nothing.
        """
        x = self.embeddings(patches, ids)
        x, change = self.encoder(x, DenseAttention(self.heads, mask))
        return add_norm(x, change, self.post_layernorm)[1]
