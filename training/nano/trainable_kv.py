"""A padded batch of whole sequences for `MiniCPMO45.engine.packed_rows`: one pass, with gradients.

Nothing is cached: every row's past is in the same batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.kernels.attention import rotated_heads
from MiniCPMO45.kernels.products import Rope
from MiniCPMO45.model.transformer import Norms


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """Sequences of one length, row after row; padding stands at their ends.

    Attributes:
        n_sequences: B; the rows are B times T.
        shape: of the decoder.
        cos: float32 [B * T, d] rotary table at each row's position.
        sin: float32 [B * T, d].
    """

    n_sequences: int
    shape: DecoderConfig
    cos: Tensor
    sin: Tensor

    @classmethod
    def build(
        cls, n_sequences: int, length: int, shape: DecoderConfig, device: torch.device
    ) -> PaddedBatch:
        """Lay out B sequences of T rows, all beginning at position 0."""
        rope = Rope.build(shape.head_dim, shape.rope_theta, device=device)
        positions = torch.arange(length, device=device)
        cos, sin = rope.tables(positions, torch.float32)
        return cls(n_sequences, shape, cos.repeat(n_sequences, 1), sin.repeat(n_sequences, 1))

    def attend(self, layer: int, qkv: Tensor, norms: Norms) -> Tensor:
        """Attend causally within each sequence; `layer` does not matter."""
        del layer
        shape = self.shape
        heads = rotated_heads(
            qkv, shape.num_key_value_heads, norms, shape.rms_norm_eps, self.cos, self.sin
        )
        q, k, v = (
            each.unflatten(0, (self.n_sequences, -1)).transpose(1, 2)  # [B, heads, T, d]
            for each in heads
        )
        repeats = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(repeats, dim=1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return mixed.transpose(1, 2).flatten(0, 1).flatten(1)
