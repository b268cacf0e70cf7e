"""Which kernel, cut how, for which shape: measured on one H200, see benchmarks/README.md.

A plan is a constant: nothing is tuned at run time, so every start runs the same code. Figures are
from `python -m benchmarks.kernels`: weights of several layers in turn, inside a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from MiniCPMO45.device.kernels.attention import AttentionPlan
from MiniCPMO45.device.kernels.few_rows import FewRowsPlan
from MiniCPMO45.device.kernels.one_row import OneRowPlan


@dataclass(frozen=True)
class ProductPlan:
    """How one shape is multiplied.

    Attributes:
        one_row: for one row.
        few_rows: for more rows, where the library is slower.
        most_rows: rows up to which it is.
    """

    one_row: OneRowPlan
    few_rows: FewRowsPlan
    most_rows: int


DEEP = FewRowsPlan(64, 128, 4, 6)
SHALLOW = FewRowsPlan(64, 128, 4, 4)  # two weights at a time, or so many columns that it suffices
NARROW = FewRowsPlan(16, 128, 2, 6)  # few columns

PRODUCTS: dict[tuple[int, int], ProductPlan] = {
    # (columns, inputs) of the language model
    (6144, 4096): ProductPlan(OneRowPlan(8, 1024, 4), DEEP, 64),  # queries, keys, values
    (4096, 4096): ProductPlan(OneRowPlan(1, 4096, 4), DEEP, 32),  # attention output
    (12288, 4096): ProductPlan(OneRowPlan(4, 256, 1), SHALLOW, 16),  # gate and up
    (4096, 12288): ProductPlan(OneRowPlan(2, 4096, 8), DEEP, 32),  # down
    # The library has no fast kernel for rows of 151,748 values, which are not aligned.
    (151748, 4096): ProductPlan(OneRowPlan(8, 512, 2), SHALLOW, 1024),  # head
    # of the speech decoder, where one row takes all inputs at once
    (2304, 768): ProductPlan(OneRowPlan(2, 1024, 1), NARROW, 64),
    (768, 768): ProductPlan(OneRowPlan(2, 1024, 4), SHALLOW, 64),
    (3072, 768): ProductPlan(OneRowPlan(1, 1024, 1), NARROW, 64),
    (768, 3072): ProductPlan(OneRowPlan(1, 4096, 8), NARROW, 64),
}
MEASURED_BYTES = 2  # of a value
OTHER_PRODUCTS = ProductPlan(OneRowPlan(4, 256, 1), FewRowsPlan(32, 64, 4, 3), 16)


def product_plan(
    rows: int, columns: int, inputs: int, dtype: torch.dtype
) -> OneRowPlan | FewRowsPlan | None:
    """Choose the kernel of a product; None is the library's.

    Args:
        rows: M.
        columns: N, of the gate alone where there is one.
        inputs: K.
        dtype: of the values; wider ones than were measured would need more shared memory.
    """
    is_measured = dtype.itemsize == MEASURED_BYTES
    plan = PRODUCTS.get((columns, inputs), OTHER_PRODUCTS) if is_measured else OTHER_PRODUCTS
    if rows == 1:
        return plan.one_row
    if rows > plan.most_rows or inputs % plan.few_rows.block_k:
        return None
    return plan.few_rows


MULTIPROCESSORS = 132
MOST_SPLITS = 32
# Rows of a step up to which a plan holds: with grouped queries, and without.
DECODES = {
    True: (
        (1, AttentionPlan(32, warps=8, stages=3, early_pages=4)),
        (2, AttentionPlan(32, warps=2, stages=4)),
        (4, AttentionPlan(16, warps=2, stages=4)),
        (8, AttentionPlan(8, warps=2, stages=4)),
        (16, AttentionPlan(4, warps=2, stages=4)),
        (32, AttentionPlan(2, warps=2, stages=4)),
    ),
    False: (
        (1, AttentionPlan(8, warps=1, stages=3, early_pages=4)),
        (4, AttentionPlan(4, warps=2, stages=3)),
        (16, AttentionPlan(2, warps=2, stages=3)),
    ),
}
MANY_DECODES = AttentionPlan(1, warps=2, stages=4)


def decode_plan(rows: int, *, is_grouped: bool) -> AttentionPlan:
    """Choose the cut of a step in which every sequence brings one row.

    Args:
        rows: of the step.
        is_grouped: whether several query heads share a key-value head.
    """
    return next((plan for most, plan in DECODES[is_grouped] if rows <= most), MANY_DECODES)


def prefill_plan(rows: int, rows_per_tile: int, kv_heads: int) -> AttentionPlan:
    """Choose the cut of a pass of several rows per sequence: one program per multiprocessor.

    Args:
        rows: of the pass.
        rows_per_tile: of its tiles; most tiles are taken to be full.
        kv_heads: key-value heads.
    """
    programs, splits = kv_heads * -(-rows // rows_per_tile), 1
    while splits < MOST_SPLITS and splits * programs < MULTIPROCESSORS:
        splits *= 2
    return AttentionPlan(splits, warps=4, stages=3)


def attention_plan(
    rows: int, rows_per_tile: int, kv_heads: int, *, is_grouped: bool
) -> AttentionPlan:
    """Choose the cut of a pass, whichever it is; see `decode_plan` and `prefill_plan`."""
    if rows_per_tile == 1:
        return decode_plan(rows, is_grouped=is_grouped)
    return prefill_plan(rows, rows_per_tile, kv_heads)
