"""Transformers: the decoder of text and speech, and the layers of both encoders.

The rows of several conversations share a decoder pass; a batch maps rows to caches. On a card
without gradients, one kernel adds and normalises an encoder's residual. Otherwise PyTorch computes
out of place, so that gradients can be recorded. Source: arXiv:2505.09388 for the decoder layer's
shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers import Qwen3Config

from MiniCPMO45.configuration_minicpmo import DecoderConfig, TTSConfig
from MiniCPMO45.kernels.dense_attention import attend_dense
from MiniCPMO45.kernels.device import runs_kernels
from MiniCPMO45.kernels.products import (
    Embedding,
    JoinedWeight,
    Linear,
    matrix_of,
    multiply,
    rms_norm,
)
from MiniCPMO45.kernels.stream_norms import gated_norm

Norms = tuple[Tensor, Tensor] | None  # weights for queries and keys


class RowBatch(Protocol):
    """Attention of a decoder's rows to their caches."""

    def attend(self, layer: int, qkv: Tensor, norms: Norms) -> Tensor:
        """Attend from new rows to their own conversations: [M, heads * d].

        `qkv` is [M, (heads + 2 * kv heads) * d]; the norms' weights are [d] each.
        """


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        width, d = shape.hidden_size, shape.head_dim
        self.q_proj = Linear(width, shape.num_attention_heads * d)
        self.k_proj = Linear(width, shape.num_key_value_heads * d)
        self.v_proj = Linear(width, shape.num_key_value_heads * d)
        self.o_proj = Linear(shape.num_attention_heads * d, width)
        self.has_norms = isinstance(shape, Qwen3Config)
        if self.has_norms:
            self.q_norm = RMSNorm(d, shape.rms_norm_eps)
            self.k_norm = RMSNorm(d, shape.rms_norm_eps)
        self.qkv = JoinedWeight(self._modules, "q_proj", "k_proj", "v_proj")

    @property
    def norms(self) -> Norms:
        return (self.q_norm.weight, self.k_norm.weight) if self.has_norms else None


class MLP(nn.Module):
    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)
        self.gate_up = JoinedWeight(self._modules, "gate_proj", "up_proj")


class DecoderLayer(nn.Module):
    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, rows: Tensor, batch: RowBatch, layer: int) -> Tensor:
        """Map rows [M, width] to [M, width]; attention goes through the batch."""
        attention, mlp = self.self_attn, self.mlp
        before, after = self.input_layernorm, self.post_attention_layernorm
        qkv = multiply(rows, attention.qkv(), before.weight, before.eps)
        mixed = batch.attend(layer, qkv, attention.norms)
        rows = multiply(mixed, matrix_of(attention.o_proj), residual=rows)
        inner = multiply(rows, mlp.gate_up(), after.weight, after.eps, is_gated=True)
        return multiply(inner, matrix_of(mlp.down_proj), residual=rows)


class Decoder(nn.Module):
    """Embedding table, layers and final norm, under the checkpoint's names."""

    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, rows: Tensor, batch: RowBatch) -> Tensor:
        """Run rows [M, width] of all conversations through the stack and its final norm."""
        for index, layer in enumerate(self.layers):
            rows = layer(rows, batch, index)
        return self.norm(rows)

    def fuse(self) -> None:
        """Fuse the weights for serving; the parameters become views."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            layer.self_attn.qkv.fuse()
            layer.mlp.gate_up.fuse()


class CausalLM(nn.Module):
    """A decoder with an untied output head."""

    def __init__(self, shape: DecoderConfig) -> None:
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head = Linear(shape.hidden_size, shape.vocab_size)


class Projector(nn.Module):
    def __init__(self, from_width: int, to_width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(from_width, to_width)
        self.linear2 = nn.Linear(to_width, to_width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., from_width] to [..., to_width]."""
        return self.linear2(F.relu(self.linear1(hidden)))


class MiniCPMTTS(nn.Module):
    def __init__(self, config: TTSConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.emb_text = nn.Embedding(config.num_text_tokens, width)
        self.projector_spk = Projector(config.llm_dim, width)
        self.projector_semantic = Projector(config.llm_dim, width)
        self.model = Decoder(config)
        self.emb_code = nn.ModuleList(
            nn.Embedding(config.num_audio_tokens, width) for _ in range(config.num_vq)
        )
        self.head_code = nn.ModuleList(
            weight_norm(nn.Linear(width, config.num_audio_tokens, bias=False), dim=0)
            for _ in range(config.num_vq)
        )

    def folded_head(self) -> Tensor:
        """Return the output matrix [codes, width] with the weight norm multiplied out."""
        prefix = "head_code.0.parametrizations.weight"
        gain = self.get_parameter(f"{prefix}.original0")  # [codes, 1]
        direction = self.get_parameter(f"{prefix}.original1")  # [codes, width]
        return torch._weight_norm(direction, gain, 0)


class EncoderBatch(Protocol):
    """Attention of an encoder's rows."""

    def buffer(self, layer: int) -> Tensor | None:
        """Return the output buffer of a layer's queries, keys and values, if any."""

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Attend with queries, keys and values [B, T, 3 * heads * d]: [B, T, heads * d]."""


@dataclass(frozen=True, eq=False)
class DenseAttention:
    """Attention of every row to the rows of its batch item that a mask allows."""

    heads: int
    mask: Tensor | None  # bool, broadcast to [B, heads, T, T], True where attention is allowed

    def buffer(self, layer: int) -> None:
        """No buffer."""

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        return attend_dense(qkv, self.heads, self.mask)


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, key_bias: bool) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide width {width}")
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=key_bias)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        self.qkv = JoinedWeight(self._modules, "q_proj", "k_proj", "v_proj")

    def forward(self, rows: Tensor, attention: EncoderBatch, layer: int) -> Tensor:
        """Attend among normalised rows [B, T, width]; return the residual branch."""
        weight, bias = self.qkv.tensors()
        qkv = attention.buffer(layer)
        if qkv is None:
            qkv = F.linear(rows, weight, bias)
        else:
            torch.addmm(bias, rows.flatten(0, 1), weight.T, out=qkv.flatten(0, 1))
        return self.out_proj(attention.attend(layer, qkv))


def fuse_attention(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, SelfAttention):
            part.qkv.fuse()


class EncoderLayer(nn.Module, ABC):
    """One pre-norm transformer layer; a subclass gives its parts their published names."""

    self_attn: SelfAttention
    norms: tuple[nn.LayerNorm, nn.LayerNorm]  # before the attention and the feed-forward part

    @abstractmethod
    def feed_forward(self, x: Tensor) -> Tensor:
        """Map normalised rows [B, T, width] to the residual branch."""

    def forward(
        self, x: Tensor, change: Tensor | None, attention: EncoderBatch, layer: int
    ) -> tuple[Tensor, Tensor]:
        """Return the residual [B, T, width] with `change` added, and the feed-forward branch."""
        before, between = self.norms
        x, y = add_norm(x, change, before)
        x, y = add_norm(x, self.self_attn(y, attention, layer), between)
        return x, self.feed_forward(y)


def run_layers(
    layers: nn.ModuleList, x: Tensor, attention: EncoderBatch, norm: nn.LayerNorm
) -> Tensor:
    """Run rows [B, T, width], contiguous, through a stack of `EncoderLayer` and its last norm."""
    change: Tensor | None = None
    for index, layer in enumerate(layers):
        x, change = layer(x, change, attention, index)
    return add_norm(x, change, norm)[1]


def add_norm(x: Tensor, change: Tensor | None, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Add a branch to the residual; return the sum and its norm, in the dtype of `x`.

    On a card x, contiguous, may be changed in place.
    """
    if runs_kernels(x):
        affine = norm.weight, norm.bias
        return x, gated_norm(x, change, None, affine, norm.eps, x.dtype)
    x = x if change is None else x + change
    return x, norm(x)
