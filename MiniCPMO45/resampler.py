"""Condenses the features of a slice into a fixed number of vectors (weights `resampler.*`).

One cross-attention from learned queries to the patches. Holds weights only.

Source: docs/specification/model.md#1.5.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.patch_grid import PatchGrid

LAYER_NORM_EPS = 1e-6  # section 1.5


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

    def forward(self, x: Tensor, grid: PatchGrid) -> Tensor:
        """Condense a batch of slices.

        Args:
            x: [B, L, kv_dim] features; rows in the padding are ignored.
            grid: where the patches lie.

        Returns:
            [B, num_queries, H] in the dtype of the weights.
        """
        kv = self.ln_kv(self.kv_proj(x))  # [B, L, H]
        place = torch.cat([grid.codes[grid.cols], grid.codes[grid.rows]], dim=-1)  # [B, L, H]
        mixed = self.attn(self.ln_q(self.query), kv + place, kv, grid.mask)
        return self.ln_post(mixed) @ self.proj  # [B, Q, H]
