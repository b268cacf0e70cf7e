"""Plain PyTorch twins of the operations on streams, same signatures, any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.device.packed_linear import Affine
from MiniCPMO45.device.stream_table import ColumnCache, StreamTable


def load_tails(table: StreamTable, size: int) -> Tensor:
    """See `stream_ops.load_tails`."""
    return torch.stack(list(table.memory["tails"]))


def store_tails(tails: Tensor, table: StreamTable) -> None:
    """See `stream_ops.store_tails`."""
    for memory, row in zip(table.memory["tails"], tails, strict=True):
        memory.copy_(row)


def attend(qkv: Tensor, bias: Tensor | None, cache: ColumnCache, layer: int) -> Tensor:
    """See `stream_ops.attend`."""
    n_rows, n_frames, width = qkv.shape
    group, table = n_rows // len(cache.table.rows), cache.table
    head_dim = width // (3 * cache.heads)
    query, key, value = qkv.unflatten(2, (3, cache.heads, head_dim)).permute(2, 0, 3, 1, 4)
    frames = torch.arange(n_frames, device=qkv.device)
    outputs = []
    for row in range(n_rows):
        stream, member = divmod(row, group)
        length = int(table[cache.column("length")][stream])
        n_new = int(table[cache.n_new][stream])
        old_keys, old_values = cache.views(stream, layer, member)
        keys = torch.cat((old_keys[:, :length], key[row, :, :n_new]), dim=1)
        values = torch.cat((old_values[:, :length], value[row, :, :n_new]), dim=1)
        mask = None
        if bias is not None:
            ages = table[cache.column("ages")][stream, :length]
            distances = torch.cat((ages, -frames[:n_new])) + frames[:, None]
            places = (distances + n_frames - 1).expand(cache.heads, -1, -1)
            of_row = bias[:, row * n_frames : (row + 1) * n_frames]
            mask = of_row.gather(2, places) * head_dim**-0.5  # [heads, T, L + n_new]
        mixed = F.scaled_dot_product_attention(
            query[row, None], keys[None], values[None], attn_mask=mask
        )
        outputs.append(mixed[0])
    return torch.stack(outputs).transpose(1, 2).flatten(2)  # [rows, T, heads * head_dim]


def store_columns(new: Tensor, cache: ColumnCache, first_layer: int) -> None:
    """See `stream_ops.store_columns`."""
    n_layers, n_rows, _, width = new.shape
    group = n_rows // len(cache.table.rows)
    split = new.unflatten(3, (3, cache.heads, width // (3 * cache.heads)))
    by_head = split.permute(0, 1, 3, 4, 2, 5)  # [layers, rows, 3, heads, T, d]
    for row in range(n_rows):
        stream, member = divmod(row, group)
        targets = cache.table[cache.column("targets")][stream]
        kept = targets >= 0
        for layer in range(n_layers):
            keys, values = cache.views(stream, first_layer + layer, member)
            keys.index_copy_(1, targets[kept], by_head[layer, row, 1][:, kept])
            values.index_copy_(1, targets[kept], by_head[layer, row, 2][:, kept])


def norm_heads(qkv: Tensor, weights: Tensor, eps: float, heads: int) -> Tensor:
    """See `stream_ops.norm_heads`."""
    head_dim = weights.shape[-1]
    parts = qkv.unflatten(2, (3, heads, head_dim))
    for part, (weight, shift) in enumerate(weights.unbind(0)):
        normed = F.layer_norm(parts[:, :, part].float(), (head_dim,), weight, shift, eps)
        parts[:, :, part] = normed.to(qkv.dtype)
    return qkv


def gated_norm(
    x: Tensor,
    change: Tensor | None,
    gate: Tensor | None,
    norm: Affine,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    """See `stream_ops.gated_norm`."""
    if change is not None:
        x += change.to(x.dtype) if gate is None else gate * change.to(x.dtype)
    return F.layer_norm(x.float(), x.shape[-1:], *norm, eps).to(dtype)


def unfold_taps(y: Tensor, tail: Tensor, new_tail: Tensor, n_frames: Tensor) -> Tensor:
    """See `stream_ops.gated_norm_unfold`: y [rows, T, C] with its past to [rows, T, 3 * C]."""
    n_rows, length, width = y.shape
    joined = torch.cat((tail.flatten(0, 1).to(y.dtype), y), dim=1)  # [rows, T + 2, C]
    places = n_frames.repeat_interleave(n_rows // len(n_frames))[:, None] + torch.arange(
        2, device=y.device
    )
    last = joined.gather(1, places[:, :, None].expand(-1, -1, width))
    new_tail.copy_(last.unflatten(0, new_tail.shape[:2]))
    return torch.cat([joined[:, tap : tap + length] for tap in range(3)], dim=2)


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
    """See `stream_ops.gated_norm_unfold`."""
    return unfold_taps(gated_norm(x, change, gate, norm, eps, dtype), *tails, n_frames)


def norm_mish_unfold(
    x: Tensor,
    norm: Affine,
    eps: float,
    tails: tuple[Tensor, Tensor],
    n_frames: Tensor,
) -> Tensor:
    """See `stream_ops.norm_mish_unfold`."""
    y = F.mish(F.layer_norm(x.float(), x.shape[-1:], *norm, eps)).to(x.dtype)
    return unfold_taps(y, *tails, n_frames)
