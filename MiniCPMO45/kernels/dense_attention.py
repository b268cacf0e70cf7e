"""Dense attention with heads of any size; those of the vision encoder have 72 values.

PyTorch's kernels pad such heads to 128 values. Here a head is split into a power of two and a
remainder, which is padded to a multiple of 16.

Source: FlashAttention-2 (arXiv:2307.08691).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.kernels.device import fitting_stages, runs_kernels, tl, triton

KEYS, STAGES = 64, 3
FEW_QUERIES, MANY_QUERIES = 64, 128  # of a program: small tiles when there are few programs
MANY_PROGRAMS = 1024
QUERIES_PER_WARP = 16
HALF_BYTES = 2
FEWEST_CHANNELS = 16  # of a tensor core's product
LOG2_E = 1.4426950408889634


@triton.jit
def _absorb_keys(
    first_query, rest_query, keys, start, count, mask, so_far, factor,
    ROW: tl.constexpr, TO_VALUE: tl.constexpr, D: tl.constexpr, FIRST: tl.constexpr,
    REST: tl.constexpr, KEYS: tl.constexpr, IS_WHOLE: tl.constexpr,
):  # fmt: skip
    """Add one block of keys and values to a running softmax; `factor` is in powers of two."""
    highest, total, first_mixed, rest_mixed = so_far
    key = start + tl.arange(0, KEYS)
    first, rest = tl.arange(0, FIRST)[None, :], FIRST + tl.arange(0, REST)[None, :]
    at = keys + key[:, None] * ROW
    is_key = (key < count) | IS_WHOLE
    is_first, is_rest = is_key[:, None] & (first < FIRST), is_key[:, None] & (rest < D)
    first_key = tl.load(at + first, mask=is_first, other=0.0)
    first_value = tl.load(at + TO_VALUE + first, mask=is_first, other=0.0)
    rest_key = tl.load(at + rest, mask=is_rest, other=0.0)
    rest_value = tl.load(at + TO_VALUE + rest, mask=is_rest, other=0.0)
    score = tl.dot(first_query, tl.trans(first_key), input_precision="ieee")
    score = tl.dot(rest_query, tl.trans(rest_key), score, input_precision="ieee") * factor
    if mask is not None:
        is_key = is_key & (tl.load(mask + key, mask=is_key, other=0) > 0)
    if mask is not None or not IS_WHOLE:
        score = tl.where(is_key[None, :], score, -1.0e30)
    risen = tl.maximum(highest, tl.max(score, 1))
    weight = tl.exp2(score - risen[:, None])
    shrink = tl.exp2(highest - risen)
    total = total * shrink + tl.sum(weight, 1)
    weight = weight.to(first_value.dtype)
    first_mixed = tl.dot(weight, first_value, first_mixed * shrink[:, None], input_precision="ieee")
    rest_mixed = tl.dot(weight, rest_value, rest_mixed * shrink[:, None], input_precision="ieee")
    return risen, total, first_mixed, rest_mixed


@triton.jit
def _attend_dense(
    qkv, mask, out, n_rows, factor,
    HEADS: tl.constexpr, D: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr = KEYS,
):  # fmt: skip
    item = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    row = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    first, rest = tl.arange(0, FIRST)[None, :], FIRST + tl.arange(0, REST)[None, :]
    ROW: tl.constexpr = 3 * HEADS * D
    own = qkv + item * n_rows * ROW + head * D
    is_row = (row < n_rows)[:, None]
    at = own + row[:, None] * ROW
    first_query = tl.load(at + first, mask=is_row, other=0.0)
    rest_query = tl.load(at + rest, mask=is_row & (rest < D), other=0.0)
    so_far = (
        tl.full((QUERIES,), -1.0e30, tl.float32),
        tl.zeros((QUERIES,), tl.float32),
        tl.zeros((QUERIES, FIRST), tl.float32),
        tl.zeros((QUERIES, REST), tl.float32),
    )
    keys = own + HEADS * D
    if mask is not None:
        mask += item * n_rows
    whole = n_rows // KEYS * KEYS
    for start in range(0, whole, KEYS):
        so_far = _absorb_keys(
            first_query, rest_query, keys, start, n_rows, mask, so_far, factor,
            ROW, HEADS * D, D, FIRST, REST, KEYS, True,
        )  # fmt: skip
    if whole < n_rows:
        so_far = _absorb_keys(
            first_query, rest_query, keys, whole, n_rows, mask, so_far, factor,
            ROW, HEADS * D, D, FIRST, REST, KEYS, False,
        )  # fmt: skip
    _, total, first_mixed, rest_mixed = so_far
    at = out + (item * n_rows + row)[:, None] * (HEADS * D) + head * D
    kind = out.dtype.element_ty
    tl.store(at + first, (first_mixed / total[:, None]).to(kind), mask=is_row)
    tl.store(at + rest, (rest_mixed / total[:, None]).to(kind), mask=is_row & (rest < D))


def attend_dense(qkv: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    """Attend among the rows of each item, qkv [B, T, 3 * heads * d]: [B, T, heads * d].

    The mask, bool, is broadcast to [B, heads, T, T] and True where attention is allowed; every row
    sees at least one.
    """
    n_items, n_rows, width = qkv.shape
    size = width // (3 * heads)
    first = 1 << (size.bit_length() - 1)
    is_padded = qkv.dtype.itemsize == HALF_BYTES and 0 < size - first <= first // 2
    # The library is faster on whole tiles without a mask, in spite of the padding.
    is_of_keys = mask.shape == (n_items, 1, 1, n_rows) if mask is not None else n_rows % KEYS > 0
    if not (runs_kernels(qkv) and is_of_keys and is_padded):
        q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [B, heads, T, d]
        return mixed.transpose(1, 2).flatten(2)
    rest = max(triton.next_power_of_2(size - first), FEWEST_CHANNELS)
    assert qkv.is_contiguous() and (mask is None or mask.is_contiguous())
    out = qkv.new_empty(n_items, n_rows, width // 3)
    column_bytes = (first + rest) * qkv.element_size()
    queries = MANY_QUERIES
    if n_items * heads * triton.cdiv(n_rows, queries) < MANY_PROGRAMS:
        queries = FEW_QUERIES
    allowed, factor = None if mask is None else mask.view(torch.int8), size**-0.5 * LOG2_E
    sizes = {"HEADS": heads, "D": size, "FIRST": first, "REST": rest, "QUERIES": queries}
    sizes["num_warps"] = queries // QUERIES_PER_WARP
    stages = fitting_stages(qkv, STAGES, 2 * KEYS * column_bytes, queries * column_bytes)
    grid = triton.cdiv(n_rows, queries), heads, n_items
    _attend_dense[grid](qkv, allowed, out, n_rows, factor, **sizes, num_stages=stages)
    return out
