"""Sizes of a decoder, as small as a test of its caches needs."""

from __future__ import annotations

from transformers import LlamaConfig

from MiniCPMO45.engine.kv_cache import KvStore


def decoder_shape(
    width: int = 2,
    *,
    layers: int = 1,
    heads: int = 1,
    kv_heads: int = 1,
    head_dim: int = 2,
    positions: int,
) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=positions,
    )


def held_tokens(store: KvStore) -> int:
    """Return the tokens that the pages of all conversations have room for."""
    return sum(handle.capacity for handle in store.handles)
