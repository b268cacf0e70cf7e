"""Sizes of slices, pixels of slices and their patch vectors, on the CPU.

Pure functions of their arguments. Decides sizes, grids and pixel values; knows nothing about
tokens, tensors on a device or files.

Source: docs/specification/model.md#4.1, #4.2 and #4.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from MiniCPMO45.configuration_minicpmo import SliceConfig

Size = tuple[int, int]
"""Width and height in pixels."""
Grid = tuple[int, int]
"""Columns and rows of slices."""

CHANNELS = 3
PIXEL_MAX = 255.0
PIXEL_MEAN = 0.5  # per channel; preprocessor_config.json, norm_mean
PIXEL_STD = 0.5  # per channel; preprocessor_config.json, norm_std
PATCH_SIDE = 14  # pixels; preprocessor_config.json, patch_size
PATCH_VALUES = CHANNELS * PATCH_SIDE**2

SEPARATOR_PX = 6  # between stacked frames; section 4.7
SEPARATOR_COLOUR = (0, 0, 0)
LETTERBOX_COLOUR = (255, 255, 255)
SQUARE_STACK = 4  # this many frames form a 2x2 composite; section 4.7


@dataclass(frozen=True)
class SlicePlan:
    """Where the slices of a picture come from, known from its size alone.

    Attributes:
        source: size of the overview picture.
        grid: columns and rows of cells, None when the overview is the only slice.
        cell: size of one cell, None when there is no grid.
    """

    source: Size
    grid: Grid | None
    cell: Size | None

    @property
    def sizes(self) -> list[Size]:
        """Size of every slice: the overview, then the cells row by row."""
        if self.grid is None or self.cell is None:
            return [self.source]
        return [self.source] + [self.cell] * (self.grid[0] * self.grid[1])


@dataclass(frozen=True, eq=False)
class Patches:
    """One slice as patch vectors.

    Attributes:
        values: float32 [rows * cols, 3 * 14 * 14] in -1..1, patches row by row, each vector in
            (channel, row, column) order.
        rows: patches from top to bottom.
        cols: patches from left to right.
    """

    values: np.ndarray
    rows: int
    cols: int

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.cols


def grid_for(width: int, height: int, max_slice_nums: int, config: SliceConfig) -> Grid | None:
    """Columns and rows of cells for a picture, None when one slice is enough.

    The number of cells follows the area; among the shapes of that number and its two neighbours
    the one whose aspect ratio is nearest wins, the first on a tie.

    Args:
        width: pixels.
        height: pixels.
        max_slice_nums: most cells allowed.
        config: gives the area one slice stands for.
    """
    wanted = min(math.ceil(width * height / config.scale_resolution**2), max_slice_nums)
    if wanted <= 1:
        return None
    counts = [n for n in (wanted - 1, wanted, wanted + 1) if n != 1 and n <= max_slice_nums]
    grids = [(cols, n // cols) for n in counts for cols in range(1, n + 1) if n % cols == 0]
    log_ratio = math.log(width / height)
    return min(grids, key=lambda grid: abs(log_ratio - math.log(grid[0] / grid[1])))


def best_size(width: float, height: float, config: SliceConfig, *, upscale: bool) -> Size:
    """Size on the patch grid with about the area of one slice and the same aspect ratio.

    Args:
        width: pixels; a fraction when a cell does not divide the picture evenly.
        height: pixels, likewise.
        config: area and patch side.
        upscale: whether a picture smaller than the area is enlarged.
    """
    if upscale or width * height > config.scale_resolution**2:
        ratio = width / height
        height = int(config.scale_resolution / math.sqrt(ratio))
        width = int(height * ratio)
    return _to_multiple(width, config.patch_size), _to_multiple(height, config.patch_size)


def plan_slices(width: int, height: int, max_slice_nums: int, config: SliceConfig) -> SlicePlan:
    """Sizes of all slices of a picture of `width` x `height` pixels.

    Args:
        width: pixels, at least 1.
        height: pixels, at least 1.
        max_slice_nums: most cells beside the overview; 1 gives the overview alone.
        config: area and patch side.

    Raises:
        ValueError: a size or the limit is below 1, or the picture is so narrow that a slice
            with its aspect ratio would be thinner than one patch.
    """
    if width < 1 or height < 1:
        raise ValueError(f"a picture needs at least one pixel per side, got {width}x{height}")
    if max_slice_nums < 1:
        raise ValueError(f"max_slice_nums must be at least 1, got {max_slice_nums}")
    limit = (config.scale_resolution / config.patch_size) ** 2
    if max(width, height) > limit * min(width, height):
        raise ValueError(f"aspect ratio of {width}x{height} is beyond {limit:.0f}:1")
    grid = grid_for(width, height, max_slice_nums, config)
    if grid is None:
        return SlicePlan(best_size(width, height, config, upscale=True), None, None)
    cols, rows = grid
    refined_width = _to_multiple(width, cols)
    refined_height = _to_multiple(height, rows)
    return SlicePlan(
        source=best_size(width, height, config, upscale=False),
        grid=grid,
        cell=best_size(refined_width / cols, refined_height / rows, config, upscale=True),
    )


def resize(image: Image.Image, size: Size) -> Image.Image:
    """Resize a picture with bicubic weights, first along its rows, then along its columns.

    The passes are asked for one by one because their order shows in the pixels: in one call,
    Pillow 13 takes tall pictures the other way round, Pillow 12 none.

    Args:
        image: of any size.
        size: wanted.
    """
    rows = image.resize((size[0], image.height), Image.Resampling.BICUBIC)
    return rows.resize(size, Image.Resampling.BICUBIC)


def to_patches(picture: Image.Image, patch_size: int = PATCH_SIDE) -> Patches:
    """Normalised patch vectors of one slice: `(pixel / 255 - 0.5) / 0.5`.

    Args:
        picture: RGB, both sides multiples of `patch_size`.
        patch_size: pixels per patch side.

    Raises:
        ValueError: the picture is not RGB or does not lie on the patch grid.
    """
    require_rgb(picture)
    width, height = picture.size
    if width % patch_size or height % patch_size:
        raise ValueError(f"{width}x{height} is not a multiple of {patch_size} pixels")
    rows, cols = height // patch_size, width // patch_size
    pixels = np.asarray(picture).reshape(rows, patch_size, cols, patch_size, CHANNELS)
    # bytes are reordered before they grow to floats: a quarter of the memory traffic
    ordered = np.ascontiguousarray(pixels.transpose(0, 2, 4, 1, 3))  # [rows, cols, 3, p, p]
    values = ordered.reshape(rows * cols, -1).astype(np.float32)  # [L, 3 * p * p]
    values /= PIXEL_MAX
    values -= PIXEL_MEAN
    values /= PIXEL_STD
    return Patches(values, rows, cols)


def to_strip(patches: Patches, patch_size: int = PATCH_SIDE) -> np.ndarray:
    """The same values with the patches side by side, as the checkpoint's convolution takes them.

    Returns:
        float32 [3, p, p * L].
    """
    tiles = patches.values.reshape(-1, CHANNELS, patch_size, patch_size)
    return tiles.transpose(1, 2, 0, 3).reshape(CHANNELS, patch_size, -1)  # [3, p, p * L]


def stack_frames(frames: Sequence[Image.Image]) -> Image.Image:
    """Merge the frames of one second into one picture, in reading order.

    Two or three frames stand in a row or a column, whichever is nearer to a square; four form
    2x2; any other number forms a row. Cells are as large as the largest frame; smaller frames are
    enlarged to fit, centred on white. Black lines of 6 pixels separate the cells.

    Args:
        frames: RGB pictures, at least one.

    Raises:
        ValueError: there is no frame, or one is not RGB.
    """
    if not frames:
        raise ValueError("no frames to stack")
    for frame in frames:
        require_rgb(frame)
    width = max(frame.width for frame in frames)
    height = max(frame.height for frame in frames)
    cols, rows = _stack_layout(len(frames), width, height)
    canvas = Image.new("RGB", _canvas_size(cols, rows, width, height), SEPARATOR_COLOUR)
    for index, frame in enumerate(frames):
        row, col = divmod(index, cols)
        left, top = col * (width + SEPARATOR_PX), row * (height + SEPARATOR_PX)
        canvas.paste(_letterbox(frame, width, height), (left, top))
    return canvas


def _stack_layout(count: int, width: int, height: int) -> Grid:
    if count == SQUARE_STACK:
        return 2, 2
    if count > SQUARE_STACK:
        return count, 1

    def distance_from_square(layout: Grid) -> float:
        canvas_width, canvas_height = _canvas_size(*layout, width, height)
        return abs(canvas_width / canvas_height - 1.0)

    return min(((count, 1), (1, count)), key=distance_from_square)


def _canvas_size(cols: int, rows: int, width: int, height: int) -> Size:
    return (
        cols * width + (cols - 1) * SEPARATOR_PX,
        rows * height + (rows - 1) * SEPARATOR_PX,
    )


def _letterbox(frame: Image.Image, width: int, height: int) -> Image.Image:
    if frame.size == (width, height):
        return frame
    scale = min(width / frame.width, height / frame.height)
    fitted = (max(1, round(frame.width * scale)), max(1, round(frame.height * scale)))
    cell = Image.new("RGB", (width, height), LETTERBOX_COLOUR)
    cell.paste(resize(frame, fitted), ((width - fitted[0]) // 2, (height - fitted[1]) // 2))
    return cell


def _to_multiple(length: float, step: int) -> int:
    return max(round(length / step) * step, step)


def require_rgb(image: Image.Image) -> None:
    """Check the mode of a picture.

    Raises:
        ValueError: it is not RGB.
    """
    if image.mode != "RGB":
        raise ValueError(f"an RGB picture is needed, got mode {image.mode!r}")
