"""Cutting pictures: which part of which resized picture a slice is, and its pixels."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.processing.pictures import (
    Patches,
    Slice,
    patches_of,
    plan_slices,
    render_slices,
    slice_image,
    to_patches,
)
from tests.unit.test_image_processing import sizes_of

CONFIG = SliceConfig()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


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
