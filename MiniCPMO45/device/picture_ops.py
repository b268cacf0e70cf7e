"""Slices of pictures to patch vectors on the device, byte for byte as Pillow resizes them.

Triton kernels on a card, plain twins elsewhere; the two passes are those of `image_processing`.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

from torch import Tensor

from MiniCPMO45.device import picture_plain
from MiniCPMO45.device.axis_weights import axis_weights
from MiniCPMO45.picture_slices import PixelSlice

HAS_TRITON = find_spec("triton") is not None


def _pictures(x: Tensor) -> ModuleType:
    if x.is_cuda and HAS_TRITON:
        from MiniCPMO45.device.kernels import pictures

        return pictures
    return picture_plain


def write_patches(pixels: Tensor, part: PixelSlice, out: Tensor) -> None:
    """Resize a picture as far as a slice needs it, and write the slice's patch vectors.

    Args:
        pixels: uint8 [height, width, 3], the slice's picture, contiguous.
        part: which part of the resized picture.
        out: float32 [at least the slice's patches, 3 * 14 * 14] contiguous; further rows are
            left alone.
    """
    (width, height), (left, top) = part.resized, part.corner
    across = axis_weights(pixels.shape[1], width, pixels.device)
    down = axis_weights(pixels.shape[0], height, pixels.device)
    first, end = down.window(top, top + part.extent[1])
    kernels = _pictures(pixels)
    rows = kernels.resize_rows(pixels[first:end], across, left, part.extent[0])
    kernels.columns_to_patches(rows, down, top, first, part.size, out)
