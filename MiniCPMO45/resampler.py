"""Condenses the features of a slice into a fixed number of vectors (weights `resampler.*`).

One cross-attention from learned queries to the patches. Holds weights only; the position table is
computed, not stored.

Source: docs/specification/model.md#1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.patch_grid import PatchSize, cached_tensor, patch_layout

LAYER_NORM_EPS = 1e-6  # section 1.5
MAX_PERIOD = 10_000.0  # of the sin-cos table; section 1.5
TABLE_STEP = 70  # patches; the table grows in whole steps so that few lengths exist
CACHED_TABLES = 32


def sincos_table(length: int, width: int) -> np.ndarray:
    """Sine and cosine codes of the positions 0 … length - 1.

    Args:
        length: positions.
        width: channels, even: the first half is sine, the second cosine.

    Returns:
        float32 [length, width].

    Raises:
        ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"a sin-cos code needs an even width, got {width}")
    half = width // 2
    exponent = np.arange(half, dtype=np.float32) / np.float32(half)
    frequency = (np.float32(1) / np.float32(MAX_PERIOD) ** exponent).astype(np.float32)
    angle = np.arange(length, dtype=np.float32)[:, None] * frequency[None, :]  # [length, half]
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)  # [length, width]


@lru_cache(maxsize=CACHED_TABLES)
def _table(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return cached_tensor(sincos_table(length, width), device, dtype)


class ResamplerAttention(nn.Module):
    """Multi-head attention with packed input weights, named as in torch's own module."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"{num_heads} heads do not divide width {width}")
        self.head_dim = width // num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from queries to keys.

        Args:
            query: [Q, H], the same for every slice.
            key: [B, L, H].
            value: [B, L, H].
            mask: bool [B, 1, 1, L], True where a key counts, or None.

        Returns:
            [B, Q, H].
        """
        q_weight, k_weight, v_weight = self.in_proj_weight.chunk(3)
        q_bias, k_bias, v_bias = self.in_proj_bias.chunk(3)
        q = self._split(F.linear(query, q_weight, q_bias)[None])  # [1, heads, Q, head_dim]
        mixed = F.scaled_dot_product_attention(
            q.expand(key.shape[0], -1, -1, -1),
            self._split(F.linear(key, k_weight, k_bias)),
            self._split(F.linear(value, v_weight, v_bias)),
            attn_mask=mask,
        )  # [B, heads, Q, head_dim]
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # [B, Q, H]

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, heads, L, head_dim]


class Resampler(nn.Module):
    """Learned queries that read one slice each time.

    Args:
        num_queries: vectors per slice.
        embed_dim: width H of the language model, a multiple of 4.
        kv_dim: width of the vision features.
        num_heads: attention heads; divides `embed_dim`.

    Raises:
        ValueError: the widths do not divide as required.
    """

    def __init__(self, num_queries: int, embed_dim: int, kv_dim: int, num_heads: int) -> None:
        super().__init__()
        if embed_dim % 4:  # two axes, sine and cosine each
            raise ValueError(f"resampler width must be a multiple of 4, got {embed_dim}")
        self.query = nn.Parameter(torch.zeros(num_queries, embed_dim))
        self.proj = nn.Parameter(torch.empty(embed_dim, embed_dim))
        self.kv_proj = nn.Linear(kv_dim, embed_dim, bias=False)
        self.attn = ResamplerAttention(embed_dim, num_heads)
        self.ln_q = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.ln_kv = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.ln_post = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        nn.init.normal_(self.query, std=0.02)
        nn.init.normal_(self.proj, std=embed_dim**-0.5)

    def forward(self, x: Tensor, sizes: Sequence[PatchSize]) -> Tensor:
        """Condense a padded batch of slices.

        Args:
            x: [B, L, kv_dim] features; rows in the padding are ignored.
            sizes: rows and columns of each slice; rows * cols <= L.

        Returns:
            [B, num_queries, H] in the dtype of the weights.

        Raises:
            ValueError: a size does not fit, or there is not one size per slice.
        """
        if len(sizes) != x.shape[0]:
            raise ValueError(f"{len(sizes)} sizes for {x.shape[0]} slices")
        layout = patch_layout(sizes, x.shape[1], x.device)
        longest = max(max(size) for size in sizes)
        length = -(-longest // TABLE_STEP) * TABLE_STEP
        table = _table(length, self.query.shape[1] // 2, x.device, x.dtype)
        return self.condense(x, table, layout.rows, layout.cols, layout.mask)

    def condense(
        self, x: Tensor, table: Tensor, rows: Tensor, cols: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The part of `forward` that is tensors only and so can be captured or compiled.

        Args:
            x: [B, L, kv_dim].
            table: [longest side, H / 2], `sincos_table` in the dtype of `x`.
            rows: int64 [B, L], row of each patch.
            cols: int64 [B, L], column of each patch.
            mask: bool [B, 1, 1, L], True where a key counts, or None.

        Returns:
            [B, num_queries, H].
        """
        kv = self.ln_kv(self.kv_proj(x))  # [B, L, H]
        place = torch.cat([table[cols], table[rows]], dim=-1)  # [B, L, H]
        mixed = self.attn(self.ln_q(self.query), kv + place, kv, mask)
        return self.ln_post(mixed) @ self.proj  # [B, Q, H]
