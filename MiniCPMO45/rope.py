"""Rotary position embedding: the table of one decoder, and moving cached keys along it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """Return theta^(-2i/d) for i = 0 ... d/2-1, float32 [d/2].

    Source: arXiv:2104.09864, section 3.2.2.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / theta**exponents


def rotate_half(x: Tensor) -> Tensor:
    """Map the halves (x1, x2) of the last axis to (-x2, x1)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


@dataclass(frozen=True, eq=False)
class Rope:
    """Frequencies of one decoder.

    Attributes:
        frequencies: float32 [d/2], what the decoder rotates with.
    """

    frequencies: Tensor

    @classmethod
    def build(cls, head_dim: int, theta: float, *, device: torch.device) -> Rope:
        """Make the table on `device`."""
        return cls(inverse_frequencies(head_dim, theta).to(device))

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin for integer positions [n], each `dtype` [n, d]."""
        return _tables(positions, self.frequencies, dtype)

    def move(self, keys: Tensor, start: int, target: int) -> Tensor:
        """Rotate keys of consecutive positions to others.

        Args:
            keys: [..., n, d], rotated for positions start ... start+n-1.
            start: position of the first row now.
            target: position of the first row afterwards.

        Returns:
            Keys rotated for positions target ... target+n-1, same shape and dtype.

        Source: a rotation per position composes, so a shift is one more rotation
            (arXiv:2104.09864, section 3.2).
        """
        if start == target:
            return keys
        offset = torch.full((1,), target - start, device=keys.device)  # without waiting for a GPU
        cos, sin = _tables(offset, self.frequencies, torch.float32)
        wide = keys.float()
        return (wide * cos + rotate_half(wide) * sin).to(keys.dtype)


def _tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = positions.float()[:, None] * frequencies  # [n, d/2]
    angles = torch.cat((angles, angles), dim=-1)  # [n, d]
    return angles.cos().to(dtype), angles.sin().to(dtype)
