"""The flow's encoder on padded chunks: speech codes of many streams to mel-rate features.

Functions of packed weights, a plan and tensors; never remembers a stream.
Source: docs/specification/model.md#7.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.device import stream_ops
from MiniCPMO45.device.packed_linear import Affine, PackedLinear, all_of, pack_norm
from MiniCPMO45.device.stream_table import ColumnCache
from MiniCPMO45.device.vocoder_plan import ChunkPlan, ChunkShape
from MiniCPMO45.token2wav.flow import Flow
from MiniCPMO45.token2wav.flow_encoder import (
    LAYER_NORM_EPS,
    LEAKY_SLOPE,
    UPSAMPLING,
    ConformerLayer,
    InputProjection,
    relative_positions,
)

TAPS = 3  # of the second look-ahead convolution


@dataclass(frozen=True)
class PackedConformer:
    """Weights of one conformer layer.

    Attributes:
        norms: scale and shift in front of attention and feed-forward.
        qkv: queries, keys and values; the queries' bias holds the content bias too.
        position_shift: position bias minus content bias [heads, 1, d].
        places: projected sinusoids by distance, from -(longest chunk - 1) up [heads, d, W].
        out: output projection of the attention.
        up: first layer of the feed-forward.
        down: second layer.
        longest_chunk: positions of the longest chunk the table is for.
    """

    norms: tuple[Affine, Affine]
    qkv: PackedLinear
    position_shift: Tensor
    places: Tensor
    out: PackedLinear
    up: PackedLinear
    down: PackedLinear
    longest_chunk: int

    @classmethod
    def of(
        cls, layer: ConformerLayer, n_query: int, n_key: int, dtype: torch.dtype
    ) -> PackedConformer:
        """Pack a layer.

        Args:
            layer: the checkpoint's.
            n_query: positions of the longest chunk.
            n_key: the most positions that are remembered.
            dtype: to compute in.
        """
        attention = layer.self_attn
        content, position = attention.pos_bias_u.detach(), attention.pos_bias_v.detach()
        parts = (attention.linear_q, attention.linear_k, attention.linear_v)
        bias = torch.cat([part.bias for part in parts])
        bias = torch.cat((bias[: content.numel()] + content.flatten(), bias[content.numel() :]))
        table = relative_positions(n_query, n_key + n_query, content.numel(), content).flip(0)
        places = attention.linear_pos(table).unflatten(1, content.shape)  # [W, heads, d]
        return cls(
            (pack_norm(layer.norm_mha), pack_norm(layer.norm_ff)),
            PackedLinear.of(torch.cat([part.weight for part in parts]), bias, dtype),
            (position - content)[:, None].to(dtype),
            places.permute(1, 2, 0).to(dtype).contiguous(),
            PackedLinear.of(attention.linear_out.weight, attention.linear_out.bias, dtype),
            PackedLinear.of(layer.feed_forward.w_1.weight, layer.feed_forward.w_1.bias, dtype),
            PackedLinear.of(layer.feed_forward.w_2.weight, layer.feed_forward.w_2.bias, dtype),
            n_query,
        )

    def position_scores(self, qkv: Tensor, history: int) -> Tensor:
        """Score every distance a query may see.

        Args:
            qkv: [S, T, 3 * C].
            history: columns the cache may hold.

        Returns:
            [heads, S * T, history + 2 T - 1], distance -(T - 1) first.
        """
        heads, head_dim, _ = self.places.shape
        n_frames = qkv.shape[1]
        query = qkv[:, :, : heads * head_dim].unflatten(2, (heads, head_dim)).flatten(0, 1)
        query = query.transpose(0, 1) + self.position_shift  # [heads, S * T, d]
        begin = self.longest_chunk - n_frames
        return query @ self.places[:, :, begin : begin + history + 2 * n_frames - 1]


class PackedEncoder:
    """The whole encoder; weights only."""

    def __init__(self, flow: Flow, longest: ChunkShape, dtype: torch.dtype) -> None:
        """Pack the weights.

        Args:
            flow: the checkpoint's flow.
            longest: the largest chunk and history that can occur.
            dtype: to compute in.
        """
        encoder = flow.encoder
        self.dtype = dtype
        self.codes = flow.input_embedding.weight.detach()
        self.embeds = [_pack_embed(stage, dtype) for stage in (encoder.embed, encoder.up_embed)]
        ahead = encoder.pre_lookahead_layer
        self.look_ahead = PackedLinear.of_convolution(ahead.conv1, dtype)
        self.look_back = PackedLinear.of_convolution(ahead.conv2, dtype)
        self.upsample = PackedLinear.of_convolution(encoder.up_layer.conv, dtype)
        self.token_layers = [
            PackedConformer.of(layer, longest.codes, longest.history // UPSAMPLING, dtype)
            for layer in all_of(ConformerLayer, encoder.encoders)
        ]
        self.mel_layers = [
            PackedConformer.of(layer, longest.frames, longest.history, dtype)
            for layer in all_of(ConformerLayer, encoder.up_encoders)
        ]
        self.after_norm = encoder.after_norm
        self.project = PackedLinear.of(
            flow.encoder_proj.weight, flow.encoder_proj.bias, torch.float32
        )

    def __call__(
        self, plan: ChunkPlan, tails: dict[str, Tensor], new_tails: dict[str, Tensor]
    ) -> Tensor:
        """Encode the plan's codes and remember them in the streams.

        Args:
            plan: the chunk of S streams.
            tails: what was remembered, by name.
            new_tails: receives what is to be remembered.

        Returns:
            mu, float32 [S, T, bins]; frames behind a stream's end mean nothing.
        """
        codes = plan["codes"]
        is_given = torch.arange(codes.shape[1], device=codes.device) < plan["n_given"]
        x = self._embed(0, self.codes[codes]) * is_given[:, :, None]  # [S, t + 3, C]
        n_taps = self.look_ahead.weight.shape[1] // x.shape[2]
        ahead = self._taps(x, n_taps)
        ahead = F.leaky_relu(self.look_ahead(ahead.to(self.dtype)).float(), LEAKY_SLOPE)
        back, new_tails["lookahead"][:] = self._with_past(
            ahead, tails["lookahead"], plan["n_codes"]
        )
        x = x[:, : ahead.shape[1]] + self.look_back(self._taps(back, TAPS)).float()
        history = plan.shape.history
        x = self._run_layers(x, self.token_layers, plan.token_rate, history // UPSAMPLING)
        x = x.repeat_interleave(UPSAMPLING, dim=1)
        past, new_tails["upsample"][:] = self._with_past(x, tails["upsample"], plan["n_frames"])
        x = self.upsample(self._taps(past, past.shape[1] - x.shape[1] + 1))
        x = self._run_layers(self._embed(1, x), self.mel_layers, plan.mel_rate, history)
        return self.project(self.after_norm(x))

    def _embed(self, stage: int, x: Tensor) -> Tensor:
        linear, norm = self.embeds[stage]
        x = norm(linear(x.to(self.dtype)).float())
        return x * math.sqrt(x.shape[2])

    def _with_past(self, x: Tensor, tail: Tensor, n_frames: Tensor) -> tuple[Tensor, Tensor]:
        """Join a tail [S, n, C] and x [S, T, C], and return the next tail too."""
        joined = torch.cat((tail, x), dim=1)
        places = n_frames + torch.arange(tail.shape[1], device=x.device)  # [S, n]
        return joined.to(self.dtype), joined.gather(
            1, places[:, :, None].expand(-1, -1, x.shape[2])
        )

    @staticmethod
    def _taps(x: Tensor, n_taps: int) -> Tensor:
        """Lay [S, T + n - 1, C] out as the rows of a convolution [S, T, n * C]."""
        length = x.shape[1] - n_taps + 1
        return torch.cat([x[:, tap : tap + length] for tap in range(n_taps)], dim=2)

    def _run_layers(
        self, x: Tensor, layers: Sequence[PackedConformer], cache: ColumnCache, history: int
    ) -> Tensor:
        """Run the layers of one rate over x [S, T, C] and store their keys and values."""
        shape = (len(layers), *x.shape[:2], 3 * x.shape[2])
        seen = torch.empty(shape, dtype=self.dtype, device=x.device)
        x = x.float().contiguous()
        change: Tensor | None = None
        for index, layer in enumerate(layers):
            for_attention, for_feed_forward = layer.norms
            y = stream_ops.gated_norm(x, change, None, for_attention, LAYER_NORM_EPS, self.dtype)
            qkv = layer.qkv.into(y, seen[index])
            scores = layer.position_scores(qkv, history)
            mixed = stream_ops.attend(qkv, scores, cache, index)
            y = stream_ops.gated_norm(
                x, layer.out(mixed), None, for_feed_forward, LAYER_NORM_EPS, self.dtype
            )
            change = layer.down(F.silu(layer.up(y)))
        stream_ops.store_columns(seen, cache, 0)
        assert change is not None
        return x + change.float()


def _pack_embed(stage: InputProjection, dtype: torch.dtype) -> tuple[PackedLinear, nn.LayerNorm]:
    first, second = stage.out.children()
    [linear], [norm] = all_of(nn.Linear, [first]), all_of(nn.LayerNorm, [second])
    return PackedLinear.of(linear.weight, linear.bias, dtype), norm
