"""Whisper encoder and projection: log-mel frames to embeddings for the language model.

One forward serves whole clips, streams and training: an `AudioBatch` holds the masks and positions.
Modules hold weights only; the state of a stream is in the `AudioCache` of its session.

Source: docs/specification/model.md#4.5; Whisper (arXiv:2212.04356).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from MiniCPMO45.configuration_minicpmo import AudioConfig
from MiniCPMO45.kernels import stream_memory
from MiniCPMO45.kernels.device import Capturable, Staging
from MiniCPMO45.kernels.products import FrameConvolution
from MiniCPMO45.kernels.stream_memory import DROPPED, StreamCache, StreamTable
from MiniCPMO45.model.transformer import (
    DenseAttention,
    EncoderBatch,
    EncoderLayer,
    SelfAttention,
    fuse_attention,
    run_layers,
)
from MiniCPMO45.processing.mel import (
    CONTEXT_FRAMES,
    CONV_STRIDE,
    HOP_SAMPLES,
    N_MELS,
    POOL_STEP,
    UNIT_SAMPLES,
    encoder_frame_count,
)

CONV_KERNEL = 3  # Source: arXiv:2212.04356, section 2.2
LAYER_NORM_EPS = 1e-5
FIRST_CAPACITY_FRAMES = 100  # two units; doubled on demand


@dataclass(frozen=True, eq=False)
class AudioBatch:
    """Masks and positions of a batch of B clips or units."""

    is_sound: Tensor | None  # [B, f], 1 at mel frames and 0 at padding; None without padding
    context: int  # leading encoder frames, dropped after the convolutions
    positions: Tensor  # int64 [B, T] or [T], of the T encoder frames after the context
    attention: EncoderBatch  # among these


class AudioLayer(EncoderLayer):
    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        width = config.d_model
        self.self_attn = SelfAttention(width, config.encoder_attention_heads, key_bias=False)
        self.self_attn_layer_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.fc1 = nn.Linear(width, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, width)
        self.final_layer_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.norms = self.self_attn_layer_norm, self.final_layer_norm

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class AudioEncoder(nn.Module):
    """The encoder (`apm.*`)."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        if config.activation_function != "gelu":
            raise ValueError(f"audio encoder activation {config.activation_function!r}")
        width, pad = config.d_model, CONV_KERNEL // 2
        self.heads = config.encoder_attention_heads
        self.conv1 = FrameConvolution(config.num_mel_bins, width, CONV_KERNEL, padding=pad)
        self.conv2 = FrameConvolution(width, width, CONV_KERNEL, stride=CONV_STRIDE, padding=pad)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        self.layers = nn.ModuleList(AudioLayer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)

    @property
    def max_positions(self) -> int:
        """Size of the position table (1500 encoder frames, 30 s)."""
        return self.embed_positions.num_embeddings

    def forward(self, mel: Tensor, batch: AudioBatch) -> Tensor:
        """Encode log-mels [B, 80, f] of any float dtype: [B, T, width] in the weights' dtype."""
        n_frames = batch.positions.shape[-1]
        rows = self.convolve(mel, batch.is_sound)[:, batch.context : batch.context + n_frames]
        return self.transform(rows + self.embed_positions(batch.positions), batch.attention)

    def convolve(self, mel: Tensor, is_sound: Tensor | None = None) -> Tensor:
        """Run both convolutions over mel [B, 80, f]: [B, (f - 1) // 2 + 1, width].

        The result is in the weights' dtype; `is_sound` as in `AudioBatch`.
        """
        hidden = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype).transpose(1, 2)))
        if is_sound is not None:
            hidden = hidden * is_sound[:, :, None]
        return F.gelu(self.conv2(hidden))

    def transform(self, rows: Tensor, attention: EncoderBatch) -> Tensor:
        """Run the layers over frames with added positions [B, T, width]."""
        return run_layers(self.layers, rows.contiguous(), attention, self.layer_norm)

    def clip_batch(
        self, n_frames: int, lengths: Tensor | None, block_frames: int | None
    ) -> AudioBatch:
        """Return masks and positions of whole clips.

        `n_frames` is the padded length in mel frames, `lengths` that of each clip, int64 [B], or
        None without padding. Attention is block-causal over `block_frames` encoder frames, or full.

        Raises:
            ValueError: there are more frames than positions.
        """
        count = encoder_frame_count(n_frames)
        if count > self.max_positions:
            raise ValueError(f"{count} encoder frames, only {self.max_positions} positions")
        device = self.conv1.weight.device
        positions = torch.arange(count, device=device)
        is_sound, mask = None, None
        if lengths is not None:
            is_sound = torch.arange(n_frames, device=device) < lengths[:, None]
            ends = (lengths - 1) // CONV_STRIDE + 1
            mask = (positions < ends[:, None])[:, None, None]  # [B, 1, 1, T]
        if block_frames is not None:
            block = positions // block_frames
            is_past = block[None, :] <= block[:, None]
            mask = is_past if mask is None else mask & is_past  # [(B, 1,) T, T]
        return AudioBatch(is_sound, 0, positions, DenseAttention(self.heads, mask))


def pool(rows: Tensor, step: int = POOL_STEP) -> Tensor:
    """Average every `step` rows of [..., T, D]: [..., T // step, D]; a remainder is dropped."""
    n_groups = rows.shape[-2] // step
    return rows[..., : n_groups * step, :].unflatten(-2, (n_groups, step)).mean(-2)


@dataclass
class AudioCache:
    """KV cache of one stream.

    Key and value of a frame are side by side, the layout of `stream_memory.StreamCache`.
    """

    kv: Tensor  # [layers, 1, heads, capacity, 2 * head_dim]
    length: int  # encoder frames cached, 50 per second
    max_frames: int

    def clone(self) -> AudioCache:
        """Return a copy without spare capacity."""
        kv = self.kv[..., : self.length, :].clone(memory_format=torch.contiguous_format)
        return AudioCache(kv, self.length, self.max_frames)

    def clear(self) -> None:
        """Drop all frames, without freeing memory."""
        self.length = 0

    def reserve(self, needed: int) -> None:
        """Grow the capacity to at least `needed` frames.

        Raises:
            ValueError: `needed` exceeds `max_frames`.
        """
        capacity = self.kv.shape[3]
        if needed <= capacity:
            return
        if needed > self.max_frames:
            raise ValueError(f"{needed} frames exceed {self.max_frames} positions")
        capacity = min(self.max_frames, max(needed, 2 * capacity, FIRST_CAPACITY_FRAMES))
        grown = self.kv.new_empty(*self.kv.shape[:3], capacity, self.kv.shape[4])
        grown[..., : self.length, :] = self.kv[..., : self.length, :]
        self.kv = grown


def new_audio_cache(
    config: AudioConfig, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> AudioCache:
    """Return an empty cache, which grows on demand up to the encoder's positions."""
    heads = config.encoder_attention_heads
    shape = (config.encoder_layers, 1, heads, 0, 2 * (config.d_model // heads))
    kv = torch.empty(shape, device=device, dtype=dtype)
    return AudioCache(kv, 0, config.max_source_positions)


@dataclass(frozen=True, eq=False)
class EncodeStream:
    """Request: encode the next mel frames of a stream, extending `cache`. Answer: [t, hidden]."""

    mel: Tensor  # [80, frames] with two context frames on both sides, the first only on the right
    cache: AudioCache  # grows by `n_new` frames
    is_first: bool = False

    @property
    def context(self) -> int:
        """Leading context in encoder frames."""
        return 0 if self.is_first else UNIT_CONTEXT

    @property
    def all_frames(self) -> int:
        """Encoder frames including context."""
        return encoder_frame_count(self.mel.shape[1])

    @property
    def n_new(self) -> int:
        return self.all_frames - self.context - UNIT_CONTEXT

    @property
    def padding(self) -> int:
        """Left padding in mel frames that aligns the unit with those that have context."""
        return CONV_STRIDE * (UNIT_CONTEXT - self.context)


ROWS = (1, 2, 4, 8, 16, 32, 64)
# Sizes of the pass over units: mel frames with context, encoder frames of context and unit.
UNIT_FRAMES = UNIT_SAMPLES // HOP_SAMPLES + 2 * CONTEXT_FRAMES
UNIT_CONTEXT = (CONTEXT_FRAMES + 1) // CONV_STRIDE
UNIT_NEW = encoder_frame_count(UNIT_FRAMES) - 2 * UNIT_CONTEXT
MAX_VOICES = 8  # each takes 2.5 MB for 30 s of audio in bfloat16


class AudioEmbedder:
    """Encoder, projection and pooling of `pool_step` encoder frames into one embedding.

    Passes over streams use static memory, so that they can be captured as CUDA graphs.
    """

    def __init__(
        self,
        encoder: AudioEncoder,
        projection: Callable[[Tensor], Tensor],
        *,
        pool_step: int = POOL_STEP,
        has_fixed_passes: bool | None = None,
    ) -> None:
        """Fuse the weights; passes have fixed sizes, by default on a GPU only."""
        self.encoder, self.projection, self.pool_step = encoder, projection, pool_step
        self.device = encoder.conv1.weight.device
        is_on_card = self.device.type == "cuda"
        self._has_fixed = is_on_card if has_fixed_passes is None else has_fixed_passes
        self._pass = cache(partial(UnitPass, self))
        self._voices: OrderedDict[bytes, list[Tensor]] = OrderedDict()
        fuse_attention(encoder)
        if is_on_card:
            encoder.conv1.pack()
            encoder.conv2.pack()

    @torch.no_grad()
    def embed_clips(self, mels: Sequence[Tensor], block_frames: int | None) -> list[Tensor]:
        """Embed whole clips, log-mels [80, f], in one padded batch: [t, llm_width] each.

        t = ((f - 1) // 2 + 1) // pool_step, possibly 0.

        Raises:
            ValueError: a clip is longer than the position table.
        """
        if not mels:
            return []
        sizes = [mel.shape[1] for mel in mels]
        lengths = None if len(set(sizes)) == 1 else torch.tensor(sizes, device=self.device)
        batch = self.encoder.clip_batch(max(sizes), lengths, block_frames)
        padded = pad_sequence([mel.to(self.device).T for mel in mels], batch_first=True)
        rows = self.projection(self.encoder(padded.transpose(1, 2), batch))
        counts = [encoder_frame_count(size) for size in sizes]
        return [
            pool(of_one[:count], self.pool_step) for of_one, count in zip(rows, counts, strict=True)
        ]

    def embed_voice(self, mels: Sequence[Tensor], block_frames: int | None) -> list[Tensor]:
        """Return what `embed_clips` does, for the `MAX_VOICES` samples used last from a cache."""
        digest = hashlib.sha256(repr((block_frames, [mel.shape for mel in mels])).encode())
        for mel in mels:
            digest.update(mel.numpy().tobytes())
        key = digest.digest()
        if key not in self._voices:
            self._voices[key] = self.embed_clips(mels, block_frames)
            if len(self._voices) > MAX_VOICES:
                self._voices.popitem(last=False)
        self._voices.move_to_end(key)
        return self._voices[key]

    @torch.no_grad()
    def embed_streams(self, items: Sequence[EncodeStream]) -> list[Tensor]:
        """Embed one unit of each of several streams: [t, llm_width] each, t = 10 for a whole unit.

        A cache in which the unit with its context would reach the last position is emptied first.

        Raises:
            ValueError: a cache appears twice, or a unit is too short or too long; the caches are
                unchanged.
        """
        if len({id(item.cache) for item in items}) < len(items):
            raise ValueError("two units of one stream in a batch")
        for item in items:
            n_frames = item.mel.shape[1]
            if item.n_new < 1:
                raise ValueError(f"{n_frames} mel frames are only context")
            if item.padding < 0 or item.n_new > UNIT_NEW or item.padding + n_frames > UNIT_FRAMES:
                raise ValueError(f"{n_frames} mel frames are more than a unit and its context")
        embedded: list[Tensor] = []
        for start in range(0, len(items), ROWS[-1]):
            embedded += self._feed(items[start : start + ROWS[-1]])
        return embedded

    def pieces(self, rows: Sequence[int]) -> list[Capturable[Tensor]]:
        return [self._pass(n_rows) for n_rows in sorted(rows, reverse=True)]

    def _feed(self, items: Sequence[EncodeStream]) -> list[Tensor]:
        for item in items:
            if item.cache.length + item.all_frames >= self.encoder.max_positions:
                item.cache.clear()
            item.cache.reserve(item.cache.length + item.n_new)
        n_rows = next(n for n in ROWS if n >= len(items)) if self._has_fixed else len(items)
        unit = self._pass(n_rows)
        try:
            unit.load(items)
            rows = unit.run() if self._has_fixed else self._embed(unit)
        finally:
            unit.table.release()
        rows = rows[: len(items)].clone()  # the next replay overwrites the original
        for item in items:
            item.cache.length += item.n_new
        counts = [item.n_new // self.pool_step for item in items]
        return [
            of_one if len(of_one) == count else of_one[:count]
            for of_one, count in zip(rows, counts, strict=True)
        ]

    def _embed(self, unit: UnitPass) -> Tensor:
        """Encode units and extend their caches: [S, frames // pool_step, llm_width]."""
        table, attention = unit.table, unit.attention()
        batch = AudioBatch(table["is_sound"], UNIT_CONTEXT, table["positions"], attention)
        rows = self.projection(self.encoder(unit.mel, batch))
        stream_memory.store_entries(attention.new, attention.cache, 0)
        return pool(rows, self.pool_step)


class UnitPass(Capturable[Tensor]):
    """A pass over a unit of each of at most S streams, with static inputs."""

    @torch.inference_mode(False)  # the inputs are reused
    @torch.no_grad()
    def __init__(self, embedder: AudioEmbedder, n_rows: int) -> None:
        super().__init__(f"audio encoder, {n_rows}", partial(embedder._embed, self))
        encoder = embedder.encoder
        like, heads = encoder.conv1.weight, encoder.heads
        sizes = {"n_new": 1, "is_sound": UNIT_FRAMES, "positions": UNIT_NEW}
        sizes |= StreamCache.sizes("kv", UNIT_NEW)
        self.table = StreamTable(n_rows, sizes, like.device)
        self._mels = Staging(n_rows, N_MELS * UNIT_FRAMES, like.device, torch.float32)
        self._cache = StreamCache(self.table, "kv", "n_new", heads)
        self.mel = self._mels.device_words.unflatten(1, (N_MELS, UNIT_FRAMES))
        width = like.shape[0]
        self._dummy = like.new_zeros(len(encoder.layers), 1, heads, 0, 2 * (width // heads))
        self._new_shape = (len(encoder.layers), n_rows, UNIT_NEW, 3 * width)
        self.load(())

    def load(self, items: Sequence[EncodeStream]) -> None:
        """Write the inputs of units; their caches have the capacity for them."""
        host, n = self.table.on_host(), len(items)
        mel_frame, frame = np.arange(UNIT_FRAMES), np.arange(UNIT_NEW)
        spare = len(self.table.rows) - n
        facts = [
            (each.padding, each.mel.shape[1], each.cache.length, each.n_new) for each in items
        ] + [(0, 0, 0, UNIT_NEW)] * spare
        start, n_given, length, n_new = np.array(facts)[:, :, None].swapaxes(0, 1)  # [S, 1] each
        host["n_new"][:], host["kv length"][:] = n_new, length
        host["is_sound"][:] = (mel_frame >= start) & (mel_frame < start + n_given)
        # The padding of a short unit repeats a position: it is masked.
        host["positions"][:] = length + np.minimum(frame, n_new - 1)
        host["kv targets"][:] = np.where(frame < n_new, length + frame, DROPPED)
        host["kv targets"][n:] = DROPPED
        memory = [item.cache.kv for item in items] + [self._dummy] * spare
        host["kv capacity"][:, 0] = [each.shape[3] for each in memory]
        self.table.upload({"kv address": memory})
        if items:
            mels = [
                each.mel
                if count == UNIT_FRAMES
                else F.pad(each.mel, (first, UNIT_FRAMES - first - count))
                for each, (first, count, *_) in zip(items, facts, strict=False)
            ]
            self._mels.begin()
            torch.stack(mels, out=self._mels.host[:n].unflatten(1, self.mel.shape[1:]))
            self._mels.send()

    def attention(self) -> StreamAttention:
        return StreamAttention(self._cache, self._dummy.new_empty(self._new_shape))


@dataclass(frozen=True, eq=False)
class StreamAttention:
    """Attention of a unit to its stream's cache and to itself.

    `new` holds the unit's queries, keys and values [layers, S, T, 3 * heads * d].
    """

    cache: StreamCache
    new: Tensor

    def buffer(self, layer: int) -> Tensor:
        return self.new[layer]

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        return stream_memory.attend(qkv, None, self.cache, layer)
