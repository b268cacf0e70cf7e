"""Products of e4m3 rows with e4m3 weights, for `model.weights: fp8`.

Each row of the input is rounded to e4m3 with a scale of its own, whatever else is in the pass, so a
conversation's numbers do not depend on the other rows. The tensor cores then read both operands as
they are stored: our kernel for up to `MOST_ROWS` rows, PyTorch's for more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType

from MiniCPMO45.kernels.device import runs_kernels
from MiniCPMO45.kernels.packed_products import FewRowsPlan
from MiniCPMO45.kernels.quantised import QuantisedWeight, unpacked
from MiniCPMO45.kernels.row_products import FEW_ROWS, multiply_rows, silu_gate

SOME_ROWS, MOST_ROWS = 64, 128  # beyond them PyTorch's product was faster
ALIGNMENT = 16  # both sizes of a weight are multiples of it for PyTorch's product


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
OTHER_PRODUCTS = ScaledPlans(OTHER, OTHER, OTHER)


def multiply_scaled(
    values: Tensor,
    scales: Tensor,
    weight: QuantisedWeight,
    residual: Tensor | None,
    *,
    is_gated: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Multiply rows, e4m3 [M, K] with scales [M], with an FP8 weight [N, K]: [M, N] of `dtype`.

    With `is_gated` the weight is [2N, K] and the result silu(gate) * up of its halves. `residual`
    is added if there is one.
    """
    plan = scaled_plan(len(values), weight, is_gated=is_gated) if runs_kernels(values) else None
    if plan is not None:
        return multiply_rows(
            values, weight, residual, is_gated=is_gated, plan=plan, row_scales=scales, dtype=dtype
        )
    if can_use_library(weight, dtype):
        product = F.scaled_mm(
            values,
            weight.values.t(),
            scales[:, None],
            ScalingType.RowWise,
            weight.scales[None],
            ScalingType.RowWise,
            output_dtype=dtype,
            use_fast_accum=True,
        )
        if is_gated:
            product = silu_gate(product)
    else:
        product = F.linear((values.float() * scales[:, None]).to(dtype), unpacked(weight, dtype))
        if is_gated:
            gate, up = product.chunk(2, dim=-1)
            product = F.silu(gate) * up
    return product if residual is None else residual + product


def can_use_library(weight: QuantisedWeight, dtype: torch.dtype) -> bool:
    """PyTorch supports row scales on CUDA with bfloat16 results only."""
    is_aligned = all(side % ALIGNMENT == 0 for side in weight.shape)
    return runs_kernels(weight.values) and dtype == torch.bfloat16 and is_aligned


def scaled_plan(rows: int, weight: QuantisedWeight, *, is_gated: bool) -> FewRowsPlan | None:
    """Return the tile sizes of our kernel, or None for PyTorch's."""
    outputs, inputs = weight.shape
    plans = SCALED_PRODUCTS.get((outputs // 2 if is_gated else outputs, inputs), OTHER_PRODUCTS)
    plan = plans.few if rows <= FEW_ROWS else plans.some if rows <= SOME_ROWS else plans.many
    return plan if rows <= MOST_ROWS and inputs % plan.block_k == 0 else None
