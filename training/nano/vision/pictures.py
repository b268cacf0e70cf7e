"""Paints scenes in batches: backgrounds, things, lighting and camera artefacts."""

from __future__ import annotations

import math
from functools import cache, reduce
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from training.nano.domain.camera import MOST_THINGS
from training.nano.domain.words import SCENE_COLOURS
from training.nano.vision.scenes import Labels, Placing, place, rand
from training.nano.vision.stencils import Stencils

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
    """Apply the loss of JPEG (4:4:4) to pictures [B, 3, H, W]."""
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


CONTRAST = 0.42  # least colour distance between a thing and its background
TURN_DEGREES = 24.0
WARP, WARP_CELLS = 0.05, 6  # deviation of hand-drawn lines, as a share of the radius
OWNER_STEP = 4  # pixels; resolution of the nearest-thing map
EDGE = 0.99  # of a stencil, to exclude its neighbour
BLUR_PER_PX = 1400.0  # side of a picture whose least blur is one pixel
REGIONS = 4
SHARP_EDGES = 12.0


# Ranges of hue in degrees, saturation and value, far enough apart that lighting does not change the
# name of a colour.
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
    """Draw a colour, red, green and blue between 0 and 1, for each index into `SCENE_COLOURS`."""
    table = torch.tensor([RANGES[name] for name in SCENE_COLOURS], device=names.device)
    low, high = table[names].unbind(-1)  # [..., 3] each
    drawn = low + (high - low) * rand(low.shape, generator)
    return hsv_to_rgb(drawn[..., 0] / 360 % 1.0, drawn[..., 1], drawn[..., 2])


def draw_apart(others: Tensor, least: float, generator: torch.Generator) -> Tensor:
    """Draw colours [..., 3] at RGB distance `least` from others.

    Each is the first of eight candidates that is far enough, or the farthest.
    """
    shape = (8, *others.shape)
    candidates = rand(shape, generator)
    greys = candidates.mean(-1, keepdim=True)
    candidates = greys + (candidates - greys) * rand((8, *others.shape[:-1], 1), generator)
    candidates = (candidates - 0.5) * 1.3 + 0.5
    candidates = candidates.clamp(0.02, 0.98)
    distance = (candidates - others).norm(dim=-1)
    order = torch.arange(8, 0, -1, device=others.device).view(-1, *[1] * (others.ndim - 1))
    score = torch.where(distance > least, 10.0 + order, distance)
    best = score.argmax(0)[None, ..., None].expand(1, *others.shape)
    return candidates.gather(0, best)[0]


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Convert to RGB [..., 3]; all values in 0..1."""
    offsets = torch.tensor([5.0, 3.0, 1.0], device=hue.device)
    k = (offsets + hue[..., None] * 6) % 6
    ramp = torch.minimum(k, 4 - k).clamp(0, 1)
    return value[..., None] * (1 - saturation[..., None] * ramp)


class Painter:
    def __init__(self, stencils: Stencils, generator: torch.Generator) -> None:
        self._stencils = stencils
        self._generator = generator
        self._random = Random(generator.initial_seed())  # of values shared by a batch, on the CPU

    def draw_labels(self, n: int) -> Labels:
        return Labels.draw(n, self._generator)

    def place(self, labels: Labels, width: int, height: int, least_radius_px: float) -> Placing:
        return place(labels, width, height, self._generator, least_radius_px)

    @torch.no_grad()
    def paint(
        self, labels: Labels, width: int, height: int, placing: Placing | None = None
    ) -> Tensor:
        """Paint one picture per label: [B, 3, height, width], multiples of 1/255 in 0..1."""
        with torch.autocast(self._generator.device.type, enabled=False):
            placing = placing or place(labels, width, height, self._generator)
            colours = draw_colours(labels.colour.clamp(min=0), self._generator)  # [B, 3]
            picture = self._background(colours, width, height)
            picture = self._with_panel(picture, placing, colours)
            picture = self._with_things(picture, placing, labels, colours)
            picture = self._seen_by_camera(self._lit(picture))
            return (picture.clamp(0, 1) * 255).round() / 255

    def _background(self, colours: Tensor, width: int, height: int) -> Tensor:
        """Paint regions with soft or sharp borders, in contrast to the things."""
        n, generator = len(colours), self._generator
        others = colours[:, None].expand(n, REGIONS, 3)
        shades = draw_apart(others, CONTRAST, generator)  # [B, R, 3]
        is_plain = self._rand(n, 1, 1) < 0.35
        shades = torch.where(is_plain, shades[:, :1], shades)
        coarse = self._noise((n, REGIONS), int(2 + 5 * self._random.random()), width, height)
        sharpness = 2.0 + SHARP_EDGES * self._rand(n, 1, 1, 1)
        shares = torch.softmax(coarse * sharpness, dim=1)
        picture = torch.einsum("brhw,brc->bchw", shares, shades)
        fine = self._noise((n, 3), 60, 60, 60) + self._noise((n, 1), 24, 60, 60)
        strength = 0.06 * self._rand(n, 1, 1, 1) * (self._rand(n, 1, 1, 1) < 0.6)
        return picture + _enlarged(fine * strength, width, height)

    def _with_panel(self, picture: Tensor, placing: Placing, colours: Tensor) -> Tensor:
        """Paint a card of one colour, mostly light, over the background."""
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

    def _with_things(
        self, picture: Tensor, placing: Placing, labels: Labels, colours: Tensor
    ) -> Tensor:
        """Paint all things at once; each pixel belongs to the nearest thing."""
        n, _, height, width = picture.shape
        device = picture.device
        kinds = labels.kinds[:, None].expand(n, MOST_THINGS)
        masks = self._stencils.masks[self._stencils.draw(kinds, self._generator)]  # [B, 5, S, S]
        x = torch.arange(width, device=device) + 0.5
        y = torch.arange(height, device=device) + 0.5
        nearest = placing.nearest(x[::OWNER_STEP], y[::OWNER_STEP])  # [B, h, w]
        owner = nearest.repeat_interleave(OWNER_STEP, 1).repeat_interleave(OWNER_STEP, 2)
        owner = owner[:, :height, :width].flatten(1)  # [B, H * W]
        a, b, c, d, e, f, drop = (
            each.gather(1, owner).view(n, height, width) for each in self._strains(placing)
        )
        warp = WARP * self._rand(n, 1, 1, 1) * self._noise((n, 2), WARP_CELLS, width, height)
        u = a * x + b * y[:, None] + c + warp[:, 0]
        v = d * x + e * y[:, None] + f + warp[:, 1]
        tiles = masks.transpose(1, 2).flatten(2)[:, None]  # [B, 1, S, 5 * S], side by side
        tile = owner.view(n, height, width)
        across = (u.clamp(-EDGE, EDGE) + (2 * tile + 1 - MOST_THINGS)) / MOST_THINGS
        grid = torch.stack((across, v), dim=-1)
        inside = ((u.abs() < EDGE) & (drop == 0))[:, None]
        mask = F.grid_sample(tiles, grid, align_corners=False) * inside  # [B, 1, H, W]
        shading = 1 - 0.15 * self._rand(n, 1, 1, 1) * (0.5 + 0.5 * u.clamp(-1, 1))[:, None]
        return picture * (1 - mask) + colours[:, :, None, None] * shading * mask

    def _strains(self, placing: Placing) -> tuple[Tensor, ...]:
        """Draw the affine transform of each stencil, [B, 5] each.

        u = ax + by + c and v = dx + ey + f are stencil coordinates; the last is 1 if absent.
        """
        shape = placing.radii.shape
        angle = (2 * self._rand(*shape) - 1) * (TURN_DEGREES * math.pi / 180)
        stretch = 1.0 + 0.22 * self._rand(*shape)
        shear = 0.15 * (2 * self._rand(*shape) - 1)
        scale = 1 / placing.radii.clamp(min=1e-3)
        d, e = -angle.sin() * stretch * scale, angle.cos() * stretch * scale
        a, b = angle.cos() * scale + shear * d, angle.sin() * scale + shear * e
        x, y = placing.centres.unbind(-1)
        is_missing = (placing.radii <= 0).float()
        return a, b, -(a * x + b * y), d, e, -(d * x + e * y), is_missing

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
        height, width = picture.shape[2:]
        if self._random.random() < 0.6:
            sharpest = math.sqrt(width * height) / BLUR_PER_PX
            picture = _blurred(picture, sharpest * (1 + 3.5 * self._random.random()))
        if self._random.random() < 0.35:
            share = 0.5 + 0.4 * self._random.random()
            small = F.interpolate(picture, scale_factor=share, mode="bilinear", antialias=True)
            picture = F.interpolate(small, size=picture.shape[2:], mode="bilinear")
        strength = 0.04 * self._rand(len(picture), 1, 1, 1) ** 2
        noise = torch.randn(picture.shape, generator=self._generator, device=picture.device)
        picture = (picture + noise * strength).clamp(0, 1)
        if self._random.random() < 0.5:
            picture = through_jpeg(picture, int(30 + 60 * self._random.random()))
        return picture

    def _noise(self, channels: tuple[int, int], cells: int, width: int, height: int) -> Tensor:
        size = (max(2, round(cells * height / width)), cells)
        coarse = torch.randn(
            (*channels, *size), generator=self._generator, device=self._generator.device
        )
        return _enlarged(coarse, width, height)

    def _rand(self, *shape: int) -> Tensor:
        return rand(shape, self._generator)


def to_patches(pictures: Tensor, side: int) -> Tensor:
    """Return patch vectors as `processing.pictures.to_patches`: [B, L, 3 * side * side]."""
    tiles = pictures.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # [B, 3, r, p, c, p]
    return (tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2) - 0.5) / 0.5


def _enlarged(picture: Tensor, width: int, height: int) -> Tensor:
    return F.interpolate(picture, size=(height, width), mode="bilinear", align_corners=True)


def _blurred(picture: Tensor, sigma: float) -> Tensor:
    reach = math.ceil(2.5 * sigma)
    taps = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-reach, reach + 1)]
    padded = F.pad(picture, (reach, reach, reach, reach), mode="replicate")
    for axis in (2, 3):
        size = padded.shape[axis] - 2 * reach
        parts = (padded.narrow(axis, at, size) * (tap / sum(taps)) for at, tap in enumerate(taps))
        padded = reduce(Tensor.add_, parts)
    return padded
