"""A picture cut into slices: sizes at once, pixels when and where they are needed.

Cutting only notes which part of the resized picture a slice is. Whoever encodes slices resizes:
here with Pillow, on a card with a kernel that gives the same bytes.

Source: docs/specification/model.md#4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from PIL import Image

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.image_processing import (
    PATCH_SIDE,
    Grid,
    Patches,
    Size,
    plan_slices,
    require_rgb,
    resize,
    to_patches,
)


@dataclass(frozen=True, eq=False)
class PixelSlice:
    """One slice of a picture that is not resized yet.

    Attributes:
        pixels: uint8 [height, width, 3], the whole picture, RGB; never written to.
        resized: size the whole picture is resized to.
        corner: left and top of the slice in the resized picture.
        extent: width and height of the slice, multiples of the patch side.
    """

    pixels: np.ndarray
    resized: Size
    corner: tuple[int, int]
    extent: Size

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        width, height = self.extent
        return height // PATCH_SIDE, width // PATCH_SIDE


Slice = Patches | PixelSlice
"""What an encoder takes: patch vectors, or the pixels they are made of."""


@dataclass(frozen=True, eq=False)
class SlicedImage:
    """A picture as the vision tower takes it.

    Attributes:
        slices: the overview, then the cells row by row.
        grid: columns and rows of cells, None when the overview is the only slice.
    """

    slices: tuple[PixelSlice, ...]
    grid: Grid | None


def slice_image(image: Image.Image, max_slice_nums: int, config: SliceConfig) -> SlicedImage:
    """Cut a picture into its overview and the cells of its enlarged copy.

    Nothing is cropped away or padded; the aspect ratio is kept to within rounding.

    Args:
        image: RGB picture of any size.
        max_slice_nums: most cells beside the overview; 1 gives the overview alone.
        config: area and patch side.

    Raises:
        ValueError: the picture is not RGB, or its size is refused by `plan_slices`.
    """
    require_rgb(image)
    plan = plan_slices(image.width, image.height, max_slice_nums, config)
    pixels = np.asarray(image)
    overview = PixelSlice(pixels, plan.source, (0, 0), plan.source)
    if plan.grid is None or plan.cell is None:
        return SlicedImage((overview,), None)
    cols, rows = plan.grid
    width, height = plan.cell
    enlarged = (width * cols, height * rows)
    cells = (
        PixelSlice(pixels, enlarged, (x * width, y * height), plan.cell)
        for y in range(rows)
        for x in range(cols)
    )
    return SlicedImage((overview, *cells), plan.grid)


def patches_of(slices: Sequence[Slice]) -> list[Patches]:
    """Return the patch vectors of slices, in order; those that are pixels are resized first."""
    rendered = render_slices([each for each in slices if isinstance(each, PixelSlice)])
    return [to_patches(next(rendered)) if isinstance(each, PixelSlice) else each for each in slices]


def render_slices(slices: Sequence[PixelSlice]) -> Iterator[Image.Image]:
    """Resize pictures with Pillow and yield the slices' parts, in order.

    Neighbours that are parts of the same resized picture share the work.
    """
    for _, parts in groupby(slices, key=lambda each: (id(each.pixels), each.resized)):
        whole: Image.Image | None = None
        for part in parts:
            if whole is None:
                whole = resize(Image.fromarray(part.pixels), part.resized)
            (left, top), (width, height) = part.corner, part.extent
            yield whole.crop((left, top, left + width, top + height))
