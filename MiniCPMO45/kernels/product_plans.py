"""Tile sizes of the matrix products, for each shape and number of rows.

They are constants, measured on one H200 by `python -m benchmarks.kernels`; nothing is tuned at run
time, so every start runs the same code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from MiniCPMO45.kernels.quantised import QuantisedWeight, Weight

FEW_ROWS = 16  # the fewest of a tensor core operation


@dataclass(frozen=True)
class OneRowPlan:
    """Tile sizes for one row.

    A program takes `block_k` inputs at a time for `block_n` output columns.
    """

    block_n: int
    block_k: int
    warps: int


@dataclass(frozen=True)
class FewRowsPlan:
    """Tile sizes for a few rows.

    A program takes `block_k` inputs at a time, which divide them all, for `block_n` output columns;
    `stages` weight tiles are in flight. Each of its rows, `most_rows` at most, takes accumulators.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    most_rows: int = 64


@dataclass(frozen=True)
class ProductPlan:
    """Kernels of one shape; the library is faster beyond `most_rows` rows.

    `many_rows`, if any, is used beyond `FEW_ROWS` rows.
    """

    one_row: OneRowPlan | FewRowsPlan
    few_rows: FewRowsPlan
    most_rows: int
    many_rows: FewRowsPlan | None = None


DEEP = FewRowsPlan(64, 128, 4, 6)
SHALLOW = FewRowsPlan(64, 128, 4, 4)  # for two weights at a time, or many columns
NARROW = FewRowsPlan(16, 128, 2, 6)  # few columns

PRODUCTS: dict[tuple[int, int], ProductPlan] = {
    # (columns, inputs) of the language model
    (6144, 4096): ProductPlan(OneRowPlan(8, 1024, 4), DEEP, 64),  # queries, keys, values
    (4096, 4096): ProductPlan(OneRowPlan(1, 4096, 4), DEEP, 32),  # attention output
    (12288, 4096): ProductPlan(OneRowPlan(4, 256, 1), SHALLOW, 16),  # gate and up
    (4096, 12288): ProductPlan(OneRowPlan(2, 4096, 8), DEEP, 32),  # down
    # The library has no fast kernel for rows of 151,748 values, which are not aligned.
    (151748, 4096): ProductPlan(OneRowPlan(8, 512, 2), SHALLOW, 1024),  # head
    # of the speech decoder; one row takes all inputs at once
    (2304, 768): ProductPlan(OneRowPlan(2, 1024, 1), NARROW, 64),
    (768, 768): ProductPlan(OneRowPlan(2, 1024, 4), SHALLOW, 64),
    (3072, 768): ProductPlan(OneRowPlan(1, 1024, 1), NARROW, 64),
    (768, 3072): ProductPlan(OneRowPlan(1, 4096, 8), NARROW, 64),
}
MEASURED_BYTES = 2  # of the measured dtype
OTHER_PRODUCTS = ProductPlan(OneRowPlan(4, 256, 1), FewRowsPlan(32, 64, 4, 3), 16)


# Only the head has int8 weights.
BYTES_FEW = FewRowsPlan(32, 128, 2, 6)
BYTES_MANY = FewRowsPlan(64, 128, 4, 5)
BYTE_PRODUCTS: dict[tuple[int, int], ProductPlan] = {
    # Tensor cores are fastest here, although fifteen of their sixteen rows are zero.
    (151748, 4096): ProductPlan(BYTES_FEW, BYTES_FEW, 1024, BYTES_MANY),
}
# 4-bit weights: the fastest of about twenty tile sizes; (6144, 4096) was not measured.
PACKED_FEW = FewRowsPlan(32, 128, 2, 5)
PACKED_PRODUCTS: dict[tuple[int, int], ProductPlan] = {
    (6144, 4096): ProductPlan(OneRowPlan(4, 4096, 4), PACKED_FEW, 32),
    (4096, 4096): ProductPlan(OneRowPlan(4, 4096, 4), PACKED_FEW, 32),
    (12288, 4096): ProductPlan(OneRowPlan(4, 4096, 4), PACKED_FEW, 32),
    (4096, 12288): ProductPlan(OneRowPlan(4, 2048, 2), PACKED_FEW, 32),
}
OTHER_PACKED = ProductPlan(OneRowPlan(4, 1024, 1), FewRowsPlan(32, 128, 4, 3), 16)


def product_plan(
    rows: int, weight: Weight, dtype: torch.dtype, *, is_gated: bool = False
) -> OneRowPlan | FewRowsPlan | None:
    """Choose the kernel of a product; None means the library.

    The weight is [N, K], or [2N, K] if gated. Dtypes wider than the measured one need more shared
    memory and use the default plan.
    """
    outputs, inputs = weight.shape
    columns = outputs // 2 if is_gated else outputs
    plans, plan = PRODUCTS, OTHER_PRODUCTS
    if isinstance(weight, QuantisedWeight):
        plans, plan = (PACKED_PRODUCTS, OTHER_PACKED) if weight.is_packed else (BYTE_PRODUCTS, plan)
    if dtype.itemsize == MEASURED_BYTES:
        plan = plans.get((columns, inputs), plan)
    if rows == 1:
        return plan.one_row
    chosen = plan.few_rows if rows <= FEW_ROWS else plan.many_rows or plan.few_rows
    is_whole = inputs % chosen.block_k == 0
    return chosen if rows <= plan.most_rows and is_whole else None


SOME_ROWS, MOST_SCALED_ROWS = 64, 128  # beyond them PyTorch's product was faster


@dataclass(frozen=True)
class ScaledPlans:
    """Tile sizes of a shape for up to 16, 64 and 128 rows."""

    few: FewRowsPlan
    some: FewRowsPlan
    many: FewRowsPlan


# (columns, inputs) of the language model: the fastest of about thirty on one H200.
SCALED_PRODUCTS: dict[tuple[int, int], ScaledPlans] = {
    (6144, 4096): ScaledPlans(
        FewRowsPlan(64, 256, 4, 6), FewRowsPlan(64, 256, 4, 6), FewRowsPlan(64, 128, 4, 6, 128)
    ),
    (4096, 4096): ScaledPlans(
        FewRowsPlan(64, 256, 4, 6), FewRowsPlan(64, 256, 4, 6), FewRowsPlan(64, 128, 4, 8)
    ),
    (12288, 4096): ScaledPlans(
        FewRowsPlan(64, 128, 4, 4), FewRowsPlan(64, 128, 4, 3), FewRowsPlan(64, 128, 4, 3, 128)
    ),
    (4096, 12288): ScaledPlans(
        FewRowsPlan(64, 256, 4, 8), FewRowsPlan(64, 256, 4, 6), FewRowsPlan(64, 256, 4, 6)
    ),
}
OTHER = FewRowsPlan(64, 64, 4, 3)
OTHER_SCALED = ScaledPlans(OTHER, OTHER, OTHER)


def scaled_plan(rows: int, weight: QuantisedWeight, *, is_gated: bool) -> FewRowsPlan | None:
    """Return the tile sizes of our kernel, or None for PyTorch's."""
    outputs, inputs = weight.shape
    plans = SCALED_PRODUCTS.get((outputs // 2 if is_gated else outputs, inputs), OTHER_SCALED)
    plan = plans.few if rows <= FEW_ROWS else plans.some if rows <= SOME_ROWS else plans.many
    return plan if rows <= MOST_SCALED_ROWS and inputs % plan.block_k == 0 else None
