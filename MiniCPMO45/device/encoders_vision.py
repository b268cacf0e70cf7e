"""Vision tower and resampler for slices of any usual size, on static shapes.

Slices with a usual number of patches run as they are; others are padded to one length, so that
pictures of different sizes share a batch. What is too large is left to the plain encoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.device import stream_ops
from MiniCPMO45.device.encoders_layers import PackedLayer
from MiniCPMO45.device.graphs import Piece
from MiniCPMO45.device.packed_linear import all_of, pack_norm
from MiniCPMO45.image_processing import Patches
from MiniCPMO45.modeling_navit_siglip import (
    SiglipEncoderLayer,
    SiglipVisionTransformer,
    position_ids,
)
from MiniCPMO45.patch_grid import patch_layout
from MiniCPMO45.resampler import Resampler, sincos_table
from MiniCPMO45.vision_encoder import encode_slices

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
    def encode(self, patches: Sequence[Patches]) -> list[Tensor]:
        """Encode slices, like `vision_encoder.encode_slices`.

        Args:
            patches: slices in any order and of any sizes.

        Returns:
            One tensor [num_queries, H] per slice, in order.
        """
        by_length: dict[int, list[int]] = {}
        for index, each in enumerate(patches):
            by_length.setdefault(_length_for(each), []).append(index)
        answers: dict[int, Tensor] = {}
        for length, indices in by_length.items():
            for start in range(0, len(indices), ROWS[-1]):
                batch = indices[start : start + ROWS[-1]]
                slices = [patches[index] for index in batch]
                answers.update(zip(batch, self._run(length, slices), strict=True))
        return [answers[index] for index in range(len(patches))]

    def pieces(self, rows: Sequence[int] = ROWS) -> list[Piece[Tensor]]:
        """Return the batches to be captured before the first call.

        Args:
            rows: numbers of slices.
        """
        lengths = (*USUAL_COUNTS, PADDED)
        return [self._piece(length, n)[1] for n in sorted(rows, reverse=True) for length in lengths]

    def _run(self, length: int, patches: Sequence[Patches]) -> list[Tensor]:
        if length > PADDED:
            return encode_slices(self.vision, self.resampler, patches)
        program, piece = self._piece(length, next(n for n in ROWS if n >= len(patches)))
        program.load(patches)
        # A copy, because the next replay writes over the original.
        return list(piece.run()[: len(patches)].clone())

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
        is_cuda = device.type == "cuda"
        shape = (n_rows, length, width)
        self._on_host = torch.zeros(shape, pin_memory=is_cuda)
        self._copied = torch.cuda.Event() if is_cuda else None
        self._patches = torch.zeros(shape, device=device)
        self._ids, self._rows, self._cols = torch.zeros(
            3, n_rows, length, dtype=torch.int64, device=device
        )
        self._mask: Tensor | None = None
        if length == PADDED:
            self._mask = torch.ones(n_rows, 1, 1, length, dtype=torch.bool, device=device)

    def load(self, patches: Sequence[Patches]) -> None:
        """Write the inputs.

        Args:
            patches: at most as many slices as there are rows.
        """
        if self._copied is not None:
            self._copied.synchronize()  # the last copy may still read them
        device, n, length = self._weights.device, len(patches), self._length
        on_host = self._on_host.numpy()
        for row, each in zip(on_host, patches, strict=False):
            np.copyto(row[: len(each.values)], each.values)
        self._patches[:n].copy_(self._on_host[:n], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        sizes = [each.size for each in patches]
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


def _length_for(each: Patches) -> int:
    """Patches of the batch a slice goes to."""
    count = len(each.values)
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
