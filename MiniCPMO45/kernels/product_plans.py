"""Which kernel computes a product of which shape, and how it is cut into programs.

Plans are measured on one H200, see benchmarks/README.md. A plan is a constant: nothing is tuned at
run time, so every start runs the same code. Figures are from `python -m benchmarks.kernels`:
weights of several layers in turn, inside a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from MiniCPMO45.kernels.quantised import QuantisedWeight, Weight


@dataclass(frozen=True)
class OneRowPlan:
    """How the product is cut into programs.

    Attributes:
        block_n: output columns of a program.
        block_k: inputs taken at a time.
    """

    block_n: int
    block_k: int
    warps: int


@dataclass(frozen=True)
class FewRowsPlan:
    """How the product is cut into programs.

    Attributes:
        block_n: output columns of a program.
        block_k: inputs taken at a time; divides the number of inputs.
        stages: weight tiles in flight.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int


FEW_ROWS = 16  # of a tensor core's product, the fewest there are


@dataclass(frozen=True)
class ProductPlan:
    """How one shape is multiplied; up to `most_rows` rows the library is slower.

    `many_rows` is for more than `FEW_ROWS` of them, if another than for few.
    """

    one_row: OneRowPlan | FewRowsPlan
    few_rows: FewRowsPlan
    most_rows: int
    many_rows: FewRowsPlan | None = None


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


# Weights of 8 bits: the fastest of some twenty cuts, but for (6144, 4096) and (4096, 4096), which
# follow the others; their own were not measured.
BYTES_FEW = FewRowsPlan(32, 128, 2, 6)
BYTES_MANY = FewRowsPlan(64, 128, 4, 5)
BYTE_PRODUCTS: dict[tuple[int, int], ProductPlan] = {
    (6144, 4096): ProductPlan(OneRowPlan(4, 4096, 4), BYTES_MANY, 64),
    (4096, 4096): ProductPlan(OneRowPlan(2, 4096, 4), BYTES_MANY, 64),
    (12288, 4096): ProductPlan(OneRowPlan(4, 4096, 4), BYTES_FEW, 64, BYTES_MANY),
    (4096, 12288): ProductPlan(OneRowPlan(2, 1024, 2), BYTES_MANY, 64, FewRowsPlan(16, 128, 2, 6)),
    # Tensor cores that compute fifteen rows of zeros beside the one are the fastest here.
    (151748, 4096): ProductPlan(BYTES_FEW, BYTES_FEW, 1024, BYTES_MANY),
}
# Weights of 4 bits, likewise; (6144, 4096) follows the others.
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
    """Choose the kernel of a product; None is the library's.

    The weight is [N, K], or [2N, K] if gated; rows of wider dtypes than were measured would need
    more shared memory.
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
