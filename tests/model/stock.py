"""The decoders of `transformers` with our weights, as reference."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaModel, Qwen3Config, Qwen3Model

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.model.transformer import Decoder


def stock_decoder(decoder: Decoder, shape: DecoderConfig) -> nn.Module:
    """Return a library model that holds the weights of `decoder`, in its dtype."""
    table = decoder.embed_tokens.weight
    is_qwen = isinstance(shape, Qwen3Config)
    model: nn.Module = Qwen3Model(shape) if is_qwen else LlamaModel(shape)
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
