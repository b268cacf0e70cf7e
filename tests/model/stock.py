"""The decoders of `transformers` with our weights, as reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.model.transformer import Decoder


def stock_decoder(decoder: Decoder, shape: DecoderConfig) -> nn.Module:
    """Return a library model that holds the weights of `decoder`, in its dtype."""
    table = decoder.embed_tokens.weight
    values: dict[str, Any] = {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": table.shape[0],
        "tie_word_embeddings": False,
    }
    model: nn.Module
    if shape.has_qk_norm:
        model = Qwen3Model(Qwen3Config(**values))
    else:
        model = LlamaModel(LlamaConfig(**values))
    model.load_state_dict(decoder.state_dict())
    nn.Module.to(model, table.device)
    for parameter in model.parameters():  # the rotary frequencies stay in float32
        parameter.data = parameter.data.to(table.dtype)
    return model.eval()


@torch.no_grad()
def stock_states(model: nn.Module, rows: Tensor) -> Tensor:
    """Return the states after the final norm of each sequence of input rows, [n, width]."""
    states: Tensor = model(inputs_embeds=rows[None], use_cache=False).last_hidden_state[0]
    return states
