"""Slices through vision tower and resampler: batching must not show."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.image_processing import Patches
from MiniCPMO45.modeling_navit_siglip import SiglipVisionTransformer
from MiniCPMO45.resampler import Resampler
from MiniCPMO45.vision_encoder import get_vision_embedding, pad_patches

TOY = VisionConfig(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3)
QUERIES, WIDTH = 8, 32
SIZES = [(3, 4), (2, 2), (1, 5), (4, 3), (2, 2)]


@pytest.fixture(scope="module")
def seeing() -> tuple[SiglipVisionTransformer, Resampler]:
    torch.manual_seed(0)
    return SiglipVisionTransformer(TOY), Resampler(QUERIES, WIDTH, TOY.hidden_size, 2)


@pytest.fixture(scope="module")
def slices() -> list[Patches]:
    draw = np.random.default_rng(0)
    return [
        Patches(draw.uniform(-1, 1, (rows * cols, 588)).astype(np.float32), rows, cols)
        for rows, cols in SIZES
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 16])
def test_split_batches_equal_one_batch(
    seeing: tuple[SiglipVisionTransformer, Resampler], slices: list[Patches], limit: int
) -> None:
    whole = get_vision_embedding(*seeing, slices)
    split = get_vision_embedding(*seeing, slices, batch_limit=limit)
    assert [tuple(item.shape) for item in split] == [(QUERIES, WIDTH)] * len(slices)
    for ours, expected in zip(split, whole, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
        assert not ours.requires_grad


def test_results_keep_the_order_of_the_slices(
    seeing: tuple[SiglipVisionTransformer, Resampler], slices: list[Patches]
) -> None:
    forward = get_vision_embedding(*seeing, slices)
    backward = get_vision_embedding(*seeing, slices[::-1], batch_limit=2)
    for ours, expected in zip(backward, forward[::-1], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_no_slices_give_nothing(seeing: tuple[SiglipVisionTransformer, Resampler]) -> None:
    assert get_vision_embedding(*seeing, []) == []


def test_results_follow_the_dtype_of_the_weights(slices: list[Patches]) -> None:
    vision = SiglipVisionTransformer(TOY).to(torch.bfloat16)
    resampler = Resampler(QUERIES, WIDTH, TOY.hidden_size, 2).to(torch.bfloat16)
    assert {item.dtype for item in get_vision_embedding(vision, resampler, slices)} == {
        torch.bfloat16
    }


def test_a_limit_below_one_is_refused(
    seeing: tuple[SiglipVisionTransformer, Resampler], slices: list[Patches]
) -> None:
    with pytest.raises(ValueError, match="batch_limit"):
        get_vision_embedding(*seeing, slices, batch_limit=0)


def test_shorter_slices_are_padded_with_zeros(slices: list[Patches]) -> None:
    batch = pad_patches(slices[:2], torch.device("cpu"))
    assert batch.shape == (2, 12, 588)
    assert torch.equal(batch[1, :4], torch.from_numpy(slices[1].values))
    assert not batch[1, 4:].any()
