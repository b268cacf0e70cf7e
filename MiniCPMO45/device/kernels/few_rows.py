"""A matrix product of some rows, bound by streaming the weight: tensor cores, tiles in flight.

The weight is the first operand, so that few rows fill the narrow side of the tensor core.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from MiniCPMO45.device.kernels.launch import (
    LINE,
    await_rows,
    let_next_start,
    overlaps_launches,
    prefetch_line,
)

FEWEST_ROWS = 16  # of a tensor core's product
MOST_ROWS = 64  # of a program; each takes accumulators
EARLY_INPUTS = 512  # whose weights are asked for before the rows are there


@dataclass(frozen=True)
class FewRowsPlan:
    """How the product is cut into programs.

    Attributes:
        block_n: output columns of a program.
        block_k: inputs taken at a time; divides the number of inputs.
        warps: per program.
        stages: weight tiles in flight.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int


@triton.jit
def _multiply_rows(
    x,
    weight,
    residual,
    out,
    M,
    N,
    K: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Rows [M, K] times weight [N, K]; with HAS_GATE the weight is [2N, K], gate before up."""
    # Attention follows a product that is neither gated nor added, and reads positions early.
    IS_BEFORE_ATTENTION: tl.constexpr = not (HAS_GATE or HAS_RESIDUAL)
    if not IS_BEFORE_ATTENTION:
        let_next_start(OVERLAPS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)[None, :]
    own = weight + tl.minimum(n, N - 1).to(tl.int64)[:, None] * K
    beside = own + N.to(tl.int64) * K
    if EARLY_K > 0:
        lines = tl.arange(0, EARLY_K // LINE)[None, :] * LINE
        prefetch_line(own + lines, OVERLAPS)
        if HAS_GATE:
            prefetch_line(beside + lines, OVERLAPS)
    await_rows(OVERLAPS)
    if IS_BEFORE_ATTENTION:
        let_next_start(OVERLAPS)
    rows = x + m[:, None] * K + k
    is_row = (m < M)[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    total_beside = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(0, K, BLOCK_K):
        values = tl.trans(tl.load(rows + start, mask=is_row, other=0.0))  # [K, M]
        tile = tl.load(own + start + k)
        total = tl.dot(tile, values, total, input_precision="ieee")
        if HAS_GATE:
            tile_beside = tl.load(beside + start + k)
            total_beside = tl.dot(tile_beside, values, total_beside, input_precision="ieee")
    if HAS_GATE:
        total = total / (1.0 + tl.exp(-total)) * total_beside
    at = m.to(tl.int64)[None, :] * N + n[:, None]
    fits = (m < M)[None, :] & (n < N)[:, None]
    if HAS_RESIDUAL:
        total += tl.load(residual + at, mask=fits, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=fits)


def multiply_rows(
    x: Tensor, weight: Tensor, residual: Tensor | None, *, is_gated: bool, plan: FewRowsPlan
) -> Tensor:
    """Multiply rows with a weight.

    Args:
        x: [M, K].
        weight: [N, K], or [2N, K] if gated.
        residual: [M, N] to be added, or None.
        is_gated: whether the answer is silu(gate) * up of the two halves.
        plan: the cut.

    Returns:
        [M, N].
    """
    count, k = x.shape
    n = weight.shape[0] // 2 if is_gated else weight.shape[0]
    out = x.new_empty(count, n)
    overlaps = overlaps_launches(x)
    block_m = min(max(triton.next_power_of_2(count), FEWEST_ROWS), MOST_ROWS)
    _multiply_rows[(triton.cdiv(n, plan.block_n), triton.cdiv(count, block_m))](
        x,
        weight,
        residual,
        out,
        count,
        n,
        k,
        HAS_GATE=is_gated,
        HAS_RESIDUAL=residual is not None,
        BLOCK_M=block_m,
        BLOCK_N=plan.block_n,
        BLOCK_K=plan.block_k,
        EARLY_K=EARLY_INPUTS if k >= EARLY_INPUTS else 0,
        OVERLAPS=overlaps,
        num_warps=plan.warps,
        num_stages=plan.stages,
        launch_pdl=overlaps,
    )
    return out
