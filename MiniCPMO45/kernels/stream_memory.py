"""State of the vocoder's streams: its table, attention over the caches, and writes to them.

A row of a `StreamTable` holds the addresses of a stream's state, the lengths of its caches and the
slots of new entries; it is the only input of a replayed graph that changes. Kernels use raw
addresses, which do not keep memory alive: this is safe because the allocator reuses freed memory in
the order of one CUDA stream, and because one thread uploads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.kernels.device import Staging, runs_kernels, tl, triton

COPY_BLOCK = 1024  # values per program
# Sizes that vary between batches are runtime arguments: every variant costs seconds at start.
VARIED = "plan_stride cache_at n_new_at ages_at layer n_frames bias_row bias_head".split()
# Frames and keys of a program's tiles, with few programs and with many.
FEW_TILES, MANY_TILES = (16, 128), (64, 64)
MANY_PROGRAMS = 128  # about the multiprocessors of a large card
CAPACITY, LENGTH = tl.constexpr(1), tl.constexpr(2)  # offsets from a cache's address in a row
DROPPED = -1  # target of a new entry that is not retained


class StreamTable:
    """Named integer fields of S streams.

    From `upload` to `release`, `memory` has the tensors whose addresses are in the rows, by field
    name. The plain operations use the tensors, kernels the addresses.
    """

    def __init__(self, n_rows: int, sizes: Mapping[str, int], device: torch.device) -> None:
        """Allocate the table; `sizes` gives the integers per row of each field."""
        edges = pairwise(accumulate(sizes.values(), initial=0))
        self._places = {name: slice(*edge) for name, edge in zip(sizes, edges, strict=True)}
        with torch.inference_mode(False):
            self._staging = Staging(n_rows, sum(sizes.values()), device, torch.int64)
        self.rows = self._staging.device_words  # int64 [S, width]
        self.memory: dict[str, Sequence[Tensor]] = {}
        self._owner: tuple[int, int] | None = None  # thread and CUDA stream that upload

    def __getitem__(self, name: str) -> Tensor:
        """Return a field, int64 [S, n] on the device."""
        return self.rows[:, self._places[name]]

    def place(self, name: str) -> int:
        """Return the first index of a field in a row."""
        return self._places[name].start

    def on_host(self) -> dict[str, NDArray[np.int64]]:
        """Return the host's fields by name [S, n], to be filled before `upload`."""
        rows = self._staging.begin()
        return {name: rows[:, place] for name, place in self._places.items()}

    def upload(self, memory: Mapping[str, Sequence[Tensor]]) -> None:
        """Enqueue the copy to the device.

        `memory` holds one tensor per row for each field that takes addresses.
        """
        device = self.rows.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        uploading = (threading.get_ident(), stream)
        self._owner = self._owner or uploading
        assert self._owner == uploading, (
            f"addresses are valid on one thread and CUDA stream, {self._owner}, not on {uploading}"
        )
        self.memory = dict(memory)
        for name, tensors in memory.items():
            addresses = np.array([tensor.data_ptr() for tensor in tensors])
            self._staging.words[:, self._places[name]] = addresses[:, None]
        self._staging.send()

    def release(self) -> None:
        """Drop the tensors after the launch, so that a closed stream's memory is freed."""
        self.memory = {}


@dataclass(frozen=True)
class StreamCache:
    """One kind of attention cache of a table's streams.

    A stream's cache is [layers, group, heads, capacity, 2 * d]; an entry is a key and its value.
    """

    table: StreamTable
    name: str  # prefix of its fields `address`, `capacity`, `length`, `targets` and `ages`
    n_new: str  # name of the field with the number of new entries
    heads: int

    @staticmethod
    def sizes(name: str, n_new: int, n_ages: int = 0) -> dict[str, int]:
        """Fields a table needs for such a cache; kernels rely on the order of the first three.

        A step adds at most `n_new` entries. `n_ages` entries have an age, 0 without positions.
        """
        parts = {"address": 1, "capacity": 1, "length": 1, "targets": n_new, "ages": n_ages}
        return {f"{name} {part}": size for part, size in parts.items()}

    def field(self, part: str) -> str:
        return f"{self.name} {part}"

    def place(self, part: str) -> int:
        return self.table.place(self.field(part))

    def memory_of(self, stream: int) -> Tensor:
        return self.table.memory[self.field("address")][stream]


def load_tails(table: StreamTable, size: int) -> Tensor:
    """Copy the flat tails of the streams, "tails" in the table: float32 [S, size]."""
    if runs_kernels(table.rows):
        tails = table.rows.new_empty(len(table.rows), size, dtype=torch.float32)
        _launch_copy(table, tails, is_stored=False)
        return tails
    return torch.stack(list(table.memory["tails"]))


def store_tails(tails: Tensor, table: StreamTable) -> None:
    """Copy tails [S, size] back to the streams."""
    if runs_kernels(tails):
        _launch_copy(table, tails, is_stored=True)
        return
    for memory, row in zip(table.memory["tails"], tails, strict=True):
        memory.copy_(row)


@triton.jit(do_not_specialize=["stride", "address_at", "size"])
def _copy_tails(
    plan, stride, address_at, flat, size, OUT: tl.constexpr, BLOCK: tl.constexpr = COPY_BLOCK
):
    stream = tl.program_id(1).to(tl.int64)
    tails = tl.load(plan + stream * stride + address_at).to(tl.pointer_type(tl.float32))
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    if OUT:
        tl.store(tails + places, tl.load(flat + stream * size + places, mask=inside), mask=inside)
    else:
        tl.store(flat + stream * size + places, tl.load(tails + places, mask=inside), mask=inside)


def _launch_copy(table: StreamTable, tails: Tensor, *, is_stored: bool) -> None:
    rows, size = table.rows, tails.shape[1]
    grid = (triton.cdiv(size, COPY_BLOCK), len(rows))
    _copy_tails[grid](rows, rows.stride(0), table.place("tails"), tails, size, OUT=is_stored)


def attend(qkv: Tensor, bias: Tensor | None, cache: StreamCache, layer: int) -> Tensor:
    """Attend from the new frames of every stream to its cache and to themselves.

    `qkv` holds queries, keys and values [S * group, T, 3 * heads * d]; the group's rows share a
    stream. `bias` scores by distance [heads, S * group * T, W], distance -(T - 1) first, before
    the division by sqrt(d); None without positions. The result is [S * group, T, heads * d] in the
    dtype of `qkv`.
    """
    table, n_frames = cache.table, qkv.shape[1]
    if runs_kernels(qkv):
        n_rows, _, width = qkv.shape
        rows, head_dim = table.rows, width // (3 * cache.heads)
        out = torch.empty((n_rows, n_frames, width // 3), dtype=qkv.dtype, device=qkv.device)
        tile = MANY_TILES if n_rows * cache.heads >= MANY_PROGRAMS else FEW_TILES
        strides = (0, 0) if bias is None else (bias.stride(1), bias.stride(0))
        places = cache.place("address"), table.place(cache.n_new), cache.place("ages")
        sizes = {"GROUP": n_rows // len(rows), "HEADS": cache.heads, "D": head_dim}
        grid = triton.cdiv(n_frames, tile[0]), cache.heads, n_rows
        given = qkv, bias, out, rows, rows.stride(0), *places, layer, n_frames, *strides
        _attend_blocks[grid](*given, head_dim**-0.5, **sizes, QUERIES=tile[0], KEYS=tile[1])
        return out
    split = qkv.unflatten(2, (3, cache.heads, -1)).unflatten(0, (len(table.rows), -1))
    query, key, value = split.permute(3, 0, 1, 4, 2, 5)  # [S, group, heads, T, d] each
    frames, scale = torch.arange(n_frames, device=qkv.device), query.shape[4] ** -0.5
    outputs = []
    for stream in range(len(table.rows)):
        length = int(table[cache.field("length")][stream])
        n_new = int(table[cache.n_new][stream])
        old_keys, old_values = cache.memory_of(stream)[layer].chunk(2, dim=-1)
        keys = torch.cat((old_keys[:, :, :length], key[stream, :, :, :n_new]), dim=2)
        values = torch.cat((old_values[:, :, :length], value[stream, :, :, :n_new]), dim=2)
        mask = None
        if bias is not None:
            ages = table[cache.field("ages")][stream, :length]
            distances = torch.cat((ages, -frames[:n_new])) + frames[:, None] + (n_frames - 1)
            of_stream = bias.unflatten(1, (len(table.rows), -1, n_frames))[:, stream]
            mask = of_stream.transpose(0, 1)  # [group, heads, T, W]
            mask = mask.gather(3, distances.expand(*mask.shape[:2], -1, -1)) * scale
        outputs.append(F.scaled_dot_product_attention(query[stream], keys, values, attn_mask=mask))
    return torch.cat(outputs).transpose(1, 2).flatten(2)  # [rows, T, heads * d]


@triton.jit
def _memory_of(
    described, layer, member, head,
    element: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Pointer to the first entry of a stream's head, or of some heads."""
    capacity = tl.load(described + CAPACITY)
    cache = tl.multiple_of(tl.load(described).to(tl.pointer_type(element)), 16)
    return cache + ((layer * GROUP + member) * HEADS + head) * capacity * (2 * D)


@triton.jit(do_not_specialize=VARIED)
def _attend_blocks(
    qkv, bias, out, plan, plan_stride, cache_at, n_new_at, ages_at, layer, n_frames, bias_row,
    bias_head, scale, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One program: QUERIES frames of one row of the batch, one head."""
    row = tl.program_id(2)
    head = tl.program_id(1)
    frames = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    channel = tl.arange(0, D)
    mine = plan + (row // GROUP).to(tl.int64) * plan_stride
    length = tl.load(mine + cache_at + LENGTH).to(tl.int32)
    n_new = tl.load(mine + n_new_at).to(tl.int32)
    element: tl.constexpr = qkv.dtype.element_ty
    cache = _memory_of(mine + cache_at, layer, row % GROUP, head, element, GROUP, HEADS, D)
    new = qkv + row.to(tl.int64) * n_frames * (3 * HEADS * D) + head * D
    is_query = frames < n_frames
    at = new + frames[:, None] * (3 * HEADS * D) + channel[None, :]
    query = tl.load(at, mask=is_query[:, None], other=0.0)
    if bias is not None:
        of_row = bias + head * bias_head + (row * n_frames + frames).to(tl.int64) * bias_row
    ages = mine + ages_at
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, D), tl.float32)
    new += HEADS * D
    for start in range(0, length + n_new, KEYS):  # the cache, then the chunk itself
        entry = start + tl.arange(0, KEYS)
        is_seen = entry < length + n_new
        is_new = entry >= length
        of_new = new + (entry - length) * (3 * HEADS * D)
        key_at = tl.multiple_of(tl.where(is_new, of_new, cache + entry * (2 * D)), 16)
        value_at = tl.multiple_of(key_at + tl.where(is_new, HEADS * D, D), 16)
        key = tl.load(key_at[:, None] + channel[None, :], mask=is_seen[:, None], other=0.0)
        value = tl.load(value_at[:, None] + channel[None, :], mask=is_seen[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee")
        if bias is not None:
            age = tl.load(ages + entry, mask=is_seen & ~is_new, other=0).to(tl.int32)
            age = tl.where(is_new, length - entry, age)
            distance = frames[:, None] + age[None, :] + n_frames - 1
            is_pair = is_query[:, None] & is_seen[None, :]
            score += tl.load(of_row[:, None] + distance, mask=is_pair, other=0.0)
        score = tl.where(is_seen[None, :], score * scale, float("-inf"))
        risen = tl.maximum(highest, tl.max(score, 1))
        weight = tl.exp(score - risen[:, None])
        shrink = tl.exp(highest - risen)
        total = total * shrink + tl.sum(weight, 1)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision="ieee")
        highest = risen
    at = out + (row * n_frames + frames).to(tl.int64)[:, None] * (HEADS * D)
    mixed = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(at + head * D + channel[None, :], mixed, mask=is_query[:, None])


def store_entries(new: Tensor, cache: StreamCache, first_layer: int) -> None:
    """Write the keys and values of a chunk to the table's targets.

    `new` holds the `qkv` of each layer's `attend`, [layers, S * group, T, 3 * heads * d].
    """
    if runs_kernels(new):
        n_layers, n_rows, n_frames, width = new.shape
        rows = cache.table.rows
        places = rows.stride(0), cache.place("address"), cache.place("targets")
        sizes = {"GROUP": n_rows // len(rows), "HEADS": cache.heads}
        _store_frames[(n_frames, n_rows, n_layers)](
            new, rows, *places, first_layer, n_rows, n_frames, **sizes, D=width // (3 * cache.heads)
        )
        return
    table, n_layers = cache.table, len(new)
    split = new.unflatten(3, (3, cache.heads, -1)).unflatten(1, (len(table.rows), -1))
    for stream in range(len(table.rows)):
        targets = table[cache.field("targets")][stream, : new.shape[2]]
        kept = targets >= 0
        written = split[:, stream, :, :, 1:]  # [layers, group, T, 2, heads, d]
        entries = written.permute(0, 1, 4, 2, 3, 5).flatten(4)  # [layers, group, heads, T, 2 d]
        memory = cache.memory_of(stream)[first_layer : first_layer + n_layers]
        memory.index_copy_(3, targets[kept], entries[:, :, :, kept])


@triton.jit(
    do_not_specialize=["plan_stride", "cache_at", "targets_at", "first_layer", "n_rows", "n_frames"]
)
def _store_frames(
    new, plan, plan_stride, cache_at, targets_at, first_layer, n_rows, n_frames,
    GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(2)
    row = tl.program_id(1)
    frame = tl.program_id(0)
    mine = plan + (row // GROUP).to(tl.int64) * plan_stride
    target = tl.load(mine + targets_at + frame)
    if target >= 0:
        element: tl.constexpr = new.dtype.element_ty
        head = tl.arange(0, HEADS)[:, None]
        cache = _memory_of(
            mine + cache_at, first_layer + layer, row % GROUP, head, element, GROUP, HEADS, D
        )
        channel = tl.arange(0, 2 * D)
        part, inner = channel // D, channel % D  # keys, then values
        flat = (layer * n_rows + row).to(tl.int64) * n_frames + frame
        source = (1 + part) * (HEADS * D) + inner
        values = tl.load(new + flat * (3 * HEADS * D) + head * D + source[None, :])
        tl.store(cache + target * (2 * D) + channel[None, :], values)
