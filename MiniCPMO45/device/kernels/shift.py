"""Moves cached tokens towards the front of their sequence and rotates their keys along."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TOKENS_AT_ONCE = 64
WARPS = 4


@triton.jit(do_not_specialize=["start", "target", "count"])  # or some values compile it anew
def _shift_plane(
    pool,
    pages,
    cos,
    sin,
    start,
    target,
    count,
    LAYER_STRIDE,
    PAGE_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """One program: the keys or the values of one head of one layer, front to back.

    What is written lies in front of everything that is still to be read.
    """
    layer, head, is_value = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own = pool + layer.to(tl.int64) * LAYER_STRIDE + is_value * PLANE_STRIDE + head * PAGE * D
    half = tl.arange(0, D // 2)
    token = tl.arange(0, TOKENS)
    cosine, sine = tl.load(cos + half)[None, :], tl.load(sin + half)[None, :]
    for first in range(0, count, TOKENS):
        exists = first + token < count
        at, to = start + first + token, target + first + token
        at_page = tl.load(pages + at // PAGE, mask=exists, other=0).to(tl.int64)
        to_page = tl.load(pages + to // PAGE, mask=exists, other=0).to(tl.int64)
        source = own + (at_page * PAGE_STRIDE + at % PAGE * D)[:, None] + half[None, :]
        into = own + (to_page * PAGE_STRIDE + to % PAGE * D)[:, None] + half[None, :]
        lower = tl.load(source, mask=exists[:, None])
        upper = tl.load(source + D // 2, mask=exists[:, None])
        if is_value == 0:
            x, y = lower.to(tl.float32), upper.to(tl.float32)
            lower = (x * cosine - y * sine).to(lower.dtype)
            upper = (y * cosine + x * sine).to(upper.dtype)
        tl.debug_barrier()  # every thread has read before one writes
        tl.store(into, lower, mask=exists[:, None])
        tl.store(into + D // 2, upper, mask=exists[:, None])
        tl.debug_barrier()


def shift_tokens(
    pool: Tensor, pages: Tensor, start: int, target: int, count: int, cos: Tensor, sin: Tensor
) -> None:
    """Move tokens of one sequence to the front; see `ops.move_tokens`."""
    layers, _, _, kv_heads, page_tokens, d = pool.shape
    _shift_plane[(layers, kv_heads, 2)](
        pool,
        pages,
        cos,
        sin,
        start,
        target,
        count,
        pool.stride(0),
        PAGE_STRIDE=pool.stride(1),
        PLANE_STRIDE=pool.stride(2),
        D=d,
        PAGE=page_tokens,
        TOKENS=TOKENS_AT_ONCE,
        num_warps=WARPS,
    )
