"""Kernels that move cached tokens and advance runs agree with the plain versions."""

from __future__ import annotations

import pytest
import torch

from MiniCPMO45.kernels.attention import PAGE_TOKENS, advance_runs
from MiniCPMO45.kernels.cached_rows import decode_rows, encode_rows, move_tokens
from tests.unit.device.test_kernels import on_both, with_kernels

pytest.importorskip("triton", reason="Triton is not installed")

ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


@on_both
@pytest.mark.parametrize(
    ("start", "target", "count"), [(130, 60, 70), (65, 64, 63), (70, 3, 127), (5, 4, 200)]
)
def test_moved_tokens_equal_the_plain_version(
    device: str, dtype: torch.dtype, start: int, target: int, count: int
) -> None:
    """Across pages, with overlapping sources and targets."""
    generator = torch.Generator(device).manual_seed(0)
    held = torch.randn(2, 8, 2, 3, PAGE_TOKENS, 16, generator=generator, device=device).to(dtype)
    pages = torch.tensor([5, 2, 7, 1, 0, 0], dtype=torch.int32, device=device)
    angles = torch.randn(8, generator=generator, device=device).repeat(2)
    span, turn = (start, target, count), (angles.cos(), angles.sin())
    moved, wanted = held.clone(), held.clone()
    with_kernels(move_tokens, moved, None, pages, *span, turn)
    move_tokens(wanted, None, pages, *span, turn)
    torch.testing.assert_close(moved, wanted, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    assert not torch.equal(wanted, held)

    codes, scales = encode_rows(held)
    mine, theirs = (codes.clone(), scales.clone()), (codes.clone(), scales.clone())
    with_kernels(move_tokens, *mine, pages, *span, turn)
    move_tokens(*theirs, pages, *span, turn)
    assert (mine[0].int() - theirs[0].int()).abs().max() <= 1, "a tie may be rounded either way"
    torch.testing.assert_close(mine[1], theirs[1])
    step = theirs[1].max()  # of a code
    assert (decode_rows(*theirs, torch.float32) - wanted.float()).abs().max() < 1.2 * step


@on_both
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_runs_advance_like_the_plain_version(device: str, dtype: torch.dtype, rows: int) -> None:
    del dtype  # integers only
    generator = torch.Generator().manual_seed(rows)
    positions = torch.randint(-1, 9, (rows,), generator=generator).int()
    lasts = torch.randint(0, 12, (rows,), generator=generator).int()
    has_ended = torch.randint(0, 2, (rows,), generator=generator).bool()
    moved, moved_tiles = positions.to(device).clone(), positions.to(device).clone()
    wanted, wanted_tiles = positions.clone(), positions.clone()
    ended = has_ended.to(device)
    with_kernels(advance_runs, moved, moved_tiles, lasts.to(device), ended)
    advance_runs(wanted, wanted_tiles, lasts, has_ended)
    assert torch.equal(moved.cpu(), wanted)
    assert torch.equal(moved_tiles.cpu(), wanted_tiles)


def test_encoding_decoded_rows_gives_the_same_codes() -> None:
    rows = 9 * torch.randn(400, 16, generator=torch.Generator().manual_seed(0))
    rows[3] = 0.0
    codes, scales = encode_rows(rows)
    again, again_scales = encode_rows(decode_rows(codes, scales, torch.float32))
    assert torch.equal(again, codes)
    torch.testing.assert_close(again_scales, scales)
    largest = rows.abs().amax(-1, keepdim=True)
    error = (decode_rows(codes, scales, torch.float32) - rows).abs()
    assert (error <= largest / 127 * 0.51).all()


def test_rows_with_nan_or_infinity_decode_to_nan() -> None:
    rows = torch.tensor([[1.0, float("nan")], [1.0, float("inf")]])
    assert decode_rows(*encode_rows(rows), torch.float32).isnan().any(-1).all()
