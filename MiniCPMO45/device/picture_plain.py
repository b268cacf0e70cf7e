"""Plain twins of the kernels that resize pictures, same signatures.

Bytes are the same on any device; patch values to the last bit on the CPU alone, since torch
divides by a number on a card by multiplying.
"""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.device.axis_weights import WEIGHT_BITS, AxisWeights
from MiniCPMO45.image_processing import CHANNELS, PATCH_SIDE, PIXEL_MAX, PIXEL_MEAN, PIXEL_STD


def resize_rows(pixels: Tensor, across: AxisWeights, left: int, width: int) -> Tensor:
    """Resize every row of a picture.

    Args:
        pixels: uint8 [rows, source width, 3] contiguous.
        across: table of the whole width.
        left: first column of the result that is wanted.
        width: columns that are wanted.

    Returns:
        uint8 [rows, width, 3].
    """
    return _resize(pixels.transpose(0, 1), across, left, width, 0).transpose(0, 1).contiguous()


def columns_to_patches(
    rows: Tensor, down: AxisWeights, top: int, first_row: int, size: tuple[int, int], out: Tensor
) -> None:
    """Resize every column and write the result as patch vectors, `(byte / 255 - 0.5) / 0.5`.

    Args:
        rows: uint8 [source rows, width, 3] contiguous, the width being that of the slice.
        down: table of the whole height.
        top: first row of the result that is wanted.
        first_row: which row of the source `rows` begins with.
        size: rows and columns of patches.
        out: float32 [at least rows * columns, 3 * 14 * 14] contiguous.
    """
    pixels = _resize(rows, down, top, size[0] * PATCH_SIDE, first_row)
    tiles = pixels.view(size[0], PATCH_SIDE, size[1], PATCH_SIDE, CHANNELS)
    ordered = tiles.permute(0, 2, 4, 1, 3).flatten(0, 1).flatten(1)  # [L, 3 * 14 * 14]
    values = (ordered.float() / PIXEL_MAX - PIXEL_MEAN) / PIXEL_STD
    out[: len(values)] = values


def _resize(lines: Tensor, axis: AxisWeights, start: int, count: int, first_line: int) -> Tensor:
    """Make `count` lines of the result from the lines [source, n, 3] of a picture."""
    result = slice(start, start + count)
    shape = (count, *lines.shape[1:])
    total = torch.full(shape, 1 << (WEIGHT_BITS - 1), dtype=torch.int32, device=lines.device)
    for tap, weights in enumerate(axis.weights[:, result]):
        line = (axis.first[result] + (tap - first_line)).clamp(max=len(lines) - 1)
        total += lines[line].int() * weights[:, None, None]
    return (total >> WEIGHT_BITS).clamp(0, 255).to(torch.uint8)
