"""The Whisper encoder with its projection: mel frames in, embeddings for the language model out.

Whole clips go through `encode_clips`, streams through `encode_streams`. Modules hold weights
only; what a stream remembers is in an `AudioCache` that the caller owns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.audio_cache import AudioCache
from MiniCPMO45.audio_features import CONV_STRIDE, POOL_STEP, encoder_frame_count
from MiniCPMO45.configuration_minicpmo import AudioConfig

CONV_KERNEL = 3  # Source: arXiv:2212.04356, section 2.2
LAYER_NORM_EPS = 1e-5

# Queries, keys and values [..., heads, T, head_dim] to attended values of the same shape.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class AudioAttention(nn.Module):
    """Projections of one self-attention; keys have no bias."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        self.n_heads = config.encoder_attention_heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def project(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [..., heads, T, head_dim] of rows [..., T, width]."""
        split = [
            projection(rows).unflatten(-1, (self.n_heads, -1)).transpose(-3, -2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        ]
        return split[0], split[1], split[2]

    def merge(self, heads: Tensor) -> Tensor:
        """Return rows [..., T, width] of attended values [..., heads, T, head_dim]."""
        return self.out_proj(heads.transpose(-3, -2).flatten(-2))


class AudioLayer(nn.Module):
    """One pre-norm encoder layer."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn = AudioAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=LAYER_NORM_EPS)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=LAYER_NORM_EPS)

    def forward(self, rows: Tensor, attend: Attend) -> Tensor:
        """Transform rows [..., T, width]; who sees whom is up to `attend`."""
        q, k, v = self.self_attn.project(self.self_attn_layer_norm(rows))
        rows = rows + self.self_attn.merge(attend(q, k, v))
        return rows + self.fc2(F.gelu(self.fc1(self.final_layer_norm(rows))))


class AudioEncoder(nn.Module):
    """Weights of the encoder (`apm.*`).

    Args:
        config: the encoder's shape.

    Raises:
        ValueError: the configuration asks for another activation than exact GELU.
    """

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        if config.activation_function != "gelu":
            raise ValueError(f"audio encoder activation {config.activation_function!r}")
        width, pad = config.d_model, CONV_KERNEL // 2
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, CONV_KERNEL, padding=pad)
        self.conv2 = nn.Conv1d(width, width, CONV_KERNEL, stride=CONV_STRIDE, padding=pad)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    @property
    def max_positions(self) -> int:
        """Encoder frames that have a position (1500, 30 s)."""
        return self.embed_positions.num_embeddings

    def convolve(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run both convolutions.

        Args:
            mel: [B, 80, f], any float dtype.
            lengths: mel frames that are no padding [B]; what lies beyond then counts as zeros
                for both convolutions, so padding changes nothing.

        Returns:
            [B, (f - 1) // 2 + 1, width] in the weights' dtype.
        """
        hidden = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype)))
        if lengths is not None:
            is_audio = torch.arange(hidden.shape[2], device=hidden.device) < lengths[:, None]
            hidden = hidden * is_audio[:, None]
        return F.gelu(self.conv2(hidden)).transpose(1, 2)  # [B, T, width]


class AudioProjection(nn.Module):
    """Weights of the projection into the language model (`audio_projection_layer.*`)."""

    def __init__(self, audio_width: int, llm_width: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(audio_width, llm_width)
        self.linear2 = nn.Linear(llm_width, llm_width)

    def forward(self, rows: Tensor) -> Tensor:
        """Project encoder frames [..., audio_width] to [..., llm_width]."""
        return self.linear2(F.relu(self.linear1(rows)))


@dataclass(frozen=True)
class StreamItem:
    """One stream's share of a step.

    Attributes:
        mel: the unit's mel frames with convolution context [80, f].
        cache: the stream's past; grows by what the unit yields.
        prefix_frames: mel frames of context in front (0 for the first unit of a stream).
        suffix_frames: mel frames of context behind.
    """

    mel: Tensor
    cache: AudioCache
    prefix_frames: int
    suffix_frames: int


def pool(rows: Tensor, step: int = POOL_STEP) -> Tensor:
    """Average every `step` rows of [T, D]: [T // step, D]; an incomplete group is left out."""
    n_groups = rows.shape[0] // step
    return rows[: n_groups * step].unflatten(0, (n_groups, step)).mean(1)


def encode_clips(
    encoder: AudioEncoder,
    projection: AudioProjection,
    mels: Sequence[Tensor],
    *,
    block_frames: int | None,
    pool_step: int = POOL_STEP,
) -> list[Tensor]:
    """Embed whole clips.

    Args:
        encoder: the encoder's weights.
        projection: the projection's weights.
        mels: log-mels [80, f], f ≤ 3000; lengths may differ.
        block_frames: see `encode_clip_frames`.
        pool_step: encoder frames averaged into one embedding.

    Returns:
        one tensor [t, llm_width] per clip, t = ((f - 1) // 2 + 1) // pool_step, perhaps 0.

    Raises:
        ValueError: a clip is longer than the encoder has positions.
    """
    frames = encode_clip_frames(encoder, mels, block_frames=block_frames)
    return _embed(projection, frames, pool_step)


def encode_clip_frames(
    encoder: AudioEncoder, mels: Sequence[Tensor], *, block_frames: int | None
) -> list[Tensor]:
    """Encode whole clips in one padded batch; the result of a clip does not depend on the others.

    Args:
        encoder: the encoder's weights.
        mels: log-mels [80, f], f ≤ 3000; lengths may differ.
        block_frames: an encoder frame sees all blocks of this many frames up to its own;
            None lets every frame see the whole clip.

    Returns:
        one tensor [(f - 1) // 2 + 1, width] per clip.

    Raises:
        ValueError: a clip is longer than the encoder has positions.
    """
    if not mels:
        return []
    device = encoder.conv1.weight.device
    lengths = torch.tensor([mel.shape[1] for mel in mels], device=device)
    batch = nn.utils.rnn.pad_sequence([mel.to(device).T for mel in mels], batch_first=True)
    hidden = encode_padded_clips(encoder, batch.transpose(1, 2), lengths, block_frames=block_frames)
    return [
        rows[: encoder_frame_count(mel.shape[1])] for rows, mel in zip(hidden, mels, strict=True)
    ]


def encode_padded_clips(
    encoder: AudioEncoder,
    mels: Tensor,
    lengths: Tensor,
    *,
    block_frames: int | None,
) -> Tensor:
    """Encode a padded batch of clips; see `encode_clip_frames`.

    Args:
        encoder: the encoder's weights.
        mels: log-mels [B, 80, f], zero behind each clip's end.
        lengths: mel frames of each clip, int64 [B].
        block_frames: see `encode_clip_frames`.

    Returns:
        [B, T, width]; of a clip of f frames the first (f - 1) // 2 + 1 rows count.

    Raises:
        ValueError: a clip is longer than the encoder has positions.
    """
    hidden = encoder.convolve(mels, lengths)
    n_frames = hidden.shape[1]
    _check_positions(encoder, n_frames)
    hidden = hidden + encoder.embed_positions.weight[:n_frames]
    counts = (lengths - 1) // CONV_STRIDE + 1
    mask = _clip_mask(n_frames, counts, block_frames)[:, None]  # [B, 1, T, T]
    attend = partial(F.scaled_dot_product_attention, attn_mask=mask)
    for layer in encoder.layers:
        hidden = layer(hidden, attend)
    return encoder.layer_norm(hidden)


def encode_streams(
    encoder: AudioEncoder,
    projection: AudioProjection,
    items: Sequence[StreamItem],
    *,
    pool_step: int = POOL_STEP,
) -> list[Tensor]:
    """Embed one unit of each of several streams in one pass.

    Args:
        encoder: the encoder's weights.
        projection: the projection's weights.
        items: the units; every cache at most once.
        pool_step: encoder frames averaged into one embedding.

    Returns:
        one tensor [t, llm_width] per stream; t = 10 for a whole unit.

    Raises:
        ValueError: a cache appears twice, or a unit is too short or too long.
    """
    frames = encode_stream_frames(encoder, items)
    return _embed(projection, frames, pool_step)


def encode_stream_frames(encoder: AudioEncoder, items: Sequence[StreamItem]) -> list[Tensor]:
    """Encode one unit of each of several streams, each seeing its own cached past.

    A cache that the unit would fill to the encoder's last position is emptied first, and positions
    begin at zero again.

    Args:
        encoder: the encoder's weights.
        items: the units; every cache at most once.

    Returns:
        one tensor [T, width] per stream; T = 50 for a whole unit.

    Raises:
        ValueError: a cache appears twice, or a unit is too short or too long.

    Source: docs/specification/model.md#4.5.
    """
    if not items:
        return []
    if len({id(item.cache) for item in items}) < len(items):
        raise ValueError("a cache can take part in a step only once")
    pieces = [
        _trim(rows, item) for rows, item in zip(_convolve_units(encoder, items), items, strict=True)
    ]
    for item, rows in zip(items, pieces, strict=True):
        _make_room(encoder, item, rows.shape[0])
    table = encoder.embed_positions.weight
    placed = [
        rows + table[item.cache.length :][: rows.shape[0]]
        for item, rows in zip(items, pieces, strict=True)
    ]
    sizes = [rows.shape[0] for rows in placed]
    caches = [item.cache for item in items]
    hidden = torch.cat(placed)  # [sum T, width]
    for index, layer in enumerate(encoder.layers):
        hidden = layer(hidden, partial(_attend_to_pasts, caches, sizes, index))
    for cache, n in zip(caches, sizes, strict=True):
        cache.advance(n)
    return list(encoder.layer_norm(hidden).split(sizes))


def _embed(projection: AudioProjection, frames: list[Tensor], pool_step: int) -> list[Tensor]:
    if not frames:
        return []
    projected = projection(torch.cat(frames)).split([rows.shape[0] for rows in frames])
    return [pool(rows, pool_step) for rows in projected]


def _clip_mask(n_frames: int, limits: Tensor, block_frames: int | None) -> Tensor:
    """Return which frame sees which: bool [B, T, T], True where attention is allowed."""
    seen = torch.arange(n_frames, device=limits.device)
    allowed = (seen < limits[:, None])[:, None, :].expand(-1, n_frames, -1)
    if block_frames is None:
        return allowed
    block = seen // block_frames
    return allowed & (block[None, :] <= block[:, None])


def _convolve_units(encoder: AudioEncoder, items: Sequence[StreamItem]) -> list[Tensor]:
    """Run the convolutions over units, those of one length together: [T, width] each."""
    device = encoder.conv1.weight.device
    by_length: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        by_length.setdefault(item.mel.shape[1], []).append(index)
    done: dict[int, Tensor] = {}
    for indices in by_length.values():
        mels = torch.stack([items[index].mel.to(device) for index in indices])
        done.update(zip(indices, encoder.convolve(mels), strict=True))
    return [done[index] for index in range(len(items))]


def _trim(rows: Tensor, item: StreamItem) -> Tensor:
    """Leave out encoder frames [T, width] that stand for convolution context."""
    front, behind = ((n + 1) // CONV_STRIDE for n in (item.prefix_frames, item.suffix_frames))
    if front + behind >= rows.shape[0]:
        raise ValueError(f"{rows.shape[0]} encoder frames are nothing but context")
    return rows[front : rows.shape[0] - behind]


def _make_room(encoder: AudioEncoder, item: StreamItem, n_frames: int) -> None:
    """Empty the cache if the unit, context included, would reach the last position."""
    _check_positions(encoder, n_frames)
    with_context = encoder_frame_count(item.mel.shape[1])
    if item.cache.length + with_context >= encoder.max_positions:
        item.cache.truncate(0)


def _attend_to_pasts(
    caches: Sequence[AudioCache],
    sizes: list[int],
    layer: int,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """Attend from every unit to itself and its own stream's past: [heads, sum T, head_dim]."""
    attended = []
    units = zip(caches, *(x.split(sizes, dim=1) for x in (queries, keys, values)), strict=True)
    for cache, q, k, v in units:
        all_k, all_v = cache.write(layer, k, v)
        attended.append(F.scaled_dot_product_attention(q[None], all_k[None], all_v[None])[0])
    return torch.cat(attended, dim=1)


def _check_positions(encoder: AudioEncoder, n_frames: int) -> None:
    if n_frames > encoder.max_positions:
        raise ValueError(f"{n_frames} encoder frames, only {encoder.max_positions} positions")
