"""Random values that depend on a name and a seed alone, not on the order they are drawn in."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor


def draw(name: str, shape: tuple[int, ...], seed: int, spread: float = 1.0) -> Tensor:
    """Draw normal values that depend on the name and the seed alone.

    Args:
        name: the tensor's name.
        shape: its shape.
        seed: of the checkpoint.
        spread: standard deviation.

    Returns:
        float32 of `shape`, on torch's default device; each kind of device draws its own values.
    """
    generator = torch.Generator(torch.get_default_device())
    generator.manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    return torch.randn(shape, generator=generator) * spread
