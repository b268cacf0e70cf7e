"""SigLIP vision tower over slices of any aspect ratio (weights `vpm.*`).

Takes patch vectors, gives one feature per patch. Holds weights only; pictures of a batch never
see each other.

Source: docs/specification/model.md#1.4 and #4.2; SigLIP (arXiv:2303.15343), NaViT
(arXiv:2307.06304).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.patch_grid import CACHED_LAYOUTS, PatchSize, cached_tensor, patch_layout

SUPPORTED_ACTIVATION = "gelu_pytorch_tanh"
COORDINATE_END = 1 - 1e-6  # keeps rounding from adding a coordinate; section 1.4
CACHED_SIDES = 4096


@lru_cache(maxsize=CACHED_SIDES)
def position_buckets(count: int, buckets: int) -> tuple[int, ...]:
    """Bucket of each of `count` patches along a side that the position table splits in `buckets`.

    Not `i * buckets // count`: the coordinates are float32 numbers `i * float32(1 / count)` and
    rounding moves some of them down by one bucket (for 70 buckets: counts 25, 49, 50, 55, 58, …).
    The checkpoint was trained with that rounding.

    Args:
        count: patches along the side, at least 1.
        buckets: rows (or columns) of the position table.

    Raises:
        ValueError: `count` is below 1.

    Source: docs/specification/model.md#1.4.
    """
    if count < 1:
        raise ValueError(f"a side needs at least one patch, got {count}")
    # the step is rounded to float32 first, the borders are not: that is what was trained with
    step = float(np.float32(1) / np.float32(count))
    coordinates = torch.arange(0, COORDINATE_END, step, dtype=torch.float32, device="cpu")
    borders = torch.arange(1 / buckets, 1, 1 / buckets, dtype=torch.float32, device="cpu")
    return tuple(torch.bucketize(coordinates, borders, right=True).tolist())


def position_ids(
    sizes: Sequence[PatchSize], length: int, buckets: int, device: torch.device
) -> Tensor:
    """Rows of the position table for a padded batch.

    Args:
        sizes: rows and columns of each slice.
        length: padded length L.
        buckets: side of the position table.
        device: where the result shall live.

    Returns:
        int64 [B, L], 0 in the padding. Cached: never write to it.
    """
    return _position_ids(tuple((int(r), int(c)) for r, c in sizes), length, buckets, device)


@lru_cache(maxsize=CACHED_LAYOUTS)
def _position_ids(
    sizes: tuple[PatchSize, ...], length: int, buckets: int, device: torch.device
) -> Tensor:
    ids = np.zeros((len(sizes), length), dtype=np.int64)
    for index, (rows, cols) in enumerate(sizes):
        by_row = np.array(position_buckets(rows, buckets))[:, None] * buckets
        by_col = np.array(position_buckets(cols, buckets))[None, :]
        ids[index, : rows * cols] = (by_row + by_col).ravel()
    return cached_tensor(ids, device)


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


class SiglipAttention(nn.Module):
    """Multi-head self-attention inside each slice."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        if width % config.num_attention_heads:
            raise ValueError(f"{config.num_attention_heads} heads do not divide width {width}")
        self.head_dim = width // config.num_attention_heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend within `x` [B, L, D]; `mask` [B, 1, 1, L] is True where a key counts."""
        mixed = F.scaled_dot_product_attention(
            self._split(self.q_proj(x)),
            self._split(self.k_proj(x)),
            self._split(self.v_proj(x)),
            attn_mask=mask,
        )  # [B, heads, L, head_dim]
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # [B, L, D]

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, heads, L, head_dim]


class SiglipMLP(nn.Module):
    """Two linear layers around a tanh-approximated GELU."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` [..., D] to [..., D]."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class SiglipEncoderLayer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.self_attn = SiglipAttention(config)
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp = SiglipMLP(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Transform `x` [B, L, D]; `mask` as in `SiglipAttention`."""
        x = x + self.self_attn(self.layer_norm1(x), mask)
        return x + self.mlp(self.layer_norm2(x))


class SiglipEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: VisionConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SiglipEncoderLayer(config) for _ in range(num_layers))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Transform `x` [B, L, D]; `mask` as in `SiglipAttention`."""
        for layer in self.layers:
            x = layer(x, mask)
        return x


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
        self.embeddings = SiglipVisionEmbeddings(config)
        self.encoder = SiglipEncoder(config, num_layers)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, patches: Tensor, sizes: Sequence[PatchSize]) -> Tensor:
        """Encode a padded batch of slices.

        Args:
            patches: [B, L, 3 * 14 * 14], any float dtype, zero in the padding.
            sizes: rows and columns of each slice; rows * cols <= L.

        Returns:
            [B, L, D] in the weights' dtype; rows in the padding mean nothing.

        Raises:
            ValueError: a size does not fit, or there is not one size per slice.
        """
        if len(sizes) != patches.shape[0]:
            raise ValueError(f"{len(sizes)} sizes for {patches.shape[0]} slices")
        length, device = patches.shape[1], patches.device
        mask = patch_layout(sizes, length, device).mask
        return self.encode(
            patches, position_ids(sizes, length, self.embeddings.buckets, device), mask
        )

    def encode(self, patches: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        """The part of `forward` that is tensors only and so can be captured or compiled.

        Args:
            patches: [B, L, 3 * 14 * 14].
            ids: int64 [B, L], rows of the position table.
            mask: bool [B, 1, 1, L], True where a key counts, or None.

        Returns:
            [B, L, D].
        """
        return self.post_layernorm(self.encoder(self.embeddings(patches, ids), mask))
