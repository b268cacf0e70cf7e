"""Attention of one row per sequence: norm, rotation, store and attend in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl

from MiniCPMO45.device.kernels.launch import LINE, await_rows, let_next_start, prefetch_line
from MiniCPMO45.device.kernels.paged import attend_pages, leave_part, split_pages


@triton.jit
def _rotate(
    own, norm, cos, sin, eps, HAS_NORM: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Load heads at pointers `own` [LINES, 1], normalise and rotate them: float32 [LINES, WIDE]."""
    d = tl.arange(0, WIDE)
    across = tl.where(d < D // 2, d + D // 2, d - D // 2)
    values = tl.load(own + d[None, :], mask=(d < D)[None, :], other=0.0)
    opposite = tl.load(own + across[None, :], mask=(d < D)[None, :], other=0.0)
    wide, wide_opposite = values.to(tl.float32), opposite.to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(wide * wide, 1) / D + eps)[:, None]
        kind = values.dtype
        factors = tl.load(norm + d, mask=d < D, other=0.0)[None, :]
        across_factors = tl.load(norm + across, mask=d < D, other=0.0)[None, :]
        wide = (factors * (wide * scale).to(kind)).to(tl.float32)
        wide_opposite = (across_factors * (wide_opposite * scale).to(kind)).to(tl.float32)
    return wide * cos[None, :] + wide_opposite * tl.where(d < D // 2, -sin, sin)[None, :]


@triton.jit
def _prefetch_pages(
    kv_head_pages,
    table,
    first_page,
    last_page,
    KVH: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    PAGE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Bring pages of a split, keys and values of one head, to the L2 cache."""
    PLANE: tl.constexpr = KVH * PAGE * D
    lines = tl.minimum(tl.arange(0, PAGE * WIDE // LINE) * LINE, PAGE * D - 1)
    for index in range(first_page, last_page):
        keys = kv_head_pages + tl.load(table + index).to(tl.int64) * (2 * PLANE) + lines
        prefetch_line(keys, OVERLAPS)
        prefetch_line(keys + PLANE, OVERLAPS)


@triton.jit
def attend_one_row(
    qkv, q_norm, k_norm, cos_table, sin_table, positions, sequences, page_table, kv_layer,
    mixed, parts, part_stats, max_pages, eps, scale,
    HAS_NORM: tl.constexpr, H: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr,
    WIDE: tl.constexpr, PAGE: tl.constexpr, LINES: tl.constexpr, SPLITS: tl.constexpr,
    EARLY_PAGES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One program: one row, one key-value head, one range of keys; a line is a query head.

    Positions and pages are read before the rows are awaited: the product before this kernel lets it
    start only after its own wait, so they must not be written by that product, but may be by
    any kernel before it.
    """
    let_next_start(OVERLAPS)
    split, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    GROUP: tl.constexpr = H // KVH
    PLANE: tl.constexpr = KVH * PAGE * D
    group = tl.arange(0, LINES)
    is_line = group < GROUP
    line = row * H + kv_head * GROUP + tl.minimum(group, GROUP - 1)
    d = tl.arange(0, WIDE)
    is_d = (d < D)[None, :]
    position = tl.load(positions + row)
    table = page_table + tl.load(sequences + row).to(tl.int64) * max_pages
    first_page, last_page = split_pages(position + 1, split, PAGE, SPLITS)
    kv_head_pages = kv_layer + kv_head * (PAGE * D)
    if EARLY_PAGES > 0:
        early = tl.minimum(last_page, first_page + EARLY_PAGES)
        _prefetch_pages(kv_head_pages, table, first_page, early, KVH, D, WIDE, PAGE, OVERLAPS)
    at_table = tl.maximum(position, 0).to(tl.int64) * D
    cos = tl.load(cos_table + at_table + d, mask=d < D, other=0.0)
    sin = tl.load(sin_table + at_table + d, mask=d < D, other=0.0)
    await_rows(OVERLAPS)
    if position < 0:
        nothing = tl.zeros((LINES, WIDE), mixed.dtype.element_ty)
        tl.store(mixed + line[:, None] * D + d[None, :], nothing, mask=is_line[:, None] & is_d)
        return
    own = qkv + row * ((H + 2 * KVH) * D)
    heads = own + (kv_head * GROUP + tl.minimum(group, GROUP - 1))[:, None] * D
    query = _rotate(heads, q_norm, cos, sin, eps, HAS_NORM, D, WIDE)
    if (first_page <= position // PAGE) & (position // PAGE < last_page):
        page = tl.load(table + position // PAGE).to(tl.int64)
        into = kv_head_pages + page * (2 * PLANE) + (position % PAGE) * D + d[None, :]
        new = own + (H + kv_head + tl.arange(0, 1))[:, None] * D
        key = _rotate(new, k_norm, cos, sin, eps, HAS_NORM, D, WIDE)
        value = tl.load(new + KVH * D + d[None, :], mask=is_d, other=0.0)
        tl.store(into, key.to(kv_layer.dtype.element_ty), mask=is_d)
        tl.store(into + PLANE, value, mask=is_d)
        tl.debug_barrier()  # other threads than those that stored the new key read it below
    query = query.to(qkv.dtype.element_ty)
    held = position + 1
    seen = tl.zeros((LINES,), tl.int32) + held
    answer, top, sums = attend_pages(
        query, seen, kv_head_pages, table, first_page, last_page, held, scale,
        LINES, KVH, D, WIDE, PAGE,
    )  # fmt: skip
    leave_part(answer, top, sums, line, is_line, split, mixed, parts, part_stats, D, WIDE, SPLITS)
