"""Draws scenes in batches, on a GPU or a CPU: backgrounds, things, light, and a camera's faults."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from training.nano.domain.camera import MOST_THINGS
from training.nano.vision.colours import draw_apart, draw_colours
from training.nano.vision.jpeg import through_jpeg
from training.nano.vision.scenes import Labels, Placing, place
from training.nano.vision.stencils import Stencils

CONTRAST = 0.42  # least distance between a thing and what is behind it
TURN_DEGREES = 24.0
WARP = 0.05  # how far a hand-drawn line strays, as a share of the radius
REGIONS = 4
SHARP_EDGES = 12.0


class Painter:
    """Draws pictures of one generator's choosing."""

    def __init__(self, stencils: Stencils, generator: torch.Generator) -> None:
        """Keep what is drawn with.

        Args:
            stencils: of shapes and digits.
            generator: on the device of the stencils.
        """
        self._stencils = stencils
        self._generator = generator

    def draw_labels(self, n: int) -> Labels:
        """Draw what n pictures show."""
        return Labels.draw(n, self._generator)

    @torch.no_grad()
    def paint(self, labels: Labels, width: int, height: int) -> Tensor:
        """Draw one picture per label.

        Args:
            labels: on the painter's device.
            width: pixels.
            height: pixels.

        Returns:
            float32 [B, 3, height, width], whole 255ths between 0 and 1.
        """
        with torch.autocast(self._generator.device.type, enabled=False):
            placing = place(labels, width, height, self._generator)
            colours = draw_colours(labels.colour.clamp(min=0), self._generator)  # [B, 3]
            picture = self._background(colours, width, height)
            picture = self._with_panel(picture, placing, colours)
            for number in range(MOST_THINGS):
                picture = self._with_thing(picture, placing, labels, colours, number)
            picture = self._seen_by_camera(self._lit(picture))
            return (picture.clamp(0, 1) * 255).round() / 255

    def _background(self, colours: Tensor, width: int, height: int) -> Tensor:
        """Regions with soft or sharp borders, each with a gradient, all apart from the things."""
        n, generator = len(colours), self._generator
        others = colours[:, None].expand(n, REGIONS, 3)
        shades = draw_apart(others, CONTRAST, generator)  # [B, R, 3]
        is_plain = self._rand(n, 1, 1) < 0.35
        shades = torch.where(is_plain, shades[:, :1], shades)
        coarse = self._noise((n, REGIONS), int(2 + 5 * self._scalar()), width, height)
        sharpness = 2.0 + SHARP_EDGES * self._rand(n, 1, 1, 1)
        shares = torch.softmax(coarse * sharpness, dim=1)
        picture = torch.einsum("brhw,brc->bchw", shares, shades)
        texture = self._noise((n, 1), 24, width, height) + self._noise((n, 3), 60, width, height)
        strength = 0.06 * self._rand(n, 1, 1, 1) * (self._rand(n, 1, 1, 1) < 0.6)
        return picture + texture * strength

    def _with_panel(self, picture: Tensor, placing: Placing, colours: Tensor) -> Tensor:
        """Lay a card of one colour, mostly light, over the background."""
        n, _, height, width = picture.shape
        shade = draw_apart(colours, CONTRAST, self._generator)
        light = 0.85 + 0.15 * self._rand(n, 1).expand(n, 3)
        is_apart = (light - colours).norm(dim=1, keepdim=True) > CONTRAST
        shade = torch.where(is_apart & (self._rand(n, 1) < 0.7), light, shade)
        x = torch.arange(width, device=picture.device) + 0.5
        y = torch.arange(height, device=picture.device) + 0.5
        left, top, right, bottom = placing.panels[:, :, None].unbind(1)  # [B, 1] each
        inside_x = ((x - left).clamp(0, 1) * (right - x).clamp(0, 1))[:, None, None, :]
        inside_y = ((y - top).clamp(0, 1) * (bottom - y).clamp(0, 1))[:, None, :, None]
        mask = inside_x * inside_y
        return picture * (1 - mask) + shade[:, :, None, None] * mask

    def _with_thing(
        self, picture: Tensor, placing: Placing, labels: Labels, colours: Tensor, number: int
    ) -> Tensor:
        n, _, height, width = picture.shape
        generator, device = self._generator, picture.device
        masks = self._stencils.masks[self._stencils.draw(labels.kinds, generator)]  # [B, S, S]
        radius = placing.radii[:, number].clamp(min=1e-3)
        degrees = (2 * self._rand(n) - 1) * TURN_DEGREES
        angle = degrees * (math.pi / 180)
        stretch = 1.0 + 0.22 * self._rand(n)
        shear = 0.15 * (2 * self._rand(n) - 1)
        x = torch.arange(width, device=device) + 0.5
        y = torch.arange(height, device=device) + 0.5
        dx = (x[None] - placing.centres[:, number, :1]) / radius[:, None]  # [B, W]
        dy = (y[None] - placing.centres[:, number, 1:]) / radius[:, None]  # [B, H]
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        u = dx[:, None, :] * cos + dy[:, :, None] * sin
        v = (dy[:, :, None] * cos - dx[:, None, :] * sin) * stretch[:, None, None]
        u = u + shear[:, None, None] * v
        phase = 6.28 * self._rand(n, 2, 1, 1)
        warp = WARP * self._rand(n, 1, 1)
        grid = torch.stack(
            (
                u + warp * torch.sin(2.6 * v + phase[:, 0]),
                v + warp * torch.sin(2.6 * u + phase[:, 1]),
            ),
            dim=-1,
        )
        mask = F.grid_sample(masks[:, None], grid, align_corners=False)  # [B, 1, H, W]
        mask = mask * (placing.radii[:, number] > 0)[:, None, None, None]
        shading = 1 - 0.15 * self._rand(n, 1, 1, 1) * (0.5 + 0.5 * torch.tanh(u))[:, None]
        return picture * (1 - mask) + colours[:, :, None, None] * shading * mask

    def _lit(self, picture: Tensor) -> Tensor:
        n, _, height, width = picture.shape
        exposure = 0.78 + 0.34 * self._rand(n, 1, 1, 1)
        tint = 1 + 0.08 * (2 * self._rand(n, 3, 1, 1) - 1)
        x = torch.linspace(-1, 1, width, device=picture.device)
        y = torch.linspace(-1, 1, height, device=picture.device)
        slope = 0.16 * (2 * self._rand(n, 2, 1, 1) - 1)
        ramp = 1 + slope[:, :1] * x + slope[:, 1:] * y[:, None]
        haze = 0.06 * self._rand(n, 1, 1, 1)
        return haze + (1 - haze) * picture * exposure * tint * ramp

    def _seen_by_camera(self, picture: Tensor) -> Tensor:
        if self._scalar() < 0.6:
            picture = _blurred(picture, 0.4 + 1.4 * self._scalar())
        if self._scalar() < 0.35:
            share = 0.5 + 0.4 * self._scalar()
            small = F.interpolate(picture, scale_factor=share, mode="bilinear", antialias=True)
            picture = F.interpolate(small, size=picture.shape[2:], mode="bilinear")
        strength = 0.04 * self._rand(len(picture), 1, 1, 1) ** 2
        noise = torch.randn(picture.shape, generator=self._generator, device=picture.device)
        picture = (picture + noise * strength).clamp(0, 1)
        if self._scalar() < 0.5:
            picture = through_jpeg(picture, int(30 + 60 * self._scalar()))
        return picture

    def _noise(self, channels: tuple[int, int], cells: int, width: int, height: int) -> Tensor:
        size = (max(2, round(cells * height / width)), cells)
        coarse = torch.randn(
            (*channels, *size), generator=self._generator, device=self._generator.device
        )
        return F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=True)

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self._generator.device)

    def _scalar(self) -> float:
        return float(torch.rand((), generator=self._generator, device=self._generator.device))


def to_patches(pictures: Tensor, side: int) -> Tensor:
    """Cut pictures as `MiniCPMO45.image_processing.to_patches` does, in one go.

    Args:
        pictures: float32 [B, 3, rows * side, cols * side] between 0 and 1.
        side: of a patch, in pixels.

    Returns:
        float32 [B, rows * cols, 3 * side * side] between -1 and 1.
    """
    tiles = pictures.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # [B, 3, r, p, c, p]
    return (tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2) - 0.5) / 0.5


def _blurred(picture: Tensor, sigma: float) -> Tensor:
    reach = math.ceil(2.5 * sigma)
    offsets = torch.arange(-reach, reach + 1, device=picture.device)
    kernel = torch.exp(-0.5 * (offsets / sigma) ** 2)
    kernel = (kernel / kernel.sum()).expand(3, 1, 1, -1)
    padded = F.pad(picture, (reach, reach, reach, reach), mode="replicate")
    rows = F.conv2d(padded, kernel, groups=3)
    return F.conv2d(rows, kernel.transpose(2, 3), groups=3)
