"""Attention of several rows per sequence: rotate and store them all, then attend in tiles."""

from __future__ import annotations

import triton
import triton.language as tl

from MiniCPMO45.device.kernels.launch import await_rows, let_next_start
from MiniCPMO45.device.kernels.paged import attend_pages, leave_part, split_pages


@triton.jit
def _turn(
    first,
    second,
    norm,
    cos_table,
    sin_table,
    position,
    eps,
    HAS_NORM: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
):
    """Normalise and rotate heads given as halves [HEADS, HALF]; HALF is D / 2 or more."""
    half = tl.arange(0, HALF)
    is_half = half < D // 2
    wide, wide_second = first.to(tl.float32), second.to(tl.float32)
    if HAS_NORM:
        factors = tl.load(norm + half, mask=is_half, other=0.0)[None, :]
        factors_second = tl.load(norm + D // 2 + half, mask=is_half, other=0.0)[None, :]
        mean = (tl.sum(wide * wide, 1) + tl.sum(wide_second * wide_second, 1)) / D
        scale = tl.rsqrt(mean + eps)[:, None]
        wide = (factors * (wide * scale).to(first.dtype)).to(tl.float32)
        wide_second = (factors_second * (wide_second * scale).to(first.dtype)).to(tl.float32)
    table = position.to(tl.int64) * D + half
    cos = tl.load(cos_table + table, mask=is_half, other=0.0)
    sin = tl.load(sin_table + table, mask=is_half, other=0.0)
    cos_second = tl.load(cos_table + table + D // 2, mask=is_half, other=0.0)
    sin_second = tl.load(sin_table + table + D // 2, mask=is_half, other=0.0)
    turned = wide * cos - wide_second * sin
    turned_second = wide_second * cos_second + wide * sin_second
    return turned.to(first.dtype), turned_second.to(first.dtype)


@triton.jit
def rotate_and_store(
    qkv,
    q_norm,
    k_norm,
    cos_table,
    sin_table,
    positions,
    sequences,
    page_table,
    kv_layer,
    queries,
    mixed,
    max_pages,
    eps,
    HAS_NORM: tl.constexpr,
    H: tl.constexpr,
    KVH: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """One program: HEADS heads of one kind (query, key, value) of one row."""
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    position = tl.load(positions + row)
    half = tl.arange(0, HALF)  # a power of two, at least D / 2
    is_half = (half < D // 2)[None, :]
    if position < 0:
        if tl.program_id(1) * HEADS < H:
            hole = mixed + row * H * D + head[:, None] * D + half[None, :]
            nothing = tl.zeros((HEADS, HALF), mixed.dtype.element_ty)
            tl.store(hole, nothing, mask=is_half)
            tl.store(hole + D // 2, nothing, mask=is_half)
        return
    own = qkv + row * (H + 2 * KVH) * D + head[:, None] * D + half[None, :]
    first = tl.load(own, mask=is_half, other=0.0)
    second = tl.load(own + D // 2, mask=is_half, other=0.0)
    is_query = tl.program_id(1) * HEADS < H
    is_value = tl.program_id(1) * HEADS >= H + KVH
    if is_query:
        first, second = _turn(
            first, second, q_norm, cos_table, sin_table, position, eps, HAS_NORM, D, HALF
        )
        into = queries + row * H * D + head[:, None] * D + half[None, :]
    else:
        if not is_value:
            first, second = _turn(
                first, second, k_norm, cos_table, sin_table, position, eps, HAS_NORM, D, HALF
            )
        sequence = tl.load(sequences + row).to(tl.int64)
        page = tl.load(page_table + sequence * max_pages + position // PAGE).to(tl.int64)
        plane = page * 2 + tl.where(is_value, 1, 0)
        line = (plane * KVH + (head - H) % KVH) * PAGE + position % PAGE
        into = kv_layer + line[:, None] * D + half[None, :]
    tl.store(into, first, mask=is_half)
    tl.store(into + D // 2, second, mask=is_half)


@triton.jit
def attend_tile(
    queries,
    kv_layer,
    positions,
    sequences,
    page_table,
    tile_first_row,
    tile_rows,
    mixed,
    parts,
    part_stats,
    max_pages,
    scale,
    H: tl.constexpr,
    KVH: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    PAGE: tl.constexpr,
    LINES: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """One program: one tile of rows, one key-value head, one range of keys.

    A line is one query head of one row: line = row * (H / KVH) + head within the group.
    """
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    GROUP: tl.constexpr = H // KVH
    split, kv_head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(tile_rows + tile)
    if count == 0:
        return
    row = tl.load(tile_first_row + tile)
    first_position = tl.load(positions + row)
    keys_held = first_position + count
    group = tl.arange(0, LINES)
    is_line = group // GROUP < count
    line = (row + group // GROUP).to(tl.int64) * H + kv_head * GROUP + group % GROUP
    d = tl.arange(0, WIDE)[None, :]
    first_page, last_page = split_pages(keys_held, split, PAGE, SPLITS)
    answer, top, sums = attend_pages(
        tl.load(queries + line[:, None] * D + d, mask=is_line[:, None] & (d < D), other=0.0),
        first_position + group // GROUP + 1,
        kv_layer + kv_head * (PAGE * D),
        page_table + tl.load(sequences + row).to(tl.int64) * max_pages,
        first_page,
        last_page,
        keys_held,
        scale,
        LINES,
        KVH,
        D,
        WIDE,
        PAGE,
    )
    leave_part(answer, top, sums, line, is_line, split, mixed, parts, part_stats, D, WIDE, SPLITS)
