"""The parts both attention kernels share: one range of pages, and combining the ranges.

Source: FlashDecoding, https://pytorch.org/blog/flash-decoding/.
"""

from __future__ import annotations

import triton
import triton.language as tl

from MiniCPMO45.device.kernels.launch import await_rows, let_next_start

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)  # stands for minus infinity without making NaN of differences


@triton.jit
def attend_pages(
    query,
    seen,
    kv_head_pages,
    table,
    first_page,
    last_page,
    keys_held,
    scale,
    LINES: tl.constexpr,
    KVH: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Attend lines of queries to the pages [first_page, last_page) of one sequence.

    Args:
        query: [LINES, WIDE].
        seen: [LINES] keys each line may attend to.
        kv_head_pages: pointer to the key plane of this head in page 0.
        table: pointer to the sequence's page table.
        first_page: index into the table.
        last_page: one past the last index.
        keys_held: keys the sequence has; what lies behind them is never read.
        scale: factor of the scores.
        LINES: query lines.
        KVH: key-value heads.
        D: head width.
        WIDE: the same rounded up to what a tensor core takes; what is beyond D is zero.
        PAGE: keys in a page.

    Returns:
        The unnormalised answer float32 [LINES, WIDE], and each line's maximum and sum, as in
        FlashDecoding.
    """
    PLANE: tl.constexpr = KVH * PAGE * D  # from a key to its value; a page has two
    key = tl.arange(0, PAGE)
    d = tl.arange(0, WIDE)
    inside = key[:, None] * D + d[None, :]
    top = tl.full((LINES,), LOWEST, tl.float32)
    sums = tl.zeros((LINES,), tl.float32)
    answer = tl.zeros((LINES, WIDE), tl.float32)
    for index in tl.range(first_page, last_page):
        held = kv_head_pages + tl.load(table + index).to(tl.int64) * (2 * PLANE) + inside
        is_held = (index * PAGE + key < keys_held)[:, None] & (d < D)[None, :]
        keys = tl.load(held, mask=is_held, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
        sees = (index * PAGE + key)[None, :] < seen[:, None]
        scores = tl.where(sees, scores, LOWEST)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.where(sees, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(top - higher)
        sums = sums * shrink + tl.sum(weights, 1)
        values = tl.load(held + PLANE, mask=is_held, other=0.0)
        answer = tl.dot(
            weights.to(query.dtype), values, answer * shrink[:, None], input_precision="ieee"
        )
        top = higher
    return answer, top, sums


@triton.jit
def leave_part(
    answer,
    top,
    sums,
    line,
    is_line,
    split,
    mixed,
    parts,
    part_stats,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Store one split's answer, or with one split the answer.

    Args:
        answer: unnormalised float32 [LINES, WIDE].
        top: [LINES].
        sums: [LINES].
        line: int64 [LINES] query head of each line, counted over all rows.
        is_line: [LINES] lines that are not padding.
        split: which split this is.
        mixed: [M * H, D] for the answer.
        parts: float32 [M * H, SPLITS, D].
        part_stats: float32 [M * H, SPLITS, 2].
        D: head width.
        WIDE: the same rounded up.
        SPLITS: how many splits there are.
    """
    d = tl.arange(0, WIDE)[None, :]
    is_value = is_line[:, None] & (d < D)
    if SPLITS == 1:
        final = answer / sums[:, None]
        at = mixed + line[:, None] * D + d
        tl.store(at, final.to(mixed.dtype.element_ty), mask=is_value)
    else:
        part = line * SPLITS + split
        tl.store(parts + part[:, None] * D + d, answer, mask=is_value)
        tl.store(part_stats + part * 2, top, mask=is_line)
        tl.store(part_stats + part * 2 + 1, sums, mask=is_line)


@triton.jit
def split_pages(keys_held, split, PAGE: tl.constexpr, SPLITS: tl.constexpr):
    """Return the first page of a split and one past its last."""
    pages = (keys_held + PAGE - 1) // PAGE
    pages_each = (pages + SPLITS - 1) // SPLITS
    first = split * pages_each
    return first, tl.minimum(first + pages_each, pages)


@triton.jit
def combine_splits(
    parts,
    part_stats,
    positions,
    mixed,
    H: tl.constexpr,
    D: tl.constexpr,
    WIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """One program: one query head of one row."""
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row, head = tl.program_id(0), tl.program_id(1)
    if tl.load(positions + row) < 0:
        return
    line = (row * H + head).to(tl.int64)
    part = line * SPLITS + tl.arange(0, SPLITS)
    d = tl.arange(0, WIDE)
    top = tl.load(part_stats + part * 2)
    sums = tl.load(part_stats + part * 2 + 1)
    answers = tl.load(parts + part[:, None] * D + d[None, :], mask=(d < D)[None, :], other=0.0)
    weights = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(answers * weights[:, None], 0) / tl.sum(sums * weights, 0)
    tl.store(mixed + line * D + d, total.to(mixed.dtype.element_ty), mask=d < D)
