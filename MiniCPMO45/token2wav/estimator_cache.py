"""What one stream's estimator remembers: attention columns and convolution tails per ODE step.

Only the set of columns matters to attention, not their order in memory; so columns never move
except into a hole that trimming leaves, and a chunk costs no copy of the history.
Source: docs/specification/model.md#7.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.token2wav.config import HISTORY_FRAMES

SPARE_FRAMES = 200  # columns beyond the prompt: history and the largest chunk


@dataclass
class EstimatorCache:
    """Caches of one stream, both guidance rows, all ODE steps.

    Attributes:
        attention: keys and values [N, depth, 2, heads, capacity, 2 * head_dim].
        convolution: tails of both convolutions [N, depth, 2, 2 * C, 2].
        columns: the occupied columns of `attention`, newest chunk first; they are always
            columns 0 ... length - 1 in some order.
    """

    attention: Tensor
    convolution: Tensor
    columns: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Frames remembered; also where the next chunk's slice of the noise starts."""
        return len(self.columns)

    @property
    def capacity(self) -> int:
        """Columns allocated."""
        return self.attention.shape[4]

    @property
    def nbytes(self) -> int:
        """Memory of both tensors."""
        return self.attention.nbytes + self.convolution.nbytes

    def clone(self) -> EstimatorCache:
        """Return an independent copy; only occupied columns are read."""
        attention = torch.empty_like(self.attention)
        attention[:, :, :, :, : self.length] = self.attention[:, :, :, :, : self.length]
        return EstimatorCache(attention, self.convolution.clone(), self.columns)

    def load(self, base: EstimatorCache) -> None:
        """Become a copy of `base` without a new allocation; the unused columns stay as they are.

        Args:
            base: cache with no more steps and columns than this one.
        """
        steps, length = base.attention.shape[0], base.length
        self.attention[:steps, :, :, :, :length] = base.attention[:, :, :, :, :length]
        self.convolution = base.convolution.clone()
        self.columns = base.columns

    def ordered_attention(self) -> Tensor:
        """Return the occupied columns, newest chunk first [N, depth, 2, heads, length, 2 * d]."""
        index = torch.tensor(self.columns, dtype=torch.long, device=self.attention.device)
        return self.attention.index_select(4, index)

    def begin(self, n_frames: int) -> list[EstimatorStep]:
        """Return one writer per ODE step for a chunk of `n_frames`.

        Nothing visible changes until `commit`; an abandoned chunk leaves the cache as it was.

        Raises:
            ValueError: the chunk does not fit behind what is remembered.
        """
        if self.length + n_frames > self.capacity:
            raise ValueError(
                f"a chunk of {n_frames} mel frames does not fit: {self.length} of "
                f"{self.capacity} columns are taken"
            )
        fresh = torch.empty_like(self.convolution)
        return [
            EstimatorStep(self.attention[step], self.convolution[step], fresh, step, self.length)
            for step in range(self.convolution.shape[0])
        ]

    def commit(self, steps: list[EstimatorStep], n_frames: int, prompt_frames: int) -> None:
        """Adopt a chunk, then keep the newest `prompt_frames` and the oldest 100 columns.

        Args:
            steps: the writers of `begin`, all of them used.
            n_frames: length of the chunk.
            prompt_frames: P, mel frames of the voice prompt.
        """
        start = self.length
        columns = (*range(start, start + n_frames), *self.columns)
        if len(columns) > prompt_frames + HISTORY_FRAMES:
            columns = columns[:prompt_frames] + columns[len(columns) - HISTORY_FRAMES :]
        self.convolution = steps[0].fresh
        self.columns = self._fill_holes(columns)

    def _fill_holes(self, columns: tuple[int, ...]) -> tuple[int, ...]:
        """Move columns until the kept ones are 0 ... length - 1; returns the new places."""
        length = len(columns)
        beyond = [column for column in columns if column >= length]
        if not beyond:
            return columns
        holes = sorted(set(range(length)) - set(columns))
        cache = self.attention
        for source, target, count in _runs(beyond, holes):
            # Slices, not an index: on this layout a gather costs many times the copy.
            cache[:, :, :, :, target : target + count] = cache[:, :, :, :, source : source + count]
        moved = dict(zip(beyond, holes, strict=True))
        return tuple(moved.get(column, column) for column in columns)


def _runs(sources: Sequence[int], targets: Sequence[int]) -> list[tuple[int, int, int]]:
    """Join neighbouring moves into (first source, first target, count)."""
    runs: list[tuple[int, int, int]] = []
    for source, target in zip(sources, targets, strict=True):
        if runs and (source, target) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((source, target, 1))
    return runs


@dataclass(frozen=True)
class EstimatorStep:
    """One ODE step's view of a stream's cache while a chunk is computed.

    Attributes:
        attention: [depth, 2, heads, capacity, 2 * head_dim].
        convolution: tails before the chunk [depth, 2, 2 * C, 2].
        fresh: tails after the chunk, all steps [N, depth, 2, 2 * C, 2].
        step: index of this step in `fresh`.
        length: columns occupied before the chunk.
    """

    attention: Tensor
    convolution: Tensor
    fresh: Tensor
    step: int
    length: int

    def extend(self, block: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put new keys and values [2, heads, T, head_dim] behind the old; return all of them."""
        n_new, head_dim = key.shape[2], key.shape[3]
        end = self.length + n_new
        cache = self.attention[block]
        cache[:, :, self.length : end, :head_dim] = key
        cache[:, :, self.length : end, head_dim:] = value
        return cache[:, :, :end, :head_dim], cache[:, :, :end, head_dim:]

    def convolution_past(self, block: int) -> Tensor:
        """Tails of both convolutions before the chunk [2, 2 * C, 2]."""
        return self.convolution[block]

    def keep_convolution(self, block: int, tails: Tensor) -> None:
        """Store the tails after the chunk [2, 2 * C, 2]."""
        self.fresh[self.step, block] = tails
