"""Vision tower and resampler for slices of any usual size, on static shapes.

Pictures come as bytes and are resized on the device. Slices with a usual number of patches run as
they are; others are padded to one length, so that pictures of different sizes share a batch. What
is too large is left to the plain encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.device import picture_ops, stream_ops
from MiniCPMO45.device.encoders_layers import PackedLayer
from MiniCPMO45.device.graphs import Piece
from MiniCPMO45.device.packed_linear import all_of, pack_norm
from MiniCPMO45.device.upload import upload_array
from MiniCPMO45.image_processing import PATCH_SIDE, PATCH_VALUES
from MiniCPMO45.modeling_navit_siglip import (
    SiglipEncoderLayer,
    SiglipVisionTransformer,
    position_ids,
)
from MiniCPMO45.patch_grid import patch_layout
from MiniCPMO45.picture_slices import PixelSlice, Slice, patches_of
from MiniCPMO45.resampler import Resampler, sincos_table
from MiniCPMO45.vision_encoder import get_vision_embedding

USUAL_COUNTS = (1024, 1032, 1036)  # patches of a picture 1:1, 16:9 or 4:3, either way up
PADDED = 1088  # covers one slice's area at any side ratio up to 10:1
LONGEST_SIDE = 140  # patches; twice the table's step
ROWS = (1, 2, 4, 8, 16)


class SliceEncoder:
    """Vision tower and resampler.

    Attributes:
        vision: the vision tower.
        resampler: the resampler behind it.
    """

    def __init__(self, vision: SiglipVisionTransformer, resampler: Resampler) -> None:
        """Pack the weights.

        Args:
            vision: the vision tower.
            resampler: the resampler behind it.
        """
        self.vision, self.resampler = vision, resampler
        self.device = vision.post_layernorm.weight.device
        with torch.no_grad():
            layers = all_of(SiglipEncoderLayer, vision.encoder.layers)
            self.layers = [_pack(layer) for layer in layers]
            self.head_dim = layers[0].self_attn.head_dim
            self.last_norm = pack_norm(vision.post_layernorm)
            table = sincos_table(LONGEST_SIDE, resampler.query.shape[1] // 2)
            self.table = torch.from_numpy(table).to(vision.post_layernorm.weight)
        self._pieces: dict[tuple[int, int], tuple[SliceProgram, Piece[Tensor]]] = {}

    @torch.no_grad()
    def encode(self, slices: Sequence[Slice]) -> list[Tensor]:
        """Encode slices, like `vision_encoder.get_vision_embedding`.

        Args:
            slices: in any order and of any sizes.

        Returns:
            One tensor [num_queries, H] per slice, in order.
        """
        by_length: dict[int, list[int]] = {}
        for index, each in enumerate(slices):
            by_length.setdefault(_length_for(each), []).append(index)
        answers: dict[int, Tensor] = {}
        for length, indices in by_length.items():
            for start in range(0, len(indices), ROWS[-1]):
                batch = indices[start : start + ROWS[-1]]
                encoded = self._run(length, [slices[index] for index in batch])
                answers.update(zip(batch, encoded, strict=True))
        return [answers[index] for index in range(len(slices))]

    def rehearse(self) -> None:
        """Resize a blank picture, so that kernels are compiled."""
        side, pixels = PATCH_SIDE, np.zeros((PATCH_SIDE, PATCH_SIDE, 3), np.uint8)
        blank = PixelSlice(pixels, (side, side), (0, 0), (side, side))
        out = torch.empty(1, PATCH_VALUES, device=self.device)
        picture_ops.write_patches(upload_array(pixels, self.device), blank, out)

    def pieces(self, rows: Sequence[int] = ROWS) -> list[Piece[Tensor]]:
        """Return the batches to be captured before the first call.

        Args:
            rows: numbers of slices.
        """
        lengths = (*USUAL_COUNTS, PADDED)
        return [self._piece(length, n)[1] for n in sorted(rows, reverse=True) for length in lengths]

    def _run(self, length: int, slices: Sequence[Slice]) -> list[Tensor]:
        if length > PADDED:
            return get_vision_embedding(self.vision, self.resampler, patches_of(slices))
        program, piece = self._piece(length, next(n for n in ROWS if n >= len(slices)))
        program.load(slices)
        # A copy, because the next replay writes over the original.
        return list(piece.run()[: len(slices)].clone())

    def _piece(self, length: int, n_rows: int) -> tuple[SliceProgram, Piece[Tensor]]:
        key = (length, n_rows)
        if key not in self._pieces:
            with torch.inference_mode(False), torch.no_grad():  # it outlives the call
                program = SliceProgram(self, length, n_rows)
            name = f"vision encoder, {n_rows} x {length}"
            self._pieces[key] = program, Piece(name, program.run)
        return self._pieces[key]


class SliceProgram:
    """A number of slices of one length on static memory."""

    def __init__(self, weights: SliceEncoder, length: int, n_rows: int) -> None:
        """Allocate inputs.

        Args:
            weights: what to run.
            length: patches of a slice.
            n_rows: slices; fewer are padded.
        """
        self._weights, self._length = weights, length
        device, width = weights.device, weights.vision.embeddings.patch_embedding.weight[0].numel()
        self._patches = torch.zeros(n_rows, length, width, device=device)
        self._ids, self._rows, self._cols = torch.zeros(
            3, n_rows, length, dtype=torch.int64, device=device
        )
        self._mask: Tensor | None = None
        if length == PADDED:
            self._mask = torch.ones(n_rows, 1, 1, length, dtype=torch.bool, device=device)

    def load(self, slices: Sequence[Slice]) -> None:
        """Write the inputs.

        Args:
            slices: at most as many as there are rows.
        """
        device, n, length = self._weights.device, len(slices), self._length
        picture = _Picture(device)
        for row, each in zip(self._patches, slices, strict=False):
            if isinstance(each, PixelSlice):
                picture_ops.write_patches(picture.of(each.pixels), each, row)
            else:
                row[: len(each.values)] = upload_array(each.values, device)
        sizes = [each.size for each in slices]
        layout = patch_layout(sizes, length, device)
        buckets = self._weights.vision.embeddings.buckets
        self._ids[:n] = position_ids(sizes, length, buckets, device)
        self._rows[:n], self._cols[:n] = layout.rows, layout.cols
        if self._mask is not None:
            self._mask[:n] = True if layout.mask is None else layout.mask

    def run(self) -> Tensor:
        """Encode the slices [rows, num_queries, H]."""
        weights = self._weights
        vision, resampler = weights.vision, weights.resampler
        x = vision.embeddings(self._patches, self._ids).contiguous()
        change: Tensor | None = None
        eps, dtype = vision.post_layernorm.eps, x.dtype
        for layer in weights.layers:
            for_attention, for_feed_forward = layer.norms
            y = stream_ops.gated_norm(x, change, None, for_attention, eps, dtype)
            split = layer.qkv(y).unflatten(2, (3, -1, weights.head_dim))
            q, k, v = split.permute(2, 0, 3, 1, 4)  # [rows, heads, L, head_dim] each
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self._mask)
            out = layer.out(mixed.transpose(1, 2).flatten(2))
            y = stream_ops.gated_norm(x, out, None, for_feed_forward, eps, dtype)
            change = layer.down(layer.up.gelu(y))
        x = stream_ops.gated_norm(x, change, None, weights.last_norm, eps, dtype)
        return resampler.condense(x, weights.table, self._rows, self._cols, self._mask)


class _Picture:
    """The picture on the device: one at a time, shared by neighbours that are slices of it."""

    def __init__(self, device: torch.device) -> None:
        self._pixels: np.ndarray | None = None
        self._uploaded = torch.empty(0, device=device)

    def of(self, pixels: np.ndarray) -> Tensor:
        """Return a picture's bytes, uint8 [height, width, 3]."""
        if pixels is not self._pixels:
            self._pixels, self._uploaded = pixels, upload_array(pixels, self._uploaded.device)
        return self._uploaded


def _length_for(each: Slice) -> int:
    """Patches of the batch a slice goes to."""
    count = math.prod(each.size)
    if max(each.size) > LONGEST_SIDE:
        return max(count, PADDED + 1)
    return count if count in USUAL_COUNTS else max(count, PADDED)


def _pack(layer: SiglipEncoderLayer) -> PackedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    return PackedLayer.of(
        (layer.layer_norm1, layer.layer_norm2),
        (attention.q_proj, attention.k_proj, attention.v_proj),
        attention.out_proj,
        mlp.fc1,
        mlp.fc2,
    )
