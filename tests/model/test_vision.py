"""Patch grids, the vision tower and the resampler at toy size, against stock modules."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.model.transformer import fuse_attention
from MiniCPMO45.model.vision import (
    LAYER_NORM_EPS,
    PatchGrid,
    PatchSize,
    Resampler,
    ResamplerAttention,
    SiglipVisionTransformer,
    patch_grid,
    position_buckets,
    side_codes,
)

TOY = VisionConfig(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3)
SIZES = [(3, 4), (2, 2), (1, 5)]
LENGTH = 12
PATCH_VALUES = 588


def see(
    vision: SiglipVisionTransformer, patches: torch.Tensor, sizes: list[PatchSize]
) -> torch.Tensor:
    like, buckets = vision.post_layernorm.weight, vision.embeddings.buckets
    grid = patch_grid(sizes, patches.shape[1], buckets=buckets, width=4, like=like)
    return vision(patches, grid.ids, grid.mask)


@pytest.fixture(scope="module")
def vision() -> SiglipVisionTransformer:
    torch.manual_seed(0)
    return SiglipVisionTransformer(TOY).eval()


@pytest.fixture(scope="module")
def patches() -> torch.Tensor:
    values = torch.rand(len(SIZES), LENGTH, PATCH_VALUES, generator=torch.manual_seed(1)) * 2 - 1
    for row, (rows, cols) in zip(values, SIZES, strict=True):
        row[rows * cols :] = 0
    return values


@torch.no_grad()
@pytest.mark.parametrize("fused", [False, True])
def test_features_are_those_of_the_stock_tower(fused: bool) -> None:
    """Alone and padded; the stock layers have the same names and the same bucketed positions."""
    torch.manual_seed(3)
    vision = SiglipVisionTransformer(TOY)
    stock = Idefics2VisionTransformer(
        Idefics2VisionConfig(
            hidden_size=TOY.hidden_size,
            intermediate_size=TOY.intermediate_size,
            num_hidden_layers=TOY.num_hidden_layers,
            num_attention_heads=TOY.num_attention_heads,
            image_size=TOY.image_size,
            patch_size=TOY.patch_size,
            hidden_act=TOY.hidden_act,
            layer_norm_eps=TOY.layer_norm_eps,
        )
    ).eval()
    stock.load_state_dict(vision.state_dict())
    if fused:
        fuse_attention(vision)
    pictures = [torch.rand(1, 3, 14 * rows, 14 * cols) * 2 - 1 for rows, cols in SIZES]
    expected = [stock(each).last_hidden_state[0] for each in pictures]
    batch = torch.full((len(SIZES), LENGTH, PATCH_VALUES), 7.0)
    for picture, row, (rows, cols), features in zip(pictures, batch, SIZES, expected, strict=True):
        tiles = picture[0].view(3, rows, 14, cols, 14).permute(1, 3, 0, 2, 4)
        row[: rows * cols] = tiles.reshape(rows * cols, PATCH_VALUES)
        alone = see(vision, row[None, : rows * cols], [(rows, cols)])[0]
        torch.testing.assert_close(alone, features, atol=1e-5, rtol=1e-5)
    for row, features in zip(see(vision, batch, SIZES), expected, strict=True):
        torch.testing.assert_close(row[: len(features)], features, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_fused_weights_are_those_of_the_checkpoint_and_follow_a_conversion() -> None:
    vision = SiglipVisionTransformer(TOY)
    weights = {name: value.clone() for name, value in vision.state_dict().items()}
    fuse_attention(vision)
    fuse_attention(vision)
    for name, value in vision.state_dict().items():
        assert torch.equal(value, weights[name])
    patches = torch.rand(1, 6, PATCH_VALUES)
    expected = see(vision, patches, [(2, 3)])
    again = SiglipVisionTransformer(TOY)
    fuse_attention(again)
    again.load_state_dict(weights)
    assert torch.equal(see(again, patches, [(2, 3)]), expected)
    torch.testing.assert_close(see(vision.double(), patches, [(2, 3)]).float(), expected)


@torch.no_grad()
def test_bfloat16_stays_near_float32(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    half = SiglipVisionTransformer(TOY).to(torch.bfloat16)
    half.load_state_dict(vision.state_dict())
    output = see(half, patches, SIZES)
    assert output.dtype == torch.bfloat16
    expected = see(vision, patches, SIZES)
    assert (output.float() - expected).abs().max() < 3e-2 * expected.abs().max()


def test_inference_mode_first_does_not_spoil_later_gradients(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    sizes = [(1, 11), (2, 4), (1, 2)]
    with torch.inference_mode():
        see(vision, patches, sizes)
    see(vision, patches, sizes).sum().backward()
    assert vision.embeddings.position_embedding.weight.grad is not None
    vision.zero_grad(set_to_none=True)


@torch.no_grad()
def test_the_last_layer_can_be_left_out(patches: torch.Tensor) -> None:
    torch.manual_seed(2)
    short = SiglipVisionTransformer(TOY, drop_last_layer=True)
    assert len(short.encoder.layers) == TOY.num_hidden_layers - 1
    same = SiglipVisionTransformer(replace(TOY, num_hidden_layers=1))
    same.load_state_dict(short.state_dict())
    assert torch.equal(see(short, patches, SIZES), see(same, patches, SIZES))


def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="activation"):
        SiglipVisionTransformer(replace(TOY, hidden_act="relu"))
    with pytest.raises(ValueError, match="divide"):
        SiglipVisionTransformer(replace(TOY, num_attention_heads=5))


BUCKETS = 70
# Counts up to 140 where float32 rounding moves a bucket. Source: docs/specification/model.md#1.4.
MOVED = {25, 49, 50, 55, 58, 77, 82, 86, 94, 98, 100, 110, 115, 135}


def grid_of(sizes: list[PatchSize], length: int) -> PatchGrid:
    like = torch.empty(0, device="cpu")
    return patch_grid(sizes, length, buckets=BUCKETS, width=8, like=like)


def test_coordinates_run_row_by_row_and_are_zero_in_the_padding() -> None:
    grid = grid_of([(2, 3), (1, 2)], 6)
    assert grid.rows.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert grid.cols.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 0, 0, 0, 0]]
    assert grid.mask is not None
    assert grid.mask[:, 0, 0].tolist() == [[True] * 6, [True] * 2 + [False] * 4]


def test_position_ids_combine_both_sides_and_are_zero_in_the_padding() -> None:
    ids = grid_of([(2, 3), (1, 1)], 6).ids
    rows, cols = position_buckets(2, BUCKETS), position_buckets(3, BUCKETS)
    assert ids[0].tolist() == [r * BUCKETS + c for r in rows for c in cols]
    assert ids[1].tolist() == [0] * 6


def test_a_batch_without_padding_has_no_mask() -> None:
    assert grid_of([(2, 3), (3, 2)], 6).mask is None


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (3, 3)])
def test_sizes_that_do_not_fit_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        grid_of([size], 8)


def test_grids_stay_real_while_modules_are_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        grid = grid_of([(5, 1)], 5)
    assert {each.device.type for each in (grid.ids, grid.rows, grid.codes)} == {"cpu"}


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


QUERIES, WIDTH, KV_DIM, HEADS = 8, 32, 12, 2


@pytest.fixture(scope="module")
def resampler() -> Resampler:
    torch.manual_seed(0)
    module = Resampler(QUERIES, WIDTH, KV_DIM, HEADS)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.eval()


@pytest.fixture(scope="module")
def features() -> torch.Tensor:
    return torch.randn(len(SIZES), LENGTH, KV_DIM, generator=torch.manual_seed(1))


def resampling_grid(sizes: list[PatchSize], x: torch.Tensor) -> PatchGrid:
    return patch_grid(sizes, x.shape[1], buckets=1, width=WIDTH, like=x)


def code(position: int, width: int) -> list[float]:
    angles = [position * 10_000 ** (-k / (width // 2)) for k in range(width // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def written_out(module: Resampler, x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The published formula for one slice without padding, with `nn.MultiheadAttention`."""
    rows, cols = size
    half = WIDTH // 2
    place = torch.tensor([code(c, half) + code(r, half) for r in range(rows) for c in range(cols)])
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    attention.load_state_dict(module.attn.state_dict())
    norm = nn.LayerNorm(WIDTH, eps=LAYER_NORM_EPS)
    norm.load_state_dict(module.ln_kv.state_dict())
    kv = norm(x @ module.kv_proj.weight.T)
    out, _ = attention(module.ln_q(module.query), kv + place, kv)
    return module.ln_post(out) @ module.proj


@torch.no_grad()
def test_equals_multihead_attention_with_the_same_weights(
    resampler: Resampler, features: torch.Tensor
) -> None:
    output = resampler(features, resampling_grid(SIZES, features))
    assert output.shape == (len(SIZES), QUERIES, WIDTH)
    for index, (rows, cols) in enumerate(SIZES):
        expected = written_out(resampler, features[index, : rows * cols], (rows, cols))
        torch.testing.assert_close(output[index], expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("size", [(71, 1), (1, 150), (140, 1)])
def test_sides_beyond_the_usual_table(resampler: Resampler, size: tuple[int, int]) -> None:
    x = torch.randn(1, size[0] * size[1], KV_DIM)
    expected = written_out(resampler, x[0], size)
    torch.testing.assert_close(
        resampler(x, resampling_grid([size], x))[0], expected, atol=1e-4, rtol=1e-4
    )


def test_table_is_sine_then_cosine() -> None:
    table = side_codes(75, 32, torch.empty(0))[:75]
    assert table.dtype == torch.float32
    torch.testing.assert_close(
        table, torch.tensor([code(p, 16) for p in range(75)]), atol=1e-5, rtol=0
    )


def test_a_longer_table_starts_with_the_shorter_one() -> None:
    like = torch.empty(0)
    assert torch.equal(side_codes(140, 32, like)[:70], side_codes(70, 32, like))


@torch.no_grad()
def test_resampling_in_bfloat16_stays_near_float32(
    resampler: Resampler, features: torch.Tensor
) -> None:
    half = Resampler(QUERIES, WIDTH, KV_DIM, HEADS).to(torch.bfloat16)
    half.load_state_dict(resampler.state_dict())
    output = half(features.bfloat16(), resampling_grid(SIZES, features.bfloat16()))
    assert output.dtype == torch.bfloat16
    expected = resampler(features, resampling_grid(SIZES, features))
    assert (output.float() - expected).abs().max() < 3e-2 * expected.abs().max()


def test_inference_mode_first_does_not_spoil_gradients_of_the_resampler(
    resampler: Resampler, features: torch.Tensor
) -> None:
    sizes = [(1, 12), (6, 2), (1, 3)]
    with torch.inference_mode():
        resampler(features, resampling_grid(sizes, features))
    resampler(features, resampling_grid(sizes, features)).sum().backward()
    assert resampler.query.grad is not None
    resampler.zero_grad(set_to_none=True)


def test_wrong_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        Resampler(QUERIES, 30, KV_DIM, 2)
    with pytest.raises(ValueError, match="divide"):
        ResamplerAttention(32, 5)
