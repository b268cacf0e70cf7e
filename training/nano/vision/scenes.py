"""Scenes in batches: labels, and the position of each thing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.nano.domain.camera import DIGIT, MOST_THINGS
from training.nano.domain.kinds import Scene
from training.nano.domain.spoken_numbers import cardinal
from training.nano.domain.words import SCENE_COLOURS, SCENE_SHAPES

DIGIT_SHARE = 0.42
EMPTY_SHARE = 0.08
PANEL_SHARE = 0.4  # of the pictures show the things on a card
LEAST_RADIUS_PX = 17
NOTHING = -1
N_SHAPES = len(SCENE_SHAPES)
# Columns and rows of cells for one to five things.
GRIDS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((1, 1), (1, 1), (2, 1), (2, 2), (3, 2)),
    ((2, 1), (1, 2), (2, 2), (3, 2), (3, 1)),
    ((3, 1), (2, 2), (3, 2), (2, 3), (3, 3)),
    ((2, 2), (3, 2), (4, 1), (3, 3), (4, 2)),
    ((3, 2), (5, 1), (3, 3), (2, 3), (4, 2)),
)
_CHOICES = len(GRIDS[0])


@dataclass(frozen=True, eq=False)
class Labels:
    """Contents of a batch of pictures; all int64 [B], -1 where not applicable."""

    colour: Tensor  # index into `SCENE_COLOURS`
    shape: Tensor  # index into `SCENE_SHAPES`, or their number for a digit
    digit: Tensor  # 0 to 9
    count: Tensor  # number of things less one

    @classmethod
    def draw(cls, n: int, generator: torch.Generator) -> Labels:
        is_digit = _chance(n, DIGIT_SHARE, generator)
        is_empty = _chance(n, EMPTY_SHARE, generator)
        shape = torch.where(is_digit, N_SHAPES, _below(n, N_SHAPES, generator))
        digit = torch.where(is_digit, _below(n, 10, generator), NOTHING)
        count = torch.where(is_digit, 0, _below(n, MOST_THINGS, generator))
        colour = _below(n, len(SCENE_COLOURS), generator)
        columns = (colour, shape, digit, count)
        return cls(*(torch.where(is_empty, NOTHING, column) for column in columns))

    def scenes(self) -> list[Scene | None]:
        columns = torch.stack((self.colour, self.shape, self.digit, self.count), dim=1)
        return [
            None if colour == NOTHING else _scene(colour, shape, digit, count)
            for colour, shape, digit, count in columns.tolist()
        ]

    @property
    def kinds(self) -> Tensor:
        """Stencil kind of each picture, int64 [B]; 0 if it is empty."""
        kind = torch.where(self.digit >= 0, N_SHAPES + self.digit, self.shape)
        return kind.clamp(min=0)


@dataclass(frozen=True, eq=False)
class Placing:
    """Positions in pixels."""

    centres: Tensor  # float32 [B, 5, 2], x and y
    radii: Tensor  # float32 [B, 5], half a stencil's side; 0 for absent things
    panels: Tensor  # float32 [B, 4], left, top, right, bottom; outside the picture if absent

    def nearest(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the thing nearest to each point of a grid, in radii: int64 [B, h, w]."""
        return self.distances(x, y).argmin(1)

    def distances(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the Chebyshev distance of each thing and point, in radii: float32 [B, 5, h, w]."""
        radii = self.radii.clamp(min=1e-3)[..., None]
        across = (x - self.centres[..., :1]).abs() / radii  # [B, 5, w]
        down = (y - self.centres[..., 1:]).abs() / radii  # [B, 5, h]
        return torch.maximum(across[:, :, None], down[..., None])


def place(
    labels: Labels,
    width: int,
    height: int,
    generator: torch.Generator,
    least_radius_px: float = LEAST_RADIUS_PX,
) -> Placing:
    """Lay out the things of each picture without overlap; `least_radius_px` where it fits."""
    n, device = len(labels.count), labels.count.device
    table = torch.tensor(GRIDS, device=device)  # [5, choices, 2]
    count = labels.count.clamp(min=0)
    grid = table[count, _below(n, _CHOICES, generator)].float()  # [B, 2]
    has_panel = _chance(n, PANEL_SHARE, generator) & (labels.count >= 0)
    size = torch.tensor([float(width), float(height)], device=device)
    panel_size = size * (0.55 + 0.4 * rand((n, 2), generator))
    panel_start = (size - panel_size) * rand((n, 2), generator)
    edge = 0.02 * size
    start = torch.where(has_panel[:, None], panel_start + 0.05 * panel_size, edge)
    extent = torch.where(has_panel[:, None], 0.9 * panel_size, size - 2 * edge)
    cell = extent / grid  # [B, 2]
    order = rand((n, 16), generator)
    taken = torch.arange(16, device=device) >= (grid[:, 0] * grid[:, 1])[:, None]
    chosen = order.masked_fill(taken, 2.0).argsort(1)[:, :MOST_THINGS].float()
    corner = torch.stack((chosen % grid[:, :1], (chosen / grid[:, :1]).floor()), dim=-1)
    half = cell.amin(1)[:, None] / 2
    common = 0.5 + 0.45 * rand((n, 1), generator)
    share = (common * (0.8 + 0.4 * rand((n, MOST_THINGS), generator))).clamp(max=0.96)
    radii = torch.minimum((half * share).clamp(min=least_radius_px), half * 0.98)
    margin = (cell[:, None] / 2 - radii[..., None]).clamp(min=0)
    jitter = (2 * rand((n, MOST_THINGS, 2), generator) - 1) * margin * 0.9
    centres = start[:, None] + (corner + 0.5) * cell[:, None] + jitter
    is_there = torch.arange(MOST_THINGS, device=device) <= labels.count[:, None]
    panels = torch.cat((panel_start, panel_start + panel_size), dim=1)
    beyond = torch.tensor([-9.0, -9.0, -8.0, -8.0], device=device)
    return Placing(centres, radii * is_there, torch.where(has_panel[:, None], panels, beyond))


def _scene(colour: int, shape: int, digit: int, count: int) -> Scene:
    if shape == N_SHAPES:
        return Scene(SCENE_COLOURS[colour], DIGIT, cardinal(digit), "one")
    return Scene(SCENE_COLOURS[colour], SCENE_SHAPES[shape], "", cardinal(count + 1))


def rand(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _below(n: int, limit: int, generator: torch.Generator) -> Tensor:
    return torch.randint(limit, (n,), generator=generator, device=generator.device)


def _chance(n: int, share: float, generator: torch.Generator) -> Tensor:
    return rand((n,), generator) < share
