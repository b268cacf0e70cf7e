"""From mel frames to embeddings: whole clips, and units of streams that keep their past.

Units of several streams share a pass whose shape fits a whole unit; shorter ones are padded. On a
card the passes for usual numbers of streams are captured as graphs. Never holds a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from MiniCPMO45.engine.steps import EncodeStream
from MiniCPMO45.kernels import stream_memory
from MiniCPMO45.kernels.device import Capturable
from MiniCPMO45.kernels.stream_memory import DROPPED, ColumnCache, StreamTable
from MiniCPMO45.model.audio_encoder import AudioBatch, AudioEncoder, pool
from MiniCPMO45.model.transformer import fuse_attention
from MiniCPMO45.processing.mel import (
    CONTEXT_FRAMES,
    CONV_STRIDE,
    HOP_SAMPLES,
    N_MELS,
    POOL_STEP,
    UNIT_SAMPLES,
    encoder_frame_count,
)

ROWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class UnitShape:
    """What a pass is sized for: mel frames with context, and encoder frames of context and unit."""

    mel_frames: int
    context: int
    n_new: int

    @classmethod
    def of_unit(cls) -> UnitShape:
        mel_frames = UNIT_SAMPLES // HOP_SAMPLES + 2 * CONTEXT_FRAMES
        context = (CONTEXT_FRAMES + 1) // CONV_STRIDE
        return cls(mel_frames, context, encoder_frame_count(mel_frames) - 2 * context)

    @classmethod
    def around(cls, items: Sequence[EncodeStream]) -> UnitShape:
        context = max(item.context for item in items)
        mel_frames = max(cls.offset(context, item) + item.mel.shape[1] for item in items)
        return cls(mel_frames, context, max(item.n_new for item in items))

    @staticmethod
    def offset(context: int, item: EncodeStream) -> int:
        """Return how many mel frames of padding are in front of an item."""
        return CONV_STRIDE * (context - item.context)

    def fits(self, item: EncodeStream) -> bool:
        n_frames = self.offset(self.context, item) + item.mel.shape[1]
        is_short = item.n_new <= self.n_new and n_frames <= self.mel_frames
        return item.context <= self.context and is_short


UNIT = UnitShape.of_unit()


class AudioEmbedder:
    """Encoder, projection and pooling of `pool_step` encoder frames into one embedding."""

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
        self._passes: dict[int, tuple[StreamPass, Capturable[Tensor]]] = {}
        fuse_attention(encoder)

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
            embedded = self._run([items[index] for index in indices])
            answers.update(zip(indices, embedded, strict=True))
        for index, item in enumerate(items):
            if index not in answers:  # longer than a unit: a pass of its own
                once = StreamPass(self, 1, UnitShape.around([item]))
                [answers[index]] = self._feed(once, once.run, [item])
        return [answers[index] for index in range(len(items))]

    def pieces(self, rows: Sequence[int] = ROWS) -> list[Capturable[Tensor]]:
        return [self._pass(n)[1] for n in sorted(rows, reverse=True)]

    def _check(self, items: Sequence[EncodeStream]) -> None:
        if len({id(item.cache) for item in items}) < len(items):
            raise ValueError("a cache can take part in a step only once")
        most = self.encoder.max_positions
        for item in items:
            if item.n_new < 1:
                raise ValueError(f"{item.all_frames} encoder frames are nothing but context")
            if item.n_new > most:
                raise ValueError(f"{item.n_new} encoder frames, only {most} positions")

    def _run(self, items: Sequence[EncodeStream]) -> list[Tensor]:
        n_rows = len(items)
        if self._has_fixed:
            n_rows = next(n for n in ROWS if n >= n_rows)
        unit, piece = self._pass(n_rows)
        return self._feed(unit, piece.run, items)

    def _feed(
        self, unit: StreamPass, run: Callable[[], Tensor], items: Sequence[EncodeStream]
    ) -> list[Tensor]:
        for item in items:
            if item.cache.length + item.all_frames >= self.encoder.max_positions:
                item.cache.truncate(0)
            item.cache.reserve(item.cache.length + item.n_new)
        try:
            unit.load(items)
            rows = run()[: len(items)].clone()  # the next replay writes over the original
        finally:
            unit.release()
        for item in items:
            item.cache.length += item.n_new
        return [
            of_one[: item.n_new // self.pool_step] for of_one, item in zip(rows, items, strict=True)
        ]

    def _pass(self, n_rows: int) -> tuple[StreamPass, Capturable[Tensor]]:
        if n_rows not in self._passes:
            with torch.inference_mode(False), torch.no_grad():  # it outlives the call
                unit = StreamPass(self, n_rows, UNIT)
            self._passes[n_rows] = unit, Capturable(f"audio encoder, {n_rows}", unit.run)
        return self._passes[n_rows]


class StreamPass:
    """A unit of each of S streams, fewer are padded, on memory whose addresses never change."""

    def __init__(self, embedder: AudioEmbedder, n_rows: int, shape: UnitShape) -> None:
        self._embedder, self._shape = embedder, shape
        encoder = embedder.encoder
        like, heads = encoder.conv1.weight, encoder.heads
        sizes = {"n_new": 1, "is_sound": shape.mel_frames, "positions": shape.n_new}
        sizes |= ColumnCache.sizes("kv", shape.n_new)
        self._table = StreamTable(n_rows, sizes, like.device)
        self._cache = ColumnCache(self._table, "kv", "n_new", heads)
        self._mel = torch.zeros(n_rows, N_MELS, shape.mel_frames, device=like.device)
        width = 2 * (like.shape[0] // heads)
        self._dummy = like.new_zeros(len(encoder.layers), 1, heads, 0, width)
        self.load(())

    def load(self, items: Sequence[EncodeStream]) -> None:
        """Write the inputs of at most S units that fit; every cache has room for its unit."""
        host, n, shape = self._table.on_host(), len(items), self._shape
        mel_frame, frame = np.arange(shape.mel_frames), np.arange(shape.n_new)
        spare = len(self._table.rows) - n
        facts = [
            (shape.offset(shape.context, each), each.mel.shape[1], each.cache.length, each.n_new)
            for each in items
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
            self._mel[:n].copy_(torch.stack(mels), non_blocking=True)

    def release(self) -> None:
        """Drop the streams of the last `load`; `run` needs another one first."""
        self._table.release()

    def run(self) -> Tensor:
        """Encode the units and keep them; embeddings [S, frames / pool step, llm_width]."""
        embedder, table = self._embedder, self._table
        encoder, dtype = embedder.encoder, embedder.encoder.conv1.weight.dtype
        shape = (
            len(encoder.layers),
            len(table.rows),
            self._shape.n_new,
            3 * encoder.conv1.out_channels,
        )
        attention = StreamAttention(self._cache, self._mel.new_empty(shape, dtype=dtype))
        batch = AudioBatch(table["is_sound"], self._shape.context, table["positions"], attention)
        rows = embedder.projection(encoder(self._mel, batch))
        attention.store()
        n_groups = rows.shape[1] // embedder.pool_step
        pooled = rows[:, : n_groups * embedder.pool_step]
        return pooled.unflatten(1, (n_groups, embedder.pool_step)).mean(2)


@dataclass(frozen=True, eq=False)
class StreamAttention:
    """The frames of a unit attend to their stream's past and to each other.

    `new` holds queries, keys and values of all layers [layers, S, T, 3 * heads * d].
    """

    cache: ColumnCache
    new: Tensor

    def buffer(self, layer: int) -> Tensor:
        return self.new[layer]

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        return stream_memory.attend(qkv, None, self.cache, layer)

    def store(self) -> None:
        stream_memory.store_columns(self.new, self.cache, 0)
