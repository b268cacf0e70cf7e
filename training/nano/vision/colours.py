"""Which hues, saturations and values a colour word stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from training.nano.domain.words import SCENE_COLOURS

# Hue in degrees, saturation and value: from, to. Wide gaps lie between neighbours, so that light
# may change a colour without changing its name.
RANGES = {
    "red": ((-8, 6), (0.75, 1.0), (0.62, 1.0)),
    "green": ((95, 150), (0.5, 1.0), (0.35, 0.85)),
    "blue": ((205, 245), (0.65, 1.0), (0.5, 1.0)),
    "yellow": ((50, 60), (0.72, 1.0), (0.88, 1.0)),
    "orange": ((22, 36), (0.82, 1.0), (0.9, 1.0)),
    "purple": ((268, 292), (0.5, 0.95), (0.4, 0.8)),
    "pink": ((318, 345), (0.28, 0.6), (0.92, 1.0)),
    "black": ((0, 360), (0.0, 0.3), (0.0, 0.12)),
    "white": ((0, 360), (0.0, 0.05), (0.93, 1.0)),
    "brown": ((14, 30), (0.55, 0.9), (0.28, 0.48)),
}


def draw_colours(names: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a colour for each name.

    Args:
        names: int64 [...], indices into `SCENE_COLOURS`.
        generator: on the device of `names`.

    Returns:
        float32 [..., 3], red, green and blue between 0 and 1.
    """
    table = torch.tensor([RANGES[name] for name in SCENE_COLOURS], device=names.device)
    low, high = table[names].unbind(-1)  # [..., 3] each
    drawn = low + (high - low) * _uniform(low.shape, generator)
    return hsv_to_rgb(drawn[..., 0] / 360 % 1.0, drawn[..., 1], drawn[..., 2])


def draw_apart(others: Tensor, least: float, generator: torch.Generator) -> Tensor:
    """Draw any colour that can be told from another.

    Args:
        others: float32 [..., 3].
        least: distance in the colour cube, out of at most 1.7.
        generator: on the device of `others`.

    Returns:
        float32 [..., 3]; of eight candidates the first that is far enough, or the farthest.
    """
    shape = (8, *others.shape)
    candidates = _uniform(shape, generator)
    greys = candidates.mean(-1, keepdim=True)
    candidates = greys + (candidates - greys) * _uniform((8, *others.shape[:-1], 1), generator)
    candidates = (candidates - 0.5) * 1.3 + 0.5
    candidates = candidates.clamp(0.02, 0.98)
    distance = (candidates - others).norm(dim=-1)
    order = torch.arange(8, 0, -1, device=others.device).view(-1, *[1] * (others.ndim - 1))
    score = torch.where(distance > least, 10.0 + order, distance)
    best = score.argmax(0)[None, ..., None].expand(1, *others.shape)
    return candidates.gather(0, best)[0]


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Convert to red, green and blue; everything between 0 and 1.

    Returns:
        float32 [..., 3].
    """
    offsets = torch.tensor([5.0, 3.0, 1.0], device=hue.device)
    k = (offsets + hue[..., None] * 6) % 6
    ramp = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[..., None] * (1 - saturation[..., None] * ramp)


def _uniform(shape: torch.Size | tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)
