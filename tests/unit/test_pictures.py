"""Slices, patches, stacked frames and parts of a clip: the published sizes, pixels by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.processing.pictures import (
    MIN_LAST_SAMPLES,
    Patches,
    Slice,
    SlicePlan,
    best_size,
    grid_for,
    patches_of,
    plan_slices,
    render_slices,
    resize,
    slice_image,
    stack_frames,
    to_patches,
    to_strip,
    video_parts,
)

BICUBIC = Image.Resampling.BICUBIC
CONFIG = SliceConfig()
TOKENS_PER_SLICE = 64
WHITE, BLACK = (255, 255, 255), (0, 0, 0)

# width, height, patches of the only slice at M=1, grid at M=9, source, cell; all patches are
# rows x columns, grids columns x rows. Source: docs/specification/model.md#4.1.
TABLE = [
    (448, 448, (32, 32), None, (32, 32), None, 64),
    (224, 224, (32, 32), None, (32, 32), None, 64),
    (447, 449, (32, 32), None, (32, 32), None, 64),
    (320, 180, (24, 43), None, (24, 43), None, 64),
    (640, 480, (28, 37), (2, 1), (28, 37), (39, 26), 192),
    (1280, 720, (24, 43), (3, 2), (24, 43), (29, 35), 448),
    (1344, 896, (26, 39), (3, 2), (26, 39), (32, 32), 448),
    (1920, 1080, (24, 43), (4, 2), (24, 43), (34, 30), 576),
    (1080, 1920, (43, 24), (2, 4), (43, 24), (30, 34), 576),
    (4000, 3000, (28, 37), (3, 3), (28, 37), (28, 37), 640),
    (3000, 500, (13, 78), (7, 1), (13, 78), (34, 30), 512),
    (100, 20, (14, 71), None, (14, 71), None, 64),
]

WIDE_RATIO = 60
sides = st.integers(min_value=1, max_value=6000)
ratios = st.floats(min_value=1 / WIDE_RATIO, max_value=WIDE_RATIO)
limits = st.integers(min_value=1, max_value=16)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def sizes_of(plan: SlicePlan) -> list[tuple[int, int]]:
    """Size of every slice: the overview, then the cells row by row."""
    if plan.grid is None or plan.cell is None:
        return [plan.source]
    return [plan.source] + [plan.cell] * (plan.grid[0] * plan.grid[1])


def patch_grids(plan: SlicePlan) -> list[tuple[int, int]]:
    """Rows and columns of patches of every slice."""
    return [(height // 14, width // 14) for width, height in sizes_of(plan)]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}x{row[1]}")
def test_published_table(row: tuple) -> None:
    width, height, single, grid, source, cell, tokens = row
    alone = plan_slices(width, height, 1, CONFIG)
    assert (alone.grid, patch_grids(alone)) == (None, [single])
    plan = plan_slices(width, height, 9, CONFIG)
    cells = [cell] * (grid[0] * grid[1]) if grid else []
    assert plan.grid == grid
    assert patch_grids(plan) == [source, *cells]
    assert len(sizes_of(plan)) * TOKENS_PER_SLICE == tokens


@given(width=sides, ratio=ratios, limit=limits)
def test_slices_lie_on_the_patch_grid_and_stay_within_the_limit(
    width: int, ratio: float, limit: int
) -> None:
    height = max(1, round(width / ratio))
    plan = plan_slices(width, height, limit, CONFIG)
    assert all(
        side % CONFIG.patch_size == 0 and side > 0 for size in sizes_of(plan) for side in size
    )
    assert 1 <= len(sizes_of(plan)) <= 1 + limit
    assert (plan.grid is None) == (len(sizes_of(plan)) == 1)


@given(width=sides, ratio=ratios, limit=limits)
def test_aspect_ratio_is_kept_to_within_rounding(width: int, ratio: float, limit: int) -> None:
    height = max(1, round(width / ratio))
    plan = plan_slices(width, height, limit, CONFIG)
    shapes = [(plan.source, width / height)]
    if plan.grid is not None and plan.cell is not None:
        cols, rows = plan.grid
        refined = (max(round(width / cols), 1), max(round(height / rows), 1))
        shapes.append((plan.cell, refined[0] / refined[1]))
    for (slice_width, slice_height), aspect in shapes:
        ideal_width = CONFIG.scale_resolution * math.sqrt(aspect)
        ideal_height = CONFIG.scale_resolution / math.sqrt(aspect)
        half = CONFIG.patch_size / 2
        assert abs(slice_height - ideal_height) <= half + 1
        assert abs(slice_width - ideal_width) <= half + 1 + aspect


@given(width=sides, ratio=ratios, limit=limits)
def test_grid_is_the_nearest_shape_among_the_neighbouring_counts(
    width: int, ratio: float, limit: int
) -> None:
    height = max(1, round(width / ratio))
    grid = grid_for(width, height, limit, CONFIG)
    wanted = min(math.ceil(width * height / 448**2), limit)
    if wanted <= 1:
        assert grid is None
        return
    assert grid is not None
    cols, rows = grid
    assert max(wanted - 1, 2) <= cols * rows <= min(wanted + 1, limit)
    distance = abs(math.log(width / height / (cols / rows)))
    strip = abs(math.log(width / height / wanted))
    assert distance <= strip + 1e-9


def test_a_small_picture_keeps_its_size_unless_enlarged() -> None:
    assert best_size(140, 70, CONFIG, upscale=False) == (140, 70)
    assert best_size(140, 70, CONFIG, upscale=True) == (630, 322)
    assert best_size(3, 3, CONFIG, upscale=False) == (14, 14)
    # halves round to the even neighbour: 35 / 14 = 2.5 -> 2
    assert best_size(35, 49, CONFIG, upscale=False) == (28, 56)


@pytest.mark.parametrize(
    ("width", "height", "limit", "word"),
    [(0, 5, 1, "pixel"), (5, 0, 1, "pixel"), (5, 5, 0, "max_slice_nums"), (9999, 3, 1, "aspect")],
)
def test_impossible_requests_are_refused(width: int, height: int, limit: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        plan_slices(width, height, limit, CONFIG)


def test_the_thinnest_allowed_picture_is_one_patch_high() -> None:
    assert patch_grids(plan_slices(1024, 1, 9, CONFIG)) == [(1, 1024)]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_only_rgb_is_taken(mode: str) -> None:
    picture = Image.new(mode, (28, 28))
    for use in (
        lambda: slice_image(picture, 1, CONFIG),
        lambda: to_patches(picture),
        lambda: stack_frames([picture]),
    ):
        with pytest.raises(ValueError, match="RGB"):
            use()


def test_rows_are_resized_before_columns_whatever_the_shape() -> None:
    """Pillow 13 takes a picture this tall the other way round, with other pixels."""
    picture = noise(40, 200)
    rows = [noise(40, 200).crop((0, y, 40, y + 1)).resize((30, 1), BICUBIC) for y in range(200)]
    narrow = Image.fromarray(np.concatenate([np.asarray(row) for row in rows]))
    expected = np.asarray(narrow.resize((30, 20), BICUBIC))
    np.testing.assert_array_equal(np.asarray(resize(picture, (30, 20))), expected)


@given(rows=st.integers(1, 5), cols=st.integers(1, 5), seed=st.integers(0, 99))
def test_patch_vectors_run_by_channel_row_column(rows: int, cols: int, seed: int) -> None:
    picture = noise(14 * cols, 14 * rows, seed)
    patches = to_patches(picture)
    assert patches.values.dtype == np.float32
    assert patches.values.shape == (rows * cols, 3 * 14 * 14)
    assert patches.size == (rows, cols)
    pixels = np.asarray(picture)
    for row in range(rows):
        for col in range(cols):
            tile = pixels[14 * row : 14 * row + 14, 14 * col : 14 * col + 14]
            expected = (tile.transpose(2, 0, 1).astype(np.float32) / 255 - 0.5) / 0.5
            np.testing.assert_array_equal(patches.values[row * cols + col], expected.ravel())


@given(rows=st.integers(1, 5), cols=st.integers(1, 5), seed=st.integers(0, 99))
def test_the_strip_holds_the_patches_side_by_side(rows: int, cols: int, seed: int) -> None:
    patches = to_patches(noise(14 * cols, 14 * rows, seed))
    strip = to_strip(patches)
    assert strip.shape == (3, 14, 14 * rows * cols)
    for index, vector in enumerate(patches.values):
        tile = strip[:, :, 14 * index : 14 * (index + 1)]
        np.testing.assert_array_equal(tile, vector.reshape(3, 14, 14))


def test_patches_off_the_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        to_patches(noise(28, 30))


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (1, (20, 10), (20, 10)),
        (2, (20, 10), (20, 26)),  # two wide frames stand in a column
        (2, (10, 20), (26, 20)),
        (3, (90, 20), (90, 72)),
        (3, (20, 90), (72, 90)),
        (4, (20, 10), (46, 26)),
        (5, (20, 10), (124, 10)),
        (9, (20, 10), (228, 10)),
    ],
)
def test_stack_layouts(count: int, size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert stack_frames([Image.new("RGB", size)] * count).size == expected


def test_stacked_frames_stand_in_reading_order_between_black_lines() -> None:
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)]
    canvas = stack_frames([Image.new("RGB", (20, 10), colour) for colour in colours])
    seen = [canvas.getpixel(at) for at in ((0, 0), (26, 0), (0, 16), (26, 16))]
    assert seen == colours
    assert {canvas.getpixel((x, 5)) for x in range(20, 26)} == {BLACK}
    assert {canvas.getpixel((5, y)) for y in range(10, 16)} == {BLACK}


def test_a_smaller_frame_is_enlarged_and_centred_on_white() -> None:
    red = (250, 0, 0)
    canvas = stack_frames([Image.new("RGB", (40, 20), red), Image.new("RGB", (10, 10), red)])
    assert canvas.size == (40, 46)
    middle = [canvas.getpixel((x, 36)) for x in (9, 10, 29, 30)]
    assert middle == [WHITE, red, red, WHITE]


def test_nothing_cannot_be_stacked() -> None:
    with pytest.raises(ValueError, match="no frames"):
        stack_frames([])


@settings(max_examples=15, deadline=None)
@given(width=st.integers(20, 900), height=st.integers(20, 900), limit=st.integers(1, 9))
def test_slices_have_the_planned_sizes(width: int, height: int, limit: int) -> None:
    plan = plan_slices(width, height, limit, CONFIG)
    sliced = slice_image(noise(width, height), limit, CONFIG)
    assert sliced.grid == plan.grid
    assert [each.extent for each in sliced.slices] == sizes_of(plan)
    grids = [(height // 14, width // 14) for width, height in sizes_of(plan)]
    assert [each.size for each in sliced.slices] == grids
    assert [picture.size for picture in render_slices(sliced.slices)] == sizes_of(plan)


def test_cells_put_together_are_the_enlarged_picture() -> None:
    picture = noise(640, 480)
    sliced = slice_image(picture, 9, CONFIG)
    assert sliced.grid == (2, 1)
    source, *cells = (np.asarray(each) for each in render_slices(sliced.slices))
    whole = picture.resize((2 * 364, 546), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(np.concatenate(cells, axis=1), np.asarray(whole))
    overview = picture.resize((518, 392), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(source, np.asarray(overview))


def test_the_original_picture_is_left_alone() -> None:
    picture = noise(300, 200)
    before = np.asarray(picture).copy()
    patches_of(slice_image(picture, 9, CONFIG).slices)
    np.testing.assert_array_equal(np.asarray(picture), before)


def test_slices_of_several_pictures_come_in_order() -> None:
    """What is patch vectors already stays as it is."""
    first, second = slice_image(noise(300, 200), 9, CONFIG), slice_image(noise(640, 480), 9, CONFIG)
    made = to_patches(noise(28, 42))
    mixed: list[Slice] = [*second.slices, made, first.slices[0], second.slices[1]]
    patches = patches_of(mixed)
    assert all(isinstance(each, Patches) for each in patches)
    assert [each.size for each in patches] == [each.size for each in mixed]
    assert patches[len(second.slices)] is made
    for one, part in zip(patches, mixed, strict=True):
        [alone] = patches_of([part])
        np.testing.assert_array_equal(one.values, alone.values)


def frames(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (32, 18), (10 * i, 0, 0)) for i in range(count)]


def sound(duration_s: float) -> np.ndarray:
    return np.arange(int(duration_s * 16_000), dtype=np.float32)


def kinds(parts: list[Image.Image | np.ndarray]) -> str:
    return "".join("s" if isinstance(part, np.ndarray) else "p" for part in parts)


def test_pictures_and_seconds_alternate_and_no_sample_is_lost() -> None:
    audio = sound(3.5)
    parts = video_parts(frames(4), [0, 1, 2, 3], audio, 3.5)
    assert kinds(parts) == "pspspsps"
    heard = np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    assert np.array_equal(heard, audio)


def test_the_last_piece_is_padded() -> None:
    parts = video_parts(frames(2), [0, 1], sound(1.02), 1.02)
    last = parts[-1]
    assert isinstance(last, np.ndarray)
    assert len(last) == MIN_LAST_SAMPLES
    assert not last[320:].any()


def test_frames_in_between_become_one_picture_after_the_sound() -> None:
    shown = frames(6)
    parts = video_parts(shown, [i / 3 for i in range(6)], sound(2.0), 2.0, frames_per_piece=3)
    assert kinds(parts) == "psppsp"
    assert [parts[0], parts[3]] == [shown[0], shown[3]]
    merged = parts[2]
    assert isinstance(merged, Image.Image)
    assert merged.size == (32, 18 * 2 + 6)  # two wide pictures stand nearer a square in a column


def test_a_silent_film_has_no_sound_parts() -> None:
    assert kinds(video_parts(frames(2), [0, 1], np.zeros(0, np.float32), 2.0)) == "pp"
    assert video_parts([], [], sound(1.0), 1.0) == []


@pytest.mark.parametrize(
    ("times_s", "per_piece"), [([0.0], 1), ([1.0, 0.0], 1), ([0.0, 9.0], 1), ([0.0, 1.0], 0)]
)
def test_contradictions_are_refused(times_s: list[float], per_piece: int) -> None:
    with pytest.raises(ValueError):
        video_parts(frames(2), times_s, sound(2.0), 2.0, frames_per_piece=per_piece)
