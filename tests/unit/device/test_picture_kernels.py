"""Pictures resized on the device are those of Pillow, byte for byte.

Without a card the kernels run in Triton's interpreter; `-m gpu` runs them compiled.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.device import picture_ops, picture_plain
from MiniCPMO45.device.axis_weights import axis_weights
from MiniCPMO45.image_processing import PATCH_VALUES, resize
from MiniCPMO45.picture_slices import PixelSlice, patches_of, slice_image

pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs  # noqa: E402

from MiniCPMO45.device.kernels import pictures as kernels  # noqa: E402

CPU = torch.device("cpu")
LONGEST_SIDE = 4096
MOST_PIXELS = 60_000  # of one example; more only takes longer

interpreted = pytest.mark.skipif(not knobs.runtime.interpret, reason="kernels are compiled")
on_both = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=pytest.mark.gpu)]
)


def noise(width: int, height: int, seed: int = 0, *, is_harsh: bool = False) -> np.ndarray:
    """Random bytes, or black and white alone, where sums leave the range of a byte."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.where(pixels > 127, np.uint8(255), np.uint8(0)) if is_harsh else pixels


def run(
    ops: ModuleType, pixels: np.ndarray, part: PixelSlice, device: torch.device | str
) -> torch.Tensor:
    """Both passes of one module; the last row of the answer must stay as it is."""
    on_device = torch.from_numpy(pixels.copy()).to(device)
    (width, height), (left, top) = part.resized, part.corner
    across = axis_weights(pixels.shape[1], width, on_device.device)
    down = axis_weights(pixels.shape[0], height, on_device.device)
    first, end = down.window(top, top + part.extent[1])
    rows = ops.resize_rows(on_device[first:end], across, left, part.extent[0])
    out = torch.full((part.size[0] * part.size[1] + 1, PATCH_VALUES), 7.0, device=on_device.device)
    ops.columns_to_patches(rows, down, top, first, part.size, out)
    assert bool((out[-1] == 7).all()), "what is behind the slice was written to"
    return out[:-1].cpu()


sides = st.one_of(st.integers(1, 64), st.integers(1, LONGEST_SIDE))


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Width and height of a picture and of the wanted one, of any proportions."""
    width, wanted_width = draw(sides), draw(sides)
    height = draw(st.integers(1, min(LONGEST_SIDE, MOST_PIXELS // max(width, wanted_width))))
    most = min(LONGEST_SIDE, MOST_PIXELS // wanted_width)
    wanted_height = draw(st.one_of(st.just(min(height, most)), st.integers(1, most)))
    return width, height, wanted_width, wanted_height


@settings(max_examples=15, deadline=None)
@given(size=sizes(), seed=st.integers(0, 99), is_harsh=st.booleans())
@example(size=(320, 180, 150, 84), seed=0, is_harsh=False)
@example(size=(180, 320, 84, 150), seed=0, is_harsh=True)
@example(size=(141, 288, 195, 11), seed=0, is_harsh=False)
@example(size=(183, 281, 190, 210), seed=0, is_harsh=True)
@example(size=(4096, 1, 1, 1), seed=0, is_harsh=True)
@example(size=(1, 4096, 4096, 1), seed=0, is_harsh=True)
@example(size=(50, 60, 50, 60), seed=0, is_harsh=False)
def test_the_bytes_are_pillow_s(size: tuple[int, int, int, int], seed: int, is_harsh: bool) -> None:
    """The twin, at sizes off the patch grid, too."""
    width, height, *wanted = size
    pixels = noise(width, height, seed, is_harsh=is_harsh)
    across, down = axis_weights(width, wanted[0], CPU), axis_weights(height, wanted[1], CPU)
    rows = picture_plain.resize_rows(torch.from_numpy(pixels), across, 0, wanted[0])
    turned = rows.transpose(0, 1).contiguous()  # columns are resized as rows of the turned picture
    ours = picture_plain.resize_rows(turned, down, 0, wanted[1]).transpose(0, 1)
    expected = np.asarray(resize(Image.fromarray(pixels), (wanted[0], wanted[1])))
    np.testing.assert_array_equal(ours.numpy(), expected)


@settings(max_examples=10, deadline=None)
@given(
    width=st.integers(40, 400),
    height=st.integers(40, 400),
    limit=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_patches_of_every_slice_are_those_of_the_cpu(
    width: int, height: int, limit: int, seed: int
) -> None:
    """The twin, through the operation, for the overview and every cell."""
    image = Image.fromarray(noise(width, height, seed))
    slices = slice_image(image, limit, SliceConfig()).slices
    for part, expected in zip(slices, patches_of(slices), strict=True):
        out = torch.empty(len(expected.values), PATCH_VALUES)
        picture_ops.write_patches(torch.from_numpy(part.pixels.copy()), part, out)
        assert part.size == expected.size
        np.testing.assert_array_equal(out.numpy(), expected.values)


CASES = {
    "reduced": PixelSlice(noise(71, 33, 1), (42, 14), (0, 0), (42, 14)),
    "enlarged": PixelSlice(noise(9, 13, 2, is_harsh=True), (42, 56), (0, 0), (42, 56)),
    "tall": PixelSlice(noise(9, 60, 3, is_harsh=True), (14, 28), (0, 0), (14, 28)),
    "one pixel": PixelSlice(noise(1, 1, 4), (14, 14), (0, 0), (14, 14)),
    "as it is": PixelSlice(noise(28, 14, 5), (28, 14), (0, 0), (28, 14)),
    "a cell": PixelSlice(noise(50, 30, 6), (84, 42), (28, 14), (28, 14)),
    "last cell": PixelSlice(noise(100, 50, 7), (84, 42), (56, 28), (28, 14)),
}


@on_both
@pytest.mark.parametrize("part", CASES.values(), ids=CASES)
def test_kernels_are_their_twins_and_pillow(device: str, part: PixelSlice) -> None:
    ours = run(kernels, part.pixels, part, device)
    assert torch.equal(ours, run(picture_plain, part.pixels, part, "cpu"))
    [expected] = patches_of([part])
    np.testing.assert_array_equal(ours.numpy(), expected.values)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("width", "height"), [(1280, 720), (720, 1280), (1920, 1080), (640, 480), (1080, 2400)]
)
def test_camera_pictures_on_a_card(width: int, height: int) -> None:
    image = Image.fromarray(noise(width, height))
    slices = slice_image(image, 9, SliceConfig()).slices
    for part, expected in zip(slices, patches_of(slices), strict=True):
        out = torch.empty(len(expected.values), PATCH_VALUES, device="cuda")
        picture_ops.write_patches(torch.from_numpy(part.pixels.copy()).to("cuda"), part, out)
        np.testing.assert_array_equal(out.cpu().numpy(), expected.values)
