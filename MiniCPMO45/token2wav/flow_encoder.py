"""The flow's layers, and its conformer: speech codes (25/s) to features (50/s), chunk by chunk.

Streams of a batch may differ in age; their state is updated in place. Modules hold weights only.
The residual stream and the norms are float32; products use the dtype passed to `pack`.
Source: docs/specification/model.md#7.2.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.kernels.products import linear_gelu
from MiniCPMO45.kernels.stream_memory import StreamCache, attend, store_entries
from MiniCPMO45.kernels.stream_norms import gated_norm
from MiniCPMO45.token2wav.config import UPSAMPLING, FlowEncoderConfig
from MiniCPMO45.token2wav.vocoder_state import ChunkBatch


class Linear(nn.Linear):
    """Maps to the dtype of its weights, which `pack_all` sets."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)

    def gelu(self, x: Tensor) -> Tensor:
        """Map [..., C_in] to [..., C_out] and apply GELU, approximated with tanh."""
        return linear_gelu(x, self.weight, self.bias)


class TapConvolution(nn.Conv1d):
    """A convolution without padding, as one product over the unfolded taps."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [S, T + taps - 1, C_in] to [S, T, C_out]."""
        x, n_taps = x.to(self.weight.dtype), self.kernel_size[0]
        length = x.shape[1] - n_taps + 1
        return self.product(torch.cat([x[:, tap : tap + length] for tap in range(n_taps)], dim=2))

    def product(self, rows: Tensor) -> Tensor:
        """Map rows [..., taps * C_in], the oldest tap first, to [..., C_out]."""
        return F.linear(rows.to(self.weight.dtype), self.matrix, self.bias)

    @property
    def matrix(self) -> Tensor:
        """[out, taps * in], the oldest tap first; after `pack_all` a view of the weight."""
        return self.weight.permute(0, 2, 1).flatten(1)


def pack_all(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of the products in place, a convolution's to the layout of its matrix."""
    for each in module.modules():
        if isinstance(each, Linear | TapConvolution):
            each.to(dtype)
        if isinstance(each, TapConvolution):
            taps = each.matrix.unflatten(1, (-1, each.in_channels))
            each.weight.data = taps.permute(0, 2, 1)


def project_into(x: Tensor, layer: tuple[Tensor, Tensor], out: Tensor) -> None:
    """Map x [..., in] by weight [out, in] and bias [out] into `out` [..., out], contiguous."""
    weight, bias = layer
    torch.addmm(bias, x.flatten(0, -2), weight.T, out=out.flatten(0, -2))


def with_past(x: Tensor, tail: Tensor, n_frames: Tensor | None) -> tuple[Tensor, Tensor]:
    """Prepend the tail [S, n, C] to a chunk [S, T, C], of which `n_frames` are valid, or all.

    Returns:
        The concatenation [S, n + T, C], and the next chunk's tail.
    """
    joined = torch.cat((tail, x), dim=1)
    if n_frames is None:
        return joined, joined[:, -tail.shape[1] :]
    places = n_frames + torch.arange(tail.shape[1], device=x.device)  # [S, n]
    return joined, joined.gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))


LAYER_NORM_EPS = 1e-12  # inside the conformer layers
INPUT_NORM_EPS = 1e-5
LEAKY_SLOPE = 0.01
POSITION_PERIOD = 10_000.0  # longest wavelength base of the sinusoids


def relative_positions(n_query: int, n_key: int, width: int, like: Tensor) -> Tensor:
    """Sinusoids of every distance between n_query new and n_key visible positions.

    Row r is that of distance `n_key - 1 - r`; the newest query sits at the newest key. Channels are
    sine on even places and cosine on odd ones.

    Returns:
        Table [n_query + n_key - 1, width].
    """
    rows = n_query + n_key - 1
    distance = torch.arange(n_key - 1, n_key - 1 - rows, -1, device=like.device).float()
    even = torch.arange(0, width, 2, device=like.device).float()
    angle = distance[:, None] * torch.exp(even * (-math.log(POSITION_PERIOD) / width))
    return torch.stack((angle.sin(), angle.cos()), dim=2).reshape(rows, width).to(like.dtype)


class RelativeAttention(nn.Module):
    """Multi-head attention with content and position scores (Transformer-XL form)."""

    qkv: tuple[Tensor, Tensor]  # weight and bias of queries, keys and values together
    position_shift: Tensor  # position bias minus content bias [heads, 1, d]
    places: Tensor  # projected sinusoids by distance, -(N - 1) to N - 1 [heads, d, 2 N - 1]

    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        width, heads = config.output_size, config.attention_heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, config.head_dim))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, config.head_dim))

    def pack(self, n_positions: int, dtype: torch.dtype) -> None:
        """Concatenate the weights and project the sinusoids."""
        content, position = self.pos_bias_u, self.pos_bias_v
        parts = (self.linear_q, self.linear_k, self.linear_v)
        bias = torch.cat([part.bias for part in parts])
        bias = torch.cat((bias[: content.numel()] + content.flatten(), bias[content.numel() :]))
        table = relative_positions(n_positions, n_positions, content.numel(), content).flip(0)
        places = self.linear_pos(table).unflatten(1, content.shape)  # [2 N - 1, heads, d]
        self.qkv = torch.cat([part.weight for part in parts]).to(dtype), bias.to(dtype)
        self.position_shift = (position - content)[:, None].to(dtype)
        self.places = places.permute(1, 2, 0).to(dtype).contiguous()

    def forward(
        self, x: Tensor, qkv: Tensor, cache: StreamCache, layer: int, history: int
    ) -> Tensor:
        """Attend from x [S, T, C] to the streams' caches and to itself: [S, T, C].

        `qkv` [S, T, 3 * C] receives queries, keys and values; a cache holds at most `history`
        entries.
        """
        project_into(x, self.qkv, qkv)
        scores = self._position_scores(qkv, history)
        return cast(Tensor, self.linear_out(attend(qkv, scores, cache, layer)))

    def _position_scores(self, qkv: Tensor, history: int) -> Tensor:
        """Score every distance that a query of qkv [S, T, 3 * C] may see.

        Returns:
            [heads, S * T, history + 2 T - 1], distance -(T - 1) first.
        """
        heads, head_dim, width = self.places.shape
        n_frames = qkv.shape[1]
        query = qkv[:, :, : heads * head_dim].unflatten(2, (heads, head_dim)).flatten(0, 1)
        query = query.transpose(0, 1) + self.position_shift  # [heads, S * T, d]
        begin = (width + 1) // 2 - n_frames
        return query @ self.places[:, :, begin : begin + history + 2 * n_frames - 1]


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1 = Linear(width, hidden)
        self.w_2 = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.w_2(F.silu(self.w_1(x))))


class ConformerLayer(nn.Module):
    """Pre-norm attention and feed-forward; no convolution module, no macaron half."""

    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config)
        self.feed_forward = FeedForward(config.output_size, config.linear_units)
        self.norm_mha = nn.LayerNorm(config.output_size, eps=LAYER_NORM_EPS)
        self.norm_ff = nn.LayerNorm(config.output_size, eps=LAYER_NORM_EPS)

    def forward(
        self,
        x: Tensor,
        change: Tensor | None,
        qkv: Tensor,
        cache: StreamCache,
        layer: int,
        history: int,
    ) -> Tensor:
        """Run the layer and return the feed-forward branch [S, T, C].

        The attention branch is added to `x`, the residual stream, float32 [S, T, C], as is
        `change`, the preceding layer's feed-forward branch. Other arguments as for
        `RelativeAttention.forward`.
        """
        norms = [(norm.weight, norm.bias) for norm in (self.norm_mha, self.norm_ff)]
        y = gated_norm(x, change, None, norms[0], LAYER_NORM_EPS, qkv.dtype)
        change = self.self_attn(y, qkv, cache, layer, history)
        y = gated_norm(x, change, None, norms[1], LAYER_NORM_EPS, qkv.dtype)
        return cast(Tensor, self.feed_forward(y))


class InputProjection(nn.Module):
    """Linear layer, layer norm, and the scale for sinusoidal positions."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.out = nn.Sequential(Linear(n_in, n_out), nn.LayerNorm(n_out, eps=INPUT_NORM_EPS))

    def forward(self, x: Tensor) -> Tensor:
        """Map [S, T, C_in] to float32 [S, T, C_out]."""
        linear, norm = self.out
        x = norm(linear(x).float())
        return x * math.sqrt(x.shape[2])


class LookaheadLayer(nn.Module):
    """Convolution over the next codes, then a causal one, with a residual."""

    def __init__(self, width: int, lookahead: int) -> None:
        super().__init__()
        self.conv1 = TapConvolution(width, width, kernel_size=lookahead + 1)
        self.conv2 = TapConvolution(width, width, kernel_size=3)

    def forward(
        self, x: Tensor, tail: Tensor, n_codes: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Map [S, t, C] to [S, t - lookahead, C]; the tail [S, 2, C] is that of the causal one."""
        ahead = F.leaky_relu(self.conv1(x).float(), LEAKY_SLOPE)
        joined, tail = with_past(ahead, tail, n_codes)
        return x[:, : ahead.shape[1]] + self.conv2(joined).float(), tail


class UpsampleLayer(nn.Module):
    """Doubles the rate: nearest neighbour, then a causal convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = TapConvolution(width, width, kernel_size=2 * UPSAMPLING + 1)

    def forward(
        self, x: Tensor, tail: Tensor, n_frames: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Map [S, T, C] to [S, 2T, C]; the tail [S, 4, C] is upsampled."""
        joined, tail = with_past(x.repeat_interleave(UPSAMPLING, dim=1), tail, n_frames)
        return self.conv(joined), tail


class FlowEncoder(nn.Module):
    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        width = config.output_size
        self.config = config
        self.dtype = torch.float32
        self.embed = InputProjection(config.input_size, width)
        self.pre_lookahead_layer = LookaheadLayer(width, config.pre_lookahead_len)
        self.encoders = nn.ModuleList(ConformerLayer(config) for _ in range(config.num_blocks))
        self.up_layer = UpsampleLayer(width)
        self.up_embed = InputProjection(width, width)
        self.up_encoders = nn.ModuleList(
            ConformerLayer(config) for _ in range(config.num_up_blocks)
        )
        self.after_norm = nn.LayerNorm(width, eps=INPUT_NORM_EPS)

    def forward(
        self, x: Tensor, batch: ChunkBatch, tails: dict[str, Tensor], new_tails: dict[str, Tensor]
    ) -> Tensor:
        """Encode the next codes [S, t + look-ahead, C_in] and update the streams' state.

        Returns:
            Features, float32 [S, T, C]; undefined beyond a stream's end.
        """
        given = torch.arange(x.shape[1], device=x.device) < batch.table["n_given"]
        x = self.embed(x) * given[:, :, None]
        x, tail = self.pre_lookahead_layer(x, tails["lookahead"], batch.table["n_codes"])
        new_tails["lookahead"][:] = tail
        history = batch.shape.history
        x = self._run(self.encoders, x, batch.token_rate, history // UPSAMPLING)
        x, tail = self.up_layer(x, tails["upsample"], batch.table["n_frames"])
        new_tails["upsample"][:] = tail
        x = self._run(self.up_encoders, self.up_embed(x), batch.mel_rate, history)
        return cast(Tensor, self.after_norm(x))

    def _run(self, layers: nn.ModuleList, x: Tensor, cache: StreamCache, history: int) -> Tensor:
        """Run the layers of one rate over x [S, T, C] and store their keys and values."""
        shape = (len(layers), *x.shape[:2], 3 * x.shape[2])
        qkv = torch.empty(shape, dtype=self.dtype, device=x.device)
        x = x.float().contiguous()
        change: Tensor | None = None
        for index, layer in enumerate(layers):
            change = layer(x, change, qkv[index], cache, index, history)
        store_entries(qkv, cache, 0)
        assert change is not None
        return x + change.float()
