"""Rows of a cache: quantisation to 8-bit codes with a scale per row, and moves within a sequence.

A row is a key or a value of one head. A code is the rounded quotient of value and scale. The
largest of a row is 127, so that encoding decoded rows gives the same codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.kernels.device import HAS_ASSEMBLY, runs_kernels, tl, triton
from MiniCPMO45.kernels.products import rotate

MOST = 127.0  # of a code
MOST_CODE = tl.constexpr(MOST)


def encode_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes of rows [..., D], and the float32 scale of each row [...]."""
    wide = rows.float()
    top = wide.abs().amax(-1)
    inverse = torch.where(top > 0, MOST / top, 0.0)
    codes = torch.floor(wide * inverse[..., None] + 0.5).to(torch.int8)
    return codes, top / MOST


def decode_rows(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows [..., D] of codes and their scales [...]."""
    return (codes.float() * scales[..., None]).to(dtype)


@triton.jit
def row_scale(top):
    """Return the factor from values to codes, and the row's scale."""
    inverse = tl.where(top > 0, tl.div_rn(MOST_CODE, tl.where(top > 0, top, 1.0)), 0.0)
    return inverse, tl.div_rn(top, MOST_CODE)


@triton.jit
def encode(values, inverse):
    return tl.floor(values * inverse + 0.5).to(tl.int8)


@triton.jit
def decoded_pairs(pairs, kind: tl.constexpr):
    """Return the codes in the low and in the high bytes of int16 `pairs` as a float dtype.

    bfloat16 has seven explicit bits: 0x4300 with the low seven bits of a code is 128 plus these,
    and 0xC300 with its sign bit is -128 for a positive code and -256 for a negative one. Their sum
    is the code, for two codes in one instruction, where conversion takes one for each.
    """
    if kind == tl.bfloat16 and HAS_ASSEMBLY:
        low, high = tl.inline_asm_elementwise(
            """
            {
                .reg .b32 lower, upper, sign, one;
                mov.b32 one, 0x3F803F80;
                lop3.b32 lower, $2, 0x007F007F, 0x43004300, 0xEA;
                lop3.b32 sign, $2, 0x00800080, 0xC300C300, 0xEA;
                fma.rn.bf16x2 $0, lower, one, sign;
                shr.b32 upper, $2, 8;
                lop3.b32 lower, upper, 0x007F007F, 0x43004300, 0xEA;
                lop3.b32 sign, upper, 0x00800080, 0xC300C300, 0xEA;
                fma.rn.bf16x2 $1, lower, one, sign;
            }
            """,
            "=r,=r,r",
            [pairs],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        low, high = ((pairs << 8) >> 8).to(kind), (pairs >> 8).to(kind)
    return low, high


def move_tokens(
    pool: Tensor,
    scales: Tensor | None,
    pages: Tensor,
    start: int,
    target: int,
    count: int,
    turn: tuple[Tensor, Tensor],
) -> None:
    """Move cached tokens of one sequence towards its front, in every layer and in place.

    `pool` is [layers, pages, 2, KVH, page tokens, D], `scales` the same without D for codes, and
    `pages` int32 [max_pages] those of the sequence. `target`, where the first token goes, is
    smaller than `start`. `turn` is cos and sin, float32 [D] each, of the distance `target - start`.
    """
    if runs_kernels(pool):
        layers, _, _, kv_heads, page_tokens, d = pool.shape
        held = pool, pool if scales is None else scales  # any pointer without scales
        strides = {"PAGE_STRIDE": pool.stride(1), "PLANE_STRIDE": pool.stride(2)}
        sizes = {"D": d, "PAGE": page_tokens, "IS_CODED": scales is not None, "num_warps": WARPS}
        _shift_plane[(layers, kv_heads, 2)](
            *held, pages, *turn, start, target, count, pool.stride(0), **strides, **sizes
        )
        return
    cos, sin = (table[None] for table in turn)
    page_tokens = pool.shape[4]
    places = torch.arange(count, device=pool.device)
    old, new = places + start, places + target
    source = pages[old // page_tokens].long(), slice(None), slice(None), old % page_tokens
    into = pages[new // page_tokens].long(), slice(None), slice(None), new % page_tokens
    for index, layer in enumerate(pool):  # one at a time to save memory
        rows = layer[source]  # [count, 2, KVH, D]
        if scales is None:
            rows[:, 0] = rotate(rows[:, 0], cos, sin)
        else:
            row_scales = scales[index][source]  # [count, 2, KVH]
            keys = decode_rows(rows[:, 0], row_scales[:, 0], torch.float32)
            rows[:, 0], row_scales[:, 0] = encode_rows(rotate(keys, cos, sin))
            scales[index][into] = row_scales
        layer[into] = rows


TOKENS_AT_ONCE = 64
WARPS = 4


# Specialisation would compile it again for some values.
@triton.jit(do_not_specialize=["start", "target", "count"])
def _shift_plane(
    pool, scales, pages, cos, sin, start, target, count, LAYER_STRIDE,
    PAGE_STRIDE: tl.constexpr, PLANE_STRIDE: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    IS_CODED: tl.constexpr, TOKENS: tl.constexpr = TOKENS_AT_ONCE,
):  # fmt: skip
    """One program: the keys or the values of one head of one layer, front to back.

    Everything written lies before everything still to be read.
    """
    layer, head, is_value = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = layer.to(tl.int64) * LAYER_STRIDE + is_value * PLANE_STRIDE + head * PAGE * D
    own, own_scales = pool + first_row, scales + first_row // D
    half = tl.arange(0, D // 2)
    token = tl.arange(0, TOKENS)
    cosine, sine = tl.load(cos + half)[None, :], tl.load(sin + half)[None, :]
    for first in range(0, count, TOKENS):
        exists = first + token < count
        at, to = start + first + token, target + first + token
        at_page = tl.load(pages + at // PAGE, mask=exists, other=0).to(tl.int64)
        to_page = tl.load(pages + to // PAGE, mask=exists, other=0).to(tl.int64)
        at_row = at_page * (PAGE_STRIDE // D) + at % PAGE
        to_row = to_page * (PAGE_STRIDE // D) + to % PAGE
        source = own + at_row[:, None] * D + half[None, :]
        into = own + to_row[:, None] * D + half[None, :]
        lower = tl.load(source, mask=exists[:, None])
        upper = tl.load(source + D // 2, mask=exists[:, None])
        if IS_CODED:
            scale = tl.load(own_scales + at_row, mask=exists, other=0.0)
        if is_value == 0:
            x, y = lower.to(tl.float32), upper.to(tl.float32)
            if IS_CODED:
                x, y = x * scale[:, None], y * scale[:, None]
            x, y = x * cosine - y * sine, y * cosine + x * sine
            if IS_CODED:
                top = tl.maximum(tl.max(tl.abs(x), 1), tl.max(tl.abs(y), 1))
                inverse, scale = row_scale(top)
                lower, upper = encode(x, inverse[:, None]), encode(y, inverse[:, None])
            else:
                lower, upper = x.to(lower.dtype), y.to(upper.dtype)
        tl.debug_barrier()  # all threads have read before any writes
        tl.store(into, lower, mask=exists[:, None])
        tl.store(into + D // 2, upper, mask=exists[:, None])
        if IS_CODED:
            tl.store(own_scales + to_row, scale, mask=exists)
        tl.debug_barrier()
