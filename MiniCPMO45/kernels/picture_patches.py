"""Patch vectors of image slices on a card, resized to the same bytes as by Pillow.

On the CPU Pillow itself does the same (`pictures.patches_of`). Bicubic weights of one axis
are the integers Pillow multiplies bytes with; a pixel of the result is a sum over a window of
source pixels. Imported only for tensors on a card.

Source: Pillow, src/libImaging/Resample.c; Keys 1981, "Cubic convolution interpolation for digital
image processing", with a = -0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.kernels.device import cached_tensor, tl, triton
from MiniCPMO45.processing.pictures import (
    CHANNELS,
    PATCH_SIDE,
    PATCH_VALUES,
    PIXEL_MAX,
    PIXEL_MEAN,
    PIXEL_STD,
    PixelSlice,
)

WEIGHT_BITS = 22  # of a weight's fraction: a sum of bytes times weights fits into 32 bits
REACH = 2.0  # source pixels on either side if the image is not reduced
SHARPNESS = -0.5  # Keys' a
CACHED_AXES = 128  # a camera uses few sizes
# Sizes are runtime arguments: a new image size must not trigger a compilation.
BLOCK = 1024  # values of one program


@dataclass(frozen=True, eq=False)
class AxisWeights:
    first: Tensor  # int32 [result], first source pixel of each window
    weights: Tensor  # int32 [taps, result] in units of 2 ** -WEIGHT_BITS, zero beyond a window
    bounds: np.ndarray  # int64 [result, 2], first source pixel of each window and that behind it


@lru_cache(maxsize=CACHED_AXES)
def axis_weights(length: int, result: int, device: torch.device) -> AxisWeights:
    """Return the windows that resize `length` pixels to `result` pixels."""
    scale = length / result
    stretch = max(scale, 1.0)
    reach = REACH * stretch
    centre = (np.arange(result) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)  # towards zero
    end = np.minimum((centre + reach + 0.5).astype(np.int64), length)
    tap = np.arange((end - first).max())[:, None]  # [taps, 1]
    x = np.abs((tap + first - centre + 0.5) * (1.0 / stretch))  # [taps, result]
    near = ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * SHARPNESS
    weights = np.where(x < 1, near, np.where(x < REACH, far, 0.0))
    weights[tap >= end - first] = 0.0
    total = np.zeros(result)
    for row in weights:  # in this order: sums in pairs would be rounded otherwise
        total += row
    weights /= total
    # half a unit away from zero, then towards zero
    rounded = np.trunc(weights * 2**WEIGHT_BITS + np.where(weights < 0, -0.5, 0.5))
    start, table = (cached_tensor(each.astype(np.int32), device) for each in (first, rounded))
    return AxisWeights(start, table, np.stack((first, end), axis=1))


@triton.jit
def _resized(
    source, step, begin, end, weights, place, stride, taps, is_value, BLOCK: tl.constexpr = BLOCK,
    BITS: tl.constexpr = WEIGHT_BITS,
):  # fmt: skip
    """Weigh the window of each value, bytes `step` apart at places `begin` on, to 0 ... 255."""
    total = tl.full((BLOCK,), 1 << (BITS - 1), tl.int32)
    for tap in range(taps):
        weight = tl.load(weights + tap * stride + place, mask=is_value, other=0)
        seen = tl.minimum(begin + tap, end - 1).to(tl.int64)  # beyond a window the weight is zero
        byte = tl.load(source + seen * step, mask=is_value, other=0)
        total += byte.to(tl.int32) * weight
    return tl.minimum(tl.maximum(total >> BITS, 0), 255)


@triton.jit(
    do_not_specialize=["n_source", "left", "width", "stride", "taps"],
    do_not_specialize_on_alignment=["pixels", "first", "weights"],
)
def _resize_rows(
    pixels, first, weights, out, n_source, left, width, stride, taps,
    CHANNELS: tl.constexpr = CHANNELS, BLOCK: tl.constexpr = BLOCK,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    value = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_value = value < width * CHANNELS
    column, channel = value // CHANNELS + left, value % CHANNELS
    begin = tl.load(first + column, mask=is_value, other=0)
    source = pixels + row * n_source * CHANNELS + channel
    byte = _resized(source, CHANNELS, begin, n_source, weights, column, stride, taps, is_value)
    tl.store(out + row * width * CHANNELS + value, byte.to(tl.uint8), mask=is_value)


@triton.jit(
    do_not_specialize=["n_rows", "top", "first_row", "columns", "n_values", "stride", "taps"],
    do_not_specialize_on_alignment=["first", "weights", "out"],
)
def _columns_to_patches(
    rows, first, weights, out, n_rows, top, first_row, columns, n_values, stride, taps,
    MAX: tl.constexpr = PIXEL_MAX, MEAN: tl.constexpr = PIXEL_MEAN, STD: tl.constexpr = PIXEL_STD,
    CHANNELS: tl.constexpr = CHANNELS, SIDE: tl.constexpr = PATCH_SIDE, BLOCK: tl.constexpr = BLOCK,
):  # fmt: skip
    value = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_value = value < n_values
    patch, place = value // (CHANNELS * SIDE * SIDE), value % (CHANNELS * SIDE * SIDE)
    channel, place = place // (SIDE * SIDE), place % (SIDE * SIDE)
    line = top + patch // columns * SIDE + place // SIDE
    column = patch % columns * SIDE + place % SIDE
    begin = tl.load(first + line, mask=is_value, other=0) - first_row
    source, step = rows + column * CHANNELS + channel, columns * SIDE * CHANNELS
    byte = _resized(source, step, begin, n_rows, weights, line, stride, taps, is_value)
    share = tl.div_rn(byte.to(tl.float32), MAX)
    tl.store(out + value, tl.div_rn(share - MEAN, STD), mask=is_value)


def write_patches(pixels: Tensor, part: PixelSlice, out: Tensor) -> None:
    """Resize the part of an image that a slice covers, and write the slice's patch vectors.

    `pixels` are uint8 [height, width, 3] and contiguous, `out` float32 [at least the slice's
    patches, 3 * 14 * 14] and contiguous; further rows are unchanged.
    """
    (left, top), (width, height) = part.corner, part.extent
    across = axis_weights(pixels.shape[1], part.resized[0], pixels.device)
    down = axis_weights(pixels.shape[0], part.resized[1], pixels.device)
    first, end = int(down.bounds[top, 0]), int(down.bounds[top + height - 1, 1])
    pixels = pixels[first:end]
    n_rows, n_source, _ = pixels.shape
    rows = torch.empty(n_rows, width, CHANNELS, dtype=torch.uint8, device=pixels.device)
    taps, stride = across.weights.shape
    _resize_rows[(n_rows, triton.cdiv(width * CHANNELS, BLOCK))](
        pixels, across.first, across.weights, rows, n_source, left, width, stride, taps
    )
    n_values = part.size[0] * part.size[1] * PATCH_VALUES
    taps, stride = down.weights.shape
    sizes = n_rows, top, first, part.size[1], n_values, stride, taps
    _columns_to_patches[(triton.cdiv(n_values, BLOCK),)](
        rows, down.first, down.weights, out, *sizes
    )
