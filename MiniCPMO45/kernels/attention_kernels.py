"""Triton kernels of paged attention: one row per sequence, tiles of rows, combination.

Source: FlashDecoding, https://pytorch.org/blog/flash-decoding/.
"""

from __future__ import annotations

from MiniCPMO45.kernels.cached_rows import decoded_pairs, encode, row_scale
from MiniCPMO45.kernels.device import LINE, await_rows, let_next_start, prefetch_line, tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)  # in place of minus infinity, whose differences are NaN


@triton.jit
def attend_pages(
    query, seen, kv_head_pages, kv_head_scales, table, first_page, last_page, keys_held, scale,
    line, is_line, split, mixed, parts, part_stats,
    LINES: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    PAGE: tl.constexpr, SPLITS: tl.constexpr, IS_CODED: tl.constexpr,
):  # fmt: skip
    """Attend lines of queries [LINES, WIDE] to the pages [first_page, last_page) of one sequence.

    `seen` [LINES] are the keys each line may attend to. `kv_head_pages` and `kv_head_scales` point
    to this head's keys and their scales in page 0, `table` to the sequence's page table. Keys
    beyond `keys_held` are never read. WIDE is D padded with zeros for tensor cores.

    `line` is the query head of each line, counted over all rows, int64 [LINES]. The answer goes to
    `mixed` [M * H, D] if there is one split. Otherwise the unnormalised answer goes to `parts` [M *
    H, SPLITS, D], and each line's maximum and sum to `part_stats` [M * H, SPLITS, 2].
    """
    key = tl.arange(0, PAGE)
    top = tl.full((LINES,), LOWEST, tl.float32)
    sums = tl.zeros((LINES,), tl.float32)
    # Codes are loaded in pairs, since tensor cores cannot transpose single bytes: the even columns
    # of a row are the low bytes of its pairs, the odd ones the high bytes.
    ITEMS: tl.constexpr = D // 2 if IS_CODED else D  # of a row
    WIDTH: tl.constexpr = WIDE // 2 if IS_CODED else WIDE
    PLANE: tl.constexpr = KVH * PAGE * ITEMS  # from a key to its value; a page has two
    rows, odd_query = kv_head_pages, query
    if IS_CODED:
        rows = kv_head_pages.to(tl.pointer_type(tl.int16))
        query, odd_query = tl.split(tl.reshape(query, (LINES, WIDTH, 2)))
    answer = tl.zeros((LINES, WIDTH), tl.float32)
    odd_answer = answer
    item = tl.arange(0, WIDTH)
    inside = key[:, None] * ITEMS + item[None, :]
    for index in tl.range(first_page, last_page):
        page = tl.load(table + index).to(tl.int64)
        held = rows + page * (2 * PLANE) + inside
        is_key = index * PAGE + key < keys_held
        is_held = is_key[:, None] & (item < ITEMS)[None, :]
        scores = _score(query, odd_query, tl.load(held, mask=is_held, other=0), IS_CODED)
        if IS_CODED:
            row_scales = kv_head_scales + page * (2 * KVH * PAGE) + key
            scores *= tl.load(row_scales, mask=is_key, other=0.0)[None, :]
        sees = (index * PAGE + key)[None, :] < seen[:, None]
        scores = tl.where(sees, scores * (scale * LOG2_E), LOWEST)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.where(sees, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(top - higher)
        sums = sums * shrink + tl.sum(weights, 1)
        values = tl.load(held + PLANE, mask=is_held, other=0)
        if IS_CODED:
            weights *= tl.load(row_scales + KVH * PAGE, mask=is_key, other=0.0)[None, :]
        answer, odd_answer = _mix(
            weights.to(query.dtype), values, answer, odd_answer, shrink[:, None], IS_CODED
        )
        top = higher
    if IS_CODED:
        answer = tl.reshape(tl.join(answer, odd_answer), (LINES, WIDE))
    _store_answer(
        answer, top, sums, line, is_line, split, mixed, parts, part_stats, D, WIDE, SPLITS
    )  # fmt: skip


@triton.jit
def _score(query, odd_query, keys, IS_CODED: tl.constexpr):
    if IS_CODED:
        keys, odd_keys = decoded_pairs(keys, query.dtype)
        scores = tl.dot(odd_query, tl.trans(odd_keys), input_precision="ieee")
        scores = tl.dot(query, tl.trans(keys), scores, input_precision="ieee")
    else:
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    return scores


@triton.jit
def _mix(weights, values, answer, odd_answer, shrink, IS_CODED: tl.constexpr):
    if IS_CODED:
        values, odd_values = decoded_pairs(values, weights.dtype)
        odd_answer = tl.dot(weights, odd_values, odd_answer * shrink, input_precision="ieee")
    answer = tl.dot(weights, values, answer * shrink, input_precision="ieee")
    return answer, odd_answer


@triton.jit
def _store_answer(
    answer, top, sums, line, is_line, split, mixed, parts, part_stats,
    D: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, WIDE)
    is_value = is_line[:, None] & (d[None, :] < D)
    if SPLITS == 1:
        final = answer / sums[:, None]
        at = mixed + line[:, None] * D + d[None, :]
        tl.store(at, final.to(mixed.dtype.element_ty), mask=is_value)
    else:
        part = line * SPLITS + split
        tl.store(parts + part[:, None] * D + d[None, :], answer, mask=is_value)
        tl.store(part_stats + part * 2, top, mask=is_line)
        tl.store(part_stats + part * 2 + 1, sums, mask=is_line)


@triton.jit
def split_pages(keys_held, split, PAGE: tl.constexpr, SPLITS: tl.constexpr):
    pages = (keys_held + PAGE - 1) // PAGE
    pages_each = (pages + SPLITS - 1) // SPLITS
    first = split * pages_each
    return first, tl.minimum(first + pages_each, pages)


@triton.jit
def combine_splits(
    parts, part_stats, positions, mixed,
    H: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr, OVERLAPS:
    tl.constexpr,
):  # fmt: skip
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


@triton.jit
def _rotate(own, norm, cos, sin, eps, D: tl.constexpr, WIDE: tl.constexpr):
    """Load heads at pointers `own` [LINES, 1], normalise and rotate them: float32 [LINES, WIDE]."""
    d = tl.arange(0, WIDE)
    across = tl.where(d < D // 2, d + D // 2, d - D // 2)
    values = tl.load(own + d[None, :], mask=(d < D)[None, :], other=0.0)
    opposite = tl.load(own + across[None, :], mask=(d < D)[None, :], other=0.0)
    wide, wide_opposite = values.to(tl.float32), opposite.to(tl.float32)
    if norm is not None:
        scale = tl.rsqrt(tl.sum(wide * wide, 1) / D + eps)[:, None]
        kind = values.dtype
        factors = tl.load(norm + d, mask=d < D, other=0.0)[None, :]
        across_factors = tl.load(norm + across, mask=d < D, other=0.0)[None, :]
        wide = (factors * (wide * scale).to(kind)).to(tl.float32)
        wide_opposite = (across_factors * (wide_opposite * scale).to(kind)).to(tl.float32)
    return wide * cos[None, :] + wide_opposite * tl.where(d < D // 2, -sin, sin)[None, :]


@triton.jit
def _prefetch_pages(
    kv_head_pages, table, first_page, last_page,
    KVH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, PAGE: tl.constexpr, OVERLAPS:
    tl.constexpr,
):  # fmt: skip
    """Prefetch one head's keys and values of a split's pages into the L2 cache."""
    PLANE: tl.constexpr = KVH * PAGE * D
    lines = tl.minimum(tl.arange(0, PAGE * WIDE // LINE) * LINE, PAGE * D - 1)
    for index in range(first_page, last_page):
        keys = kv_head_pages + tl.load(table + index).to(tl.int64) * (2 * PLANE) + lines
        prefetch_line(keys, OVERLAPS)
        prefetch_line(keys + PLANE, OVERLAPS)


@triton.jit
def _store_row(into, row_scale_at, row, is_value, IS_CODED: tl.constexpr):
    """Store a row [1, WIDE], or its codes and its scale."""
    if IS_CODED:
        wide = tl.where(is_value, row.to(tl.float32), 0.0)
        inverse, scale = row_scale(tl.max(tl.abs(wide), 1))
        row = encode(wide, inverse[:, None])
        tl.store(row_scale_at + tl.arange(0, 1), scale)
    tl.store(into, row, mask=is_value)


@triton.jit
def attend_one_row(
    qkv, q_norm, k_norm, cos_table, sin_table, positions, sequences, page_table, kv_layer,
    kv_scales, mixed, parts, part_stats, max_pages, eps, scale,
    H: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, PAGE: tl.constexpr,
    LINES: tl.constexpr, SPLITS: tl.constexpr, EARLY_PAGES: tl.constexpr, OVERLAPS: tl.constexpr,
    IS_CODED: tl.constexpr,
):  # fmt: skip
    """One program: one row, one key-value head, one range of keys; a line is a query head.

    Positions and pages are read before the rows are awaited. The preceding product allows this
    launch only after its own wait, so any kernel before that product may write them.
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
    kv_head_scales = kv_scales + kv_head * PAGE
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
    query = _rotate(heads, q_norm, cos, sin, eps, D, WIDE)
    if (first_page <= position // PAGE) & (position // PAGE < last_page):
        page = tl.load(table + position // PAGE).to(tl.int64)
        into = kv_head_pages + page * (2 * PLANE) + (position % PAGE) * D + d[None, :]
        new = own + (H + kv_head + tl.arange(0, 1))[:, None] * D
        key = _rotate(new, k_norm, cos, sin, eps, D, WIDE)
        value = tl.load(new + KVH * D + d[None, :], mask=is_d, other=0.0)
        row_scales = kv_head_scales + page * (2 * KVH * PAGE) + position % PAGE
        _store_row(into, row_scales, key.to(value.dtype), is_d, IS_CODED)
        _store_row(into + PLANE, row_scales + KVH * PAGE, value, is_d, IS_CODED)
        tl.debug_barrier()  # the new key is read below by other threads than stored it
    query = query.to(qkv.dtype.element_ty)
    held = position + 1
    seen = tl.zeros((LINES,), tl.int32) + held
    attend_pages(
        query, seen, kv_head_pages, kv_head_scales, table, first_page, last_page, held, scale,
        line, is_line, split, mixed, parts, part_stats, LINES, KVH, D, WIDE, PAGE, SPLITS, IS_CODED,
    )  # fmt: skip


@triton.jit
def _turn(
    first, second, norm, cos_table, sin_table, position, eps, D: tl.constexpr, HALF: tl.constexpr
):
    """Normalise and rotate heads given as halves [HEADS, HALF]; HALF is D / 2 or more."""
    half = tl.arange(0, HALF)
    is_half = half < D // 2
    wide, wide_second = first.to(tl.float32), second.to(tl.float32)
    if norm is not None:
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
    qkv, q_norm, k_norm, cos_table, sin_table, positions, sequences, page_table, kv_layer,
    kv_scales, queries, mixed, max_pages, eps,
    H: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
    HEADS: tl.constexpr, OVERLAPS: tl.constexpr, IS_CODED: tl.constexpr,
):  # fmt: skip
    """One program: HEADS heads of one kind (query, key, value) of one row."""
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    position = tl.load(positions + row)
    half = tl.arange(0, HALF)  # a power of two, at least D / 2
    is_half = (half < D // 2)[None, :]
    is_query = tl.program_id(1) * HEADS < H
    if position < 0:
        if is_query:
            hole = mixed + row * H * D + head[:, None] * D + half[None, :]
            nothing = tl.zeros((HEADS, HALF), mixed.dtype.element_ty)
            tl.store(hole, nothing, mask=is_half)
            tl.store(hole + D // 2, nothing, mask=is_half)
        return
    own = qkv + row * (H + 2 * KVH) * D + head[:, None] * D + half[None, :]
    first = tl.load(own, mask=is_half, other=0.0)
    second = tl.load(own + D // 2, mask=is_half, other=0.0)
    is_value = tl.program_id(1) * HEADS >= H + KVH
    if is_query:
        first, second = _turn(first, second, q_norm, cos_table, sin_table, position, eps, D, HALF)
        query_at = queries + row * H * D + head[:, None] * D + half[None, :]
        tl.store(query_at, first, mask=is_half)
        tl.store(query_at + D // 2, second, mask=is_half)
    else:
        if not is_value:
            first, second = _turn(
                first, second, k_norm, cos_table, sin_table, position, eps, D, HALF
            )
        sequence = tl.load(sequences + row).to(tl.int64)
        page = tl.load(page_table + sequence * max_pages + position // PAGE).to(tl.int64)
        plane = page * 2 + tl.where(is_value, 1, 0)
        line = (plane * KVH + (head - H) % KVH) * PAGE + position % PAGE
        into = kv_layer + line[:, None] * D + half[None, :]
        if IS_CODED:
            wide, wide_second = first.to(tl.float32), second.to(tl.float32)
            top = tl.maximum(tl.max(tl.abs(wide), 1), tl.max(tl.abs(wide_second), 1))
            inverse, scale = row_scale(top)
            tl.store(into, encode(wide, inverse[:, None]), mask=is_half)
            tl.store(into + D // 2, encode(wide_second, inverse[:, None]), mask=is_half)
            tl.store(kv_scales + line, scale)
        else:
            tl.store(into, first, mask=is_half)
            tl.store(into + D // 2, second, mask=is_half)


@triton.jit
def attend_tile(
    queries, kv_layer, kv_scales, positions, sequences, page_table, tile_first_row, tile_rows,
    mixed, parts, part_stats, max_pages, scale, H: tl.constexpr, KVH: tl.constexpr,
    D: tl.constexpr, WIDE: tl.constexpr, PAGE: tl.constexpr, LINES: tl.constexpr,
    SPLITS: tl.constexpr, OVERLAPS: tl.constexpr, IS_CODED: tl.constexpr,
):  # fmt: skip
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
    query = tl.load(queries + line[:, None] * D + d, mask=is_line[:, None] & (d < D), other=0.0)
    seen = first_position + group // GROUP + 1
    kv_head_pages, kv_head_scales = kv_layer + kv_head * (PAGE * D), kv_scales + kv_head * PAGE
    table = page_table + tl.load(sequences + row).to(tl.int64) * max_pages
    attend_pages(
        query, seen, kv_head_pages, kv_head_scales, table, first_page, last_page, keys_held, scale,
        line, is_line, split, mixed, parts, part_stats, LINES, KVH, D, WIDE, PAGE, SPLITS, IS_CODED,
    )  # fmt: skip
