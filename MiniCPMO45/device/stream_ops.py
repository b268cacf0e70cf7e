"""Operations on streams that keep their own memory: Triton kernels on a card, else plain twins.

Kernels find the keys, values and tails of a stream by the addresses in a `StreamTable`.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from MiniCPMO45.device import stream_plain
from MiniCPMO45.device.packed_linear import Affine
from MiniCPMO45.device.stream_table import ColumnCache, StreamTable

HAS_TRITON = find_spec("triton") is not None


def _streams(x: Tensor) -> ModuleType:
    if x.is_cuda and HAS_TRITON:
        from MiniCPMO45.device.kernels import streams

        return streams
    return stream_plain


def _norms(x: Tensor) -> ModuleType:
    if x.is_cuda and HAS_TRITON:
        from MiniCPMO45.device.kernels import stream_norms

        return stream_norms
    return stream_plain


def load_tails(table: StreamTable, size: int) -> Tensor:
    """Copy the flat tails of the streams.

    Args:
        table: names their memory "tails".
        size: values of one stream.

    Returns:
        float32 [S, size].
    """
    return _streams(table.rows).load_tails(table, size)


def store_tails(tails: Tensor, table: StreamTable) -> None:
    """Put tails [S, size] back into the streams."""
    _streams(tails).store_tails(tails, table)


def attend(qkv: Tensor, bias: Tensor | None, cache: ColumnCache, layer: int) -> Tensor:
    """Attend from the new frames of every stream to what it remembers and to themselves.

    Args:
        qkv: queries, keys and values [S * group, T, 3 * heads * d]; the group's rows share a
            stream.
        bias: scores by distance [heads, S * group * T, W], distance -(T - 1) first; not yet
            divided by sqrt(d). None where positions do not count.
        cache: the streams' memory.
        layer: which of its layers.

    Returns:
        [S * group, T, heads * d] in the dtype of `qkv`.
    """
    return _streams(qkv).attend(qkv, bias, cache, layer)


def store_columns(new: Tensor, cache: ColumnCache, first_layer: int) -> None:
    """Write the keys and values of a chunk into the columns the table names.

    Args:
        new: what `attend` was given, layer by layer [layers, S * group, T, 3 * heads * d].
        cache: the streams' memory.
        first_layer: where in it the layers begin.
    """
    _streams(new).store_columns(new, cache, first_layer)


def norm_heads(qkv: Tensor, weights: Tensor, eps: float, heads: int) -> Tensor:
    """Normalise queries and keys per head, in place.

    Args:
        qkv: [rows, T, 3 * heads * d].
        weights: scale and shift of queries and of keys, float32 [2, 2, d].
        eps: of the norm.
        heads: attention heads.

    Returns:
        `qkv`.
    """
    return _norms(qkv).norm_heads(qkv, weights, eps, heads)


def gated_norm(
    x: Tensor,
    change: Tensor | None,
    gate: Tensor | None,
    norm: Affine,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """Add a branch to the residual stream, in place, and normalise the sum.

    Args:
        x: residual stream, float32 [..., C] contiguous; becomes `x + gate * change`.
        change: the branch's output [..., C], any float dtype; None adds nothing.
        gate: float32 [C]; None is one.
        norm: its scale and shift, float32 [C] each.
        eps: of the norm.
        dtype: of the result.

    Returns:
        The normalised sum [..., C].
    """
    return _norms(x).gated_norm(x, change, gate, norm, eps, dtype)


def gated_norm_unfold(
    x: Tensor,
    change: Tensor,
    gate: Tensor,
    norm: Affine,
    eps: float,
    tails: tuple[Tensor, Tensor],
    n_frames: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Like `gated_norm`, laid out as the rows of a causal convolution with three taps.

    Args:
        x: residual stream, float32 [S * group, T, C] contiguous, changed in place.
        change: as in `gated_norm`.
        gate: as in `gated_norm`.
        norm: as in `gated_norm`.
        eps: as in `gated_norm`.
        tails: the last two frames before the chunk, and where those at its end go, both float32
            [S, group, 2, C].
        n_frames: frames of the chunk that count, int64 [S], each at least 2.
        dtype: of the result.

    Returns:
        [S * group, T, 3 * C], the oldest tap first.
    """
    return _norms(x).gated_norm_unfold(x, change, gate, norm, eps, tails, n_frames, dtype)


def norm_mish_unfold(
    x: Tensor,
    norm: Affine,
    eps: float,
    tails: tuple[Tensor, Tensor],
    n_frames: Tensor,
) -> Tensor:
    """Normalise, apply Mish and lay out for a causal convolution with three taps.

    Args:
        x: [S * group, T, C] contiguous.
        norm: its scale and shift, float32 [C] each.
        eps: of the norm.
        tails: as in `gated_norm_unfold`.
        n_frames: as in `gated_norm_unfold`.

    Returns:
        [S * group, T, 3 * C] in the dtype of `x`.
    """
    return _norms(x).norm_mish_unfold(x, norm, eps, tails, n_frames)
