"""The vision tower at toy size: positions, padding, names, dtypes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.modeling_navit_siglip import (
    SiglipAttention,
    SiglipVisionTransformer,
    position_buckets,
    position_ids,
)

TOY = VisionConfig(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3)
SIZES = [(3, 4), (2, 2), (1, 5)]
LENGTH = 12
PATCH_VALUES = 588
BUCKETS = 70

# Counts up to 140 where float32 rounding moves a bucket. Source: docs/specification/model.md#1.4.
MOVED = {25, 49, 50, 55, 58, 77, 82, 86, 94, 98, 100, 110, 115, 135}


@pytest.fixture(scope="module")
def vision() -> SiglipVisionTransformer:
    torch.manual_seed(0)
    return SiglipVisionTransformer(TOY).eval()


@pytest.fixture(scope="module")
def patches() -> torch.Tensor:
    """A padded batch of slices of `SIZES`."""
    values = torch.rand(len(SIZES), LENGTH, PATCH_VALUES, generator=torch.manual_seed(1)) * 2 - 1
    for row, (rows, cols) in zip(values, SIZES, strict=True):
        row[rows * cols :] = 0
    return values


@pytest.mark.parametrize("count", range(1, 141))
def test_position_buckets_follow_the_float32_formula(count: int) -> None:
    # one over an integer tensor is a float32 step: that rounding is the whole point
    step = (1 / torch.tensor(count, dtype=torch.int32)).item()
    coordinates = torch.arange(0, 1 - 1e-6, step)
    borders = torch.arange(1 / BUCKETS, 1, 1 / BUCKETS)
    buckets = list(position_buckets(count, BUCKETS))
    assert buckets == torch.bucketize(coordinates, borders, right=True).tolist()
    assert len(buckets) == count
    whole = [i * BUCKETS // count for i in range(count)]
    assert (buckets != whole) == (count in MOVED)
    assert all(exact - bucket in (0, 1) for bucket, exact in zip(buckets, whole, strict=True))


def test_position_buckets_of_fifty() -> None:
    buckets = position_buckets(50, BUCKETS)
    assert [buckets[i] for i in (5, 10, 15, 20, 30, 40)] == [6, 13, 20, 27, 41, 55]


@pytest.mark.parametrize("count", [141, 500, 1024])
def test_position_buckets_of_long_sides_stay_in_the_table(count: int) -> None:
    buckets = position_buckets(count, BUCKETS)
    assert (len(buckets), buckets[0], buckets[-1]) == (count, 0, BUCKETS - 1)
    assert list(buckets) == sorted(buckets)


def test_an_empty_side_has_no_buckets() -> None:
    with pytest.raises(ValueError, match="at least one"):
        position_buckets(0, BUCKETS)


def test_position_ids_combine_both_sides_and_are_zero_in_the_padding() -> None:
    ids = position_ids([(2, 3), (1, 1)], 6, BUCKETS, torch.device("cpu"))
    rows, cols = position_buckets(2, BUCKETS), position_buckets(3, BUCKETS)
    assert ids[0].tolist() == [r * BUCKETS + c for r in rows for c in cols]
    assert ids[1].tolist() == [0] * 6


def test_linear_patch_embedding_equals_the_convolution(vision: SiglipVisionTransformer) -> None:
    embeddings = vision.embeddings
    flat = torch.rand(2, 5, PATCH_VALUES)
    strip = flat.view(2, 5, 3, 14, 14).permute(0, 2, 3, 1, 4).flatten(3)  # [B, 3, 14, 14 * L]
    convolved = embeddings.patch_embedding(strip).flatten(2).transpose(1, 2)
    ids = torch.zeros(2, 5, dtype=torch.long)
    linear = embeddings(flat, ids) - embeddings.position_embedding(ids)
    torch.testing.assert_close(linear, convolved, atol=1e-6, rtol=0)


@torch.no_grad()
def test_padding_does_not_change_valid_rows(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    together = vision(patches, SIZES)
    assert together.shape == (len(SIZES), LENGTH, TOY.hidden_size)
    noisy = patches.clone()
    for index, (rows, cols) in enumerate(SIZES):
        count = rows * cols
        alone = vision(patches[index : index + 1, :count], [(rows, cols)])
        torch.testing.assert_close(together[index, :count], alone[0], atol=1e-5, rtol=1e-5)
        noisy[index, count:] = 7.0
    disturbed = vision(noisy, SIZES)
    for index, (rows, cols) in enumerate(SIZES):
        torch.testing.assert_close(disturbed[index, : rows * cols], together[index, : rows * cols])


@torch.no_grad()
def test_the_shape_of_a_slice_matters(vision: SiglipVisionTransformer) -> None:
    values = torch.rand(1, 6, PATCH_VALUES)
    assert not torch.allclose(vision(values, [(2, 3)]), vision(values, [(3, 2)]))


@torch.no_grad()
def test_attention_equals_the_written_out_formula() -> None:
    attention = SiglipAttention(TOY)
    x = torch.rand(2, 5, TOY.hidden_size)
    heads = TOY.num_attention_heads
    q, k, v = (
        layer(x).view(2, 5, heads, -1).transpose(1, 2)
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    weights = F.softmax(q @ k.transpose(-1, -2) / (TOY.hidden_size // heads) ** 0.5, dim=-1)
    expected = attention.out_proj((weights @ v).transpose(1, 2).reshape(2, 5, -1))
    torch.testing.assert_close(attention(x, None), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_bfloat16_stays_near_float32(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    half = SiglipVisionTransformer(TOY).to(torch.bfloat16)
    half.load_state_dict(vision.state_dict())
    output = half(patches, SIZES)
    assert output.dtype == torch.bfloat16
    expected = vision(patches, SIZES)
    assert (output.float() - expected).abs().max() < 3e-2 * expected.abs().max()


@torch.no_grad()
def test_a_forward_call_leaves_the_module_unchanged(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    attributes = {name: set(vars(module)) for name, module in vision.named_modules()}
    weights = {name: value.clone() for name, value in vision.state_dict().items()}
    vision(patches, SIZES)
    assert {name: set(vars(module)) for name, module in vision.named_modules()} == attributes
    for name, value in vision.state_dict().items():
        assert torch.equal(value, weights[name])
    assert not list(vision.buffers())


def test_inference_mode_first_does_not_spoil_later_gradients(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    sizes = [(1, 11), (2, 4), (1, 2)]
    with torch.inference_mode():
        vision(patches, sizes)
    vision(patches, sizes).sum().backward()
    assert vision.embeddings.position_embedding.weight.grad is not None
    vision.zero_grad(set_to_none=True)


def test_published_names_and_size() -> None:
    with torch.device("meta"):
        vision = SiglipVisionTransformer(VisionConfig())
    weights = vision.state_dict()
    assert len(weights) == 437
    assert sum(value.numel() for value in weights.values()) == 417_792_240
    assert weights["embeddings.patch_embedding.weight"].shape == (1152, 3, 14, 14)
    assert weights["embeddings.position_embedding.weight"].shape == (4900, 1152)
    assert weights["encoder.layers.26.mlp.fc1.bias"].shape == (4304,)


@torch.no_grad()
def test_the_last_layer_can_be_left_out(patches: torch.Tensor) -> None:
    torch.manual_seed(2)
    short = SiglipVisionTransformer(TOY, drop_last_layer=True)
    assert len(short.encoder.layers) == TOY.num_hidden_layers - 1
    same = SiglipVisionTransformer(replace(TOY, num_hidden_layers=1))
    same.load_state_dict(short.state_dict())
    assert torch.equal(short(patches, SIZES), same(patches, SIZES))


def test_wrong_requests_are_refused(vision: SiglipVisionTransformer, patches: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="sizes"):
        vision(patches, SIZES[:2])
    with pytest.raises(ValueError, match="do not fit"):
        vision(patches, [(4, 4), (1, 1), (1, 1)])
    with pytest.raises(ValueError, match="activation"):
        SiglipVisionTransformer(replace(TOY, hidden_act="relu"))
    with pytest.raises(ValueError, match="divide"):
        SiglipVisionTransformer(replace(TOY, num_attention_heads=5))
