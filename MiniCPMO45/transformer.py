"""The decoder-only transformer behind both the language model and the speech decoder.

Several conversations run in one pass: their rows are concatenated for every linear layer, and
attention is computed per conversation against its own cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.kv_cache import KvHandle
from MiniCPMO45.rope import Rope, apply_rotation


@dataclass(frozen=True, eq=False)
class Segment:
    """The rows of one conversation inside a packed batch.

    Attributes:
        kv: the conversation's cache.
        start: first row in the batch.
        count: number of rows.
        mask: bool [count, length+count], True where a row may attend; None when it sees all.
    """

    kv: KvHandle
    start: int
    count: int
    mask: Tensor | None


class RowBatch(Protocol):
    """How rows find their past: what every layer asks of a batch.

    Attributes:
        cos: [rows, d] rotary table at each row's position.
        sin: [rows, d].
    """

    @property
    def cos(self) -> Tensor: ...

    @property
    def sin(self) -> Tensor: ...

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Let new rows attend to their own conversations."""
        ...

    def advance(self) -> None:
        """Count the rows as held, once every layer has written them."""
        ...


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """How concatenated rows map to conversations and positions.

    Attributes:
        segments: one per conversation, in row order.
        cos: [rows, d] rotary table at each row's position.
        sin: [rows, d].
    """

    segments: tuple[Segment, ...]
    cos: Tensor
    sin: Tensor

    @classmethod
    def build(
        cls, parts: Sequence[tuple[KvHandle, int]], rope: Rope, dtype: torch.dtype
    ) -> PackedBatch:
        """Lay out (cache, new rows) pairs and make room in every cache.

        Raises:
            CacheFullError: a conversation would exceed the context length.
            ValueError: one conversation appears twice.
        """
        if len({id(kv) for kv, _ in parts}) != len(parts):
            raise ValueError("one cache may appear only once in a batch")
        segments, positions, start = [], [], 0
        for kv, count in parts:
            kv.reserve(kv.length + count)
            segments.append(Segment(kv, start, count, _causal_mask(kv, count)))
            positions.append(torch.arange(kv.length, kv.length + count, device=kv.store.device))
            start += count
        cos, sin = rope.tables(torch.cat(positions), dtype)
        return cls(tuple(segments), cos, sin)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Let new rows attend to their own conversations, whose caches take them in.

        Args:
            layer: decoder layer.
            queries: [N, heads, d], rotated.
            keys: [N, kv heads, d], rotated.
            values: [N, kv heads, d].

        Returns:
            [N, heads, d].
        """
        mixed = torch.empty_like(queries)
        for segment in self.segments:
            own = slice(segment.start, segment.start + segment.count)
            all_keys, all_values = segment.kv.write(layer, keys[own], values[own])
            answer = F.scaled_dot_product_attention(
                queries[own].transpose(0, 1)[None],  # [1, heads, n, d]
                all_keys[None],
                all_values[None],
                attn_mask=segment.mask,
                enable_gqa=queries.shape[1] != keys.shape[1],
            )
            mixed[own] = answer[0].transpose(0, 1)
        return mixed

    def advance(self) -> None:
        """Count the rows as held, once every layer has written them."""
        for segment in self.segments:
            segment.kv.advance(segment.count)


def _causal_mask(kv: KvHandle, count: int) -> Tensor | None:
    if count == 1:
        return None
    everything = torch.ones(count, kv.length + count, dtype=torch.bool, device=kv.store.device)
    return everything.tril(diagonal=kv.length)


class RMSNorm(nn.Module):
    """Root-mean-square norm with float32 statistics."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis of `x` [..., width]."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions and optional norms on queries and keys."""

    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        width, d = shape.hidden_size, shape.head_dim
        self.shape = shape
        self.q_proj = nn.Linear(width, shape.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(width, shape.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(width, shape.num_key_value_heads * d, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * d, width, bias=False)
        if shape.has_qk_norm:
            self.q_norm = RMSNorm(d, shape.rms_norm_eps)
            self.k_norm = RMSNorm(d, shape.rms_norm_eps)

    def forward(self, x: Tensor, batch: RowBatch, layer: int) -> Tensor:
        """Attend rows [N, width] to their conversations' caches, which take the new rows in."""
        d = self.shape.head_dim
        queries = self.q_proj(x).unflatten(-1, (-1, d))  # [N, heads, d]
        keys = self.k_proj(x).unflatten(-1, (-1, d))  # [N, kv heads, d]
        values = self.v_proj(x).unflatten(-1, (-1, d))
        if self.shape.has_qk_norm:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries = apply_rotation(queries, batch.cos, batch.sin)
        keys = apply_rotation(keys, batch.cos, batch.sin)
        mixed = batch.attend(layer, queries, keys, values)
        return self.o_proj(mixed.flatten(1))  # [N, width]


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows [N, width] to [N, width]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward with residuals."""

    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, batch: RowBatch, layer: int) -> Tensor:
        """Map rows [N, width] to [N, width]."""
        x = x + self.self_attn(self.input_layernorm(x), batch, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding table, layers and final norm, under the checkpoint's names."""

    def __init__(self, shape: DecoderConfig, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, rows: Tensor, batch: RowBatch) -> Tensor:
        """Run new rows of all conversations through the stack and extend their caches.

        Args:
            rows: [N, width] input embeddings, concatenated over conversations.
            batch: which rows belong to which cache.

        Returns:
            [N, width] hidden states after the final norm.
        """
        for index, layer in enumerate(self.layers):
            rows = layer(rows, batch, index)
        batch.advance()
        return self.norm(rows)


class CausalLM(nn.Module):
    """A decoder with an untied output head."""

    def __init__(self, shape: DecoderConfig, vocab_size: int) -> None:
        super().__init__()
        self.model = Decoder(shape, vocab_size)
        self.lm_head = nn.Linear(shape.hidden_size, vocab_size, bias=False)
