"""The Whisper encoder with its projection: mel frames in, embeddings for the language model out.

One forward serves whole clips, streams and training: an `AudioBatch` says which mel frames count,
which positions the encoder frames have and which of them see each other. Modules hold weights
only; what a stream keeps is in an `AudioCache`, which its session owns.

Source: docs/specification/model.md#4.5; Whisper (arXiv:2212.04356).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import AudioConfig
from MiniCPMO45.model.transformer import (
    DenseAttention,
    EncoderBatch,
    EncoderLayer,
    SelfAttention,
    run_layers,
)
from MiniCPMO45.processing.mel import CONV_STRIDE, POOL_STEP, encoder_frame_count

CONV_KERNEL = 3  # Source: arXiv:2212.04356, section 2.2
LAYER_NORM_EPS = 1e-5
FIRST_CAPACITY_FRAMES = 100  # two units; doubled as the stream continues


@dataclass(frozen=True, eq=False)
class AudioBatch:
    """What the rows of a batch of B pieces of sound stand for.

    Attributes:
        is_sound: 1 where a mel frame counts, else 0 [B, f]; None where all do. Other frames are
            padding to both convolutions, whatever they hold.
        context: encoder frames in front that are left out after the convolutions.
        positions: int64 [B, T] or [T], of the encoder frames behind them; as many are kept.
        attention: which frames see which.
    """

    is_sound: Tensor | None
    context: int
    positions: Tensor
    attention: EncoderBatch


class AudioLayer(EncoderLayer):
    """One layer; keys have no bias."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        self.self_attn = SelfAttention(width, config.encoder_attention_heads, key_bias=False)
        self.self_attn_layer_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.fc1 = nn.Linear(width, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, width)
        self.final_layer_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    @property
    def norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        return self.self_attn_layer_norm, self.final_layer_norm

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class AudioEncoder(nn.Module):
    """Weights of the encoder (`apm.*`)."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        if config.activation_function != "gelu":
            raise ValueError(f"audio encoder activation {config.activation_function!r}")
        width, pad = config.d_model, CONV_KERNEL // 2
        self.heads = config.encoder_attention_heads
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, CONV_KERNEL, padding=pad)
        self.conv2 = nn.Conv1d(width, width, CONV_KERNEL, stride=CONV_STRIDE, padding=pad)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    @property
    def max_positions(self) -> int:
        """Encoder frames that have a position (1500, 30 s)."""
        return self.embed_positions.num_embeddings

    def forward(self, mel: Tensor, batch: AudioBatch) -> Tensor:
        """Encode log-mels [B, 80, f] of any float dtype: [B, T, width] in the weights' dtype."""
        n_frames = batch.positions.shape[-1]
        rows = self.convolve(mel, batch.is_sound)[:, batch.context : batch.context + n_frames]
        return self.transform(rows + self.embed_positions(batch.positions), batch.attention)

    def convolve(self, mel: Tensor, is_sound: Tensor | None = None) -> Tensor:
        """Run both convolutions over mel [B, 80, f]; `is_sound` as in `AudioBatch`.

        Returns:
            [B, (f - 1) // 2 + 1, width] in the weights' dtype.
        """
        hidden = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype)))
        if is_sound is not None:
            hidden = hidden * is_sound[:, None]
        return F.gelu(self.conv2(hidden)).transpose(1, 2)

    def transform(self, rows: Tensor, attention: EncoderBatch) -> Tensor:
        """Run all layers over frames with their positions [B, T, width]."""
        return run_layers(self.layers, rows.contiguous(), attention, self.layer_norm)

    def clip_batch(
        self, n_frames: int, lengths: Tensor | None, block_frames: int | None
    ) -> AudioBatch:
        """Describe whole clips.

        `n_frames` are mel frames of the batch with padding, `lengths` those of each clip, int64
        [B], or None where nothing is padded. An encoder frame sees all blocks of `block_frames`
        frames up to its own, or the whole clip.

        Raises:
            ValueError: there are more frames than positions.
        """
        count = encoder_frame_count(n_frames)
        if count > self.max_positions:
            raise ValueError(f"{count} encoder frames, only {self.max_positions} positions")
        device = self.conv1.weight.device
        seen = torch.arange(count, device=device)
        is_sound, mask = None, None
        if lengths is not None:
            is_sound = torch.arange(n_frames, device=device) < lengths[:, None]
            mask = (seen < ((lengths - 1) // CONV_STRIDE + 1)[:, None])[
                :, None, None
            ]  # [B, 1, 1, T]
        if block_frames is not None:
            block = seen // block_frames
            is_past = block[None, :] <= block[:, None]
            mask = is_past if mask is None else mask & is_past  # [(B, 1,) T, T]
        return AudioBatch(is_sound, 0, seen, DenseAttention(self.heads, mask))


def pool(rows: Tensor, step: int = POOL_STEP) -> Tensor:
    """Average every `step` rows of [T, D]: [T // step, D]; an incomplete group is left out."""
    n_groups = rows.shape[0] // step
    return rows[: n_groups * step].unflatten(0, (n_groups, step)).mean(1)


@dataclass
class AudioCache:
    """Columns of keys and values of every layer; those from `length` on are room to grow.

    Attributes:
        kv: [layers, 1, heads, capacity, 2 * head_dim], key and value of a column side by side, as
            `stream_memory.ColumnCache` describes the memory of streams.
        length: encoder frames held, 50 per second.
    """

    kv: Tensor
    length: int
    max_frames: int

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    def clone(self) -> AudioCache:
        """Return a copy of what is held, without room to grow."""
        kept = self.kv[..., : self.length, :].clone(memory_format=torch.contiguous_format)
        return AudioCache(kept, self.length, self.max_frames)

    def truncate(self, length: int) -> None:
        """Drop all frames from `length` on; the storage is kept.

        Raises:
            ValueError: there are fewer frames.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut {self.length} frames to {length}")
        self.length = length

    def reserve(self, needed: int) -> None:
        """Make room for `needed` frames in all; what is held stays.

        Raises:
            ValueError: they do not fit into `max_frames`.
        """
        capacity = self.kv.shape[3]
        if needed <= capacity:
            return
        if needed > self.max_frames:
            raise ValueError(f"{needed} frames do not fit into {self.max_frames}")
        capacity = min(self.max_frames, max(needed, 2 * capacity, FIRST_CAPACITY_FRAMES))
        grown = self.kv.new_empty(*self.kv.shape[:3], capacity, self.kv.shape[4])
        grown[..., : self.length, :] = self.kv[..., : self.length, :]
        self.kv = grown


def new_audio_cache(
    config: AudioConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    capacity_frames: int = 0,
) -> AudioCache:
    """Make an empty cache.

    Room for `capacity_frames` is taken at once; more as needed, up to the encoder's positions.
    """
    heads = config.encoder_attention_heads
    shape = (config.encoder_layers, 1, heads, capacity_frames, 2 * (config.d_model // heads))
    kv = torch.empty(shape, device=device, dtype=dtype)
    return AudioCache(kv, 0, config.max_source_positions)
