"""What each patch of a picture lies on: a teacher with a word for every patch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.nano.domain.camera import MOST_THINGS
from training.nano.domain.words import SCENE_COLOURS
from training.nano.vision.scenes import N_SHAPES, Labels, Placing

ON_THING_RADII = 0.85  # a patch whose centre is so near lies on the thing
N_KINDS = N_SHAPES + 10
# Kind, colour and number of the things; the last of each is for patches beside them.
SIZES = (N_KINDS + 1, len(SCENE_COLOURS) + 1, MOST_THINGS + 1)


def patch_labels(labels: Labels, placing: Placing, size: tuple[int, int], side: int) -> Tensor:
    """Return what every patch should tell.

    Args:
        labels: of the pictures.
        placing: of their things, in pixels.
        size: rows and columns of patches.
        side: of a patch, in pixels.

    Returns:
        int64 [B, rows * columns, 3], in the order of `SIZES`.
    """
    rows, columns = (
        (torch.arange(count, device=labels.count.device) + 0.5) * side for count in size
    )
    is_there = (placing.radii > 0)[..., None, None]
    distances = placing.distances(columns, rows).masked_fill(~is_there, 9.0)
    is_on = (distances.amin(1) < ON_THING_RADII).flatten(1)[..., None]  # [B, L, 1]
    told = torch.stack((labels.kinds, labels.colour, labels.count), dim=1)[:, None]
    nothing = torch.tensor(SIZES, device=told.device) - 1
    return torch.where(is_on, told, nothing)


class PatchReaders(nn.Module):
    """One linear reader of the tower's features per attribute."""

    def __init__(self, width: int) -> None:
        """Make fresh weights.

        Args:
            width: of the tower.
        """
        super().__init__()
        self.head = nn.Linear(width, sum(SIZES))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Read features [B, L, width]: [B, L, size] per attribute."""
        return self.head(features).float().split(SIZES, dim=-1)


def patch_loss(read: tuple[Tensor, ...], wanted: Tensor) -> Tensor:
    """Return the mean surprise, in nats; patches on things count as much as all beside them.

    Args:
        read: of `PatchReaders`.
        wanted: of `patch_labels`.
    """
    is_on = wanted[..., 0] != SIZES[0] - 1  # [B, L]
    weights = is_on / is_on.sum().clamp(min=1) + ~is_on / (~is_on).sum().clamp(min=1)
    losses = [
        F.cross_entropy(scores.flatten(0, 1), wanted[..., number].flatten(), reduction="none")
        for number, scores in enumerate(read)
    ]
    return 0.5 * (torch.stack(losses).mean(0) * weights.flatten()).sum()
