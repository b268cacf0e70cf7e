"""Tile sizes of the matrix products, for each shape and number of rows.

They are constants, measured on one H200: a product alone by `python -m benchmarks.kernels`, and
those of up to 16 rows among the other kernels of whole layers, where other sizes are fastest.
Nothing is tuned at run time, so every start runs the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from MiniCPMO45.kernels.quantised import QuantisedWeight, Scheme, Weight

FEW_ROWS = 16  # the fewest of a tensor core operation


@dataclass(frozen=True)
class OneRowPlan:
    """For one row: a program takes `block_k` inputs at a time for `block_n` output columns."""

    block_n: int
    block_k: int
    warps: int


@dataclass(frozen=True)
class FewRowsPlan:
    """For a few rows: a program takes `block_k` inputs at a time, which divide them all.

    `stages` weight tiles are in flight. Each of its rows, `most_rows` at most, takes accumulators.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    most_rows: int = 64


Plan = OneRowPlan | FewRowsPlan
Plans = Sequence[tuple[int, Plan]]  # the most rows of each plan, in order

DEEP = FewRowsPlan(64, 128, 4, 6)
SHALLOW = FewRowsPlan(64, 128, 4, 4)  # for two weights at a time, or many columns
NARROW = FewRowsPlan(16, 128, 2, 6)  # few columns
LONG = FewRowsPlan(32, 256, 4, 6)  # enough programs for all multiprocessors

# By (columns, inputs). With more rows, PyTorch's is faster.
PRODUCTS: dict[tuple[int, int], Plans] = {
    # of the language model
    (6144, 4096): ((1, OneRowPlan(8, 1024, 4)), (64, DEEP)),  # queries, keys, values
    (4096, 4096): ((1, OneRowPlan(1, 4096, 4)), (16, LONG), (32, DEEP)),  # attention output
    (12288, 4096): ((1, OneRowPlan(2, 4096, 8)), (16, SHALLOW)),  # gate and up
    (4096, 12288): ((1, OneRowPlan(4, 1024, 4)), (16, LONG), (32, DEEP)),  # down
    # PyTorch has no fast kernel for rows of 151,748 values, which are not aligned.
    (151748, 4096): ((1, OneRowPlan(8, 512, 2)), (1024, SHALLOW)),  # head
    # of the speech decoder
    (2304, 768): ((1, OneRowPlan(8, 1024, 1)), (16, DEEP), (64, NARROW)),
    (768, 768): ((1, OneRowPlan(2, 1024, 4)), (64, SHALLOW)),
    (3072, 768): ((1, OneRowPlan(4, 256, 4)), (16, FewRowsPlan(16, 128, 1, 6)), (64, NARROW)),
    (768, 3072): ((1, OneRowPlan(1, 4096, 8)), (64, NARROW)),
}
MEASURED_BYTES = 2  # of the measured dtype
OTHER_PRODUCTS: Plans = ((1, OneRowPlan(4, 256, 1)), (16, FewRowsPlan(32, 64, 4, 3)))

# Only the head has int8 weights.
BYTES_MANY = FewRowsPlan(64, 128, 4, 5)
BYTE_PRODUCTS: dict[tuple[int, int], Plans] = {
    # Tensor cores are fastest here even for one row, although fifteen of their sixteen are zero.
    (151748, 4096): ((16, FewRowsPlan(32, 128, 2, 6)), (1024, BYTES_MANY)),
}
# 4-bit weights: the fastest of about twenty tile sizes; (6144, 4096) was not measured.
PACKED_FEW = FewRowsPlan(32, 128, 2, 5)
PACKED_PRODUCTS: dict[tuple[int, int], Plans] = {
    (6144, 4096): ((1, OneRowPlan(4, 4096, 4)), (32, PACKED_FEW)),
    (4096, 4096): ((1, OneRowPlan(4, 4096, 4)), (32, PACKED_FEW)),
    (12288, 4096): ((1, OneRowPlan(4, 4096, 4)), (32, PACKED_FEW)),
    (4096, 12288): ((1, OneRowPlan(4, 2048, 2)), (32, PACKED_FEW)),
}
OTHER_PACKED: Plans = ((1, OneRowPlan(4, 1024, 1)), (16, FewRowsPlan(32, 128, 4, 3)))

# Rows and weight of e4m3: the fastest of about twenty tile sizes, measured in whole layers.
SCALED_LONG = FewRowsPlan(32, 512, 4, 6)
SCALED_PRODUCTS: dict[tuple[int, int], Sequence[tuple[int, FewRowsPlan]]] = {
    (6144, 4096): (
        (16, FewRowsPlan(64, 256, 8, 6)),
        (64, FewRowsPlan(64, 256, 4, 6)),
        (128, FewRowsPlan(64, 128, 4, 6, 128)),
    ),
    (4096, 4096): (
        (16, SCALED_LONG),
        (64, FewRowsPlan(64, 256, 4, 6)),
        (128, FewRowsPlan(64, 128, 4, 8)),
    ),
    (12288, 4096): (
        (16, FewRowsPlan(128, 128, 8, 4)),
        (64, FewRowsPlan(64, 128, 4, 3)),
        (128, FewRowsPlan(128, 128, 8, 4, 128)),
    ),
    (4096, 12288): ((16, SCALED_LONG), (128, FewRowsPlan(64, 256, 4, 6))),
}
OTHER_SCALED: Sequence[tuple[int, FewRowsPlan]] = ((128, FewRowsPlan(64, 64, 4, 3)),)


TABLES: dict[Scheme | None, tuple[Mapping[tuple[int, int], Plans], Plans]] = {
    None: (PRODUCTS, OTHER_PRODUCTS),
    Scheme.INT8: (BYTE_PRODUCTS, OTHER_PRODUCTS),
    Scheme.INT4: (PACKED_PRODUCTS, OTHER_PACKED),
    Scheme.FP8: (SCALED_PRODUCTS, OTHER_SCALED),
}


def product_plan(
    rows: int, weight: Weight, dtype: torch.dtype, *, is_gated: bool = False
) -> Plan | None:
    """Choose our kernel for a product of rows of a dtype; None means PyTorch's.

    The weight is [N, K], or [2N, K] if gated. Dtypes wider than the measured one need more shared
    memory and use the default plan.
    """
    plans, others = TABLES[weight.scheme if isinstance(weight, QuantisedWeight) else None]
    outputs, inputs = weight.shape
    size = outputs // 2 if is_gated else outputs, inputs
    found = plans.get(size, others) if dtype.itemsize <= MEASURED_BYTES else others
    plan = next((each for most, each in found if rows <= most), None)
    is_uneven = isinstance(plan, FewRowsPlan) and inputs % plan.block_k > 0
    return None if is_uneven else plan
