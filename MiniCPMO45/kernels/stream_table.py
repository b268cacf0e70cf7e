"""A table of integers that tells device work about the streams of a batch, one row each.

A row says where a stream's memory lies, how much of it counts and where new columns go. A replayed
graph reads the same place every time, so one copy to the device is all that a step is told.

Kernels reach the memory by raw addresses, which nothing keeps alive. This is safe because the
allocator reuses freed memory in the order of one CUDA stream, and because one thread uploads.
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

DROPPED = -1  # target of a new column that is not kept


class StreamTable:
    """Named columns of integers for S streams.

    Attributes:
        rows: int64 [S, width] on the device.
        memory: the tensors whose addresses are in the rows, by the name of that column, from
            `upload` to `release`. The plain operations reach the streams through them, kernels
            through the addresses.
    """

    def __init__(self, n_rows: int, sizes: Mapping[str, int], device: torch.device) -> None:
        """Allocate the table.

        Args:
            n_rows: streams S.
            sizes: integers per row under each name.
            device: where the streams live.
        """
        edges = pairwise(accumulate(sizes.values(), initial=0))
        self._places = {name: slice(*edge) for name, edge in zip(sizes, edges, strict=True)}
        shape = (n_rows, sum(sizes.values()))
        with torch.inference_mode(False):
            self._host = torch.zeros(shape, dtype=torch.int64, pin_memory=device.type == "cuda")
            self.rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._uploaded = torch.cuda.Event() if device.type == "cuda" else None
        self.memory: dict[str, Sequence[Tensor]] = {}
        self._owner: tuple[int, int] | None = None  # the thread and CUDA stream that upload

    def __getitem__(self, name: str) -> Tensor:
        """Return a named part of the rows, int64 [S, n] on the device."""
        return self.rows[:, self._places[name]]

    def place(self, name: str) -> int:
        """Return where in a row a named part begins."""
        return self._places[name].start

    def value(self, name: str, row: int) -> int:
        """Return a single integer of a row as it was filled in, without asking the device."""
        return int(self._host[row, self._places[name].start])

    def on_host(self) -> dict[str, NDArray[np.int64]]:
        """Return the parts by name, to be filled before `upload` [S, n]."""
        if self._uploaded is not None:
            self._uploaded.synchronize()  # the last copy may still read them
        rows = self._host.numpy()
        return {name: rows[:, place] for name, place in self._places.items()}

    def upload(self, memory: Mapping[str, Sequence[Tensor]]) -> None:
        """Send what was filled to the device, addresses included, without waiting.

        Args:
            memory: tensors, one per row, whose addresses belong under each name.
        """
        self._check_owner()
        self.memory = dict(memory)
        for name, tensors in memory.items():
            addresses = [tensor.data_ptr() for tensor in tensors]
            self._host[:, self._places[name]] = torch.tensor(addresses)[:, None]
        self.rows.copy_(self._host, non_blocking=True)
        if self._uploaded is not None:
            self._uploaded.record()

    def release(self) -> None:
        """Drop the tensors once the step is launched, so that a closed stream's memory is freed."""
        self.memory = {}

    def _check_owner(self) -> None:
        device = self.rows.device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        uploading = (threading.get_ident(), stream)
        self._owner = self._owner or uploading
        assert self._owner == uploading, "addresses are valid on one thread and CUDA stream only"


@dataclass(frozen=True)
class ColumnCache:
    """The attention caches of a table's streams, all of one kind.

    A stream's memory is [layers, group, heads, capacity, 2 * d], keys and values of a column side
    by side.

    Attributes:
        table: tells of the streams.
        name: prefix of its columns `address`, `capacity`, `length`, `targets` and `ages`.
        n_new: name of the number of new columns.
        heads: attention heads.
    """

    table: StreamTable
    name: str
    n_new: str
    heads: int

    @staticmethod
    def sizes(name: str, n_new: int, n_ages: int = 0) -> dict[str, int]:
        """Columns a table needs for such a cache; kernels count on the order of the first three.

        Args:
            name: prefix of the columns.
            n_new: columns a step may add.
            n_ages: columns whose distance counts; 0 where positions do not.
        """
        return {
            f"{name} address": 1,
            f"{name} capacity": 1,
            f"{name} length": 1,
            f"{name} targets": n_new,
            f"{name} ages": n_ages,
        }

    def column(self, part: str) -> str:
        """Full name of one of its columns."""
        return f"{self.name} {part}"

    def place(self, part: str) -> int:
        """Where in a row one of its columns begins."""
        return self.table.place(self.column(part))

    def memory_of(self, stream: int) -> Tensor:
        """A stream's memory."""
        return self.table.memory[self.column("address")][stream]

    def views(self, stream: int, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a stream's layer [group, heads, capacity, d] each."""
        keys, values = self.memory_of(stream)[layer].chunk(2, dim=-1)
        return keys, values
