"""The operations a decoder step is made of: Triton kernels on a card, plain PyTorch elsewhere.

No kernel allocates lasting memory or synchronises, so every operation may be captured.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.device.kernels.available import HAS_TRITON, runs_kernels
from MiniCPMO45.device.row_map import NO_POSITION, PAGE_TOKENS, RowMap, Span

if HAS_TRITON:
    from MiniCPMO45.device.kernels.attention import Attention
    from MiniCPMO45.device.kernels.few_rows import multiply_rows
    from MiniCPMO45.device.kernels.norms import normalise_rows, silu_gate
    from MiniCPMO45.device.kernels.one_row import OneRowPlan, multiply_row
    from MiniCPMO45.device.kernels.plans import attention_plan, product_plan
    from MiniCPMO45.device.kernels.runs import advance_positions
    from MiniCPMO45.device.kernels.shift import shift_tokens


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis with float32 statistics.

    Args:
        x: [M, K].
        weight: [K].
        eps: added to the mean square.

    Returns:
        The shape and dtype of `x`.
    """
    if runs_kernels(x):
        return normalise_rows(x, weight, eps)
    return _normalise(x, weight, eps)


def _normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


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
    if runs_kernels(x):
        plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, norm_weight, eps, weight, None, is_gated=False, plan=plan)
        if plan is not None:
            normed = x if norm_weight is None else rms_norm(x, norm_weight, eps)
            return multiply_rows(normed, weight, None, is_gated=False, plan=plan)
    return F.linear(x if norm_weight is None else rms_norm(x, norm_weight, eps), weight)


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
    if runs_kernels(x):
        plan = product_plan(x.shape[0], gate_up.shape[0] // 2, x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, norm_weight, eps, gate_up, None, is_gated=True, plan=plan)
        normed = rms_norm(x, norm_weight, eps)
        if plan is None:
            return silu_gate(F.linear(normed, gate_up))
        return multiply_rows(normed, gate_up, None, is_gated=True, plan=plan)
    gate, up = F.linear(rms_norm(x, norm_weight, eps), gate_up).chunk(2, dim=-1)
    return F.silu(gate) * up


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Return residual + x @ weight.T; the residual is left as it is.

    Args:
        x: [M, K] contiguous.
        weight: [N, K] contiguous.
        residual: [M, N] contiguous.

    Returns:
        [M, N] in the dtype of `x`.
    """
    if runs_kernels(x):
        plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, None, 0.0, weight, residual, is_gated=False, plan=plan)
        if plan is None:
            return torch.addmm(residual, x, weight.t())
        return multiply_rows(x, weight, residual, is_gated=False, plan=plan)
    return residual + F.linear(x, weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [M, heads, D] by float32 tables [M, D] with one rounding at the end."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos[:, None] + turned * sin[:, None]).to(x.dtype)


def rotated_heads(
    qkv: Tensor,
    kv_heads: int,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide the product of a layer into heads, and norm and rotate queries and keys.

    Args:
        qkv: [M, (H + 2 KVH) * D], queries, keys and values of each row, head by head.
        kv_heads: KVH.
        norms: [D] norm weights of queries and of keys; None without norms.
        eps: of these norms.
        cos: float32 [M, D] rotary table of each row.
        sin: float32 [M, D].

    Returns:
        Queries [M, H, D], keys and values [M, KVH, D].
    """
    heads = qkv.unflatten(-1, (-1, cos.shape[-1]))
    count = heads.shape[1] - 2 * kv_heads
    both, values = heads.split((count + kv_heads, kv_heads), dim=1)
    if norms is not None:
        weights = torch.cat((norms[0].expand(count, -1), norms[1].expand(kv_heads, -1)))
        both = _normalise(both, weights, eps)
    queries, keys = rotate(both, cos, sin).split((count, kv_heads), dim=1)
    return queries, keys, values


def attend(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    tables: tuple[Tensor, Tensor],
    rows: RowMap,
    kv_layer: Tensor,
) -> Tensor:
    """Rotate queries and keys, store keys and values in their pages, and attend.

    Args:
        qkv: [M, (H + 2 KVH) * D], queries, keys and values of each row, head by head.
        norms: [D] norm weights of queries and of keys; None without norms.
        eps: of these norms.
        tables: cos and sin, float32 [P, D] each, by position.
        rows: which sequence and position each row has.
        kv_layer: [pages, 2, KVH, PAGE_TOKENS, D] one layer of the pool; rows are written into
            it. What was never written may hold anything.

    Returns:
        [M, H * D] in the dtype of `qkv`; zeros for padding rows.

    Source: FlashDecoding, https://pytorch.org/blog/flash-decoding/.
    """
    kv_heads, d = kv_layer.shape[2], kv_layer.shape[4]
    if runs_kernels(qkv):
        plan = attention_plan(
            qkv.shape[0], rows.rows_per_tile, kv_heads, is_grouped=qkv.shape[1] > 3 * kv_heads * d
        )
        q_norm, k_norm = norms or (None, None)
        return Attention(qkv, q_norm, k_norm, eps, *tables, rows, kv_layer, d**-0.5, plan).run()
    is_in_order = kv_layer.stride(0) == PAGE_TOKENS * d  # pages of one head follow each other
    plain = rows.plain(tables, is_in_order=is_in_order)
    queries, keys, values = rotated_heads(qkv, kv_heads, norms, eps, plain.cos, plain.sin)
    mixed = torch.zeros_like(queries)
    for span in plain.spans:
        own = span.rows
        held = _extended(span, keys[own], values[own], kv_layer)
        mixed[own] = _attend_span(queries[own], held, span.mask)
    return mixed.flatten(1)  # [M, heads * D]


def _extended(span: Span, keys: Tensor, values: Tensor, kv_layer: Tensor) -> Tensor:
    """Store new rows [n, KVH, D] of a sequence; return all it holds, [2, KVH, length, D]."""
    first, length = span.length - len(keys), span.length
    if isinstance(span.pages, slice):  # a view into which rows can be written
        held = kv_layer[span.pages].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
        held[0, :, first:], held[1, :, first:] = keys.transpose(0, 1), values.transpose(0, 1)
        return held
    at = torch.arange(first, length, device=keys.device)
    pages, places = span.pages[at // PAGE_TOKENS], at % PAGE_TOKENS
    kv_layer[pages, 0, :, places], kv_layer[pages, 1, :, places] = keys, values
    return kv_layer[span.pages].permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]


def _attend_span(queries: Tensor, held: Tensor, mask: Tensor | None) -> Tensor:
    """Attend rows [n, heads, D] of one sequence."""
    answer = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],  # [1, heads, n, D]
        held[0][None],
        held[1][None],
        attn_mask=mask,
        enable_gqa=queries.shape[1] != held.shape[1],
    )
    return answer[0].transpose(0, 1)


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
    if runs_kernels(pool):
        shift_tokens(pool, pages, start, target, count, cos, sin)
        return
    page_tokens = pool.shape[4]
    places = torch.arange(count, device=pool.device)
    old, new = places + start, places + target
    for layer in pool:  # one at a time, to need little memory
        keys, values = layer[pages[old // page_tokens].long(), :, :, old % page_tokens].unbind(1)
        into = pages[new // page_tokens].long(), new % page_tokens
        layer[into[0], 0, :, into[1]] = rotate(keys, cos[None], sin[None])
        layer[into[0], 1, :, into[1]] = values


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
    if runs_kernels(positions):
        advance_positions(positions, tile_rows, last_positions, has_ended, NO_POSITION)
        return
    goes_on = (positions != NO_POSITION) & (positions < last_positions) & ~has_ended
    positions.copy_(torch.where(goes_on, positions + 1, NO_POSITION))
    tile_rows.copy_(goes_on)
