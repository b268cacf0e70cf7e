"""Vision tower and resampler: batches and padding do not affect the results."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import SliceConfig, VisionConfig
from MiniCPMO45.kernels.device import STAGED_BYTES, pin, upload_array
from MiniCPMO45.model import vision
from MiniCPMO45.model.vision import PADDED, Resampler, SiglipVisionTransformer, SliceEncoder
from MiniCPMO45.processing.pictures import Patches, PixelSlice, Slice, patches_of, slice_image

TOY = VisionConfig(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3)
QUERIES, WIDTH = 8, 32


@pytest.fixture(scope="module", params=[False, True], ids=["exact", "fixed"])
def encoder(request: pytest.FixtureRequest) -> SliceEncoder:
    torch.manual_seed(0)
    tower, resampler = SiglipVisionTransformer(TOY), Resampler(QUERIES, WIDTH, TOY.hidden_size, 2)
    return SliceEncoder(tower, resampler, has_fixed_passes=request.param)


def patches(rows: int, cols: int, seed: int = 0) -> Patches:
    values = np.random.default_rng(seed).standard_normal((rows * cols, 588), dtype=np.float32)
    return Patches(values, rows, cols)


def alone(encoder: SliceEncoder, each: Patches) -> Tensor:
    with torch.no_grad():
        grid = encoder.grid([each.size], len(each.values))
        return encoder.forward(torch.from_numpy(each.values)[None], grid)[0]


@pytest.mark.parametrize(
    "sizes",
    [
        [(24, 43)],
        [(32, 32), (43, 24), (4, 7), (2, 2)],
        [(2, 300), (5, 5), (1, 1024)],
        [(34, 33)] * 3,
        [(1, 2)] * 17 + [(2, 1)],
    ],
)
def test_slices_of_any_size_share_a_call(
    encoder: SliceEncoder, sizes: list[tuple[int, int]]
) -> None:
    """Too many patches for a fixed pass, and more slices than one pass takes, among them."""
    slices = [patches(*size, seed=i) for i, size in enumerate(sizes)]
    encoded = encoder.encode(slices)
    assert [tuple(each.shape) for each in encoded] == [(QUERIES, WIDTH)] * len(slices)
    for ours, each in zip(encoded, slices, strict=True):
        torch.testing.assert_close(ours, alone(encoder, each), atol=1e-5, rtol=1e-5)
        assert not ours.requires_grad


def test_no_slices_return_nothing(encoder: SliceEncoder) -> None:
    assert encoder.encode([]) == []


def test_results_follow_the_dtype_of_the_weights() -> None:
    vision = SiglipVisionTransformer(TOY).to(torch.bfloat16)
    resampler = Resampler(QUERIES, WIDTH, TOY.hidden_size, 2).to(torch.bfloat16)
    encoded = SliceEncoder(vision, resampler).encode([patches(3, 4), patches(2, 2)])
    assert {item.dtype for item in encoded} == {torch.bfloat16}


def photo(width: int, height: int, seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_pixels_are_encoded_as_their_patch_vectors(encoder: SliceEncoder) -> None:
    """An overview and its cells, between patch vectors and a picture longer than 10:1."""
    shapes = ((640, 480, 9), (100, 150, 1), (2000, 40, 1))
    cut = [slice_image(photo(w, h, w), most, SliceConfig()).slices for w, h, most in shapes]
    slices: list[Slice] = [each for picture in cut for each in picture]
    slices.insert(2, patches(5, 6))
    vectors = patches_of(slices)
    for ours, theirs in zip(encoder.encode(slices), encoder.encode(vectors), strict=True):
        assert torch.equal(ours, theirs)


def test_cpu_resizes_before_batching(encoder: SliceEncoder) -> None:
    """In the thread of the session, also for aspect ratios above 10:1."""
    slices = [*slice_image(photo(64, 48, 0), 9, SliceConfig()).slices]
    slices += slice_image(photo(900, 20, 1), 1, SliceConfig()).slices
    prepared = encoder.prepare(slices)
    assert all(isinstance(each, Patches) for each in prepared)
    assert all(one is other for one, other in zip(encoder.prepare(prepared), prepared, strict=True))


def test_pictures_are_uploaded_one_at_a_time(
    encoder: SliceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most two pictures are on the GPU; the slices of one picture share its upload."""
    kernels = pytest.importorskip("MiniCPMO45.kernels.picture_patches")
    uploaded: list[weakref.ref[Tensor]] = []
    together: list[int] = []

    def upload(values: np.ndarray, device: torch.device) -> Tensor:
        together.append(sum(each() is not None for each in uploaded))
        copy = torch.from_numpy(values.copy())
        uploaded.append(weakref.ref(copy))
        return copy

    def write(picture: Tensor, part: PixelSlice, out: Tensor) -> None:
        assert picture.shape == part.pixels.shape

    monkeypatch.setattr(vision, "upload_array", upload)
    monkeypatch.setattr(kernels, "write_patches", write)
    slices = [
        each
        for seed in range(6)
        for each in slice_image(photo(64, 48, seed), 9, SliceConfig(scale_resolution=42)).slices
    ]
    encoder.load(slices, torch.empty(len(slices), 1, 588))
    assert (len(slices) > 6, len(uploaded), max(together)) == (True, 6, 1)
    assert all(each() is None for each in uploaded)


def test_reused_memory_does_not_affect_results(encoder: SliceEncoder) -> None:
    """The buffers of a fixed pass are reused."""
    small = patches(4, 5, seed=1)
    before = encoder.encode([small])[0].clone()
    encoder.encode([patches(32, 34, seed=2)])
    assert PADDED == 32 * 34
    assert torch.equal(encoder.encode([small])[0], before)


@pytest.mark.parametrize("kind", ["large", "read-only", "turned", "empty"])
def test_an_array_arrives_whole(kind: str) -> None:
    """Larger ones in parts."""
    numbers = np.arange(3 * STAGED_BYTES // 4, dtype=np.float32).reshape(-1, 16)
    fixed = numbers[:5].copy()
    fixed.flags.writeable = False
    given = {"large": numbers, "read-only": fixed, "turned": numbers.T[::-1], "empty": numbers[:0]}
    copy = upload_array(given[kind], torch.device("cpu"))
    np.testing.assert_array_equal(copy.numpy(), given[kind])
    copy += 1
    np.testing.assert_array_equal(numbers[:2, 0], [0, 16])


def test_slices_of_one_picture_share_its_pinned_copy(
    encoder: SliceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that `load` copies the picture to the card once for all of them."""
    monkeypatch.setattr(encoder, "_resizes_on_card", True)
    monkeypatch.setattr(vision, "pin", lambda pixels: torch.from_numpy(pixels.copy()))
    pictures = [Image.new("RGB", (1200, 900), colour) for colour in ("red", "blue")]
    cut = [slice_image(each, 9, SliceConfig()).slices for each in pictures]
    prepared = encoder.prepare([each for slices in cut for each in slices])
    copies = [each.pixels for each in prepared if isinstance(each, PixelSlice)]
    assert len(copies) == len(prepared) > len(pictures)
    assert len({id(each) for each in copies}) == len(pictures)


@pytest.mark.gpu
def test_pinned_pixels_arrive_whole() -> None:
    """The copy continues while the memory it came from is released and taken again."""
    numbers = np.arange(STAGED_BYTES, dtype=np.int32).reshape(-1, 16)
    copies = [pin(numbers + k).to("cuda", non_blocking=True) for k in range(8)]
    for k, copy in enumerate(copies):
        np.testing.assert_array_equal(copy.cpu().numpy(), numbers + k)
