"""Matrix products with 4-bit weights, for one row and for a few rows.

Eight numbers share a word. A shift and a mask unpack each as 1 + q / 16, a float32, without a
conversion; the constant difference to the value is subtracted from sums over the row alone (one
row) or from the number (few rows).
"""

from __future__ import annotations

from MiniCPMO45.kernels.device import await_rows, let_next_start, tl, triton
from MiniCPMO45.kernels.quantised import value_of


@triton.jit
def _words(weight, line, at, W: tl.constexpr):
    """Load the words `at` of lines [N, 1]; zero out of range."""
    return tl.load(weight + line * W + at[None, :], mask=(at < W)[None, :], other=0)


@triton.jit
def _scales(scales, line, at, W: tl.constexpr, GROUP: tl.constexpr):
    """Load the scale of each word; zero out of range."""
    own = scales + line * (W // GROUP) + (at // GROUP)[None, :]
    return tl.load(own, mask=(at < W)[None, :], other=0.0).to(tl.float32)


@triton.jit
def multiply_packed_row(
    x, norm, weight, scales, residual, out, N, eps, W: tl.constexpr,
    GROUP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_GATE: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Row [8 W] times words [N, W] with scales [N, W / GROUP]; HAS_GATE doubles N."""
    IS_BEFORE_ATTENTION: tl.constexpr = not (HAS_GATE or HAS_RESIDUAL)  # attention prefetches
    if not IS_BEFORE_ATTENTION:
        let_next_start(OVERLAPS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = tl.arange(0, BLOCK_W)
    line = tl.minimum(n, N - 1).to(tl.int64)[:, None]
    tile = _words(weight, line, w, W)
    if HAS_GATE:
        up_tile = _words(weight, line + N, w, W)
    await_rows(OVERLAPS)
    if IS_BEFORE_ATTENTION:
        let_next_start(OVERLAPS)
    total = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
    squares = tl.zeros((BLOCK_W,), tl.float32)
    if HAS_RESIDUAL:
        before = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
    for start in range(0, W, BLOCK_W):
        at = start + w
        factor = _scales(scales, line, at, W, GROUP)
        if HAS_GATE:
            up_factor = _scales(scales, line + N, at, W, GROUP)
        if W > BLOCK_W:
            following = _words(weight, line, at + BLOCK_W, W)
            if HAS_GATE:
                up_following = _words(weight, line + N, at + BLOCK_W, W)
        part = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
        up_part = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
        row = tl.zeros((BLOCK_W,), tl.float32)
        for place in tl.static_range(8):
            k = at // GROUP * (8 * GROUP) + place * GROUP + at % GROUP
            value = tl.load(x + k, mask=at < W, other=0.0).to(tl.float32)
            if HAS_NORM:
                squares += value * value
                value *= tl.load(norm + k, mask=at < W, other=0.0).to(tl.float32)
            row += value
            part += value_of(tile, place) * value[None, :]
            if HAS_GATE:
                up_part += value_of(up_tile, place) * value[None, :]
        total += (part - 1.5 * row[None, :]) * factor
        if HAS_GATE:
            up_total += (up_part - 1.5 * row[None, :]) * up_factor
        if W > BLOCK_W:
            tile = following
            if HAS_GATE:
                up_tile = up_following
    scale = 16.0 * tl.rsqrt(tl.sum(squares, 0) / (8 * W) + eps) if HAS_NORM else 16.0
    answer = tl.sum(total, 1) * scale
    if HAS_GATE:
        answer = answer / (1.0 + tl.exp(-answer)) * (tl.sum(up_total, 1) * scale)
    if HAS_RESIDUAL:
        answer += before
    tl.store(out + n, answer.to(out.dtype.element_ty), mask=n < N)


@triton.jit
def multiply_packed_rows(
    x, weight, scales, residual, out, M, N, W: tl.constexpr, GROUP: tl.constexpr,
    HAS_GATE: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Rows [M, 8 W] times words [N, W] with scales [N, W / GROUP]; HAS_GATE doubles N."""
    IS_BEFORE_ATTENTION: tl.constexpr = not (HAS_GATE or HAS_RESIDUAL)  # attention prefetches
    if not IS_BEFORE_ATTENTION:
        let_next_start(OVERLAPS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    w = tl.arange(0, GROUP)[None, :]
    line = tl.minimum(n, N - 1).to(tl.int64)
    own, own_scale = weight + line[:, None] * W, scales + line * (W // GROUP)
    up, up_scale = own + N.to(tl.int64) * W, own_scale + N.to(tl.int64) * (W // GROUP)
    await_rows(OVERLAPS)
    if IS_BEFORE_ATTENTION:
        let_next_start(OVERLAPS)
    rows = x + m[:, None] * (8 * W)
    is_row = (m < M)[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for group in range(0, W // GROUP):
        factor = tl.load(own_scale + group).to(tl.float32)
        tile = tl.load(own + group * GROUP + w)
        part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        if HAS_GATE:
            up_factor = tl.load(up_scale + group).to(tl.float32)
            up_tile = tl.load(up + group * GROUP + w)
            up_part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for place in tl.static_range(8):
            at = group * (8 * GROUP) + place * GROUP
            values = tl.trans(tl.load(rows + at + w, mask=is_row, other=0.0))  # [GROUP, M]
            number = (value_of(tile, place) - 1.5).to(values.dtype)
            part = tl.dot(number, values, part, input_precision="ieee")
            if HAS_GATE:
                number = (value_of(up_tile, place) - 1.5).to(values.dtype)
                up_part = tl.dot(number, values, up_part, input_precision="ieee")
        total += part * (16.0 * factor)[:, None]
        if HAS_GATE:
            up_total += up_part * (16.0 * up_factor)[:, None]
    if HAS_GATE:
        total = total / (1.0 + tl.exp(-total)) * up_total
    at = m.to(tl.int64)[None, :] * N + n[:, None]
    fits = (m < M)[None, :] & (n < N)[:, None]
    if HAS_RESIDUAL:
        total += tl.load(residual + at, mask=fits, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=fits)
