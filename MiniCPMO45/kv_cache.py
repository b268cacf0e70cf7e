"""Keys and values of past tokens: one growable buffer per conversation.

The store hands out handles; a handle is the whole language-model memory of one conversation.
Positions are dense: the next token's position is always the handle's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.rope import Rope


class CacheRangeError(ValueError):
    """A cache range is empty, reversed or outside the cache."""


class CacheFullError(RuntimeError):
    """A conversation would grow past the context length of the model."""


@dataclass(frozen=True, eq=False)
class KvRows:
    """Cached rows taken out of a handle.

    Attributes:
        keys: [layers, kv heads, n, d], rotated for positions start ... start+n-1.
        values: [layers, kv heads, n, d].
        start: position of the first row.
    """

    keys: Tensor
    values: Tensor
    start: int


class KvStore:
    """Makes handles of one decoder's shape and knows how much memory they hold."""

    def __init__(
        self,
        shape: DecoderConfig,
        rope: Rope,
        *,
        device: torch.device,
        dtype: torch.dtype,
        initial_tokens: int = 1024,
    ) -> None:
        self.shape = shape
        self.rope = rope
        self.device = device
        self.dtype = dtype
        self.initial_tokens = initial_tokens
        self.handles: WeakSet[KvHandle] = WeakSet()

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token: keys and values of every layer."""
        elements = 2 * self.shape.num_hidden_layers * self.shape.num_key_value_heads
        return elements * self.shape.head_dim * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Memory held by all handles that were neither closed nor dropped."""
        return sum(handle.nbytes for handle in self.handles)

    @property
    def free_share(self) -> float:
        """How much of the memory set aside is free, 0 to 1; 1 where none is: memory is taken."""
        return 1.0

    def open(self) -> KvHandle:
        """Return an empty handle; its buffer is allocated when the first token arrives."""
        handle = KvHandle(self)
        self.handles.add(handle)
        return handle


class KvHandle:
    """The cache of one conversation.

    Attributes:
        length: tokens held.
    """

    def __init__(self, store: KvStore) -> None:
        self.store = store
        self.length = 0
        self._buffer = self._allocate(0)

    @property
    def capacity(self) -> int:
        """Tokens that fit before the buffer grows."""
        return self._buffer.shape[3]

    @property
    def nbytes(self) -> int:
        """Memory of the buffer."""
        return self._buffer.nbytes

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` in all, at least doubling so that growth is amortised.

        Raises:
            CacheFullError: more than the model's context length.
        """
        self._check_context(tokens)
        if tokens <= self.capacity:
            return
        room = max(tokens, 2 * self.capacity, self.store.initial_tokens)
        grown = self._allocate(min(room, self.store.shape.max_position_embeddings))
        grown[:, :, :, : self.length] = self._buffer[:, :, :, : self.length]
        self._buffer = grown

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put new rows of one layer behind the held ones; `advance` makes them count.

        Args:
            layer: decoder layer.
            keys: [n, kv heads, d], already rotated.
            values: [n, kv heads, d].

        Returns:
            All keys and values of the layer including the new rows, views [kv heads, length+n, d].
        """
        end = self.length + keys.shape[0]
        into = self._buffer[layer]
        into[0, :, self.length : end] = keys.transpose(0, 1)
        into[1, :, self.length : end] = values.transpose(0, 1)
        return into[0, :, :end], into[1, :, :end]

    def advance(self, tokens: int) -> None:
        """Count `tokens` written rows as held."""
        self.length += tokens

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on.

        Raises:
            CacheRangeError: `length` is negative or beyond the cache.
        """
        if not 0 <= length <= self.length:
            raise CacheRangeError(f"cannot truncate {self.length} tokens to {length}")
        self.length = length

    def rows(self, start: int, stop: int) -> KvRows:
        """Copy positions [start, stop) out of the cache; an empty range is allowed.

        Raises:
            CacheRangeError: the range is reversed or outside the cache.
        """
        self._check_range(start, stop)
        taken = self._buffer[:, :, :, start:stop].clone()
        return KvRows(taken[:, 0], taken[:, 1], start)

    def put(self, rows: KvRows) -> None:
        """Append rows taken earlier, rotated to the positions they get now."""
        count = rows.keys.shape[2]
        self.reserve(self.length + count)
        into = self._buffer[:, :, :, self.length : self.length + count]
        into[:, 0] = self.store.rope.move(rows.keys, rows.start, self.length)
        into[:, 1] = rows.values
        self.length += count

    def drop(self, start: int, stop: int) -> None:
        """Remove cached positions [start, stop) and close the gap.

        Keys behind the gap are rotated back by `stop - start`, so positions stay dense.

        Args:
            start: first position to remove.
            stop: one past the last position to remove, 0 <= start < stop <= length.

        Raises:
            CacheRangeError: the range is empty or outside the cache.
        """
        if not 0 <= start < stop <= self.length:
            raise CacheRangeError(f"cannot drop [{start}, {stop}) of {self.length} tokens")
        tail = self.rows(stop, self.length)
        self.truncate(start)
        self.put(tail)

    def close(self) -> None:
        """Give the memory back; the handle is empty afterwards and leaves its store."""
        self.length = 0
        self._buffer = self._allocate(0)
        self.store.handles.discard(self)

    def _check_context(self, tokens: int) -> None:
        limit = self.store.shape.max_position_embeddings
        if tokens > limit:
            raise CacheFullError(f"context of {tokens} tokens exceeds the model's limit of {limit}")

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.length:
            raise CacheRangeError(f"[{start}, {stop}) is outside a cache of {self.length} tokens")

    def _allocate(self, tokens: int) -> Tensor:
        shape, store = self.store.shape, self.store
        return torch.empty(
            (shape.num_hidden_layers, 2, shape.num_key_value_heads, tokens, shape.head_dim),
            dtype=store.dtype,
            device=store.device,
        )  # [layers, keys and values, kv heads, tokens, d]
