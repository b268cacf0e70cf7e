"""SigLIP tower over slices of any aspect ratio (`vpm.*`), and the resampler behind it.

Patch vectors go in; the tower gives a feature per patch, the resampler a fixed number of vectors
per slice. Pictures of a batch never see each other.

Source: docs/specification/model.md#1.4, #1.5 and #4.2; SigLIP (arXiv:2303.15343), NaViT
(arXiv:2307.06304).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.kernels.device import cached_tensor
from MiniCPMO45.kernels.products import linear_gelu
from MiniCPMO45.model.transformer import DenseAttention, EncoderLayer, SelfAttention, run_layers

PatchSize = tuple[int, int]
"""Rows and columns of patches of one slice."""

COORDINATE_END = 1 - 1e-6  # keeps rounding from adding a coordinate; section 1.4
MAX_PERIOD = 10_000.0  # of the sin-cos table; section 1.5
TABLE_STEP = 70  # patches; the table grows in whole steps so that few lengths exist
CACHED_SIDES = 4096
CACHED_LAYOUTS = 64  # batches; live video repeats a few shapes all the time
CACHED_TABLES = 32


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """Coordinates of every patch of a batch of B slices, padded to L patches.

    Grids are cached by value and must never be written to. `rows` and `cols` are int64 [B, L].

    Attributes:
        ids: int64 [B, L], row of the vision tower's position table, 0 in the padding.
        mask: bool [B, 1, 1, L], True at patches; None when nothing is padded.
        codes: [longest side or more, H / 2], `sincos_table` for the resampler of width H.
    """

    ids: Tensor
    rows: Tensor
    cols: Tensor
    mask: Tensor | None
    codes: Tensor


def patch_grid(
    sizes: Sequence[PatchSize], length: int, *, buckets: int, width: int, like: Tensor
) -> PatchGrid:
    """Return the coordinates of a batch.

    `length` is the padded length L; `buckets` the side of the position table, `width` the
    resampler's, H.

    Raises:
        ValueError: a size is empty or does not fit into `length`.
    """
    key = tuple((int(rows), int(cols)) for rows, cols in sizes)
    ids, rows, cols, mask = _layout(key, length, buckets, like.device)
    longest = max(max(size) for size in key)
    return PatchGrid(ids, rows, cols, mask, side_codes(longest, width, like))


def side_codes(longest: int, width: int, like: Tensor) -> Tensor:
    """Return codes of the positions along a side: [longest or more, width / 2]."""
    length = -(-longest // TABLE_STEP) * TABLE_STEP
    return _codes(length, width // 2, like.device, like.dtype)


@lru_cache(maxsize=CACHED_SIDES)
def position_buckets(count: int, buckets: int) -> tuple[int, ...]:
    """Bucket of each of `count` patches along a side that the position table splits in `buckets`.

    Not `i * buckets // count`: the coordinates are float32 numbers `i * float32(1 / count)` and
    rounding moves some of them down by one bucket (for 70 buckets: counts 25, 49, 50, 55, 58, …).
    The checkpoint was trained with that rounding.
    """
    if count < 1:
        raise ValueError(f"a side needs at least one patch, got {count}")
    # the step is rounded to float32 first, the borders are not: that is what was trained with
    step = float(np.float32(1) / np.float32(count))
    coordinates = torch.arange(0, COORDINATE_END, step, dtype=torch.float32, device="cpu")
    borders = torch.arange(1 / buckets, 1, 1 / buckets, dtype=torch.float32, device="cpu")
    return tuple(torch.bucketize(coordinates, borders, right=True).tolist())


def sincos_table(length: int, width: int) -> np.ndarray:
    """Sine codes, then cosine codes, of the positions 0 … length - 1: float32 [length, width].

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
def _codes(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return cached_tensor(sincos_table(length, width), device, dtype)


@lru_cache(maxsize=CACHED_LAYOUTS)
def _layout(
    sizes: tuple[PatchSize, ...], length: int, buckets: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Position ids, rows, columns and mask."""
    rows = np.zeros((len(sizes), length), dtype=np.int64)
    ids, cols = np.zeros_like(rows), np.zeros_like(rows)
    mask = np.zeros(rows.shape, dtype=bool)
    for index, (n_rows, n_cols) in enumerate(sizes):
        count = n_rows * n_cols
        if n_rows < 1 or n_cols < 1 or count > length:
            raise ValueError(f"{n_rows}x{n_cols} patches do not fit into a length of {length}")
        rows[index, :count] = np.repeat(np.arange(n_rows), n_cols)
        cols[index, :count] = np.tile(np.arange(n_cols), n_rows)
        by_row = np.array(position_buckets(n_rows, buckets))[rows[index, :count]]
        by_col = np.array(position_buckets(n_cols, buckets))[cols[index, :count]]
        ids[index, :count] = by_row * buckets + by_col
        mask[index, :count] = True
    padded = None if mask.all() else cached_tensor(mask[:, None, None, :], device)
    ids_there, rows_there, cols_there = (cached_tensor(each, device) for each in (ids, rows, cols))
    return ids_there, rows_there, cols_there, padded


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
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(linear_gelu(x, self.fc1.weight, self.fc1.bias))


class SiglipEncoderLayer(EncoderLayer):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.self_attn = SelfAttention(width, config.num_attention_heads, key_bias=True)
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.mlp = SiglipMLP(config)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)

    @property
    def norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        return self.layer_norm1, self.layer_norm2

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class SiglipEncoder(nn.Module):
    """Holds the layers under the checkpoint's name."""

    def __init__(self, config: VisionConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SiglipEncoderLayer(config) for _ in range(num_layers))


class SiglipVisionTransformer(nn.Module):
    """The vision tower: one feature per patch, no pooling."""

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
        """Encode a batch of patches [B, L, 588]: [B, L, D]; rows in the padding mean nothing.

        `ids` [B, L] and `mask` are those of a `PatchGrid`.
        """
        x = self.embeddings(patches, ids)
        attention = DenseAttention(self.heads, mask)
        return run_layers(self.encoder.layers, x, attention, self.post_layernorm)


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
        """Attend from queries [Q, H], the same for every slice, to keys [B, L, H]: [B, Q, H].

        The mask, bool [B, 1, 1, L], is True where a key counts.
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
    """Learned queries that read one slice each time, for a language model of width H (`embed_dim`).

    Raises:
        ValueError: H is no multiple of 4, or the heads do not divide it.
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
        """Condense features [B, L, kv_dim], of which padding is ignored, to [B, num_queries, H]."""
        kv = self.ln_kv(self.kv_proj(x))  # [B, L, H]
        place = torch.cat([grid.codes[grid.cols], grid.codes[grid.rows]], dim=-1)  # [B, L, H]
        mixed = self.attn(self.ln_q(self.query), kv + place, kv, grid.mask)
        return self.ln_post(mixed) @ self.proj  # [B, Q, H]
