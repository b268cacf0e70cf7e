"""SigLIP vision tower for slices of any aspect ratio (`vpm.*`), and the resampler (`resampler.*`).

Slices of several pictures and sessions share a pass. On a GPU, passes have fixed shapes: the usual
numbers of patches run unpadded, others are padded to one length. Unusual slices, and all slices on
a CPU, run at their exact size. Source: docs/specification/model.md#1.4, #1.5 and #4.2; SigLIP
(arXiv:2303.15343), NaViT (arXiv:2307.06304).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.kernels.device import HAS_TRITON, Capturable, cached_tensor, pin, upload_array
from MiniCPMO45.kernels.products import dense_matrix_of, linear_gelu
from MiniCPMO45.model.transformer import (
    DenseAttention,
    EncoderLayer,
    SelfAttention,
    fuse_attention,
    run_layers,
)
from MiniCPMO45.processing.pictures import PATCH_SIDE, PATCH_VALUES, PixelSlice, Slice, patches_of

PatchSize = tuple[int, int]  # rows and columns of patches of one slice

COORDINATE_END = 1 - 1e-6  # keeps rounding from adding a coordinate; section 1.4
MAX_PERIOD = 10_000.0  # of the sin-cos table; section 1.5
TABLE_STEP = 70  # patches; table lengths are multiples of it
CACHED_SIDES = 4096
CACHED_LAYOUTS = 64  # batches; live video repeats a few shapes
CACHED_TABLES = 32


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """Patch coordinates of a batch of B slices, padded to L patches; cached and read-only."""

    ids: Tensor  # int64 [B, L], index into the tower's position table, 0 in the padding
    rows: Tensor  # int64 [B, L], inside the slice
    cols: Tensor  # int64 [B, L], inside the slice
    mask: Tensor | None  # bool [B, 1, 1, L], True at patches; None without padding
    codes: Tensor  # [longest side or more, H / 2], sin-cos codes for the resampler of width H


def patch_grid(
    sizes: Sequence[PatchSize], length: int, *, buckets: int, width: int, like: Tensor
) -> PatchGrid:
    """Return the coordinates of a batch padded to `length` patches.

    `buckets` is the side of the position table, `width` the resampler's.

    Raises:
        ValueError: a size is empty or does not fit into `length`.
    """
    places = _layout(tuple(sizes), length, buckets, like.device)
    return PatchGrid(*places, side_codes(max(map(max, sizes)), width, like))


@lru_cache(maxsize=CACHED_SIDES)
def position_buckets(count: int, buckets: int) -> tuple[int, ...]:
    """Return the bucket of the position table for each of `count` patches along a side.

    Not `i * buckets // count`: in training the coordinates were float32 `i * float32(1 / count)`,
    whose rounding moves some down by one bucket (for 70 buckets: counts 25, 49, 50, 55, 58, …).
    """
    if count < 1:
        raise ValueError(f"a side needs at least one patch, got {count}")
    # As in training, the step is rounded to float32 first and the borders are not.
    step = float(np.float32(1) / np.float32(count))
    coordinates = torch.arange(0, COORDINATE_END, step, dtype=torch.float32, device="cpu")
    borders = torch.arange(1 / buckets, 1, 1 / buckets, dtype=torch.float32, device="cpu")
    return tuple(torch.bucketize(coordinates, borders, right=True).tolist())


def side_codes(longest: int, width: int, like: Tensor) -> Tensor:
    """Return sin-cos codes of positions along a side: [longest or more, width / 2]."""
    length = -(-longest // TABLE_STEP) * TABLE_STEP
    return _codes(length, width // 2, like.device, like.dtype)


@lru_cache(maxsize=CACHED_TABLES)
def _codes(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    half = width // 2
    exponent = np.arange(half, dtype=np.float32) / np.float32(half)
    frequency = (np.float32(1) / np.float32(MAX_PERIOD) ** exponent).astype(np.float32)
    angle = np.arange(length, dtype=np.float32)[:, None] * frequency[None, :]  # [length, half]
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)  # [length, width]
    return cached_tensor(table, device, dtype)


@lru_cache(maxsize=CACHED_LAYOUTS)
def _layout(
    sizes: tuple[PatchSize, ...], length: int, buckets: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    places = np.zeros((3, len(sizes), length), dtype=np.int64)
    ids, rows, cols = places
    mask = np.zeros(ids.shape, dtype=bool)
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
    ids_there, rows_there, cols_there = cached_tensor(places, device)
    return ids_there, rows_there, cols_there, padded


class SiglipVisionEmbeddings(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.buckets = config.image_size // config.patch_size
        self.patch_embedding = nn.Conv2d(
            config.num_channels, config.hidden_size, config.patch_size, stride=config.patch_size
        )
        self.position_embedding = nn.Embedding(self.buckets**2, config.hidden_size)

    def forward(self, patches: Tensor, ids: Tensor) -> Tensor:
        """Embed patches [B, L, 588] at positions `ids` [B, L]: [B, L, D].

        With equal kernel and stride the convolution is a linear layer on each patch.
        """
        weight, bias = self.patch_embedding.weight, self.patch_embedding.bias
        embedded = F.linear(patches.to(weight.dtype), weight.flatten(1), bias)
        return embedded + self.position_embedding(ids)


class SiglipMLP(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(linear_gelu(x, dense_matrix_of(self.fc1), self.fc1.bias))


class SiglipEncoderLayer(EncoderLayer):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.self_attn = SelfAttention(width, config.num_attention_heads, key_bias=True)
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.mlp = SiglipMLP(config)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)
        self.norms = self.layer_norm1, self.layer_norm2

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class SiglipEncoder(nn.Module):
    def __init__(self, config: VisionConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SiglipEncoderLayer(config) for _ in range(num_layers))


class SiglipVisionTransformer(nn.Module):
    def __init__(self, config: VisionConfig, *, drop_last_layer: bool = False) -> None:
        super().__init__()
        if config.hidden_act != "gelu_pytorch_tanh":
            raise ValueError(f"vision activation {config.hidden_act!r} is not supported")
        num_layers = config.num_hidden_layers - (1 if drop_last_layer else 0)
        self.heads = config.num_attention_heads
        self.embeddings = SiglipVisionEmbeddings(config)
        self.encoder = SiglipEncoder(config, num_layers)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, patches: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode patches [B, L, 588] to [B, L, D]; `ids` and `mask` are those of a `PatchGrid`."""
        x = self.embeddings(patches, ids)
        attention = DenseAttention(self.heads, mask)
        return run_layers(self.encoder.layers, x, attention, self.post_layernorm)


LAYER_NORM_EPS = 1e-6  # section 1.5


class ResamplerAttention(nn.Module):
    """Multi-head attention with the packed weights of `nn.MultiheadAttention`."""

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
        """Attend from shared queries [Q, H] to keys [B, L, H] where the mask is True: [B, Q, H]."""
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
    """Cross-attention of learned queries over the features of a slice."""

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
        """Resample features [B, L, kv_dim] to [B, num_queries, H]."""
        kv = self.ln_kv(self.kv_proj(x))  # [B, L, H]
        position = torch.cat([grid.codes[grid.cols], grid.codes[grid.rows]], dim=-1)  # [B, L, H]
        mixed = self.attn(self.ln_q(self.query), kv + position, kv, grid.mask)
        return self.ln_post(mixed) @ self.proj  # [B, Q, H]


USUAL_COUNTS = (1024, 1032, 1036)  # patches of a picture of aspect ratio 1:1, 16:9 or 4:3
PADDED = 1088  # patches of a slice of any aspect ratio up to 10:1
LONGEST_SIDE = 140  # patches; twice the table's step
ROWS = (1, 2, 4, 8, 16)  # slices of a pass; the last bounds the memory


class SliceEncoder:
    def __init__(
        self,
        vision: SiglipVisionTransformer,
        resampler: Resampler,
        *,
        has_fixed_passes: bool | None = None,
        most_rows: int = ROWS[-1],
    ) -> None:
        """Fuse the weights; passes have fixed shapes, by default on a GPU only."""
        self.vision, self.resampler = vision, resampler
        self.device = vision.post_layernorm.weight.device
        is_on_card = self.device.type == "cuda"
        self._resizes_on_card = is_on_card and HAS_TRITON
        self._has_fixed = is_on_card if has_fixed_passes is None else has_fixed_passes
        self._rows = tuple(count for count in ROWS if count <= most_rows)
        self._fixed = cache(partial(FixedPass, self))
        fuse_attention(vision)

    @torch.no_grad()
    def encode(self, slices: Sequence[Slice]) -> list[Tensor]:
        """Return one tensor [num_queries, H] per slice, in order, in the dtype of the weights."""
        if not self._resizes_on_card:
            slices = patches_of(slices)
        by_shape: dict[tuple[int, bool], list[int]] = {}
        for index, each in enumerate(slices):
            by_shape.setdefault(self._shape_for(each.size), []).append(index)
        answers: dict[int, Tensor] = {}
        for (length, is_fixed), indices in by_shape.items():
            while indices:
                # A pass costs little beside its slices, so padding costs more than a second pass.
                count = next(n for n in reversed(self._rows) if n <= len(indices))
                batch, indices = indices[:count], indices[count:]
                encoded = self._encode(length, is_fixed, [slices[index] for index in batch])
                answers.update(zip(batch, encoded, strict=True))
        return [answers[index] for index in range(len(slices))]

    def prepare(self, slices: Sequence[Slice]) -> tuple[Slice, ...]:
        """Do the CPU part of `encode` ahead of it, on any thread.

        For a GPU, which resizes pictures itself, this is a copy to pinned memory.
        """
        if not self._resizes_on_card:
            return tuple(patches_of(slices))
        prepared: list[Slice] = []
        original = copy = np.empty(0, np.uint8)
        for each in slices:
            if isinstance(each, PixelSlice):
                if each.pixels is not original:  # consecutive slices of one picture share it
                    original, pinned = each.pixels, pin(each.pixels)
                    copy = pinned.numpy()
                each = replace(each, pixels=copy, pinned=pinned)
            prepared.append(each)
        return tuple(prepared)

    def warm_up(self) -> None:
        """Compile the resizing kernels."""
        side, pixels = PATCH_SIDE, np.zeros((PATCH_SIDE, PATCH_SIDE, 3), np.uint8)
        blank = PixelSlice(pixels, (side, side), (0, 0), (side, side))
        self.load([blank], torch.empty(1, 1, PATCH_VALUES, device=self.device))

    def pieces(self) -> list[Capturable[Tensor]]:
        lengths = (*USUAL_COUNTS, PADDED)
        return [self._fixed(length, count) for count in self._rows[::-1] for length in lengths]

    def forward(self, patches: Tensor, grid: PatchGrid) -> Tensor:
        """Encode patch vectors [B, L, 588]; returns [B, num_queries, H]."""
        return self.resampler(self.vision(patches, grid.ids, grid.mask), grid)

    def grid(self, sizes: Sequence[PatchSize], length: int) -> PatchGrid:
        """Return the coordinates of slices padded to `length` patches."""
        width, like = self.resampler.query.shape[1], self.vision.post_layernorm.weight
        buckets = self.vision.embeddings.buckets
        return patch_grid(sizes, length, buckets=buckets, width=width, like=like)

    def load(self, slices: Sequence[Slice], patches: Tensor) -> None:
        """Write patch vectors to float32 [B, L, 588], leaving padding unchanged."""
        pixels: np.ndarray | None = None
        picture = torch.empty(0)
        for row, each in zip(patches, slices, strict=False):
            if not isinstance(each, PixelSlice):
                row[: len(each.values)] = upload_array(each.values, self.device)
                continue
            from MiniCPMO45.kernels.picture_patches import write_patches

            if each.pixels is not pixels:  # consecutive slices of one picture share it
                pixels = each.pixels
                if each.pinned is None:
                    picture = upload_array(pixels, self.device)
                else:
                    picture = each.pinned.to(self.device, non_blocking=True)
            write_patches(picture, each, row)

    def _shape_for(self, size: PatchSize) -> tuple[int, bool]:
        """Return the padded length of a slice, and whether its pass has a fixed shape."""
        count = math.prod(size)
        if not self._has_fixed or count > PADDED or max(size) > LONGEST_SIDE:
            return count, False
        return (count if count in USUAL_COUNTS else PADDED), True

    def _encode(self, length: int, is_fixed: bool, slices: Sequence[Slice]) -> Tensor:
        if is_fixed:
            fixed = self._fixed(length, len(slices))
            fixed.load(slices)
            return fixed.run().clone()  # the next replay overwrites the original
        patches = torch.empty(len(slices), length, PATCH_VALUES, device=self.device)
        self.load(slices, patches)
        return self.forward(patches, self.grid([each.size for each in slices], length))


class FixedPass(Capturable[Tensor]):
    """Static buffers and graph for `n_rows` slices of one length."""

    @torch.inference_mode(False)  # the buffers are reused
    @torch.no_grad()
    def __init__(self, encoder: SliceEncoder, length: int, n_rows: int) -> None:
        super().__init__(f"vision encoder, {n_rows} x {length}")
        self._encoder, self._length = encoder, length
        device, shape = encoder.device, (n_rows, length)
        self._patches = torch.zeros(*shape, PATCH_VALUES, device=device)
        ids, rows, cols = torch.zeros(3, *shape, dtype=torch.int64, device=device)
        mask: Tensor | None = None
        if length == PADDED:
            mask = torch.ones(n_rows, 1, 1, length, dtype=torch.bool, device=device)
        width, like = encoder.resampler.query.shape[1], encoder.vision.post_layernorm.weight
        self._grid = PatchGrid(ids, rows, cols, mask, side_codes(LONGEST_SIDE, width, like))
        self._sizes: list[PatchSize] = []  # of which the grid is

    def load(self, slices: Sequence[Slice]) -> None:
        self._encoder.load(slices, self._patches)
        sizes = [each.size for each in slices]
        if sizes == self._sizes:  # as from the same cameras
            return
        static, grid = self._grid, self._encoder.grid(sizes, self._length)
        self._sizes = []  # in case of an error on the way
        static.ids[:], static.rows[:], static.cols[:] = grid.ids, grid.rows, grid.cols
        if static.mask is not None:
            static.mask[:] = True if grid.mask is None else grid.mask
        self._sizes = sizes

    def _work(self) -> Tensor:
        return self._encoder.forward(self._patches, self._grid)
