"""The resampler at toy size against torch's own attention, and its position table."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from MiniCPMO45.model.vision import (
    LAYER_NORM_EPS,
    PatchGrid,
    PatchSize,
    Resampler,
    ResamplerAttention,
    patch_grid,
    side_codes,
)

QUERIES, WIDTH, KV_DIM, HEADS = 8, 32, 12, 2
SIZES = [(3, 4), (2, 2), (1, 5)]
LENGTH = 12


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


def grid_of(sizes: list[PatchSize], x: torch.Tensor) -> PatchGrid:
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
    output = resampler(features, grid_of(SIZES, features))
    assert output.shape == (len(SIZES), QUERIES, WIDTH)
    for index, (rows, cols) in enumerate(SIZES):
        expected = written_out(resampler, features[index, : rows * cols], (rows, cols))
        torch.testing.assert_close(output[index], expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_attention_masks_like_torch(resampler: Resampler, features: torch.Tensor) -> None:
    ours = resampler.attn
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    query, key = torch.randn(QUERIES, WIDTH), torch.randn(2, 6, WIDTH)
    value = torch.randn(2, 6, WIDTH)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    expected, _ = theirs(query.expand(2, -1, -1), key, value, key_padding_mask=~keep)
    actual = ours(query, key, value, keep[:, None, None])
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_does_not_change_the_result(resampler: Resampler, features: torch.Tensor) -> None:
    output = resampler(features, grid_of(SIZES, features))
    noisy = features.clone()
    for index, (rows, cols) in enumerate(SIZES):
        noisy[index, rows * cols :] = 9.0
        x = features[index : index + 1, : rows * cols]
        alone = resampler(x, grid_of([(rows, cols)], x))
        torch.testing.assert_close(output[index], alone[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(resampler(noisy, grid_of(SIZES, noisy)), output)


@torch.no_grad()
@pytest.mark.parametrize("size", [(71, 1), (1, 150), (140, 1)])
def test_sides_beyond_the_usual_table(resampler: Resampler, size: tuple[int, int]) -> None:
    x = torch.randn(1, size[0] * size[1], KV_DIM)
    expected = written_out(resampler, x[0], size)
    torch.testing.assert_close(resampler(x, grid_of([size], x))[0], expected, atol=1e-4, rtol=1e-4)


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
def test_bfloat16_stays_near_float32(resampler: Resampler, features: torch.Tensor) -> None:
    half = Resampler(QUERIES, WIDTH, KV_DIM, HEADS).to(torch.bfloat16)
    half.load_state_dict(resampler.state_dict())
    output = half(features.bfloat16(), grid_of(SIZES, features.bfloat16()))
    assert output.dtype == torch.bfloat16
    expected = resampler(features, grid_of(SIZES, features))
    assert (output.float() - expected).abs().max() < 3e-2 * expected.abs().max()


@torch.no_grad()
def test_a_forward_call_leaves_the_module_unchanged(
    resampler: Resampler, features: torch.Tensor
) -> None:
    attributes = {name: set(vars(module)) for name, module in resampler.named_modules()}
    weights = {name: value.clone() for name, value in resampler.state_dict().items()}
    resampler(features, grid_of(SIZES, features))
    assert {name: set(vars(module)) for name, module in resampler.named_modules()} == attributes
    for name, value in resampler.state_dict().items():
        assert torch.equal(value, weights[name])
    assert not list(resampler.buffers())


def test_inference_mode_first_does_not_spoil_later_gradients(
    resampler: Resampler, features: torch.Tensor
) -> None:
    sizes = [(1, 12), (6, 2), (1, 3)]
    with torch.inference_mode():
        resampler(features, grid_of(sizes, features))
    resampler(features, grid_of(sizes, features)).sum().backward()
    assert resampler.query.grad is not None
    resampler.zero_grad(set_to_none=True)


def test_published_names_and_size() -> None:
    with torch.device("meta"):
        resampler = Resampler(64, 4096, 1152, 32)
    weights = resampler.state_dict()
    assert len(weights) == 13
    assert sum(value.numel() for value in weights.values()) == 88_907_776
    assert weights["attn.in_proj_weight"].shape == (12288, 4096)
    assert weights["kv_proj.weight"].shape == (4096, 1152)


def test_wrong_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        Resampler(QUERIES, 30, KV_DIM, 2)
    with pytest.raises(ValueError, match="divide"):
        ResamplerAttention(32, 5)
