"""Image preprocessing: slicing geometry, resizing, patch vectors, and composites of video frames.

Slicing is lazy: a `PixelSlice` is a crop of the picture after resizing. The vision encoder resizes,
with Pillow or with a CUDA kernel that gives the same bytes.

Source: docs/specification/model.md#4.1, #4.2 and #4.7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torch import Tensor
from transformers import BatchFeature, ImageProcessingMixin

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ, ProcessingError

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
BITS_DROPPED = 8  # of grey of 16 bits
MEASURED_MODES = ("I", "F")  # numbers of 32 bits, of any range


@dataclass(frozen=True)
class SlicePlan:
    """Slice sizes of a picture: the overview (`source`), and a grid of cells if it is sliced."""

    source: Size
    grid: Grid | None
    cell: Size | None


@dataclass(frozen=True, eq=False)
class Patches:
    """Patch vectors of one slice.

    `values` are float32 [rows * cols, 3 * 14 * 14] in -1..1, patches in row-major order, vectors in
    (channel, row, column) order.
    """

    values: np.ndarray
    rows: int
    cols: int

    @property
    def size(self) -> tuple[int, int]:
        return self.rows, self.cols


def grid_for(width: int, height: int, max_slice_nums: int, config: SliceConfig) -> Grid | None:
    """Return the slice grid of a picture, or None if one slice is enough.

    The number of cells follows from the area. Among the grids with that number of cells, one fewer
    or one more, the one nearest in aspect ratio wins, the first on a tie.
    """
    wanted = min(math.ceil(width * height / config.scale_resolution**2), max_slice_nums)
    if wanted <= 1:
        return None
    counts = [n for n in (wanted - 1, wanted, wanted + 1) if n != 1 and n <= max_slice_nums]
    grids = [(cols, n // cols) for n in counts for cols in range(1, n + 1) if n % cols == 0]
    log_ratio = math.log(width / height)
    return min(grids, key=lambda grid: abs(log_ratio - math.log(grid[0] / grid[1])))


def best_size(width: float, height: float, config: SliceConfig, *, upscale: bool) -> Size:
    """Return the size with about the area of one slice and the given aspect ratio.

    Sides are multiples of the patch size. A smaller picture is enlarged only with `upscale`.
    """
    if upscale or width * height > config.scale_resolution**2:
        ratio = width / height
        height = int(config.scale_resolution / math.sqrt(ratio))
        width = int(height * ratio)
    return _to_multiple(width, config.patch_size), _to_multiple(height, config.patch_size)


def plan_slices(width: int, height: int, max_slice_nums: int, config: SliceConfig) -> SlicePlan:
    """Compute the slice sizes of a picture; a limit of 1 gives the overview alone.

    Raises:
        ValueError: a size or the limit is below 1, or a slice of the picture's aspect ratio would
            be narrower than one patch.
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
    """Resize with the bicubic filter, horizontally and then vertically.

    Each pass is a call of its own because their order affects the pixels, and Pillow 13, unlike 12,
    begins with the vertical pass for tall pictures.
    """
    rows = image.resize((size[0], image.height), Image.Resampling.BICUBIC)
    return rows.resize(size, Image.Resampling.BICUBIC)


def to_patches(picture: Image.Image) -> Patches:
    """Return normalised patch vectors: `(pixel / 255 - 0.5) / 0.5`."""
    require_rgb(picture)
    (width, height), side = picture.size, PATCH_SIDE
    if width % side or height % side:
        raise ValueError(f"{width}x{height} is not a multiple of {side} pixels")
    rows, cols = height // side, width // side
    pixels = np.asarray(picture).reshape(rows, side, cols, side, CHANNELS)
    # Transposed as bytes: a quarter of the memory traffic of floats.
    ordered = np.ascontiguousarray(pixels.transpose(0, 2, 4, 1, 3))  # [rows, cols, 3, p, p]
    values = ordered.reshape(rows * cols, -1).astype(np.float32)  # [L, 3 * p * p]
    values /= PIXEL_MAX
    values -= PIXEL_MEAN
    values /= PIXEL_STD
    return Patches(values, rows, cols)


def to_strip(patches: Patches) -> np.ndarray:
    """Return the patches side by side, the published `pixel_values`: float32 [3, p, p * L]."""
    tiles = patches.values.reshape(-1, CHANNELS, PATCH_SIDE, PATCH_SIDE)
    return tiles.transpose(1, 2, 0, 3).reshape(CHANNELS, PATCH_SIDE, -1)


def _to_multiple(length: float, step: int) -> int:
    return max(round(length / step) * step, step)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a picture as viewers show it, on white; `convert` alone shows hidden colours.

    It also clips grey of 16 bits, and `MEASURED_MODES`, instead of scaling their numbers.
    Raises `ProcessingError` if none of these is finite.
    """
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> BITS_DROPPED).astype(np.uint8))
    elif image.mode in MEASURED_MODES:
        image = Image.fromarray(_stretched(np.asarray(image, np.float64)))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _stretched(values: np.ndarray) -> np.ndarray:
    """Return grey [H, W] of 8 bits, the lowest number black, as `core/images.py` does of files."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise ProcessingError("a picture holds no finite numbers")
    low, high = finite.min(), finite.max()
    above = np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low
    return np.asarray(above * (PIXEL_MAX / ((high - low) or 1.0)), np.uint8)


def require_rgb(image: Image.Image) -> None:
    if image.mode != "RGB":
        raise ValueError(f"an RGB picture is needed, got mode {image.mode!r}")


@dataclass(frozen=True, eq=False)
class PixelSlice:
    """A slice as a crop of the resized picture, not yet rendered."""

    pixels: np.ndarray  # the whole original picture, RGB uint8 [height, width, 3]; read-only
    resized: Size  # size of the picture after resizing
    corner: tuple[int, int]  # left and top of the crop
    extent: Size  # size of the crop, multiples of the patch size
    pinned: Tensor | None = None  # `pixels` as a tensor in pinned memory, if they were copied there

    @property
    def size(self) -> tuple[int, int]:
        width, height = self.extent
        return height // PATCH_SIDE, width // PATCH_SIDE


Slice = Patches | PixelSlice


@dataclass(frozen=True, eq=False)
class SlicedImage:
    """Overview and then the cells in row-major order; `grid` is None if there are no cells."""

    slices: tuple[PixelSlice, ...]
    grid: Grid | None


def slice_image(image: Image.Image, max_slice_nums: int, config: SliceConfig) -> SlicedImage:
    """Slice a picture into an overview and the cells of an enlarged copy, uncropped and unpadded.

    Raises:
        ValueError: the picture is not RGB, or `plan_slices` refuses its size.
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
    """Return the patch vectors of slices, in order."""
    rendered = render_slices([each for each in slices if isinstance(each, PixelSlice)])
    return [to_patches(next(rendered)) if isinstance(each, PixelSlice) else each for each in slices]


def render_slices(slices: Sequence[PixelSlice]) -> Iterator[Image.Image]:
    """Render slices with Pillow, in order; consecutive slices of one picture share the resizing."""
    for _, group in groupby(slices, key=lambda each: (id(each.pixels), each.resized)):
        crops = list(group)
        resized = resize(Image.fromarray(crops[0].pixels), crops[0].resized)
        for crop in crops:
            (left, top), (width, height) = crop.corner, crop.extent
            yield resized.crop((left, top, left + width, top + height))


class MiniCPMOImageProcessor(ImageProcessingMixin):
    """Image processor with the fields of the published `preprocessor_config.json`."""

    model_input_names: ClassVar[list[str]] = ["pixel_values", "tgt_sizes"]

    def __init__(
        self,
        max_slice_nums: int = 9,
        scale_resolution: int = 448,
        patch_size: int = PATCH_SIDE,
        use_image_id: bool = True,
        image_feature_size: int = 64,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.max_slice_nums = max_slice_nums
        self.scale_resolution = scale_resolution  # side, px, of the square whose area a slice has
        self.patch_size = patch_size
        self.use_image_id = use_image_id
        self.image_feature_size = image_feature_size  # placeholder tokens per slice

    @property
    def slicing(self) -> SliceConfig:
        return SliceConfig(
            max_slice_nums=self.max_slice_nums,
            scale_resolution=self.scale_resolution,
            patch_size=self.patch_size,
        )

    def __call__(
        self,
        images: Image.Image | Sequence[Image.Image],
        max_slice_nums: int | None = None,
        **_: object,
    ) -> BatchFeature:
        """Slice and normalise a picture or several, of any mode.

        Returns:
            For each picture `pixel_values`, a list of float32 [3, p, p * L] with the L patches of
            a slice side by side, and `tgt_sizes`, int64 [slices, 2]: rows and columns of patches.
        """
        limit = max_slice_nums or self.max_slice_nums
        pixels, sizes = [], []
        for image in [images] if isinstance(images, Image.Image) else images:
            patches = patches_of(slice_image(to_rgb(image), limit, self.slicing).slices)
            pixels.append([to_strip(each) for each in patches])
            sizes.append(np.array([each.size for each in patches]))
        return BatchFeature({"pixel_values": pixels, "tgt_sizes": sizes})


MIN_LAST_SAMPLES = 1600  # the last segment of audio is padded to this length


def video_parts(
    frames: Sequence[Image.Image],
    times_s: Sequence[float],
    audio: np.ndarray,
    duration_s: float,
    *,
    frames_per_piece: int = 1,
) -> list[Image.Image | np.ndarray]:
    """Interleave the frames and audio of a clip, segment by segment.

    Every k-th frame, k = `frames_per_piece`, starts a segment: that frame, the segment's audio, and
    a composite of the other frames. `times_s` are the frames' times, ascending; `audio` is float32
    [n] mono at 16 kHz. The parts are to be joined without a separator.

    Raises:
        ValueError: the lists differ in length, the times are not ascending, or k is below 1.
    """
    if len(frames) != len(times_s) or frames_per_piece < 1:
        raise ValueError(f"{len(frames)} pictures, {len(times_s)} times, k={frames_per_piece}")
    if list(times_s) != sorted(times_s) or (times_s and times_s[-1] > duration_s):
        raise ValueError("times must rise and stay within the clip")
    starts = range(0, len(frames), frames_per_piece)
    sounds = _split_audio(audio, [*(times_s[i] for i in starts), duration_s])
    parts: list[Image.Image | np.ndarray] = []
    for start, sound in zip(starts, sounds, strict=True):
        parts += [frames[start], *([sound] if len(sound) else [])]
        between = frames[start + 1 : start + frames_per_piece]
        if between:
            parts.append(stack_frames([to_rgb(frame) for frame in between]))
    return parts


def _split_audio(audio: np.ndarray, edges_s: Sequence[float]) -> list[np.ndarray]:
    edges = [int(edge * SAMPLE_RATE_HZ) for edge in edges_s]
    segments = [audio[start:stop] for start, stop in pairwise(edges)]
    if segments and len(audio):
        missing = max(0, MIN_LAST_SAMPLES - len(segments[-1]))
        segments[-1] = np.pad(segments[-1], (0, missing))
    return segments


SEPARATOR_PX = 6  # between stacked frames; section 4.7
SEPARATOR_COLOUR = (0, 0, 0)
LETTERBOX_COLOUR = (255, 255, 255)
SQUARE_STACK = 4  # this many frames form a 2x2 composite; section 4.7


def stack_frames(frames: Sequence[Image.Image]) -> Image.Image:
    """Merge the frames of one second into a composite, in reading order.

    Two or three frames form a row or a column, whichever is nearer to a square; four form 2x2; any
    other number forms a row. Cells are as large as the largest frame; smaller frames are enlarged
    to fit, centred on white. Black lines of 6 pixels separate the cells.
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
    return (cols * width + (cols - 1) * SEPARATOR_PX, rows * height + (rows - 1) * SEPARATOR_PX)


def _letterbox(frame: Image.Image, width: int, height: int) -> Image.Image:
    if frame.size == (width, height):
        return frame
    scale = min(width / frame.width, height / frame.height)
    fitted = (max(1, round(frame.width * scale)), max(1, round(frame.height * scale)))
    cell = Image.new("RGB", (width, height), LETTERBOX_COLOUR)
    cell.paste(resize(frame, fitted), ((width - fitted[0]) // 2, (height - fitted[1]) // 2))
    return cell
