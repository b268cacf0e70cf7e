"""Runs the layers of a decoder over packed rows and paged caches, with fused weights.

The module's own parameters become views of the fused ones, so nothing is held twice and loading
or saving the module works as before. Source: arXiv:2505.09388 for the layer's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.device import ops
from MiniCPMO45.device.paged_kv import PagedKvStore
from MiniCPMO45.device.row_map import RowMap
from MiniCPMO45.transformer import Decoder, DecoderLayer


def fuse(linears: Sequence[nn.Linear]) -> Tensor:
    """Return the weights of layers with one input as one matrix, [all outputs, inputs].

    The layers' own weights become views of it. Layers fused before are left as they are.
    """
    weights = [linear.weight.data for linear in linears]
    rows = sum(weight.shape[0] for weight in weights)
    if not _are_adjacent(weights):
        joined = torch.cat(weights)
        views = joined.split([weight.shape[0] for weight in weights])
        for linear, view in zip(linears, views, strict=True):
            linear.weight.data = view
    first = linears[0].weight.data
    return first.as_strided((rows, first.shape[1]), first.stride())


def _are_adjacent(weights: Sequence[Tensor]) -> bool:
    storage, at = weights[0].untyped_storage().data_ptr(), weights[0].data_ptr()
    for weight in weights:
        if weight.untyped_storage().data_ptr() != storage or weight.data_ptr() != at:
            return False
        at += weight.nbytes
    return True


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One layer as the operations want it; matrices are [outputs, inputs].

    Attributes:
        before_attention: [width] norm.
        qkv: queries, keys, values.
        q_norm: [d] norm of the queries, or None.
        k_norm: [d] norm of the keys, or None.
        out: attention output.
        before_feed_forward: [width] norm.
        gate_up: gate, then up.
        down: feed-forward output.
    """

    before_attention: Tensor
    qkv: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    before_feed_forward: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: nn.Module) -> LayerWeights:
        """Fuse a layer's weights."""
        assert isinstance(layer, DecoderLayer)
        attention, mlp = layer.self_attn, layer.mlp
        has_norms = attention.shape.has_qk_norm
        return cls(
            before_attention=layer.input_layernorm.weight.data,
            qkv=fuse((attention.q_proj, attention.k_proj, attention.v_proj)),
            q_norm=attention.q_norm.weight.data if has_norms else None,
            k_norm=attention.k_norm.weight.data if has_norms else None,
            out=attention.o_proj.weight.data,
            before_feed_forward=layer.post_attention_layernorm.weight.data,
            gate_up=fuse((mlp.gate_proj, mlp.up_proj)),
            down=mlp.down_proj.weight.data,
        )


class DecoderRunner:
    """A decoder's layers over the pages of one store.

    Attributes:
        store: makes its caches.
    """

    def __init__(self, decoder: Decoder, shape: DecoderConfig, store: PagedKvStore) -> None:
        self.store = store
        self._eps = shape.rms_norm_eps
        self._scale = shape.head_dim**-0.5
        self._layers = [LayerWeights.of(layer) for layer in decoder.layers]
        self._norm = decoder.norm.weight.data
        everywhere = torch.arange(shape.max_position_embeddings, device=store.device)
        cos, sin = store.rope.tables(everywhere, store.dtype)
        self._cos, self._sin = cos.float(), sin.float()  # [positions, d]

    def run(self, rows: Tensor, row_map: RowMap) -> Tensor:
        """Run packed rows through the layers; their keys and values go to their pages.

        Args:
            rows: [M, width] input embeddings.
            row_map: where they belong.

        Returns:
            [M, width] hidden states after the final norm.
        """
        for weights, pages in zip(self._layers, self.store.pool, strict=True):
            qkv = ops.norm_linear(rows, weights.before_attention, self._eps, weights.qkv)
            mixed = ops.attend(
                qkv,
                weights.q_norm,
                weights.k_norm,
                self._eps,
                self._cos,
                self._sin,
                row_map,
                pages,
                self._scale,
            )
            rows = ops.linear_add(mixed, weights.out, rows)
            inner = ops.norm_swiglu(rows, weights.before_feed_forward, self._eps, weights.gate_up)
            rows = ops.linear_add(inner, weights.down, rows)
        return ops.rms_norm(rows, self._norm, self._eps)
