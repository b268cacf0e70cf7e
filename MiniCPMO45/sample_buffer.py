"""A stretch of audio that grows at one end and shrinks at the other, without being copied.

Buffers never change: every operation gives a new one that shares its pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHORT_PIECE_SAMPLES = 16_000  # a shorter last piece is joined with what follows


@dataclass(frozen=True)
class SampleBuffer:
    """Samples in pieces.

    Attributes:
        pieces: float32 [n] each, oldest first; never written to.
        length: samples in all.
    """

    pieces: tuple[Tensor, ...] = ()
    length: int = 0

    @property
    def nbytes(self) -> int:
        """Memory of the pieces."""
        return sum(piece.nbytes for piece in self.pieces)

    def append(self, samples: Tensor) -> SampleBuffer:
        """Return the buffer with more samples [n] behind."""
        pieces, length = self.pieces, self.length + len(samples)
        if pieces and len(pieces[-1]) < SHORT_PIECE_SAMPLES:
            samples = torch.cat((pieces[-1], samples))
            pieces = pieces[:-1]
        return SampleBuffer((*pieces, samples), length)

    def drop(self, count: int) -> SampleBuffer:
        """Return the buffer without its first `count` samples, whose memory is let go."""
        kept = []
        skipped = count
        for piece in self.pieces:
            if skipped < len(piece):
                kept.append(piece[skipped:].clone() if skipped else piece)
            skipped = max(0, skipped - len(piece))
        return SampleBuffer(tuple(kept), self.length - count)

    def between(self, start: int, stop: int) -> Tensor:
        """Return samples [start, stop) as one tensor, as far as they exist."""
        found = []
        end = self.length
        for piece in reversed(self.pieces):
            begin = end - len(piece)
            if begin < stop and start < end:
                found.append(piece[max(0, start - begin) : stop - begin])
            if begin <= start:
                break
            end = begin
        if len(found) == 1:
            return found[0]
        return torch.cat(found[::-1]) if found else torch.zeros(0)
