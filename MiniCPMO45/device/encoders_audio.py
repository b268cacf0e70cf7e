"""The audio encoder for whole units of many streams at once, on static shapes.

Streams keep their `AudioCache`, written in place, so a unit of another length can be left to the
plain encoder at any time. Never holds a stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.audio_encoder import (
    LAYER_NORM_EPS,
    AudioEncoder,
    AudioLayer,
    AudioProjection,
    StreamItem,
    encode_streams,
)
from MiniCPMO45.audio_features import CONV_STRIDE, HOP_SAMPLES, N_MELS, encoder_frame_count
from MiniCPMO45.configuration_minicpmo import StreamTiming
from MiniCPMO45.device.encoders_layers import PackedLayer
from MiniCPMO45.device.graphs import Piece
from MiniCPMO45.device.kernels import stream_attention, stream_norms
from MiniCPMO45.device.packed_linear import all_of, pack_norm
from MiniCPMO45.device.stream_table import ColumnCache, StreamTable

TIMING = StreamTiming()
CONTEXT_FRAMES = TIMING.redundancy_frames  # mel frames on either side of a unit
MEL_FRAMES = TIMING.unit_samples // HOP_SAMPLES + 2 * CONTEXT_FRAMES
CONTEXT = (CONTEXT_FRAMES + 1) // CONV_STRIDE  # encoder frames on either side
UNIT_FRAMES = encoder_frame_count(MEL_FRAMES) - 2 * CONTEXT  # 50
ROWS = (1, 2, 4, 8, 16, 32, 64)


class AudioStreamEncoder:
    """Encoder and projection of streams.

    Attributes:
        encoder: the encoder's weights.
        projection: the projection's weights.
        pool_step: encoder frames averaged into one embedding.
    """

    def __init__(
        self, encoder: AudioEncoder, projection: AudioProjection, *, pool_step: int
    ) -> None:
        """Pack the weights.

        Args:
            encoder: the encoder's weights.
            projection: the projection's weights.
            pool_step: encoder frames averaged into one embedding.
        """
        self.encoder, self.projection, self.pool_step = encoder, projection, pool_step
        with torch.no_grad():
            self.layers = [_pack(layer) for layer in all_of(AudioLayer, encoder.layers)]
            self.heads = all_of(AudioLayer, encoder.layers)[0].self_attn.n_heads
            self.last_norm = pack_norm(encoder.layer_norm)
        self._pieces: dict[int, tuple[UnitProgram, Piece[Tensor]]] = {}

    @torch.no_grad()
    def encode(self, items: Sequence[StreamItem]) -> list[Tensor]:
        """Embed one unit of each of several streams, like `audio_encoder.encode_streams`.

        Args:
            items: the units; every cache at most once.

        Returns:
            One tensor [t, llm_width] per stream; t = 10 for a whole unit.

        Raises:
            ValueError: a cache appears twice, or a unit is too short or too long.
        """
        if len({id(item.cache) for item in items}) < len(items):
            raise ValueError("a cache can take part in a step only once")
        usual = [index for index, item in enumerate(items) if _is_whole_unit(item)]
        others = [index for index, item in enumerate(items) if not _is_whole_unit(item)]
        # First what may be refused, so that it is refused before any cache has grown.
        plain = encode_streams(
            self.encoder,
            self.projection,
            [items[index] for index in others],
            pool_step=self.pool_step,
        )
        answers: dict[int, Tensor] = dict(zip(others, plain, strict=True))
        for start in range(0, len(usual), ROWS[-1]):
            batch = usual[start : start + ROWS[-1]]
            answers.update(zip(batch, self._run([items[i] for i in batch]), strict=True))
        return [answers[index] for index in range(len(items))]

    def pieces(self, rows: Sequence[int] = ROWS) -> list[Piece[Tensor]]:
        """Return the units to be captured before the first call.

        Args:
            rows: numbers of streams.
        """
        return [self._piece(n)[1] for n in sorted(rows, reverse=True)]

    def _run(self, items: Sequence[StreamItem]) -> list[Tensor]:
        for item in items:
            # As the plain encoder counts: what the unit yields with its context.
            with_context = encoder_frame_count(item.mel.shape[1])
            if item.cache.length + with_context >= self.encoder.max_positions:
                item.cache.truncate(0)
            item.cache.reserve(item.cache.length + UNIT_FRAMES)
        n_rows = next(n for n in ROWS if n >= len(items))
        program, piece = self._piece(n_rows)
        try:
            program.load(items)
            rows = piece.run()[: len(items)].clone()  # the next replay writes over the original
        finally:
            program.release()
        for item in items:
            item.cache.advance(UNIT_FRAMES)
        return list(rows)

    def _piece(self, n_rows: int) -> tuple[UnitProgram, Piece[Tensor]]:
        if n_rows not in self._pieces:
            with torch.inference_mode(False), torch.no_grad():  # it outlives the call
                program = UnitProgram(self, n_rows)
            self._pieces[n_rows] = program, Piece(f"audio encoder, {n_rows}", program.run)
        return self._pieces[n_rows]


class UnitProgram:
    """A whole unit of S streams on static memory."""

    def __init__(self, weights: AudioStreamEncoder, n_rows: int) -> None:
        """Allocate inputs.

        Args:
            weights: what to run.
            n_rows: streams S; fewer are padded.
        """
        self._weights, self._n_rows = weights, n_rows
        like = weights.encoder.conv1.weight
        sizes = {"n_new": 1, "first_frame": 1} | ColumnCache.sizes("kv", UNIT_FRAMES)
        self._table = StreamTable(n_rows, sizes, like.device)
        heads = weights.heads
        self._cache = ColumnCache(self._table, "kv", "n_new", heads, is_paired=False)
        self._mel = torch.zeros(n_rows, N_MELS, MEL_FRAMES, device=like.device)
        head_dim = like.shape[0] // heads
        self._nobody = like.new_zeros(len(weights.layers), 2, heads, 0, head_dim)
        self.load(())

    def load(self, items: Sequence[StreamItem]) -> None:
        """Write the inputs; every cache has room for the unit.

        Args:
            items: at most S whole units.
        """
        host, n = self._table.on_host(), len(items)
        lengths = [item.cache.length for item in items]
        memory = [item.cache.kv for item in items]
        host["n_new"][:] = UNIT_FRAMES
        host["first_frame"][:n, 0] = [MEL_FRAMES - item.mel.shape[1] for item in items]
        host["kv length"][:n, 0], host["kv length"][n:] = lengths, 0
        host["kv capacity"][:n, 0] = [each.shape[3] for each in memory]
        frames = torch.arange(UNIT_FRAMES).numpy()
        host["kv targets"][:n] = host["kv length"][:n] + frames
        host["kv targets"][n:] = -1
        self._table.upload({"kv address": memory + [self._nobody] * (self._n_rows - n)})
        if items:
            padded = [F.pad(item.mel, (MEL_FRAMES - item.mel.shape[1], 0)) for item in items]
            self._mel[:n].copy_(torch.stack(padded), non_blocking=True)

    def release(self) -> None:
        """Drop the streams of the last `load`; `run` needs another one first."""
        self._table.release()

    def run(self) -> Tensor:
        """Encode the units and remember them; embeddings [S, 50 / pool step, llm_width]."""
        weights, table = self._weights, self._table
        encoder, dtype = weights.encoder, weights.encoder.conv1.weight.dtype
        hidden = F.gelu(encoder.conv1(self._mel.to(dtype)))
        # What lies before a stream's first frame is padding to the second convolution, too.
        places = torch.arange(MEL_FRAMES, device=hidden.device)
        hidden = hidden * (places >= table["first_frame"])[:, None]
        hidden = F.gelu(encoder.conv2(hidden)).transpose(1, 2)  # [S, 52, width]
        hidden = hidden[:, CONTEXT : CONTEXT + UNIT_FRAMES]
        x = hidden + encoder.embed_positions.weight[table["kv length"] + places[:UNIT_FRAMES]]
        x = x.contiguous()
        shape = (len(weights.layers), *x.shape[:2], 3 * x.shape[2])
        seen = torch.empty(shape, dtype=dtype, device=x.device)
        change: Tensor | None = None
        for index, layer in enumerate(weights.layers):
            for_attention, for_feed_forward = layer.norms
            y = stream_norms.gated_norm(x, change, None, for_attention, LAYER_NORM_EPS, dtype)
            mixed = stream_attention.attend(
                layer.qkv.into(y, seen[index]), None, self._cache, index
            )
            y = stream_norms.gated_norm(
                x, layer.out(mixed), None, for_feed_forward, LAYER_NORM_EPS, dtype
            )
            change = layer.down(F.gelu(layer.up(y)))
        stream_attention.store_columns(seen, self._cache, 0)
        y = stream_norms.gated_norm(x, change, None, weights.last_norm, LAYER_NORM_EPS, dtype)
        return weights.projection(y).unflatten(1, (-1, weights.pool_step)).mean(2)


def _is_whole_unit(item: StreamItem) -> bool:
    """Whether a unit, padded in front, has the shape that is captured."""
    return (
        item.suffix_frames == CONTEXT_FRAMES
        and item.prefix_frames in (0, CONTEXT_FRAMES)
        and item.mel.shape[1] == MEL_FRAMES - CONTEXT_FRAMES + item.prefix_frames
    )


def _pack(layer: AudioLayer) -> PackedLayer:
    attention = layer.self_attn
    return PackedLayer.of(
        (layer.self_attn_layer_norm, layer.final_layer_norm),
        (attention.q_proj, attention.k_proj, attention.v_proj),
        attention.out_proj,
        layer.fc1,
        layer.fc2,
    )
