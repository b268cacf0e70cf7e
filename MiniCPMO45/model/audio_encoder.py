"""The Whisper encoder with its projection: mel frames in, embeddings for the language model out.

One forward serves whole clips, streams and training: an `AudioBatch` says which mel frames count,
which positions the encoder frames have and which of them see each other. Modules hold weights
only; what a stream keeps is in an `AudioCache`, which its session owns.

Source: docs/specification/model.md#4.5; Whisper (arXiv:2212.04356).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from MiniCPMO45.configuration_minicpmo import AudioConfig
from MiniCPMO45.kernels import stream_memory
from MiniCPMO45.kernels.device import Capturable, runs_kernels
from MiniCPMO45.kernels.products import lay_out_windows, multiply_windows
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
        mel = mel.to(self.conv1.weight.dtype)
        if runs_kernels(mel):
            hidden = F.gelu(multiply_windows(mel.transpose(1, 2), self.conv1))
            if is_sound is not None:
                hidden = hidden * is_sound[:, :, None]
            return F.gelu(multiply_windows(hidden, self.conv2))
        hidden = F.gelu(self.conv1(mel))
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
            `stream_memory.StreamCache` describes the memory of streams.
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


@dataclass(frozen=True, eq=False)
class EncodeStream:
    """Encode the next mel frames of a stream, extending `cache`.

    Answer: Tensor [t, hidden].

    Attributes:
        mel: [80, frames] including context frames.
        cache: the stream's encoder cache; grows by `n_new` frames.
        prefix_frames: mel frames of context in front inside `mel`, 0 for a stream's first.
        suffix_frames: mel frames of context behind.
    """

    mel: Tensor
    cache: AudioCache
    prefix_frames: int
    suffix_frames: int

    @property
    def context(self) -> int:
        """Encoder frames that stand for context in front."""
        return (self.prefix_frames + 1) // CONV_STRIDE

    @property
    def all_frames(self) -> int:
        """Encoder frames, context included."""
        return encoder_frame_count(self.mel.shape[1])

    @property
    def n_new(self) -> int:
        return self.all_frames - self.context - (self.suffix_frames + 1) // CONV_STRIDE


ROWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class UnitShape:
    """What a pass is sized for: mel frames with context, and encoder frames of context and unit."""

    mel_frames: int
    context: int
    n_new: int

    def offset(self, item: EncodeStream) -> int:
        """Return how many mel frames of padding are in front of an item."""
        return CONV_STRIDE * (self.context - item.context)

    def fits(self, item: EncodeStream) -> bool:
        n_frames = self.offset(item) + item.mel.shape[1]
        is_short = item.n_new <= self.n_new and n_frames <= self.mel_frames
        return item.context <= self.context and is_short


UNIT_FRAMES = UNIT_SAMPLES // HOP_SAMPLES + 2 * CONTEXT_FRAMES
UNIT_CONTEXT = (CONTEXT_FRAMES + 1) // CONV_STRIDE
UNIT = UnitShape(UNIT_FRAMES, UNIT_CONTEXT, encoder_frame_count(UNIT_FRAMES) - 2 * UNIT_CONTEXT)


class AudioEmbedder:
    """Encoder, projection and pooling of `pool_step` encoder frames into one embedding.

    Streams are embedded in passes over static memory, so that a card can replay them as graphs.
    """

    def __init__(
        self,
        encoder: AudioEncoder,
        projection: Callable[[Tensor], Tensor],
        *,
        pool_step: int = POOL_STEP,
        has_fixed_passes: bool | None = None,
    ) -> None:
        """Fuse the weights; passes are of usual sizes, by default on a card alone."""
        self.encoder, self.projection, self.pool_step = encoder, projection, pool_step
        self.device = encoder.conv1.weight.device
        is_on_card = self.device.type == "cuda"
        self._has_fixed = is_on_card if has_fixed_passes is None else has_fixed_passes
        self._inputs: dict[int, UnitInputs] = {}
        self._graphs: dict[int, Capturable[Tensor]] = {}
        fuse_attention(encoder)
        if is_on_card:
            for conv in (encoder.conv1, encoder.conv2):
                lay_out_windows(conv)

    @torch.no_grad()
    def embed_clips(self, mels: Sequence[Tensor], block_frames: int | None) -> list[Tensor]:
        """Embed whole clips in one padded batch; a clip does not depend on the others.

        Log-mels are [80, f], f ≤ 3000; lengths may differ. `block_frames` is that of
        `AudioEncoder.clip_batch`.

        Returns:
            One tensor [t, llm_width] per clip, t = ((f - 1) // 2 + 1) // pool_step, perhaps 0.

        Raises:
            ValueError: a clip is longer than the encoder has positions.
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

    @torch.no_grad()
    def embed_streams(self, items: Sequence[EncodeStream]) -> list[Tensor]:
        """Embed one unit of each of several streams, each seeing its own past.

        A cache that the unit, context included, would fill to the encoder's last position is
        emptied first, and positions begin at zero again.

        Returns:
            One tensor [t, llm_width] per stream; t = 10 for a whole unit.

        Raises:
            ValueError: a cache appears twice, or a unit is too short or too long; no cache has
                grown.
        """
        self._check(items)
        answers: dict[int, Tensor] = {}
        usual = [index for index, item in enumerate(items) if UNIT.fits(item)]
        for start in range(0, len(usual), ROWS[-1]):
            indices = usual[start : start + ROWS[-1]]
            embedded = self._feed([items[index] for index in indices])
            answers.update(zip(indices, embedded, strict=True))
        for index, item in enumerate(items):
            if index not in answers:  # longer than a unit: a pass of its own
                shape = UnitShape(item.mel.shape[1], item.context, item.n_new)
                inputs = UnitInputs(self.encoder, 1, shape)
                [answers[index]] = self._feed([item], inputs)
        return [answers[index] for index in range(len(items))]

    def pieces(self, rows: Sequence[int] = ROWS) -> list[Capturable[Tensor]]:
        return [self._fixed(n_rows) for n_rows in sorted(rows, reverse=True)]

    def _check(self, items: Sequence[EncodeStream]) -> None:
        if len({id(item.cache) for item in items}) < len(items):
            raise ValueError("a cache can take part in a step only once")
        most = self.encoder.max_positions
        for item in items:
            if item.n_new < 1:
                raise ValueError(f"{item.all_frames} encoder frames are nothing but context")
            if item.n_new > most:
                raise ValueError(f"{item.n_new} encoder frames, only {most} positions")

    def _feed(
        self, items: Sequence[EncodeStream], inputs: UnitInputs | None = None
    ) -> list[Tensor]:
        """Run a pass over `inputs`, or over those kept for so many units of the usual length."""
        for item in items:
            if item.cache.length + item.all_frames >= self.encoder.max_positions:
                item.cache.truncate(0)
            item.cache.reserve(item.cache.length + item.n_new)
        graph = None
        if inputs is None:
            n_rows = len(items)
            if self._has_fixed:
                n_rows = next(n for n in ROWS if n >= n_rows)
                graph = self._fixed(n_rows)
            inputs = self._kept(n_rows)
        try:
            inputs.load(items)
            rows = self._embed(inputs) if graph is None else graph.run()
        finally:
            inputs.release()
        rows = rows[: len(items)].clone()  # the next replay writes over the original
        for item in items:
            item.cache.length += item.n_new
        return [
            of_one[: item.n_new // self.pool_step] for of_one, item in zip(rows, items, strict=True)
        ]

    def _embed(self, inputs: UnitInputs) -> Tensor:
        """Encode units and keep them; embeddings [S, frames / pool step, llm_width]."""
        attention = inputs.attention()
        rows = self.projection(self.encoder(inputs.mel, inputs.batch(attention)))
        attention.store()
        n_groups = rows.shape[1] // self.pool_step
        pooled = rows[:, : n_groups * self.pool_step]
        return pooled.unflatten(1, (n_groups, self.pool_step)).mean(2)

    def _kept(self, n_rows: int) -> UnitInputs:
        if n_rows not in self._inputs:
            with torch.inference_mode(False), torch.no_grad():  # they outlive the call
                self._inputs[n_rows] = UnitInputs(self.encoder, n_rows, UNIT)
        return self._inputs[n_rows]

    def _fixed(self, n_rows: int) -> Capturable[Tensor]:
        if n_rows not in self._graphs:
            work = partial(self._embed, self._kept(n_rows))
            self._graphs[n_rows] = Capturable(f"audio encoder, {n_rows}", work)
        return self._graphs[n_rows]


class UnitInputs:
    """A unit of each of S streams, fewer are padded, in memory whose addresses never change.

    Attributes:
        mel: float32 [S, 80, frames].
    """

    def __init__(self, encoder: AudioEncoder, n_rows: int, shape: UnitShape) -> None:
        self._shape = shape
        like, heads = encoder.conv1.weight, encoder.heads
        sizes = {"n_new": 1, "is_sound": shape.mel_frames, "positions": shape.n_new}
        sizes |= StreamCache.sizes("kv", shape.n_new)
        self._table = StreamTable(n_rows, sizes, like.device)
        self._cache = StreamCache(self._table, "kv", "n_new", heads)
        self.mel = torch.zeros(n_rows, N_MELS, shape.mel_frames, device=like.device)
        width = like.shape[0]
        self._dummy = like.new_zeros(len(encoder.layers), 1, heads, 0, 2 * (width // heads))
        self._new_shape = (len(encoder.layers), n_rows, shape.n_new, 3 * width)
        self.load(())

    def load(self, items: Sequence[EncodeStream]) -> None:
        """Write the inputs of at most S units that fit; every cache has room for its unit."""
        host, n, shape = self._table.on_host(), len(items), self._shape
        mel_frame, frame = np.arange(shape.mel_frames), np.arange(shape.n_new)
        spare = len(self._table.rows) - n
        facts = [
            (shape.offset(each), each.mel.shape[1], each.cache.length, each.n_new) for each in items
        ] + [(0, 0, 0, shape.n_new)] * spare
        start, n_given, length, n_new = np.array(facts)[:, :, None].swapaxes(0, 1)  # [S, 1] each
        host["n_new"][:], host["kv length"][:] = n_new, length
        host["is_sound"][:] = (mel_frame >= start) & (mel_frame < start + n_given)
        # What pads a short unit needs no position of its own: nothing sees it.
        host["positions"][:] = length + np.minimum(frame, n_new - 1)
        host["kv targets"][:] = np.where(frame < n_new, length + frame, DROPPED)
        host["kv targets"][n:] = DROPPED
        memory = [item.cache.kv for item in items] + [self._dummy] * spare
        host["kv capacity"][:, 0] = [each.shape[3] for each in memory]
        self._table.upload({"kv address": memory})
        if items:
            mels = [
                F.pad(each.mel, (first, shape.mel_frames - first - count))
                for each, (first, count, *_) in zip(items, facts, strict=False)
            ]
            self.mel[:n].copy_(torch.stack(mels), non_blocking=True)

    def release(self) -> None:
        """Drop the streams of the last `load`; the next pass needs another one first."""
        self._table.release()

    def attention(self) -> StreamAttention:
        return StreamAttention(self._cache, self._dummy.new_empty(self._new_shape))

    def batch(self, attention: StreamAttention) -> AudioBatch:
        table = self._table
        return AudioBatch(table["is_sound"], self._shape.context, table["positions"], attention)


@dataclass(frozen=True, eq=False)
class StreamAttention:
    """The frames of a unit attend to their stream's past and to each other.

    `new` holds queries, keys and values of all layers [layers, S, T, 3 * heads * d].
    """

    cache: StreamCache
    new: Tensor

    def buffer(self, layer: int) -> Tensor:
        return self.new[layer]

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        return stream_memory.attend(qkv, None, self.cache, layer)

    def store(self) -> None:
        stream_memory.store_entries(self.new, self.cache, 0)
