"""Conformer with look-ahead: speech codes (25/s) to mel-rate features (50/s), piece by piece.

The modules hold weights only; what a stream remembers is an `EncoderCache`.
Source: docs/specification/model.md#7.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.token2wav.config import HISTORY_FRAMES, FlowEncoderConfig
from MiniCPMO45.token2wav.layers import CausalConv1d

UPSAMPLING = 2  # mel frames per speech code
LAYER_NORM_EPS = 1e-12  # inside the conformer layers
INPUT_NORM_EPS = 1e-5
LEAKY_SLOPE = 0.01
POSITION_PERIOD = 10_000.0  # longest wavelength base of the sinusoids


@dataclass(frozen=True)
class EncoderCache:
    """What one stream's encoder remembers; replaced, never written to.

    Attributes:
        lookahead: last inputs of the second look-ahead convolution [1, C, 2].
        upsample: last inputs of the upsampling convolution [1, C, 4].
        token_rate: keys and values of the layers at 25/s [layers, 1, heads, L1, 2 * head_dim].
        mel_rate: the same of the layers at 50/s [layers, 1, heads, L2, 2 * head_dim].
    """

    lookahead: Tensor
    upsample: Tensor
    token_rate: Tensor
    mel_rate: Tensor

    @property
    def nbytes(self) -> int:
        """Memory of the four tensors."""
        return (
            self.lookahead.nbytes
            + self.upsample.nbytes
            + self.token_rate.nbytes
            + self.mel_rate.nbytes
        )

    def trim(self, prompt_frames: int) -> EncoderCache:
        """Return the cache with the prompt and the newest history only.

        Args:
            prompt_frames: mel frames of the voice prompt (2 per code).
        """
        token_rate = _keep_ends(
            self.token_rate, prompt_frames // UPSAMPLING, HISTORY_FRAMES // UPSAMPLING
        )
        mel_rate = _keep_ends(self.mel_rate, prompt_frames, HISTORY_FRAMES)
        return EncoderCache(self.lookahead, self.upsample, token_rate, mel_rate)


def _keep_ends(cache: Tensor, first: int, last: int) -> Tensor:
    length = cache.shape[3]
    if length <= first + last:
        return cache
    return torch.cat((cache[:, :, :, :first], cache[:, :, :, length - last :]), dim=3)


def relative_positions(n_query: int, n_key: int, width: int, like: Tensor) -> Tensor:
    """Sinusoids of every distance between n_query new and n_key visible positions.

    Row r stands for distance `n_key - 1 - r`; the newest query sits at the newest key.

    Args:
        n_query: new positions.
        n_key: cached plus new positions.
        width: channels, even: sine on even ones, cosine on odd ones.
        like: tensor whose device and dtype the table takes.

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

    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        width, heads = config.output_size, config.attention_heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, config.head_dim))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, config.head_dim))

    def forward(self, x: Tensor, caches: Sequence[Tensor], tables: Sequence[Tensor]) -> Tensor:
        """Attend from the new positions to everything the streams remember.

        Args:
            x: new positions [S, T, C].
            caches: per stream [1, heads, L + T, 2 * head_dim]; the last T columns are written.
            tables: per stream [T + L + T - 1, C], see `relative_positions`.

        Returns:
            [S, T, C].
        """
        heads, head_dim = self.pos_bias_u.shape
        split = (heads, head_dim)
        query = self.linear_q(x).unflatten(2, split)  # [S, T, heads, head_dim]
        new = torch.cat(
            (self.linear_k(x).unflatten(2, split), self.linear_v(x).unflatten(2, split)), dim=3
        ).transpose(1, 2)  # [S, heads, T, 2 * head_dim]
        by_content = (query + self.pos_bias_u).transpose(1, 2)  # [S, heads, T, head_dim]
        by_position = (query + self.pos_bias_v).transpose(1, 2)
        n_query = x.shape[1]
        outputs = []
        for row, (cache, table) in enumerate(zip(caches, tables, strict=True)):
            cache[0, :, cache.shape[2] - n_query :] = new[row]
            key, value = cache[0].split(head_dim, dim=2)  # [heads, L + T, head_dim]
            places = self.linear_pos(table).unflatten(1, split).permute(1, 2, 0)
            scores = by_content[row] @ key.transpose(1, 2)  # [heads, T, L + T]
            scores = scores + _shift(by_position[row] @ places, key.shape[1])
            weights = torch.softmax(scores / math.sqrt(head_dim), dim=2)
            outputs.append((weights @ value).transpose(0, 1).flatten(1))  # [T, C]
        return self.linear_out(torch.stack(outputs))


def _shift(by_row: Tensor, n_key: int) -> Tensor:
    """Turn scores per table row [heads, T, rows] into scores per key [heads, T, n_key].

    Query i and key j meet at row `T - 1 - i + j`, so each query reads a window that starts one
    row earlier than its predecessor's.
    """
    by_row = by_row.contiguous()
    heads, n_query, rows = by_row.shape
    return by_row.as_strided(
        (heads, n_query, n_key),
        (n_query * rows, rows - 1, 1),
        by_row.storage_offset() + n_query - 1,
    )


class FeedForward(nn.Module):
    """Two linear layers with SiLU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, hidden)
        self.w_2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., C] to [..., C]."""
        return self.w_2(F.silu(self.w_1(x)))


class ConformerLayer(nn.Module):
    """Pre-norm attention and feed-forward; no convolution module, no macaron half."""

    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config)
        self.feed_forward = FeedForward(config.output_size, config.linear_units)
        self.norm_mha = nn.LayerNorm(config.output_size, eps=LAYER_NORM_EPS)
        self.norm_ff = nn.LayerNorm(config.output_size, eps=LAYER_NORM_EPS)

    def forward(self, x: Tensor, caches: Sequence[Tensor], tables: Sequence[Tensor]) -> Tensor:
        """Map [S, T, C] to [S, T, C]; see `RelativeAttention.forward`."""
        x = x + self.self_attn(self.norm_mha(x), caches, tables)
        return x + self.feed_forward(self.norm_ff(x))


class InputProjection(nn.Module):
    """Linear, layer norm, and the scale that goes with sinusoidal positions."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(n_in, n_out), nn.LayerNorm(n_out, eps=INPUT_NORM_EPS))

    def forward(self, x: Tensor) -> Tensor:
        """Map [S, T, C_in] to [S, T, C_out]."""
        x = self.out(x)
        return x * math.sqrt(x.shape[2])


class LookaheadLayer(nn.Module):
    """Convolution over the next codes, then a causal one, with a residual."""

    def __init__(self, width: int, lookahead: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, kernel_size=lookahead + 1)
        self.conv2 = CausalConv1d(width, width, kernel_size=3)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Map [S, t, C] to [S, t - lookahead, C]; context [S, C, 2] is the causal one's past."""
        ahead = F.leaky_relu(self.conv1(x.transpose(1, 2)), LEAKY_SLOPE)
        out, context = self.conv2(ahead, context)  # [S, C, t - lookahead]
        return out.transpose(1, 2) + x[:, : out.shape[2]], context


class UpsampleLayer(nn.Module):
    """Doubles the rate: nearest neighbour, then a causal convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = CausalConv1d(width, width, kernel_size=2 * UPSAMPLING + 1)

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Map [S, T, C] to [S, 2T, C]; context [S, C, 4] is the upsampled past."""
        out, context = self.conv(x.repeat_interleave(UPSAMPLING, dim=1).transpose(1, 2), context)
        return out.transpose(1, 2), context


class FlowEncoder(nn.Module):
    """The whole encoder, several independent streams at a time."""

    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        width = config.output_size
        self.config = config
        self.embed = InputProjection(config.input_size, width)
        self.pre_lookahead_layer = LookaheadLayer(width, config.pre_lookahead_len)
        self.encoders = nn.ModuleList(ConformerLayer(config) for _ in range(config.num_blocks))
        self.up_layer = UpsampleLayer(width)
        self.up_embed = InputProjection(width, width)
        self.up_encoders = nn.ModuleList(
            ConformerLayer(config) for _ in range(config.num_up_blocks)
        )
        self.after_norm = nn.LayerNorm(width, eps=INPUT_NORM_EPS)

    def new_cache(self) -> EncoderCache:
        """Cache of a stream that has heard nothing, beside the weights."""
        like, config = self.after_norm.weight, self.config
        column = (1, config.attention_heads, 0, 2 * config.head_dim)
        return EncoderCache(
            lookahead=like.new_zeros(1, config.output_size, 2),
            upsample=like.new_zeros(1, config.output_size, 2 * UPSAMPLING),
            token_rate=like.new_zeros(config.num_blocks, *column),
            mel_rate=like.new_zeros(config.num_up_blocks, *column),
        )

    def forward(
        self, x: Tensor, caches: Sequence[EncoderCache], *, is_last: bool
    ) -> tuple[Tensor, list[EncoderCache]]:
        """Encode the next piece of S streams.

        Args:
            x: embedded codes [S, t, C_in], the last `pre_lookahead_len` of them look-ahead
                unless `is_last`.
            caches: one per stream; not changed.
            is_last: nothing follows, the look-ahead is zeros.

        Returns:
            Features [S, 2t', C] with t' the codes consumed, and the grown (untrimmed) caches.
        """
        x = self.embed(x)
        if is_last:
            x = F.pad(x, (0, 0, 0, self.config.pre_lookahead_len))
        x, lookahead = self.pre_lookahead_layer(x, torch.cat([c.lookahead for c in caches]))
        x, token_rate = _run_layers(self.encoders, x, [c.token_rate for c in caches])
        x, upsample = self.up_layer(x, torch.cat([c.upsample for c in caches]))
        x = self.up_embed(x)
        x, mel_rate = _run_layers(self.up_encoders, x, [c.mel_rate for c in caches])
        grown = [
            EncoderCache(lookahead[s : s + 1].clone(), upsample[s : s + 1].clone(), *attention)
            for s, attention in enumerate(zip(token_rate, mel_rate, strict=True))
        ]
        return self.after_norm(x), grown


def _run_layers(
    layers: nn.ModuleList, x: Tensor, caches: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Run layers over [S, T, C] with per-stream caches [layers, 1, heads, L, 2 * head_dim]."""
    n_new, width = x.shape[1], x.shape[2]
    grown = [F.pad(cache, (0, 0, 0, n_new)) for cache in caches]
    tables = [relative_positions(n_new, cache.shape[3], width, x) for cache in grown]
    for index, layer in enumerate(layers):
        x = layer(x, [cache[index] for cache in grown], tables)
    return x, grown
