"""Keys and values of past tokens in pages of one pool, so that addresses never change.

A drop-in for `kv_cache`: the same handle, but a conversation takes a page when it grows into one
and gives pages back when it forgets. Captured graphs read a conversation's pages from its row of
the page table. Never moves a page.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.device import ops
from MiniCPMO45.device.row_map import PAGE_TOKENS
from MiniCPMO45.device.upload import upload
from MiniCPMO45.kv_cache import CacheFullError, CacheRangeError, KvHandle, KvRows, KvStore
from MiniCPMO45.rope import Rope

SLOTS = 512  # caches open at a time: conversations and forks of theirs


class PagedKvStore(KvStore):
    """One pool of pages and the table of who holds which.

    Attributes:
        pool: [layers, pages, 2, kv heads, page tokens, d]: keys, then values.
        page_table: int32 [slots, most pages of a conversation] on the device.
        page_tokens: tokens of one page.
    """

    def __init__(
        self,
        shape: DecoderConfig,
        rope: Rope,
        *,
        device: torch.device,
        dtype: torch.dtype,
        pages: int,
        can_grow: bool = False,
        page_tokens: int = PAGE_TOKENS,
        slots: int = SLOTS,
    ) -> None:
        """Allocate the pool.

        Args:
            shape: the decoder's shape.
            rope: its rotary tables.
            device: where the pool lies.
            dtype: of keys and values.
            pages: pages of the pool.
            can_grow: double a pool that is full; not under captured graphs, which keep addresses.
            page_tokens: tokens of one page.
            slots: caches that may hold tokens at a time.
        """
        super().__init__(shape, rope, device=device, dtype=dtype, initial_tokens=page_tokens)
        self.page_tokens = page_tokens
        self.can_grow = can_grow
        self.pool = self._allocate(pages)
        self.page_table = torch.zeros(
            (slots, -(-shape.max_position_embeddings // page_tokens)),
            dtype=torch.int32,
            device=device,
        )
        self._free_pages = list(reversed(range(pages)))
        self._free_slots = list(reversed(range(slots)))

    @property
    def page_bytes(self) -> int:
        """Memory of one page in all layers."""
        return self.page_tokens * self.bytes_per_token

    @property
    def free_pages(self) -> int:
        """Pages nobody holds."""
        return len(self._free_pages)

    @property
    def free_share(self) -> float:
        """How much of the pool nobody holds, 0 to 1; 1 of one that grows."""
        return 1.0 if self.can_grow else self.free_pages / self.pool.shape[1]

    def open(self) -> PagedKvHandle:
        """Return an empty handle; it takes pages when the first token arrives."""
        handle = PagedKvHandle(self)
        self.handles.add(handle)
        return handle

    def take_pages(self, count: int) -> list[int]:
        """Take pages out of the pool.

        Raises:
            CacheFullError: fewer are free.
        """
        if count > len(self._free_pages) and self.can_grow:
            self._grow(count)
        if count > len(self._free_pages):
            n_tokens = self.pool.shape[1] * self.page_tokens
            raise CacheFullError(
                f"the memory of all conversations together, {n_tokens} tokens, is used up; "
                "it is free again when one of them ends"
            )
        return [self._free_pages.pop() for _ in range(count)]

    def take_slot(self) -> int:
        """Take a row of the page table.

        Raises:
            CacheFullError: all are taken.
        """
        if not self._free_slots:
            raise CacheFullError(f"all {self.page_table.shape[0]} caches are in use")
        return self._free_slots.pop()

    def give_back(self, slots: list[int], pages: list[int]) -> None:
        """Return rows of the page table and pages; the lists are empty afterwards."""
        self._free_slots += slots
        self._free_pages += pages
        slots.clear()
        pages.clear()

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Do once what caches do between passes, so that the first time compiles nothing."""
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
        grown = self._allocate(max(2 * held, held + count))
        grown[:, :held] = self.pool
        self.pool = grown
        self._free_pages[:0] = reversed(range(held, grown.shape[1]))

    def _allocate(self, pages: int) -> Tensor:
        shape = self.shape
        return torch.zeros(
            (
                shape.num_hidden_layers,
                pages,
                2,
                shape.num_key_value_heads,
                self.page_tokens,
                shape.head_dim,
            ),
            dtype=self.dtype,
            device=self.device,
        )


class PagedKvHandle(KvHandle):
    """The cache of one conversation: a row of the page table and the pages named there.

    A handle that is merely forgotten gives its pages back, too.
    """

    store: PagedKvStore

    def __init__(self, store: PagedKvStore) -> None:
        self.store = store
        self.length = 0
        self._slots: list[int] = []  # none or one
        self._pages: list[int] = []
        weakref.finalize(self, store.give_back, self._slots, self._pages).atexit = False

    @property
    def slot(self) -> int:
        """Row of the page table; only a handle that has room for tokens has one."""
        return self._slots[0]

    @property
    def capacity(self) -> int:
        """Tokens that fit before another page is taken."""
        return len(self._pages) * self.store.page_tokens

    @property
    def nbytes(self) -> int:
        """Memory of the pages held."""
        return len(self._pages) * self.store.page_bytes

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all.

        Raises:
            CacheFullError: more than the model's context length, or than the pool has left.
        """
        self._check_context(tokens)
        store = self.store
        held = len(self._pages)
        missing = -(-tokens // store.page_tokens) - held
        if missing <= 0:
            return
        if not self._slots:
            self._slots.append(store.take_slot())
        taken = store.take_pages(missing)
        self._pages += taken
        upload(taken, store.page_table[self.slot, held : held + missing])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put new rows of one layer behind the held ones; `advance` makes them count.

        Args:
            layer: decoder layer.
            keys: [n, kv heads, d], already rotated.
            values: [n, kv heads, d].

        Returns:
            Copies of all keys and values of the layer including the new rows,
            [kv heads, length+n, d].
        """
        end = self.length + keys.shape[0]
        pages, offsets = self._places(0, end)
        all_keys, all_values = self.store.pool[layer, :, 0], self.store.pool[layer, :, 1]
        new = slice(self.length, end)
        all_keys[pages[new], :, offsets[new]] = keys
        all_values[pages[new], :, offsets[new]] = values
        return (
            all_keys[pages, :, offsets].transpose(0, 1),
            all_values[pages, :, offsets].transpose(0, 1),
        )

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on; whole pages behind it become free.

        Raises:
            CacheRangeError: `length` is negative or beyond the cache.
        """
        super().truncate(length)
        self._free_behind(length)

    def rows(self, start: int, stop: int) -> KvRows:
        """Copy positions [start, stop) out of the cache; an empty range is allowed.

        Raises:
            CacheRangeError: the range is reversed or outside the cache.
        """
        self._check_range(start, stop)
        if start == stop:
            none = self.store.pool[:, 0, 0, :, :0]
            return KvRows(none, none, start)
        pages, offsets = self._places(start, stop)
        taken = self.store.pool[:, pages, :, :, offsets]  # [n, layers, 2, kv heads, d]
        keys, values = taken.permute(2, 1, 3, 0, 4)
        return KvRows(keys, values, start)

    def put(self, rows: KvRows) -> None:
        """Append rows taken earlier, rotated to the positions they get now."""
        count = rows.keys.shape[2]
        if count == 0:
            return
        self.reserve(self.length + count)
        keys = self.store.rope.move(rows.keys, rows.start, self.length)
        pages, offsets = self._places(self.length, self.length + count)
        for index, new in enumerate((keys, rows.values)):
            into = self.store.pool[:, :, index]
            into[:, pages, :, offsets] = new.permute(2, 0, 1, 3)
        self.length += count

    def drop(self, start: int, stop: int) -> None:
        """Remove cached positions [start, stop) and close the gap in place.

        Args:
            start: first position to remove.
            stop: one past the last position to remove, 0 <= start < stop <= length.

        Raises:
            CacheRangeError: the range is empty or outside the cache.
        """
        if not 0 <= start < stop <= self.length:
            raise CacheRangeError(f"cannot drop [{start}, {stop}) of {self.length} tokens")
        count = self.length - stop
        if count:
            distance = torch.full((1,), start - stop, device=self.store.device)
            cos, sin = self.store.rope.tables(distance, torch.float32)
            pages = self.store.page_table[self.slot]
            ops.move_tokens(self.store.pool, pages, stop, start, count, cos[0], sin[0])
        self.truncate(start + count)

    def close(self) -> None:
        """Give the pages back; the handle is empty afterwards and leaves its store."""
        self.length = 0
        self.store.give_back(self._slots, self._pages)
        self.store.handles.discard(self)

    def _free_behind(self, length: int) -> None:
        kept = -(-length // self.store.page_tokens)
        freed = self._pages[kept:]
        del self._pages[kept:]
        self.store.give_back([], freed)

    def _page_index(self, count: int) -> Tensor:
        return self.store.page_table[self.slot, :count].long()

    def _places(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Page and place inside it of each position, int64 [n] each."""
        store = self.store
        positions = torch.arange(start, stop, device=store.device)
        pages = store.page_table[self.slot].index_select(0, positions // store.page_tokens)
        return pages.long(), positions % store.page_tokens
