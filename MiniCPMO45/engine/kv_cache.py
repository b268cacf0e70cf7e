"""Paged KV cache, and the packed rows of a pass over it.

A handle is the cache of one conversation: it takes pages of a shared pool as it grows, listed in
its row of the page table. Pages never move. Positions are dense: the next token's is the handle's
length. A pass captured as a graph has a fixed size and is padded.
"""

from __future__ import annotations

import heapq
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.kernels.attention import NO_POSITION, PAGE_TOKENS, RowMap, attend
from MiniCPMO45.kernels.cached_rows import decode_rows, encode_rows, move_tokens
from MiniCPMO45.kernels.device import Staging
from MiniCPMO45.kernels.products import Rope
from MiniCPMO45.model.transformer import Norms

SLOTS = 512  # caches that hold tokens at a time


class CacheFullError(RuntimeError):
    """A conversation would exceed the model's context length or the memory."""


@dataclass(frozen=True, eq=False)
class KvRows:
    """Rows copied out of a cache.

    Keys and values are [layers, kv heads, n, d], rotated for positions from `start` on; scales,
    float32 [2, layers, kv heads, n], are those of 8-bit keys and values.
    """

    keys: Tensor
    values: Tensor
    start: int
    scales: Tensor | None = None

    @property
    def nbytes(self) -> int:
        scales = 0 if self.scales is None else self.scales.nbytes
        return self.keys.nbytes + self.values.nbytes + scales


class KvStore:
    """Pool of pages and page table of all conversations.

    The pool is [layers, pages, 2, kv heads, page tokens, d], keys, then values; scales, if it holds
    8-bit codes, float32 of the same shape without d. The page table is int32 [slots, most pages of
    a conversation].
    """

    def __init__(
        self,
        shape: DecoderConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        pages: int,
        has_codes: bool = False,
        can_grow: bool = False,
        page_tokens: int = PAGE_TOKENS,
        slots: int = SLOTS,
    ) -> None:
        """Allocate the pool.

        `dtype` is that of computed keys and values; with `has_codes` they are stored as 8-bit
        codes, see `cached_rows`. A full pool that `can_grow` is doubled, which captured graphs
        forbid, since they contain addresses. At most `slots` caches hold tokens at a time.
        """
        self.shape = shape
        theta = shape.rope_parameters["rope_theta"]
        self.rope = Rope.build(shape.head_dim, theta, device=device)
        self.handles: WeakSet[KvHandle] = WeakSet()  # neither closed nor garbage-collected
        self.page_tokens = page_tokens
        self.can_grow = can_grow
        # Of a conversation, while the card is short of time; set by another thread.
        self.most_tokens: int | None = None
        everywhere = torch.arange(shape.max_position_embeddings, device=device)
        most_pages = -(-len(everywhere) // page_tokens)
        self.page_table = torch.zeros(slots, most_pages, dtype=torch.int32, device=device)
        kind = torch.int8 if has_codes else dtype
        self.pool = self._allocate(pages, kind, shape.head_dim)
        self.scales = self._allocate(pages, torch.float32) if has_codes else None
        cos, sin = self.rope.tables(everywhere, dtype)
        self.tables = cos.float(), sin.float()  # [positions, d] each
        self._free_pages = list(range(pages))  # a heap: a lone conversation's pages are in order
        self.free_slots = list(reversed(range(slots)))

    @property
    def device(self) -> torch.device:
        return self.page_table.device

    @property
    def free_pages(self) -> int:
        return len(self._free_pages)

    @property
    def free_share(self) -> float:
        """Free share of the pool, 0 to 1; 1 for a pool that grows."""
        return 1.0 if self.can_grow else self.free_pages / self.pool.shape[1]

    def open(self) -> KvHandle:
        return KvHandle(self)

    def take_pages(self, count: int) -> list[int]:
        """Take free pages; raises `CacheFullError` if there are fewer."""
        if count > len(self._free_pages) and self.can_grow:
            self._grow(count)
        if count > len(self._free_pages):
            n_tokens = self.pool.shape[1] * self.page_tokens
            raise CacheFullError(
                f"the memory of all conversations together, {n_tokens} tokens, is used up; "
                "it is free again when one of them ends"
            )
        return [heapq.heappop(self._free_pages) for _ in range(count)]

    def write_pages(self, places: Sequence[tuple[int, int]]) -> None:
        """Enqueue the upload of pages, each with its index in the flat page table."""
        staged = torch.tensor(places, pin_memory=self.device.type == "cuda")
        index, pages = staged.to(self.device, non_blocking=True).unbind(1)
        self.page_table.view(-1).index_copy_(0, index, pages.int())

    def release(self, slots: list[int], pages: list[int]) -> None:
        """Return rows of the page table and pages; empties both lists."""
        self.free_slots += slots
        for page in pages:
            heapq.heappush(self._free_pages, page)
        slots.clear()
        pages.clear()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the operations between passes once, so that their kernels are compiled."""
        kv = self.open()
        kv.reserve(3 * self.page_tokens)
        kv.advance(3 * self.page_tokens)
        kv.drop(1, self.page_tokens)
        taken = kv.rows(1, kv.length)
        kv.truncate(2)
        kv.put(taken)
        kv.close()

    def _grow(self, count: int) -> None:
        held = self.pool.shape[1]
        pages = max(2 * held, held + count)
        grown = self._allocate(pages, self.pool.dtype, self.shape.head_dim)
        grown[:, :held] = self.pool
        self.pool = grown
        if self.scales is not None:
            scales = self._allocate(pages, torch.float32)
            scales[:, :held] = self.scales
            self.scales = scales
        self.release([], list(range(held, pages)))

    def _allocate(self, pages: int, dtype: torch.dtype, *width: int) -> Tensor:
        """Allocate an empty pool, or scales without a width.

        If it grows, pages of a head in order form a contiguous view.
        """
        shape, rows = self.shape, (self.page_tokens, *width)
        layers, heads = shape.num_hidden_layers, shape.num_key_value_heads
        if not self.can_grow:
            return torch.zeros((layers, pages, 2, heads, *rows), dtype=dtype, device=self.device)
        grown = torch.zeros((layers, 2, heads, pages, *rows), dtype=dtype, device=self.device)
        return grown.movedim(3, 1)


class KvHandle:
    """Cache of one conversation: a row of the page table and its pages.

    A handle that is garbage-collected without `close` returns its pages, too.
    """

    def __init__(self, store: KvStore) -> None:
        self.store = store
        self.length = 0
        self._slots: list[int] = []  # none or one
        self._pages: list[int] = []
        store.handles.add(self)
        weakref.finalize(self, store.release, self._slots, self._pages).atexit = False

    @property
    def slot(self) -> int:
        return self._slots[0]

    @property
    def capacity(self) -> int:
        return len(self._pages) * self.store.page_tokens

    def reserve(self, tokens: int) -> None:
        """Allocate pages for `tokens` in total; raises as `reserve_all`."""
        reserve_all([(self, tokens - self.length)])

    def take_pages(self, tokens: int) -> list[tuple[int, int]]:
        """Take the pages missing for `tokens` in total, each with its index in the flat page table.

        Raises as `reserve_all`.
        """
        store, limit = self.store, self.store.shape.max_position_embeddings
        if tokens > limit:
            raise CacheFullError(f"context of {tokens} tokens exceeds the model's limit of {limit}")
        held = len(self._pages)
        missing = -(-tokens // store.page_tokens) - held
        if missing <= 0:
            return []
        if not self._slots and not store.free_slots:
            raise CacheFullError(f"all {store.page_table.shape[0]} caches are in use")
        taken = store.take_pages(missing)
        self._pages += taken
        if not self._slots:
            self._slots.append(store.free_slots.pop())
        return list(enumerate(taken, self.slot * store.page_table.shape[1] + held))

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Drop everything from position `length` on and free whole pages behind it.

        Raises:
            ValueError: `length` is negative or beyond the cache.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        self.length = length
        kept = -(-length // self.store.page_tokens)
        freed = self._pages[kept:]
        del self._pages[kept:]
        self.store.release([], freed)

    def rows(self, start: int, stop: int) -> KvRows:
        """Copy positions [start, stop) out of the cache; an empty range is allowed.

        Raises:
            ValueError: the range is reversed or outside the cache.
        """
        if not 0 <= start <= stop <= self.length:
            raise ValueError(f"[{start}, {stop}) is outside a cache of {self.length} tokens")
        if start == stop:
            none = self.store.pool[:, 0, 0, :, :0]
            return KvRows(none, none, start)
        pages, offsets = self._places(start, stop)
        taken = self.store.pool[:, pages, :, :, offsets]  # [n, layers, 2, kv heads, d]
        keys, values = taken.permute(2, 1, 3, 0, 4)
        scales = self.store.scales
        if scales is not None:
            scales = scales[:, pages, :, :, offsets].permute(2, 1, 3, 0)
        return KvRows(keys, values, start, scales)

    def put(self, rows: KvRows) -> None:
        """Append rows copied earlier, rotated to their new positions."""
        keys, scales, count = rows.keys, rows.scales, rows.keys.shape[2]
        if count == 0:
            return
        self.reserve(self.length + count)
        store, start, target = self.store, rows.start, self.length
        if scales is None:
            keys = store.rope.move(keys, start, target)
        elif start != target:
            moved = store.rope.move(decode_rows(keys, scales[0], torch.float32), start, target)
            keys, key_scales = encode_rows(moved)
            scales = torch.stack((key_scales, scales[1]))
        pages, offsets = self._places(target, target + count)
        for index, new in enumerate((keys, rows.values)):
            into = store.pool[:, :, index]
            into[:, pages, :, offsets] = new.permute(2, 0, 1, 3)
        if scales is not None:
            assert store.scales is not None
            store.scales[:, pages, :, :, offsets] = scales.permute(3, 1, 0, 2)
        self.length += count

    def drop(self, start: int, stop: int) -> None:
        """Remove cached positions [start, stop) and close the gap in place.

        Raises:
            ValueError: the range is empty or outside the cache.
        """
        if not 0 <= start < stop <= self.length:
            raise ValueError(f"cannot drop [{start}, {stop}) of {self.length} tokens")
        count = self.length - stop
        if count:
            distance = torch.full((1,), start - stop, device=self.store.device)
            cos, sin = self.store.rope.tables(distance, torch.float32)
            pages = self.store.page_table[self.slot]
            held = self.store.pool, self.store.scales
            move_tokens(*held, pages, stop, start, count, (cos[0], sin[0]))
        self.truncate(start + count)

    def close(self) -> None:
        """Free the pages; the handle is empty afterwards."""
        self.length = 0
        self.store.release(self._slots, self._pages)
        self.store.handles.discard(self)

    def _places(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return page and row inside it of each position: int64 [n] each."""
        store = self.store
        positions = torch.arange(start, stop, device=store.device)
        pages = store.page_table[self.slot].index_select(0, positions // store.page_tokens)
        return pages.long(), positions % store.page_tokens


def cached_bytes(shape: DecoderConfig, dtype: torch.dtype) -> int:
    """Return the bytes of one token's keys and values in all layers, scales included."""
    rows = 2 * shape.num_hidden_layers * shape.num_key_value_heads
    scale = torch.float32.itemsize if dtype is torch.int8 else 0
    return rows * (shape.head_dim * dtype.itemsize + scale)


def reserve_all(growth: Sequence[tuple[KvHandle, int]]) -> None:
    """Allocate pages for the growth of every cache before any of them takes a row.

    Raises:
        CacheFullError: a conversation would exceed the context length or the free pages, or too
            many caches hold tokens.
        ValueError: one conversation appears twice.
    """
    if len({id(kv) for kv, _ in growth}) != len(growth):
        raise ValueError("one cache may appear only once in a batch")
    places: list[tuple[int, int]] = []
    try:
        for kv, count in growth:
            places += kv.take_pages(kv.length + count)
    finally:
        if places:  # one upload, since each costs as much as a small kernel
            growth[0][0].store.write_pages(places)


NO_VECTOR = -1
DECODE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
PREFILL_BUCKETS = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
PREFILL_TILE_ROWS = 16
EXACT_PASSES_KEPT = 16  # the usual sizes of a few conversations
MOST_SEQUENCES = DECODE_BUCKETS[-1]
PADDING = (0, NO_VECTOR, NO_POSITION, 0, 0, 0, 0)  # of the columns of `PackedRows`


@dataclass(frozen=True, eq=False)
class Rows:
    """Input rows of a decoder: token ids, or vectors, or both.

    The language model takes a row's vector in place of its id, which is 0; the speech decoder takes
    the sum of both, and its codes' ids follow those of the text.
    """

    ids: tuple[int, ...] = ()
    vectors: tuple[tuple[int, Tensor], ...] = ()  # index of the first row and [n, width] of a run

    @classmethod
    def of(cls, *pieces: Sequence[int] | Tensor) -> Rows:
        """Join ids and vectors [n, width], in order."""
        ids: list[int] = []
        vectors: list[tuple[int, Tensor]] = []
        for piece in pieces:
            if not isinstance(piece, Tensor):
                ids += piece
            elif len(piece):
                vectors.append((len(ids), piece))
                ids += [0] * len(piece)
        return cls(tuple(ids), tuple(vectors))

    def __len__(self) -> int:
        return len(self.ids)

    def split(self, count: int) -> tuple[Rows, Rows]:
        first, rest = [], []
        for start, vectors in self.vectors:
            inside = min(max(count - start, 0), len(vectors))
            if inside:
                first.append((start, vectors[:inside]))
            if inside < len(vectors):
                rest.append((max(start - count, 0), vectors[inside:]))
        return Rows(self.ids[:count], tuple(first)), Rows(self.ids[count:], tuple(rest))


@dataclass(frozen=True, eq=False)
class FedRows:
    """Consecutive new rows of one conversation."""

    kv: KvHandle
    rows: Rows
    offset: int = 0  # preceding rows of the conversation that are not in the cache yet
    has_last: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, count: int) -> tuple[FedRows, FedRows]:
        first, rest = self.rows.split(count)
        return (
            FedRows(self.kv, first, self.offset, has_last=False),
            FedRows(self.kv, rest, self.offset + count, self.has_last),
        )


def passes(
    parts: Sequence[FedRows], most_rows: int, most_sequences: int
) -> Iterator[list[FedRows]]:
    """Divide conversations into passes of at most `most_rows` rows of `most_sequences`.

    Conversations are split where necessary; their rows stay in order.
    """
    group: list[FedRows] = []
    room = most_rows
    for rest in parts:
        while len(rest) > room or len(group) == most_sequences:
            if room and len(group) < most_sequences:
                first, rest = rest.split(room)
                group.append(first)
            yield group
            group, room = [], most_rows
        group.append(rest)
        room -= len(rest)
    if group:
        yield group


P = TypeVar("P")


class PassSizes(Generic[P]):
    """Passes by size: in buckets if graphs are captured, else created on demand."""

    def __init__(
        self, make: Callable[[int], P], most: int, buckets: Sequence[int], *, is_exact: bool
    ) -> None:
        buckets = buckets_up_to(most, buckets)
        self.most = buckets[-1]
        self.buckets = [] if is_exact else buckets
        self._pass = lru_cache(maxsize=EXACT_PASSES_KEPT if is_exact else None)(make)
        # All passes to capture, largest first.
        self.captured = [self._pass(size) for size in self.buckets][::-1]

    def of(self, count: int) -> P:
        return self._pass(bucket_of(count, self.buckets) if self.buckets else count)


@dataclass(frozen=True)
class PassLimits:
    """Largest passes; sizes are those of buckets unless exact."""

    conversations: int
    rows: int
    is_exact: bool

    def decodes(self, make: Callable[[int], P]) -> PassSizes[P]:
        return PassSizes(make, self.conversations, DECODE_BUCKETS, is_exact=self.is_exact)

    def prefills(self, make: Callable[[int, int], P]) -> PassSizes[P]:
        """`make` takes the rows of a pass and of an attention tile; an exact one takes all rows."""
        tile = self.rows if self.is_exact else PREFILL_TILE_ROWS
        return PassSizes(
            lambda rows: make(rows, tile), self.rows, PREFILL_BUCKETS, is_exact=self.is_exact
        )


def bucket_of(count: int, buckets: Sequence[int]) -> int:
    return next(bucket for bucket in buckets if bucket >= count)


def buckets_up_to(most: int, buckets: Sequence[int]) -> list[int]:
    return [bucket for bucket in buckets if bucket <= bucket_of(most, buckets)]


class PackedRows:
    """Device tensors that describe the rows of a pass; their addresses never change.

    Attributes:
        ids: int32 [rows] id of each row, 0 for padding.
        vector_of_row: int32 [rows] index of a row's vector; NO_VECTOR for none.
        last_rows: int32 [sequences] last row of each conversation, 0 for padding.
        map: positions and pages of rows, as attention reads them.
        vectors: [rows, width] vectors of the pass, concatenated; None if it takes none.
    """

    def __init__(
        self, store: KvStore, rows: int, *, rows_per_tile: int = 1, vectors: Tensor | None = None
    ) -> None:
        """Allocate; `rows_per_tile` is 1 if every conversation has exactly one row."""
        self.store, self.vectors = store, vectors
        tiles = min(rows, rows // rows_per_tile + MOST_SEQUENCES)
        self._sizes = (rows, rows, rows, rows, tiles, tiles, min(rows, MOST_SEQUENCES))
        self._staging = Staging(1, sum(self._sizes), store.device)
        words = self._staging.device_words[0].split(self._sizes)
        self.ids, self.vector_of_row, positions, sequences, first, counts, self.last_rows = words
        self.map = RowMap(positions, sequences, store.page_table, first, counts, rows_per_tile)
        self.load(())

    def load(self, parts: Sequence[FedRows]) -> None:
        """Describe a pass with one upload, in the order of the current stream; copy its vectors.

        `parts` are of different conversations; without any, all rows are padding.
        """
        columns: tuple[list[int], ...] = tuple([] for _ in self._sizes)
        ids, vector_of_row, positions, sequences, tile_first_row, tile_rows, last_rows = columns
        step, n_vectors = self.map.rows_per_tile, 0
        for part in parts:
            start, count = len(ids), len(part)
            first = part.kv.length + part.offset
            ids += part.rows.ids
            vector_of_row += [NO_VECTOR] * count
            positions += range(first, first + count)
            sequences += [part.kv.slot] * count
            tile_first_row += range(start, start + count, step)
            tile_rows += [min(step, count - at) for at in range(0, count, step)]
            last_rows.append(start + count - 1)
            for at, vectors in part.rows.vectors:
                first_row, after = start + at, n_vectors + len(vectors)
                vector_of_row[first_row : first_row + len(vectors)] = range(n_vectors, after)
                n_vectors = after
        words = array("i")
        for column, size, padding in zip(columns, self._sizes, PADDING, strict=True):
            assert len(column) <= size
            words.extend(column + [padding] * (size - len(column)))
        self._staging.begin()[0] = words
        self._staging.send()
        if n_vectors:
            assert self.vectors is not None, "the pass takes vectors"
            runs = [vectors for part in parts for _, vectors in part.rows.vectors]
            torch.cat(runs, out=self.vectors[:n_vectors])

    def spread(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's vector [rows, width], and whether it has one, bool [rows, 1]."""
        chosen = self.vector_of_row
        return vectors.index_select(0, chosen.clamp(min=0)), chosen[:, None] != NO_VECTOR

    def batch(self) -> PackedRows:
        """Return the rows as a decoder's batch, which reads the map anew; part of captured work."""
        self.map = self.map.fresh()
        return self

    def attend(self, layer: int, qkv: Tensor, norms: Norms) -> Tensor:
        """Attend over the pages of the store, which take the rows' keys and values, too."""
        store = self.store
        scales = None if store.scales is None else store.scales[layer]
        eps, pages = store.shape.rms_norm_eps, store.pool[layer]
        return attend(qkv, norms, eps, store.tables, self.map, pages, scales)
