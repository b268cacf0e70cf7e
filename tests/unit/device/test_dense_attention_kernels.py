"""Attention with heads of an uneven size is PyTorch's, by the kernel as well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from MiniCPMO45.kernels import dense_attention
from MiniCPMO45.kernels.dense_attention import FEW_QUERIES, KEYS, attend_dense

HEADS, ITEMS = 2, 2
ROWS = KEYS + 9  # one block of keys and a part of one

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def by_kernel(qkv: Tensor, mask: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.setattr(dense_attention, "runs_kernels", lambda _: True)
    monkeypatch.delattr(dense_attention, "F")  # the library's attention
    return attend_dense(qkv, HEADS, mask)


@DEVICES
@pytest.mark.parametrize(
    ("rows", "is_padded"), [(ROWS, False), (ROWS, True), (KEYS, True), (5, False), (5, True)]
)
@pytest.mark.parametrize("size", [72, 24])
@torch.no_grad()
def test_uneven_heads(
    device: str, rows: int, is_padded: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    qkv = torch.randn(ITEMS, rows, 3 * HEADS * size).to(device, torch.float16)
    mask = None
    if is_padded:
        mask = torch.arange(rows, device=device) < torch.tensor([[rows - 2], [rows]], device=device)
        mask = mask[:, None, None]
    wanted = attend_dense(qkv.float(), HEADS, mask)
    answer = by_kernel(qkv, mask, monkeypatch)
    assert answer.shape == wanted.shape and answer.dtype == qkv.dtype
    torch.testing.assert_close(answer.float(), wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.gpu
@torch.no_grad()
def test_many_programs_take_more_queries_each(monkeypatch: pytest.MonkeyPatch) -> None:
    items = dense_attention.MANY_PROGRAMS // HEADS
    qkv = torch.randn(items, 2 * FEW_QUERIES + 1, 3 * HEADS * 72, device="cuda").half()
    wanted = attend_dense(qkv.float(), HEADS, None)
    answer = by_kernel(qkv, None, monkeypatch)
    torch.testing.assert_close(answer.float(), wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("size", "kind", "rows"),
    [(64, torch.float16, 5), (72, torch.float32, 5), (72, torch.float16, KEYS)],
)
@torch.no_grad()
def test_other_heads_and_whole_tiles_are_left_to_the_library(
    size: int, kind: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_attention, "runs_kernels", lambda _: True)
    monkeypatch.delattr(dense_attention, "_attend_dense")
    qkv = torch.randn(1, rows, 3 * HEADS * size).to(kind)
    assert attend_dense(qkv, HEADS, None).shape == (1, rows, HEADS * size)
