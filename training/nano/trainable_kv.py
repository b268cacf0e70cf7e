"""A padded batch of whole sequences for `MiniCPMO45.transformer`: one pass, with gradients.

Nothing is cached: every row's past is in the same batch. It stands where the served path has a
`PackedBatch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.rope import Rope


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """Sequences of one length, row after row; padding stands at their ends.

    Attributes:
        n_sequences: B; the rows are B times T.
        cos: [B * T, d] rotary table at each row's position.
        sin: [B * T, d].
    """

    n_sequences: int
    cos: Tensor
    sin: Tensor

    @classmethod
    def build(cls, n_sequences: int, length: int, rope: Rope, dtype: torch.dtype) -> PaddedBatch:
        """Lay out B sequences of T rows, all beginning at position 0."""
        positions = torch.arange(length, device=rope.frequencies.device)
        cos, sin = rope.tables(positions, dtype)
        return cls(n_sequences, cos.repeat(n_sequences, 1), sin.repeat(n_sequences, 1))

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend causally within each sequence: [B * T, heads, d]; `layer` does not matter."""
        del layer
        q, k, v = (
            each.unflatten(0, (self.n_sequences, -1)).transpose(1, 2)  # [B, heads, T, d]
            for each in (queries, keys, values)
        )
        repeats = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(repeats, dim=1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    def advance(self) -> None:
        """Nothing is held between passes."""
