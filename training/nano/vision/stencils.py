"""Stencils: masks of shapes, and of digits in many fonts, in one file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from core.packages import AssetsError
from training.nano.domain.words import SCENE_SHAPES

SIDE = 96  # pixels of a stencil
FINE = 4  # supersampling
MARGIN = 0.04
STROKES = (0.0, 0.1, 0.15)  # of outlines, as a share of the side; 0 is filled
HELD_OUT_FONTS = (
    "DejaVuMathTeXGyre DejaVuSansCondensed-Bold DejaVuSansMono-Oblique DejaVuSerifCondensed-Bold"
    " LiberationMono-Italic LiberationSansNarrow-Bold LiberationSerif-Italic NotoSansDisplay-Bold"
    " NotoSerif-Italic"
).split()
"""Fonts for evaluation."""
FONT_PATTERNS = (
    "dejavu/DejaVu*.ttf liberation/Liberation*.ttf noto/NotoSans-*.ttf noto/NotoSerif-*.ttf"
    " noto/NotoSansMono-*.ttf noto/NotoSansDisplay-*.ttf noto/NotoSerifDisplay-*.ttf"
).split()

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Stencils:
    masks: Tensor  # float32 [S, 96, 96] between 0 and 1
    kinds: Tensor  # int64 [S]: index of the shape, or the number of shapes plus the digit

    @classmethod
    def load(cls, path: Path, device: torch.device, *, held_out: bool = False) -> Stencils:
        """Load a file of `write_stencils`: all shapes, and the held-out or the other fonts."""
        with np.load(path) as stored:
            kinds, is_held_out = stored["kinds"], stored["is_held_out"]
            is_used = (is_held_out == held_out) | (kinds < len(SCENE_SHAPES))
            masks = stored["masks"][is_used]
        scaled = torch.from_numpy(masks).to(device).float() / 255
        return cls(scaled, torch.from_numpy(kinds[is_used]).to(device))

    def draw(self, kinds: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a stencil of each kind: int64 like `kinds`."""
        scores = torch.rand(
            (*kinds.shape, len(self.kinds)), generator=generator, device=kinds.device
        )
        scores = scores * (self.kinds == kinds[..., None])
        return scores.argmax(-1)


def write_stencils(path: Path, fonts: Path) -> tuple[int, int]:
    """Write every stencil; return their number, and that of the held-out ones.

    Raises:
        AssetsError: there are no fonts for training, or none for evaluation.
    """
    files = sorted({file for pattern in FONT_PATTERNS for file in fonts.glob(pattern)})
    if len({file.stem in HELD_OUT_FONTS for file in files}) < 2:
        raise AssetsError(
            f"{fonts} lacks fonts for training or for evaluation: apt-get install fonts-liberation"
        )
    first_digit = len(SCENE_SHAPES)
    rows = [
        (mask, kind, False)
        for kind, shape in enumerate(SCENE_SHAPES)
        for mask in _shape_masks(shape)
    ] + [
        (_digit_mask(file, str(digit)), first_digit + digit, file.stem in HELD_OUT_FONTS)
        for file in files
        for digit in range(10)
    ]
    masks, kinds, is_held_out = (np.array(column) for column in zip(*rows, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, masks=masks, kinds=kinds, is_held_out=is_held_out)
    return len(masks), int(is_held_out.sum())


def _shape_masks(shape: str) -> Iterator[np.ndarray]:
    for points in _OUTLINES[shape]:
        for stroke in STROKES:
            if stroke and shape in ("star", "cross") and stroke < STROKES[-1]:
                continue  # thin outlines of pointed shapes break up
            yield _filled(points, stroke)


def _ring(n: int) -> Points:
    angles = [2 * math.pi * i / n - math.pi / 2 for i in range(n)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def _rounded(radius: float) -> Points:
    corners = ((1, 1, 0), (-1, 1, 90), (-1, -1, 180), (1, -1, 270))
    points = []
    for x, y, first in corners:
        for step in range(0, 91, 10):
            angle = math.radians(first + step)
            cx, cy = x * (1 - radius), y * (1 - radius)
            points.append((cx + radius * math.cos(angle), cy + radius * math.sin(angle)))
    return points


def _star(points: int, inner: float) -> Points:
    radii = (1.0, inner)
    angles = [math.pi * i / points - math.pi / 2 for i in range(2 * points)]
    return [(radii[i % 2] * math.cos(a), radii[i % 2] * math.sin(a)) for i, a in enumerate(angles)]


def _heart(width: float) -> Points:
    points = []
    for step in range(120):
        t = 2 * math.pi * step / 120
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((width * x / 16, -(y + 2.5) / 15))
    return points


def _cross(w: float) -> Points:
    quarter = [(w, -1), (w, -w), (1, -w)]
    points = []
    for turn in range(4):
        for x, y in quarter:
            for _ in range(turn):
                x, y = -y, x
            points.append((x, y))
    return points


_OUTLINES: dict[str, tuple[Points, ...]] = {
    "circle": (_ring(96),),
    "square": ([(-1, -1), (1, -1), (1, 1), (-1, 1)], _rounded(0.25)),
    "triangle": (
        _ring(3),
        [(0, -1), (0.8, 1), (-0.8, 1)],
        [(-0.9, -1), (0.9, 1), (-0.9, 1)],
    ),
    "star": (_star(5, 0.38), _star(5, 0.48), _star(6, 0.5)),
    "heart": (_heart(1.0), _heart(0.85)),
    "cross": (_cross(0.24), _cross(0.33), _cross(0.42)),
}


def _filled(points: Points, stroke: float) -> np.ndarray:
    side = SIDE * FINE
    scale = side * (0.5 - MARGIN)
    image = Image.new("L", (side, side))
    placed = [(side / 2 + x * scale, side / 2 + y * scale) for x, y in points]
    ImageDraw.Draw(image).polygon(placed, fill=255)
    if stroke:
        inner = image
        for _ in range(round(stroke * side / 8)):
            inner = inner.filter(ImageFilter.MinFilter(9))
        image = Image.fromarray(np.asarray(image) - np.asarray(inner))
    return _reduced(image)


def _digit_mask(font: Path, digit: str) -> np.ndarray:
    side = SIDE * FINE
    face = ImageFont.truetype(str(font), side)
    left, top, right, bottom = face.getbbox(digit)
    wanted = side * (1 - 2 * MARGIN)
    face = ImageFont.truetype(str(font), int(side * wanted / max(right - left, bottom - top)))
    image = Image.new("L", (side, side))
    ImageDraw.Draw(image).text((side / 2, side / 2), digit, fill=255, font=face, anchor="mm")
    box = image.getbbox()
    assert box is not None
    centred = Image.new("L", (side, side))
    part = image.crop(box)
    centred.paste(part, ((side - part.width) // 2, (side - part.height) // 2))
    return _reduced(centred)


def _reduced(image: Image.Image) -> np.ndarray:
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))
