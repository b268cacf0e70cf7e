"""Encoders on static shapes, without graphs, give what the plain ones give."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from MiniCPMO45.audio_cache import AudioCache, new_audio_cache
from MiniCPMO45.audio_encoder import StreamItem, encode_streams
from MiniCPMO45.device.encoders_audio import AudioStreamEncoder
from MiniCPMO45.device.upload import STAGED_BYTES, upload_array
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
