"""What JPEG does to pictures, in tensors: colour, 8 x 8 blocks, rounding."""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 8
# Source: ITU-T T.81, annex K, tables K.1 and K.2.
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61), (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56), (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77), (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101), (72, 92, 95, 98, 112, 100, 103, 99),
)  # fmt: skip
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99), (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99), (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)  # fmt: skip
# Source: ITU-T T.871.
_TO_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


def through_jpeg(pictures: Tensor, quality: int) -> Tensor:
    """Return pictures as they come back from a JPEG file without colour reduction.

    Args:
        pictures: float32 [B, 3, H, W] between 0 and 1.
        quality: 1 to 100, as in libjpeg.
    """
    device, (height, width) = pictures.device, pictures.shape[2:]
    padded = F.pad(pictures, (0, -width % BLOCK, 0, -height % BLOCK), mode="replicate")
    basis, colours, steps = _basis(device), _colours(device), _steps(device, quality)
    ycc = torch.einsum("kc,bchw->bkhw", colours, padded * 255 - 128)
    blocks = ycc.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK))  # [B, 3, r, 8, c, 8]
    waves = torch.einsum("ui,bkricj,vj->bkrucv", basis, blocks, basis)
    steps = steps[None, :, None, :, None, :]
    waves = (waves / steps).round() * steps
    blocks = torch.einsum("ui,bkrucv,vj->bkricj", basis, waves, basis)
    ycc = blocks.flatten(4, 5).flatten(2, 3)
    restored = torch.einsum("ck,bkhw->bchw", torch.linalg.inv(colours), ycc)
    return ((restored + 128) / 255).clamp(0, 1)[:, :, :height, :width]


@cache
def _basis(device: torch.device) -> Tensor:
    """Cosine transform, [frequency, place]."""
    rows = [
        [math.cos((2 * place + 1) * wave * math.pi / (2 * BLOCK)) for place in range(BLOCK)]
        for wave in range(BLOCK)
    ]
    basis = torch.tensor(rows, device=device) * math.sqrt(2 / BLOCK)
    basis[0] /= math.sqrt(2)
    return basis


@cache
def _colours(device: torch.device) -> Tensor:
    return torch.tensor(_TO_YCC, device=device)


def _steps(device: torch.device, quality: int) -> Tensor:
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    tables = torch.tensor((_LUMINANCE, _CHROMINANCE, _CHROMINANCE), device=device)
    return ((tables * scale + 50) / 100).floor().clamp(1, 255)
