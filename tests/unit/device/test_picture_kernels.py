"""Pictures resized on the device are those of Pillow, byte for byte.

Without a card the kernels run in Triton's interpreter; `-m gpu` runs them compiled.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.processing.pictures import PATCH_VALUES, PixelSlice, patches_of, resize, slice_image

pytest.importorskip("triton", reason="Triton is not installed")

from triton import knobs  # noqa: E402

from MiniCPMO45.kernels.picture_patches import WEIGHT_BITS, AxisWeights, axis_weights, write_patches

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


def resized(lines: np.ndarray, axis: AxisWeights) -> np.ndarray:
    """What a table says of an axis: bytes [n, ...] to bytes [result, ...]."""
    first, weights = axis.first.numpy(), axis.weights.numpy()
    total = np.full((len(first), *lines.shape[1:]), 1 << (WEIGHT_BITS - 1), np.int32)
    for tap, weight in enumerate(weights):
        line = np.minimum(first + tap, len(lines) - 1)
        total += lines[line].astype(np.int32) * weight[:, None, None]
    return (total >> WEIGHT_BITS).clip(0, 255).astype(np.uint8)


sides = st.one_of(st.integers(1, 64), st.integers(1, LONGEST_SIDE))


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int, int]:
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
    """Those that the tables make, at sizes off the patch grid, too."""
    width, height, *wanted = size
    pixels = noise(width, height, seed, is_harsh=is_harsh)
    across, down = axis_weights(width, wanted[0], CPU), axis_weights(height, wanted[1], CPU)
    ours = resized(resized(pixels.transpose(1, 0, 2), across).transpose(1, 0, 2), down)
    expected = np.asarray(resize(Image.fromarray(pixels), (wanted[0], wanted[1])))
    np.testing.assert_array_equal(ours, expected)


CASES = {
    "reduced": PixelSlice(noise(71, 33, 1), (42, 14), (0, 0), (42, 14)),
    "enlarged": PixelSlice(noise(9, 13, 2, is_harsh=True), (42, 56), (0, 0), (42, 56)),
    "tall": PixelSlice(noise(9, 60, 3, is_harsh=True), (14, 28), (0, 0), (14, 28)),
    "one pixel": PixelSlice(noise(1, 1, 4), (14, 14), (0, 0), (14, 14)),
    "as it is": PixelSlice(noise(28, 14, 5), (28, 14), (0, 0), (28, 14)),
    "a cell": PixelSlice(noise(50, 30, 6), (84, 42), (28, 14), (28, 14)),
    "beyond 10:1": PixelSlice(noise(300, 5, 8), (280, 14), (0, 0), (280, 14)),
    "last cell": PixelSlice(noise(100, 50, 7), (84, 42), (56, 28), (28, 14)),
}


@on_both
@pytest.mark.parametrize("part", CASES.values(), ids=CASES)
def test_patches_are_those_of_the_cpu(device: str, part: PixelSlice) -> None:
    [expected] = patches_of([part])
    out = torch.full((len(expected.values) + 1, PATCH_VALUES), 7.0, device=device)
    write_patches(torch.from_numpy(part.pixels.copy()).to(device), part, out)
    assert bool((out[-1] == 7).all()), "rows beyond the slice were written"
    np.testing.assert_array_equal(out[:-1].cpu().numpy(), expected.values)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("width", "height"),
    [(1280, 720), (720, 1280), (1920, 1080), (640, 480), (1080, 2400), (4000, 90)],
)
def test_camera_pictures_on_a_card(width: int, height: int) -> None:
    image = Image.fromarray(noise(width, height))
    slices = slice_image(image, 9, SliceConfig()).slices
    for part, expected in zip(slices, patches_of(slices), strict=True):
        out = torch.empty(len(expected.values), PATCH_VALUES, device="cuda")
        write_patches(torch.from_numpy(part.pixels.copy()).to("cuda"), part, out)
        np.testing.assert_array_equal(out.cpu().numpy(), expected.values)
