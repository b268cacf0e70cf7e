"""One chunk of several speech streams as a table: what a captured chunk is told beside noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from MiniCPMO45.device.stream_table import DROPPED, ColumnCache, StreamTable
from MiniCPMO45.device.vocoder_columns import ColumnLedger
from MiniCPMO45.device.vocoder_streams import Ledgers, StreamMemory, VocoderStream
from MiniCPMO45.token2wav.config import FlowConfig
from MiniCPMO45.token2wav.flow_encoder import UPSAMPLING

COUNTS = ("n_given", "n_codes", "n_frames")  # of a stream's codes and mel frames


@dataclass(frozen=True)
class ChunkShape:
    """What a captured chunk is sized for; smaller chunks are padded.

    Attributes:
        codes: speech codes consumed, T / 2.
        history: mel frames a voice's caches may hold, P + 100.
    """

    codes: int
    history: int

    @property
    def frames(self) -> int:
        """Mel frames T."""
        return UPSAMPLING * self.codes


@dataclass(frozen=True)
class ChunkInput:
    """One stream's share of a chunk.

    Attributes:
        stream: the stream.
        codes: the codes given, look-ahead included.
        n_codes: how many of them are consumed.
    """

    stream: VocoderStream
    codes: Sequence[int]
    n_codes: int


class ChunkPlan:
    """The table of a chunk of S streams.

    Attributes:
        shape: what it is sized for.
        table: the table.
        estimator: the estimator's caches.
        token_rate: those of the encoder's layers at 25/s.
        mel_rate: those of its layers at 50/s.
    """

    def __init__(
        self, n_rows: int, shape: ChunkShape, config: FlowConfig, device: torch.device
    ) -> None:
        """Allocate the table.

        Args:
            n_rows: streams S.
            shape: sizes.
            config: of the flow.
            device: where the streams live.
        """
        self.shape = shape
        n_given = shape.codes + config.encoder.pre_lookahead_len
        sizes = {"tails": 1, "n_given": 1, "n_codes": 1, "n_frames": 1, "has_started": 1}
        sizes |= {"codes": n_given}
        sizes |= ColumnCache.sizes("estimator", shape.frames)
        sizes |= ColumnCache.sizes("token rate", shape.codes, shape.history // UPSAMPLING)
        sizes |= ColumnCache.sizes("mel rate", shape.frames, shape.history)
        self.table = table = StreamTable(n_rows, sizes, device)
        of_encoder = config.encoder.attention_heads
        self.estimator = ColumnCache(table, "estimator", "n_frames", config.estimator.num_heads)
        self.token_rate = ColumnCache(table, "token rate", "n_codes", of_encoder)
        self.mel_rate = ColumnCache(table, "mel rate", "n_frames", of_encoder)

    @property
    def caches(self) -> tuple[ColumnCache, ColumnCache, ColumnCache]:
        """All caches, in the order of a stream's own."""
        return self.estimator, self.token_rate, self.mel_rate

    def __getitem__(self, name: str) -> Tensor:
        """Return a named part of the table, int64 [S, n] on the device."""
        return self.table[name]

    def load(self, inputs: Sequence[ChunkInput], nobody: StreamMemory) -> list[Ledgers]:
        """Fill the table and send it to the device.

        Args:
            inputs: at most one per row.
            nobody: written to for the rows that are left.

        Returns:
            The ledgers of each stream after the chunk; the streams are not changed.
        """
        host, n = self.table.on_host(), len(inputs)
        counts = [(len(e.codes), e.n_codes, UPSAMPLING * e.n_codes) for e in inputs]
        for name, values in zip(COUNTS, zip(*counts, strict=True), strict=False):
            host[name][:n, 0] = values
        host["has_started"][:n, 0] = [each.stream.has_started for each in inputs]
        host["n_given"][n:] = host["has_started"][n:] = 0
        host["n_codes"][n:], host["n_frames"][n:] = self.shape.codes, self.shape.frames
        for row, each in enumerate(inputs):
            host["codes"][row, : len(each.codes)] = each.codes
        after = [self._place(host, index, cache, inputs) for index, cache in enumerate(self.caches)]
        idle = len(self.table.rows) - n
        memories = [each.stream.memory for each in inputs] + [nobody] * idle
        addresses = {"tails": [memory.tails for memory in memories]}
        for index, cache in enumerate(self.caches):
            addresses[cache.column("address")] = [memory.caches[index] for memory in memories]
        self.table.upload(addresses)
        return list(zip(*after, strict=True))

    def _place(
        self,
        host: dict[str, NDArray[np.int64]],
        index: int,
        cache: ColumnCache,
        inputs: Sequence[ChunkInput],
    ) -> list[ColumnLedger]:
        """Fill in one cache of every stream; returns its ledgers after the chunk."""
        n = len(inputs)
        ledgers = [each.stream.ledgers[index] for each in inputs]
        capacity, length = host[cache.column("capacity")], host[cache.column("length")]
        capacity[:n, 0] = [ledger.capacity for ledger in ledgers]
        length[:n, 0] = [ledger.length for ledger in ledgers]
        capacity[n:], length[n:] = 0, 0
        places, ages = host[cache.column("targets")], host[cache.column("ages")]
        places[:] = DROPPED
        after = []
        for row, (each, ledger) in enumerate(zip(inputs, ledgers, strict=True)):
            n_new = each.n_codes * (1 if cache is self.token_rate else UPSAMPLING)
            places[row, :n_new], grown = ledger.append(n_new)
            if cache is not self.estimator:
                ages[row, : ledger.length] = ledger.ages()
            after.append(grown)
        return after
