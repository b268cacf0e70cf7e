"""Encoders on static shapes, without graphs, give what the plain ones give."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from MiniCPMO45.audio_cache import AudioCache, new_audio_cache
from MiniCPMO45.audio_encoder import StreamItem, encode_streams
from MiniCPMO45.compat import Compat
from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.device import encoders_vision
from MiniCPMO45.device.encoders_audio import AudioStreamEncoder
from MiniCPMO45.device.encoders_vision import PADDED, SliceEncoder
from MiniCPMO45.device.engine import DeviceExecutor
from MiniCPMO45.device.upload import STAGED_BYTES, upload_array
from MiniCPMO45.image_processing import Patches
from MiniCPMO45.picture_slices import Slice, patches_of, slice_image
from MiniCPMO45.steps import EncodeImages
from MiniCPMO45.vision_encoder import get_vision_embedding
from tests.model.toy import Toy, assert_close

CONTEXT = 2  # mel frames on either side
FIRST, LATER = 102, 104  # mel frames of a unit with its context


@pytest.fixture(scope="module")
def audio(toy: Toy) -> AudioStreamEncoder:
    """The toy's audio encoder."""
    model = toy.model
    return AudioStreamEncoder(
        model.apm, model.audio_projection_layer, pool_step=model.config.audio_pool_step
    )


def new_cache(toy: Toy) -> AudioCache:
    return new_audio_cache(toy.config.audio_config)


def unit(cache: AudioCache, frames: int, seed: int) -> StreamItem:
    generator = torch.Generator().manual_seed(seed)
    prefix = 0 if cache.length == 0 else CONTEXT
    return StreamItem(torch.randn(80, frames, generator=generator), cache, prefix, CONTEXT)


def test_streams_of_all_ages_are_encoded_alike(toy: Toy, audio: AudioStreamEncoder) -> None:
    """Past the encoder's last position, where streams begin anew; one unit is cut short."""
    plain_caches, caches = ([new_cache(toy) for _ in range(3)] for _ in range(2))
    odd_step = 5
    for step in range(32):
        present = [i for i in range(3) if step >= 2 * i]
        frames = [FIRST if step == 2 * i else LATER for i in present]
        if step == odd_step:
            frames[1] = 61
        answers = []
        for side in (plain_caches, caches):
            items = [unit(side[i], n, 10 * step + i) for i, n in zip(present, frames, strict=True)]
            # A stream that began anew still has context in front.
            items = [
                StreamItem(item.mel, item.cache, 0 if n == FIRST else CONTEXT, CONTEXT)
                for item, n in zip(items, frames, strict=True)
            ]
            answers.append(items)
        with torch.inference_mode():
            expected = encode_streams(audio.encoder, audio.projection, answers[0])
            encoded = audio.encode(answers[1])
        for ours, theirs in zip(encoded, expected, strict=True):
            assert_close(ours, theirs)
        assert [c.length for c in caches] == [c.length for c in plain_caches]
    assert caches[0].length < 1500 // 2, "the oldest stream never began anew"
    for cache, plain in zip(caches, plain_caches, strict=True):
        assert_close(cache.kv[..., : cache.length, :], plain.kv[..., : plain.length, :])


def test_dropped_streams_free_their_memory_whatever_is_encoded_next(
    toy: Toy, audio: AudioStreamEncoder
) -> None:
    caches = [new_cache(toy) for _ in range(2)]
    with torch.inference_mode():
        audio.encode([unit(cache, FIRST, seed) for seed, cache in enumerate(caches)])
    watched = [weakref.ref(cache.kv) for cache in caches]
    caches.clear()
    assert [ref() for ref in watched] == [None, None]


def test_an_embedding_depends_on_the_stream_s_past(toy: Toy, audio: AudioStreamEncoder) -> None:
    """So that the comparison above compares more than the unit itself."""
    caches = [new_cache(toy) for _ in range(2)]
    for index, cache in enumerate(caches):
        audio.encode([unit(cache, FIRST, index)])
    one, other = audio.encode([unit(cache, LATER, 7) for cache in caches])
    assert (one - other).abs().max() > 1e-3


def test_a_cache_takes_part_once(toy: Toy, audio: AudioStreamEncoder) -> None:
    cache = new_cache(toy)
    with pytest.raises(ValueError, match="only once"):
        audio.encode([unit(cache, FIRST, 0)] * 2)
    assert cache.length == 0


def patches(rows: int, cols: int, seed: int) -> Patches:
    values = np.random.default_rng(seed).standard_normal((rows * cols, 588), dtype=np.float32)
    return Patches(values, rows, cols)


@pytest.mark.parametrize(
    "sizes", [[(24, 43)], [(32, 32), (43, 24), (4, 7)], [(2, 300), (5, 5)], [(34, 33)] * 3]
)
def test_slices_of_any_size_share_a_batch(toy: Toy, sizes: list[tuple[int, int]]) -> None:
    """A slice with too many patches goes another way and is there all the same."""
    slices = [patches(*size, seed=i) for i, size in enumerate(sizes)]
    encoder = SliceEncoder(toy.model.vpm, toy.model.resampler)
    encoded = encoder.encode(slices)
    expected = get_vision_embedding(toy.model.vpm, toy.model.resampler, slices)
    for ours, theirs in zip(encoded, expected, strict=True):
        assert_close(ours, theirs)


def photo(width: int, height: int, seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_pixels_are_encoded_as_their_patch_vectors(toy: Toy) -> None:
    """An overview and its cells, beside another picture, one too narrow for a batch and vectors."""
    config, encoder = SliceConfig(), SliceEncoder(toy.model.vpm, toy.model.resampler)
    shapes = ((640, 480, 9), (100, 150, 1), (2000, 40, 1))
    cut = [slice_image(photo(w, h, w), most, config).slices for w, h, most in shapes]
    slices: list[Slice] = [each for picture in cut for each in picture]
    slices.insert(2, patches(5, 6, seed=0))
    vectors = patches_of(slices)
    expected = get_vision_embedding(toy.model.vpm, toy.model.resampler, vectors)
    for ours, theirs in zip(encoder.encode(slices), expected, strict=True):
        assert_close(ours, theirs)
    for ours, theirs in zip(encoder.encode(slices), encoder.encode(vectors), strict=True):
        assert torch.equal(ours, theirs), "the pixels were resized otherwise"


def test_pictures_lie_on_the_device_one_after_the_other(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the next arrives beside the one before."""
    uploaded: list[weakref.ref[Tensor]] = []
    together: list[int] = []

    def upload(values: np.ndarray, device: torch.device) -> Tensor:
        together.append(sum(each() is not None for each in uploaded))
        copy = upload_array(values, device)
        uploaded.append(weakref.ref(copy))
        return copy

    monkeypatch.setattr(encoders_vision, "upload_array", upload)
    slices: list[Slice] = [
        each
        for seed in range(6)
        for each in slice_image(photo(640, 480, seed), 9, SliceConfig()).slices
    ]
    SliceEncoder(toy.model.vpm, toy.model.resampler).encode(slices)
    assert (len(slices), len(uploaded)) == (18, 12), "the two parts of each, in one batch, share it"
    assert max(together) == 1
    assert all(each() is None for each in uploaded)


def test_what_is_done_on_the_cpu_beforehand_depends_on_the_executor(toy: Toy) -> None:
    slices = slice_image(photo(640, 480, 0), 9, SliceConfig()).slices
    engine = DeviceExecutor(toy.model, compat=Compat())
    assert engine.prepare_slices(slices) == slices
    prepared = toy.executor().prepare_slices(slices)
    assert all(isinstance(each, Patches) for each in prepared)
    answers = [engine.answer([EncodeImages(each)])[0] for each in (slices, prepared)]
    plain = [toy.executor().answer([EncodeImages(each)])[0] for each in (slices, prepared)]
    for ours, same, theirs, also in zip(*answers, *plain, strict=True):
        assert torch.equal(ours, same) and torch.equal(theirs, also)
        assert_close(ours, theirs)


def test_a_smaller_slice_does_not_see_the_one_before(toy: Toy) -> None:
    """The memory of a batch is used again."""
    encoder = SliceEncoder(toy.model.vpm, toy.model.resampler)
    small = patches(4, 5, seed=1)
    alone = encoder.encode([small])[0].clone()
    encoder.encode([patches(32, 34, seed=2)])
    assert PADDED == 32 * 34
    assert torch.equal(encoder.encode([small])[0], alone)


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
