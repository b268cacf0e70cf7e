"""Which columns of a stream's attention cache hold what; columns are never moved.

Pure bookkeeping on the host: a chunk's new columns take the places of those it pushes out. Never
touches a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from MiniCPMO45.device.stream_table import DROPPED

KNOWN_ORDERS = 4096  # a running turn repeats a few of them

Columns = NDArray[np.int32]


@dataclass(frozen=True)
class ColumnLedger:
    """Occupied columns in the order the cache's rule counts them.

    After every chunk columns 0 ... length - 1 are occupied, so a length says what can be seen.

    Attributes:
        first: columns kept from the front of the order.
        last: columns kept from its end.
        newest_first: a new chunk goes to the front, as in the estimator; else to the end.
        order: the occupied columns, 32-bit integers; bytes, because those are quickly looked up.

    Source: docs/specification/model.md#7.2 and #7.3.
    """

    first: int
    last: int
    newest_first: bool
    order: bytes = b""

    @property
    def columns(self) -> Columns:
        """The occupied columns in order, read only."""
        return np.frombuffer(self.order, np.int32)

    @property
    def length(self) -> int:
        """Columns occupied."""
        return len(self.order) // np.dtype(np.int32).itemsize

    @property
    def capacity(self) -> int:
        """Columns that can be occupied."""
        return self.first + self.last

    def filled(self, columns: Sequence[int]) -> Self:
        """Return a ledger of the same rule with these columns, 0 ... n - 1 in some order."""
        return replace(self, order=np.array(columns, np.int32).tobytes())

    def append(self, n_new: int) -> tuple[Columns, ColumnLedger]:
        """Place a chunk.

        Args:
            n_new: columns of the chunk.

        Returns:
            Target of each new column, `DROPPED` where it is not kept; and the ledger afterwards.
        """
        return _append(self, n_new)

    def ages(self) -> Columns:
        """Distance of each column to the next new one [length], at least 1; read only."""
        return _ages(self.order)


@lru_cache(maxsize=KNOWN_ORDERS)
def _append(ledger: ColumnLedger, n_new: int) -> tuple[Columns, ColumnLedger]:
    new = np.arange(-1, -1 - n_new, -1, dtype=np.int32)  # places are found below
    parts = (new, ledger.columns) if ledger.newest_first else (ledger.columns, new)
    order = np.concatenate(parts)
    if len(order) > ledger.capacity:
        order = np.concatenate((order[: ledger.first], order[len(order) - ledger.last :]))
    is_new = order < 0
    is_free = np.ones(len(order), bool)
    is_free[order[~is_new]] = False
    places = np.flatnonzero(is_free).astype(np.int32)
    targets = np.full(n_new, DROPPED, np.int32)
    targets[-1 - order[is_new]] = places
    order[is_new] = places
    return targets, replace(ledger, order=order.tobytes())


@lru_cache(maxsize=KNOWN_ORDERS)
def _ages(order: bytes) -> Columns:
    columns = np.frombuffer(order, np.int32)
    ages = np.empty_like(columns)
    ages[columns] = np.arange(len(columns), 0, -1)
    return ages
