"""The operations a decoder step is made of: Triton kernels on a card, plain twins elsewhere.

Nothing here allocates lasting memory or synchronises, so every operation may be captured.
"""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from MiniCPMO45.device import plain_ops
from MiniCPMO45.device.row_map import NO_POSITION, RowMap

if HAS_TRITON := find_spec("triton") is not None:
    from MiniCPMO45.device.kernels import card_ops


def _runs_kernels(x: Tensor) -> bool:
    return x.is_cuda and HAS_TRITON


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis with float32 statistics.

    Args:
        x: [M, K].
        weight: [K].
        eps: added to the mean square.

    Returns:
        [M, K] in the dtype of `x`.
    """
    return (card_ops if _runs_kernels(x) else plain_ops).rms_norm(x, weight, eps)


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Tensor) -> Tensor:
    """Multiply the normalised rows with a weight.

    Args:
        x: [M, K] contiguous.
        norm_weight: [K], or None to leave the norm out.
        eps: of the norm.
        weight: [N, K] contiguous.

    Returns:
        [M, N] in the dtype of `x`.
    """
    return (card_ops if _runs_kernels(x) else plain_ops).norm_linear(x, norm_weight, eps, weight)


def norm_swiglu(x: Tensor, norm_weight: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """Return silu(n @ gate.T) * (n @ up.T) of the normalised rows n.

    Args:
        x: [M, K] contiguous.
        norm_weight: [K].
        eps: of the norm.
        gate_up: [2F, K] contiguous; the first F rows are the gate.

    Returns:
        [M, F] in the dtype of `x`.
    """
    return (card_ops if _runs_kernels(x) else plain_ops).norm_swiglu(x, norm_weight, eps, gate_up)


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Return residual + x @ weight.T; the residual is left as it is.

    Args:
        x: [M, K] contiguous.
        weight: [N, K] contiguous.
        residual: [M, N] contiguous.

    Returns:
        [M, N] in the dtype of `x`.
    """
    return (card_ops if _runs_kernels(x) else plain_ops).linear_add(x, weight, residual)


def attend(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    cos_table: Tensor,
    sin_table: Tensor,
    rows: RowMap,
    kv_layer: Tensor,
    scale: float,
) -> Tensor:
    """Rotate queries and keys, store keys and values in their pages, and attend.

    Args:
        qkv: [M, (H + 2 KVH) * D], queries, keys and values of each row, head by head.
        q_norm: [D] norm weight of the queries, or None (then `k_norm` is None, too).
        k_norm: [D] norm weight of the keys, or None.
        eps: of these norms.
        cos_table: float32 [P, D] rotary table by position.
        sin_table: float32 [P, D].
        rows: which sequence and position each row has.
        kv_layer: [pages, 2, KVH, PAGE_TOKENS, D] one layer of the pool; rows are written into
            it. What was never written may hold anything.
        scale: factor of the scores.

    Returns:
        [M, H * D] in the dtype of `qkv`; zeros for padding rows.

    Source: FlashDecoding, https://pytorch.org/blog/flash-decoding/.
    """
    chosen = card_ops if _runs_kernels(qkv) else plain_ops
    return chosen.attend(qkv, q_norm, k_norm, eps, cos_table, sin_table, rows, kv_layer, scale)


def move_tokens(
    pool: Tensor, pages: Tensor, start: int, target: int, count: int, cos: Tensor, sin: Tensor
) -> None:
    """Move cached tokens of one sequence towards its front, in every layer and in place.

    Args:
        pool: [layers, pages, 2, KVH, page tokens, D].
        pages: int32 [max_pages] pages of the sequence.
        start: position of the first token now.
        target: its position afterwards, smaller than `start`.
        count: tokens to move.
        cos: float32 [D], rotary table of the distance `target - start`.
        sin: float32 [D].
    """
    chosen = card_ops if _runs_kernels(pool) else plain_ops
    chosen.move_tokens(pool, pages, start, target, count, cos, sin)


def advance_runs(
    positions: Tensor, tile_rows: Tensor, last_positions: Tensor, has_ended: Tensor
) -> None:
    """Move the rows of a decode pass on by one position; what is over leaves the pass.

    Args:
        positions: int32 [M] position of each row; NO_POSITION for what is over. Updated.
        tile_rows: int32 [M], 1 for rows that go on, else 0. Updated.
        last_positions: int32 [M], behind which nothing is fed.
        has_ended: bool [M].
    """
    chosen = card_ops if _runs_kernels(positions) else plain_ops
    chosen.advance_runs(positions, tile_rows, last_positions, has_ended, NO_POSITION)
