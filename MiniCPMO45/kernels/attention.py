"""Attention of packed rows over paged keys and values, and the layout of a pass.

No operation allocates persistent memory or synchronises, so all can be captured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.kernels.attention_kernels import (
    attend_one_row,
    attend_tile,
    combine_splits,
    rotate_and_store,
)
from MiniCPMO45.kernels.cached_rows import decode_rows, encode_rows
from MiniCPMO45.kernels.device import (
    dependent_launch,
    fitting_stages,
    multiprocessors,
    runs_kernels,
    tl,
    triton,
)
from MiniCPMO45.kernels.products import normalise, rotate

PAGE_TOKENS = 64
NO_POSITION = -1


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive rows of one sequence and the keys they may attend to."""

    rows: slice
    length: int
    pages: slice | Tensor  # of these tokens, in order; a slice if they are contiguous
    mask: Tensor | None  # bool [rows, length], True where a row may attend; None if one sees all


# What the plain version reads in every layer: cos and sin of each row's position, float32 [M, D]
# each, and the spans; padding belongs to none.
PlainRows = tuple[Tensor, Tensor, list[Span]]


@dataclass(frozen=True, eq=False)
class RowMap:
    """Rows of a pass, the pages of their sequences, and the tiles of attention.

    All tensors are int32 on the device of the rows and keep their shape and address for the life of
    a captured graph; their contents may change between replays. A row may attend to the keys at
    positions 0 up to its own. A tile is consecutive rows of one sequence at consecutive positions,
    at most `rows_per_tile`. Padding rows belong to no tile.
    """

    positions: Tensor  # [M] of each row in its sequence; NO_POSITION marks padding
    sequences: Tensor  # [M] row of `page_table` that holds the row's sequence; any for padding
    page_table: Tensor  # [S, max_pages] page of each PAGE_TOKENS positions of a sequence
    tile_first_row: Tensor  # [T]
    tile_rows: Tensor  # [T] number of rows; 0 marks padding
    rows_per_tile: int  # 1 where every sequence brings one row, else a power of two
    _plain: list[PlainRows] = field(default_factory=list, repr=False)

    def fresh(self) -> RowMap:
        """Return a map of the same tensors without the cached plain form."""
        return replace(self, _plain=[])

    def plain(self, tables: tuple[Tensor, Tensor], *, is_in_order: bool) -> PlainRows:
        """Return the pass for plain PyTorch; waits for the device once for all layers.

        `tables` are cos and sin by position, float32 [P, D] each. With `is_in_order`, consecutive
        pages of a head are contiguous in memory.
        """
        if not self._plain:
            positions = self.positions.clamp(min=0)
            cos, sin = (table.index_select(0, positions) for table in tables)
            tiles = zip(self.tile_first_row.tolist(), self.tile_rows.tolist(), strict=True)
            spans = [self._span(first, count, is_in_order) for first, count in tiles if count]
            self._plain.append((cos, sin, spans))
        return self._plain[0]

    def _span(self, first: int, count: int, is_in_order: bool) -> Span:
        length = int(self.positions[first + count - 1]) + 1
        used = self.page_table[int(self.sequences[first]), : -(-length // PAGE_TOKENS)]
        named = used.tolist()
        together = slice(named[0], named[0] + len(named))
        is_run = is_in_order and named == list(range(together.start, together.stop))
        mask = None
        if count > 1:
            everything = torch.ones(count, length, dtype=torch.bool, device=used.device)
            mask = everything.tril(diagonal=length - count)
        return Span(slice(first, first + count), length, together if is_run else used.long(), mask)


SMALLEST_TILE = 16  # lines and width of a head, or of half a head of codes, for tensor cores
MOST_HEADS_TOGETHER = 8  # heads per program of `rotate_and_store`; a power of two


@dataclass(frozen=True)
class AttentionPlan:
    splits: int  # ranges that a tile's keys are split into, a power of two
    warps: int
    stages: int
    early_pages: int = 0  # of a split, prefetched before the rows are awaited; decoding only


def attend_by_kernels(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor],
    rows: RowMap,
    kv_layer: Tensor,
    kv_scales: Tensor | None,
    plan: AttentionPlan,
) -> Tensor:
    """`attend` with a plan."""
    kv_heads, d = kv_layer.shape[2], kv_layer.shape[4]
    count, heads = qkv.shape[0], qkv.shape[1] // d - 2 * kv_heads
    splits, max_pages, scale = plan.splits, rows.page_table.shape[1], d**-0.5
    mixed = qkv.new_empty(count, heads * d)
    parts = stats = mixed
    if splits > 1:
        parts = qkv.new_empty((count, heads, splits, d), dtype=torch.float32)
        stats = qkv.new_empty((count, heads, splits, 2), dtype=torch.float32)
    q_norm, k_norm = norms or (None, None)
    pages = (kv_layer, kv_layer if kv_scales is None else kv_scales)  # any pointer without scales
    places = (rows.positions, rows.sequences, rows.page_table)
    inputs = (qkv, q_norm, k_norm, *tables, *places, *pages)
    overlap = dependent_launch(qkv)
    shape = {"H": heads, "KVH": kv_heads, "D": d, "PAGE": PAGE_TOKENS, **overlap}
    shape["IS_CODED"] = kv_scales is not None
    wide = max(triton.next_power_of_2(d), SMALLEST_TILE * (2 if shape["IS_CODED"] else 1))
    lines = max(triton.next_power_of_2(rows.rows_per_tile * (heads // kv_heads)), SMALLEST_TILE)
    page_bytes = 2 * PAGE_TOKENS * wide * kv_layer.element_size()
    query_bytes = lines * wide * qkv.element_size()
    stages = fitting_stages(qkv, plan.stages, page_bytes, kept_bytes=2 * query_bytes)
    tile = {"LINES": lines, "WIDE": wide, "SPLITS": splits, **shape}
    tile |= {"num_warps": plan.warps, "num_stages": stages}
    into = (mixed, parts, stats, max_pages)
    if rows.rows_per_tile == 1:
        attend_one_row[(splits, kv_heads, count)](
            *inputs, *into, eps, scale, EARLY_PAGES=plan.early_pages, **tile
        )
    else:
        queries, half = torch.empty_like(mixed), triton.next_power_of_2(d // 2)
        together = math.gcd(heads, kv_heads, MOST_HEADS_TOGETHER)
        turn = {"HALF": half, "HEADS": together, "num_warps": 1, **shape}
        rotate_and_store[(count, (heads + 2 * kv_heads) // together)](
            *inputs, queries, mixed, max_pages, eps, **turn
        )
        tiles = (rows.tile_first_row, rows.tile_rows)
        attend_tile[(splits, kv_heads, len(rows.tile_rows))](
            queries, *pages, *places, *tiles, *into, scale, **tile
        )
    if splits > 1:
        sizes = {"H": heads, "D": d, "WIDE": wide, "SPLITS": splits, "num_warps": 1, **overlap}
        combine_splits[(count, heads)](parts, stats, rows.positions, mixed, **sizes)
    return mixed


MOST_SPLITS = 32
WAVES = 4  # of programs: several run on a multiprocessor, and sequences differ in length
# Splits beyond which a prefill that fills the card is not split further; of values, of codes.
DEEP_SPLITS = (4, 8)
LEAST_SPLITS = 2  # to which a plan is reduced on a card with few multiprocessors
# Most rows of each plan: with grouped queries, and without, where sequences are short.
DECODES = {
    True: (
        (1, AttentionPlan(32, warps=8, stages=3, early_pages=4)),
        (2, AttentionPlan(32, warps=2, stages=4)),
        (4, AttentionPlan(16, warps=2, stages=4)),
        (8, AttentionPlan(8, warps=2, stages=4)),
        (16, AttentionPlan(4, warps=2, stages=4)),
        (32, AttentionPlan(2, warps=2, stages=4)),
        (math.inf, AttentionPlan(1, warps=2, stages=4)),
    ),
    False: (
        (1, AttentionPlan(8, warps=1, stages=3, early_pages=4)),
        (4, AttentionPlan(4, warps=2, stages=3)),
        (16, AttentionPlan(2, warps=2, stages=3)),
        (math.inf, AttentionPlan(1, warps=2, stages=4)),
    ),
}
CODED_DECODES = (  # with grouped queries, over codes
    *DECODES[True][:2],
    (4, AttentionPlan(16, warps=4, stages=3)),
    (8, AttentionPlan(8, warps=4, stages=3)),
    (16, AttentionPlan(4, warps=4, stages=3)),
    (math.inf, AttentionPlan(2, warps=2, stages=3)),
)


def attention_plan(
    rows: int,
    rows_per_tile: int,
    kv_heads: int,
    processors: int,
    *,
    is_grouped: bool,
    is_coded: bool,
) -> AttentionPlan:
    """Choose the plan for a card's multiprocessors.

    A prefill has a program for each or more, with most tiles full; decoding has at most `WAVES`.
    """
    programs = kv_heads * -(-rows // rows_per_tile)
    if rows_per_tile == 1:
        plans = CODED_DECODES if is_coded else DECODES[is_grouped]
        plan = next(plan for most, plan in plans if rows <= most)
        splits = plan.splits
        while splits > LEAST_SPLITS and splits * programs > WAVES * processors:
            splits //= 2
        return replace(plan, splits=splits)
    splits = 1
    while splits < MOST_SPLITS and splits * programs < processors:
        splits *= 2
    while splits < DEEP_SPLITS[is_coded] and splits * programs < WAVES * processors:
        splits *= 2
    return AttentionPlan(splits, warps=4, stages=2 if is_coded else 3)


def rotated_heads(
    qkv: Tensor,
    kv_heads: int,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split a layer's projections into heads; normalise and rotate queries and keys.

    `qkv` is [M, (H + 2 KVH) * D], head by head; the tables are float32 [M, D]. The results are
    queries [M, H, D], keys and values [M, KVH, D].
    """
    heads = qkv.unflatten(-1, (-1, cos.shape[-1]))
    count = heads.shape[1] - 2 * kv_heads
    both, values = heads.split((count + kv_heads, kv_heads), dim=1)
    if norms is not None:
        weights = torch.cat((norms[0].expand(count, -1), norms[1].expand(kv_heads, -1)))
        both = normalise(both, weights, eps)
    queries, keys = rotate(both, cos, sin).split((count, kv_heads), dim=1)
    return queries, keys, values


def attend(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor],
    rows: RowMap,
    kv_layer: Tensor,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Rotate queries and keys, store keys and values in their pages, and attend.

    `qkv` is [M, (H + 2 KVH) * D], queries, keys and values of each row, head by head; `tables` are
    cos and sin by position, float32 [P, D] each. Rows are written into `kv_layer` [pages, 2, KVH,
    PAGE_TOKENS, D], one layer of the pool; entries never written may have any value. For int8
    codes, `kv_scales` has the same shape without D, see `cached_rows`. The result is [M, H * D] in
    the dtype of `qkv`; zeros for padding rows.

    Source: FlashDecoding, https://pytorch.org/blog/flash-decoding/.
    """
    kv_heads, d = kv_layer.shape[2], kv_layer.shape[4]
    if runs_kernels(qkv):
        assert kv_layer.is_contiguous(), "the kernels compute addresses from the shape"
        plan = attention_plan(
            qkv.shape[0],
            rows.rows_per_tile,
            kv_heads,
            multiprocessors(qkv),
            is_grouped=qkv.shape[1] > 3 * kv_heads * d,
            is_coded=kv_scales is not None,
        )
        return attend_by_kernels(qkv, norms, eps, tables, rows, kv_layer, kv_scales, plan)
    # pages of one head are contiguous and can be read as a view
    is_in_order = kv_scales is None and kv_layer.stride(0) == PAGE_TOKENS * d
    cos, sin, spans = rows.plain(tables, is_in_order=is_in_order)
    queries, keys, values = rotated_heads(qkv, kv_heads, norms, eps, cos, sin)
    mixed = torch.zeros_like(queries)
    for span in spans:
        own = span.rows
        held = _extended(span, keys[own], values[own], kv_layer, kv_scales)
        answer = F.scaled_dot_product_attention(
            queries[own].transpose(0, 1)[None],  # [1, heads, n, D]
            held[0][None],
            held[1][None],
            attn_mask=span.mask,
            enable_gqa=queries.shape[1] != kv_heads,
        )
        mixed[own] = answer[0].transpose(0, 1)
    return mixed.flatten(1)  # [M, heads * D]


def _extended(
    span: Span, keys: Tensor, values: Tensor, kv_layer: Tensor, kv_scales: Tensor | None
) -> Tensor:
    """Store new rows [n, KVH, D] of a sequence; return all its rows, [2, KVH, length, D]."""
    first, length = span.length - len(keys), span.length
    if isinstance(span.pages, slice):  # a view into which rows can be written
        held = kv_layer[span.pages].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
        held[0, :, first:], held[1, :, first:] = keys.transpose(0, 1), values.transpose(0, 1)
        return held
    at = torch.arange(first, length, device=keys.device)
    pages, places = span.pages[at // PAGE_TOKENS], at % PAGE_TOKENS
    for plane, rows in enumerate((keys, values)):
        if kv_scales is not None:
            rows, kv_scales[pages, plane, :, places] = encode_rows(rows)
        kv_layer[pages, plane, :, places] = rows
    held = kv_layer[span.pages]
    if kv_scales is not None:
        held = decode_rows(held, kv_scales[span.pages], keys.dtype)
    return held.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]


def advance_runs(
    positions: Tensor, tile_rows: Tensor, last_positions: Tensor, has_ended: Tensor
) -> None:
    """Advance the rows of a decode pass by one position; finished rows leave the pass.

    Arguments are [M]. int32 `positions`, NO_POSITION for finished rows, and `tile_rows`, 1 for the
    others, are updated; rows finish at `last_positions`.
    """
    if runs_kernels(positions):
        n_rows = positions.shape[0]
        sizes = {"NONE": NO_POSITION, "BLOCK": triton.next_power_of_2(n_rows)}
        _advance[(1,)](positions, tile_rows, last_positions, has_ended, n_rows, **sizes)
        return
    continues = (positions != NO_POSITION) & (positions < last_positions) & ~has_ended
    positions.copy_(torch.where(continues, positions + 1, NO_POSITION))
    tile_rows.copy_(continues)


@triton.jit
def _advance(
    positions, tile_rows, last_positions, has_ended, n_rows, NONE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.arange(0, BLOCK)
    is_row = row < n_rows
    at = tl.load(positions + row, mask=is_row, other=NONE)
    last = tl.load(last_positions + row, mask=is_row, other=NONE)
    ended = tl.load(has_ended + row, mask=is_row, other=1)
    continues = (at != NONE) & (at < last) & (ended == 0)
    tl.store(positions + row, tl.where(continues, at + 1, NONE), mask=is_row)
    tl.store(tile_rows + row, continues.to(tl.int32), mask=is_row)
