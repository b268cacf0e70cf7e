"""Triton kernels that resize pictures; imported only for tensors on a card.

Twins of the same signatures are in `picture_plain`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from MiniCPMO45.device.axis_weights import WEIGHT_BITS, AxisWeights
from MiniCPMO45.image_processing import (
    CHANNELS,
    PATCH_SIDE,
    PATCH_VALUES,
    PIXEL_MAX,
    PIXEL_MEAN,
    PIXEL_STD,
)

# Sizes are not compiled in: a picture of a new size must not wait for a compiler.
BLOCK = 1024  # values of one program


@triton.jit
def _to_byte(total, BITS: tl.constexpr):
    return tl.minimum(tl.maximum(total >> BITS, 0), 255)


@triton.jit(
    do_not_specialize=["n_source", "left", "width", "stride", "taps"],
    do_not_specialize_on_alignment=["pixels", "first", "weights"],
)
def _resize_rows(
    pixels,
    first,
    weights,
    out,
    n_source,
    left,
    width,
    stride,
    taps,
    CHANNELS: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    value = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_value = value < width * CHANNELS
    column, channel = value // CHANNELS + left, value % CHANNELS
    begin = tl.load(first + column, mask=is_value, other=0)
    total = tl.full((BLOCK,), 1 << (BITS - 1), tl.int32)
    for tap in range(taps):
        weight = tl.load(weights + tap * stride + column, mask=is_value, other=0)
        seen = tl.minimum(begin + tap, n_source - 1)  # behind a window the weight is zero
        byte = tl.load(
            pixels + (row * n_source + seen) * CHANNELS + channel, mask=is_value, other=0
        )
        total += byte.to(tl.int32) * weight
    byte = _to_byte(total, BITS).to(tl.uint8)
    tl.store(out + row * width * CHANNELS + value, byte, mask=is_value)


@triton.jit(
    do_not_specialize=["n_rows", "top", "first_row", "columns", "n_values", "stride", "taps"],
    do_not_specialize_on_alignment=["first", "weights", "out"],
)
def _columns_to_patches(
    rows,
    first,
    weights,
    out,
    n_rows,
    top,
    first_row,
    columns,
    n_values,
    stride,
    taps,
    MAX: tl.constexpr,
    MEAN: tl.constexpr,
    STD: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIDE: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    value = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_value = value < n_values
    patch, place = value // (CHANNELS * SIDE * SIDE), value % (CHANNELS * SIDE * SIDE)
    channel, place = place // (SIDE * SIDE), place % (SIDE * SIDE)
    line = top + patch // columns * SIDE + place // SIDE
    column = patch % columns * SIDE + place % SIDE
    begin = tl.load(first + line, mask=is_value, other=0) - first_row
    total = tl.full((BLOCK,), 1 << (BITS - 1), tl.int32)
    for tap in range(taps):
        weight = tl.load(weights + tap * stride + line, mask=is_value, other=0)
        seen = tl.minimum(begin + tap, n_rows - 1).to(tl.int64)
        byte = tl.load(
            rows + (seen * columns * SIDE + column) * CHANNELS + channel, mask=is_value, other=0
        )
        total += byte.to(tl.int32) * weight
    share = tl.div_rn(_to_byte(total, BITS).to(tl.float32), MAX)
    tl.store(out + value, tl.div_rn(share - MEAN, STD), mask=is_value)


def resize_rows(pixels: Tensor, across: AxisWeights, left: int, width: int) -> Tensor:
    """Resize every row of a picture; see the plain twin."""
    n_rows, n_source, _ = pixels.shape
    out = torch.empty(n_rows, width, CHANNELS, dtype=torch.uint8, device=pixels.device)
    taps, stride = across.weights.shape
    _resize_rows[(n_rows, triton.cdiv(width * CHANNELS, BLOCK))](
        pixels,
        across.first,
        across.weights,
        out,
        n_source,
        left,
        width,
        stride,
        taps,
        CHANNELS=CHANNELS,
        BITS=WEIGHT_BITS,
        BLOCK=BLOCK,
    )
    return out


def columns_to_patches(
    rows: Tensor, down: AxisWeights, top: int, first_row: int, size: tuple[int, int], out: Tensor
) -> None:
    """Resize every column and write the result as patch vectors; see the plain twin."""
    n_values = size[0] * size[1] * PATCH_VALUES
    taps, stride = down.weights.shape
    _columns_to_patches[(triton.cdiv(n_values, BLOCK),)](
        rows,
        down.first,
        down.weights,
        out,
        len(rows),
        top,
        first_row,
        size[1],
        n_values,
        stride,
        taps,
        MAX=PIXEL_MAX,
        MEAN=PIXEL_MEAN,
        STD=PIXEL_STD,
        CHANNELS=CHANNELS,
        SIDE=PATCH_SIDE,
        BITS=WEIGHT_BITS,
        BLOCK=BLOCK,
    )
