"""The vision tower at toy size: positions, padding, names, dtypes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

from MiniCPMO45.configuration_minicpmo import VisionConfig
from MiniCPMO45.model.transformer import fuse_attention
from MiniCPMO45.model.vision import PatchSize, SiglipVisionTransformer, patch_grid

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
    together = see(vision, patches, SIZES)
    assert together.shape == (len(SIZES), LENGTH, TOY.hidden_size)
    noisy = patches.clone()
    for index, (rows, cols) in enumerate(SIZES):
        count = rows * cols
        alone = see(vision, patches[index : index + 1, :count], [(rows, cols)])
        torch.testing.assert_close(together[index, :count], alone[0], atol=1e-5, rtol=1e-5)
        noisy[index, count:] = 7.0
    disturbed = see(vision, noisy, SIZES)
    for index, (rows, cols) in enumerate(SIZES):
        torch.testing.assert_close(disturbed[index, : rows * cols], together[index, : rows * cols])


@torch.no_grad()
def test_the_shape_of_a_slice_matters(vision: SiglipVisionTransformer) -> None:
    values = torch.rand(1, 6, PATCH_VALUES)
    assert not torch.allclose(see(vision, values, [(2, 3)]), see(vision, values, [(3, 2)]))


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


@torch.no_grad()
def test_a_forward_call_leaves_the_module_unchanged(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    attributes = {name: set(vars(module)) for name, module in vision.named_modules()}
    weights = {name: value.clone() for name, value in vision.state_dict().items()}
    see(vision, patches, SIZES)
    assert {name: set(vars(module)) for name, module in vision.named_modules()} == attributes
    for name, value in vision.state_dict().items():
        assert torch.equal(value, weights[name])
    assert not list(vision.buffers())


def test_inference_mode_first_does_not_spoil_later_gradients(
    vision: SiglipVisionTransformer, patches: torch.Tensor
) -> None:
    sizes = [(1, 11), (2, 4), (1, 2)]
    with torch.inference_mode():
        see(vision, patches, sizes)
    see(vision, patches, sizes).sum().backward()
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
    assert torch.equal(see(short, patches, SIZES), see(same, patches, SIZES))


def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="activation"):
        SiglipVisionTransformer(replace(TOY, hidden_act="relu"))
    with pytest.raises(ValueError, match="divide"):
        SiglipVisionTransformer(replace(TOY, num_attention_heads=5))
