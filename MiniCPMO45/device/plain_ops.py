"""What the kernels compute, in plain PyTorch: the reference of their tests and the path on CPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.device.row_map import PAGE_TOKENS, RowMap


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis; see `ops.rms_norm`."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Tensor) -> Tensor:
    """Norm, then a matrix product; see `ops.norm_linear`."""
    return F.linear(x if norm_weight is None else rms_norm(x, norm_weight, eps), weight)


def norm_swiglu(x: Tensor, norm_weight: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """Norm, then the gated half of a feed-forward; see `ops.norm_swiglu`."""
    gate, up = norm_linear(x, norm_weight, eps, gate_up).chunk(2, dim=-1)
    return F.silu(gate) * up


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Add a matrix product to the residual stream; see `ops.linear_add`."""
    return residual + F.linear(x, weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [M, heads, D] by float32 tables [M, D] with one rounding at the end."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos[:, None] + turned * sin[:, None]).to(x.dtype)


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
    """Store the new keys and values, then attend; see `ops.attend`."""
    kv_heads, d = kv_layer.shape[2], kv_layer.shape[4]
    heads = qkv.shape[1] // d - 2 * kv_heads
    queries, keys, values = qkv.unflatten(-1, (-1, d)).split((heads, kv_heads, kv_heads), dim=1)
    if q_norm is not None and k_norm is not None:
        queries, keys = rms_norm(queries, q_norm, eps), rms_norm(keys, k_norm, eps)
    own = rows.positions.clamp(min=0).long()
    cos, sin = cos_table[own], sin_table[own]
    queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
    _store(keys, values, rows, kv_layer)
    mixed = torch.zeros_like(queries)
    for first, count in zip(rows.tile_first_row.tolist(), rows.tile_rows.tolist(), strict=True):
        if count:
            tile = slice(first, first + count)
            last = int(rows.positions[first + count - 1])
            mixed[tile] = _attend_tile(queries[tile], rows, first, last, kv_layer, scale)
    return mixed.flatten(1)  # [M, heads * D]


def _store(keys: Tensor, values: Tensor, rows: RowMap, kv_layer: Tensor) -> None:
    real = rows.positions >= 0
    at, sequence = rows.positions[real].long(), rows.sequences[real].long()
    pages = rows.page_table[sequence, at // PAGE_TOKENS].long()
    kv_layer[pages, 0, :, at % PAGE_TOKENS] = keys[real]
    kv_layer[pages, 1, :, at % PAGE_TOKENS] = values[real]


def _attend_tile(
    queries: Tensor, rows: RowMap, first: int, last: int, kv_layer: Tensor, scale: float
) -> Tensor:
    """Attend rows [n, heads, D] of one sequence, the last of them at position `last`."""
    used = -(-(last + 1) // PAGE_TOKENS)
    pages = rows.page_table[int(rows.sequences[first]), :used].long()
    held = kv_layer[pages].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : last + 1]
    count = queries.shape[0]
    causal = torch.ones(count, last + 1, dtype=torch.bool, device=queries.device)
    answer = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],  # [1, heads, n, D]
        held[0][None],
        held[1][None],
        attn_mask=causal.tril(diagonal=last + 1 - count),
        scale=scale,
        enable_gqa=queries.shape[1] != held.shape[1],
    )
    return answer[0].transpose(0, 1)


def move_tokens(
    pool: Tensor, pages: Tensor, start: int, target: int, count: int, cos: Tensor, sin: Tensor
) -> None:
    """Move cached tokens to the front; see `ops.move_tokens`."""
    page_tokens = pool.shape[4]
    places = torch.arange(count, device=pool.device)
    old, new = places + start, places + target
    for layer in pool:  # one at a time, to need little memory
        keys, values = layer[pages[old // page_tokens].long(), :, :, old % page_tokens].unbind(1)
        into = pages[new // page_tokens].long(), new % page_tokens
        layer[into[0], 0, :, into[1]] = rotate(keys, cos[None], sin[None])
        layer[into[0], 1, :, into[1]] = values


def advance_runs(
    positions: Tensor, tile_rows: Tensor, last_positions: Tensor, has_ended: Tensor, none: int
) -> None:
    """Move runs on or take them out of the pass; see `ops.advance_runs`."""
    goes_on = (positions != none) & (positions < last_positions) & ~has_ended
    positions.copy_(torch.where(goes_on, positions + 1, none))
    tile_rows.copy_(goes_on)
