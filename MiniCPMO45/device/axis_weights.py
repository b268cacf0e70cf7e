"""Bicubic weights of one axis of a picture, as the integers Pillow multiplies bytes with.

A pixel of the result is a sum over a window of source pixels. Tables depend on two lengths alone.

Source: Pillow, src/libImaging/Resample.c; Keys 1981, "Cubic convolution interpolation for digital
image processing", with a = -0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.patch_grid import cached_tensor

WEIGHT_BITS = 22  # of a weight's fraction: a sum of bytes times weights fits into 32 bits
REACH = 2.0  # source pixels to either side, where the picture is not reduced
SHARPNESS = -0.5  # Keys' a
CACHED_AXES = 128  # cameras repeat a few sizes


@dataclass(frozen=True, eq=False)
class AxisWeights:
    """How one axis is resized.

    Attributes:
        first: int32 [result], first source pixel of each window.
        weights: int32 [taps, result] in units of 2 ** -WEIGHT_BITS, zero behind a window's end.
        bounds: the same windows on the host, int64 [result, 2], first pixel and end.
    """

    first: Tensor
    weights: Tensor
    bounds: np.ndarray

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """Return the source pixels [first, end) that results [start, stop) are made of."""
        return int(self.bounds[start, 0]), int(self.bounds[stop - 1, 1])


@lru_cache(maxsize=CACHED_AXES)
def axis_weights(length: int, result: int, device: torch.device) -> AxisWeights:
    """Make the table that resizes `length` pixels to `result` pixels.

    Args:
        length: pixels, at least 1.
        result: pixels, at least 1.
        device: where the tensors shall live.
    """
    bounds, weights = _tables(length, result)
    first = cached_tensor(bounds[:, 0].astype(np.int32), device)
    return AxisWeights(first, cached_tensor(weights, device), bounds)


def _tables(length: int, result: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows int64 [result, 2] and weights int32 [taps, result]."""
    scale = length / result
    stretch = max(scale, 1.0)
    reach = REACH * stretch
    centre = (np.arange(result) + 0.5) * scale
    first = np.maximum((centre - reach + 0.5).astype(np.int64), 0)  # towards zero
    end = np.minimum((centre + reach + 0.5).astype(np.int64), length)
    tap = np.arange((end - first).max())[:, None]  # [taps, 1]
    weights = _cubic((tap + first - centre + 0.5) * (1.0 / stretch))  # [taps, result]
    weights[tap >= end - first] = 0.0
    total = np.zeros(result)
    for row in weights:  # in this order: sums in pairs would be rounded otherwise
        total += row
    weights /= total
    # half a unit away from zero, then towards zero
    rounded = np.trunc(weights * 2**WEIGHT_BITS + np.where(weights < 0, -0.5, 0.5))
    return np.stack((first, end), axis=1), rounded.astype(np.int32)


def _cubic(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near = ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * SHARPNESS
    return np.where(x < 1, near, np.where(x < REACH, far, 0.0))
