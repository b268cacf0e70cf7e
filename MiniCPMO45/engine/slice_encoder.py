"""From slices of pictures to what the language model reads: vision tower, then resampler.

Slices are independent, so those of several pictures or sessions share a pass. On a card, usual
numbers of patches have passes of fixed shape, captured as graphs: slices with such a number run as
they are, others are padded to one length. All others, and all on the CPU, run at their exact size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.kernels.device import HAS_TRITON, Capturable, upload_array
from MiniCPMO45.model.transformer import fuse_attention
from MiniCPMO45.model.vision import (
    PatchGrid,
    PatchSize,
    Resampler,
    SiglipVisionTransformer,
    patch_grid,
    side_codes,
)
from MiniCPMO45.processing.pictures import PATCH_SIDE, PATCH_VALUES, PixelSlice, Slice, patches_of

USUAL_COUNTS = (1024, 1032, 1036)  # patches of a picture 1:1, 16:9 or 4:3, either way up
PADDED = 1088  # covers one slice's area at any side ratio up to 10:1
LONGEST_SIDE = 140  # patches; twice the table's step
ROWS = (1, 2, 4, 8, 16)  # slices of a pass; the last bounds its memory
MOST_ROWS = ROWS[-1]


class SliceEncoder:
    def __init__(
        self,
        vision: SiglipVisionTransformer,
        resampler: Resampler,
        *,
        has_fixed_passes: bool | None = None,
        most_rows: int = MOST_ROWS,
    ) -> None:
        """Fuse the weights.

        None for `has_fixed_passes` pads to fixed shapes on a card. Passes of fewer slices
        (`most_rows`) need less memory.
        """
        self.vision, self.resampler = vision, resampler
        self.device = vision.post_layernorm.weight.device
        self._is_on_card = self.device.type == "cuda"
        self._has_fixed = self._is_on_card if has_fixed_passes is None else has_fixed_passes
        self._rows = tuple(count for count in ROWS if count <= most_rows)
        self._passes: dict[tuple[int, int], tuple[FixedPass, Capturable[Tensor]]] = {}
        fuse_attention(vision)

    @torch.no_grad()
    def encode(self, slices: Sequence[Slice]) -> list[Tensor]:
        """Return one tensor [num_queries, H] per slice, in order, in the dtype of the weights."""
        slices = self.prepare(slices)
        by_shape: dict[tuple[int, bool], list[int]] = {}
        for index, each in enumerate(slices):
            by_shape.setdefault(self._shape_for(each.size), []).append(index)
        answers: dict[int, Tensor] = {}
        for (length, is_fixed), indices in by_shape.items():
            run = self._run_fixed if is_fixed else self._run_exact
            for start in range(0, len(indices), self._rows[-1]):
                batch = indices[start : start + self._rows[-1]]
                encoded = run(length, [slices[index] for index in batch])
                answers.update(zip(batch, encoded, strict=True))
        return [answers[index] for index in range(len(slices))]

    def prepare(self, slices: Sequence[Slice]) -> tuple[Slice, ...]:
        """Do what is done on the CPU before slices are encoded; any thread may call this.

        Slices that were not prepared are prepared inside `encode`. A card resizes pictures itself.
        """
        is_left = self._is_on_card and HAS_TRITON
        return tuple(slices) if is_left else tuple(patches_of(slices))

    def warm_up(self) -> None:
        """Resize a blank picture, so that kernels are compiled."""
        side, pixels = PATCH_SIDE, np.zeros((PATCH_SIDE, PATCH_SIDE, 3), np.uint8)
        blank = PixelSlice(pixels, (side, side), (0, 0), (side, side))
        self.load([blank], torch.empty(1, 1, PATCH_VALUES, device=self.device))

    def pieces(self) -> list[Capturable[Tensor]]:
        lengths = (*USUAL_COUNTS, PADDED)
        return [self._fixed(length, count)[1] for count in self._rows[::-1] for length in lengths]

    def forward(self, patches: Tensor, grid: PatchGrid) -> Tensor:
        """Encode patch vectors [B, L, 588]; returns [B, num_queries, H]."""
        return self.resampler(self.vision(patches, grid.ids, grid.mask), grid)

    def grid(self, sizes: Sequence[PatchSize], length: int) -> PatchGrid:
        """Return the coordinates of slices padded to `length` patches."""
        width, like = self.resampler.query.shape[1], self.vision.post_layernorm.weight
        buckets = self.vision.embeddings.buckets
        return patch_grid(sizes, length, buckets=buckets, width=width, like=like)

    def load(self, slices: Sequence[Slice], patches: Tensor) -> None:
        """Write patch vectors; pixels are resized on the card.

        `patches` are float32 [B, L, 588]; rows behind a slice's patches are left as they are.
        """
        pixels: np.ndarray | None = None
        picture = torch.empty(0)
        for row, each in zip(patches, slices, strict=False):
            if not isinstance(each, PixelSlice):
                row[: len(each.values)] = upload_array(each.values, self.device)
                continue
            from MiniCPMO45.kernels.picture_patches import write_patches

            if each.pixels is not pixels:  # neighbours that are slices of one picture share it
                pixels, picture = each.pixels, upload_array(each.pixels, self.device)
            write_patches(picture, each, row)

    def _shape_for(self, size: PatchSize) -> tuple[int, bool]:
        """Return the length a slice is encoded at, and whether that pass has a fixed shape."""
        count = math.prod(size)
        if not self._has_fixed or count > PADDED or max(size) > LONGEST_SIDE:
            return count, False
        return (count if count in USUAL_COUNTS else PADDED), True

    def _run_exact(self, length: int, slices: Sequence[Slice]) -> list[Tensor]:
        patches = torch.empty(len(slices), length, PATCH_VALUES, device=self.device)
        self.load(slices, patches)
        return list(self.forward(patches, self.grid([each.size for each in slices], length)))

    def _run_fixed(self, length: int, slices: Sequence[Slice]) -> list[Tensor]:
        fixed, piece = self._fixed(length, next(n for n in self._rows if n >= len(slices)))
        fixed.load(slices)
        # A copy, because the next replay writes over the original.
        return list(piece.run()[: len(slices)].clone())

    def _fixed(self, length: int, n_rows: int) -> tuple[FixedPass, Capturable[Tensor]]:
        key = (length, n_rows)
        if key not in self._passes:
            with torch.inference_mode(False), torch.no_grad():  # it outlives the call
                fixed = FixedPass(self, length, n_rows)
            self._passes[key] = fixed, Capturable(f"vision encoder, {n_rows} x {length}", fixed.run)
        return self._passes[key]


class FixedPass:
    """At most `n_rows` slices of one length on memory whose addresses never change."""

    def __init__(self, encoder: SliceEncoder, length: int, n_rows: int) -> None:
        self._encoder, self._length = encoder, length
        device, shape = encoder.device, (n_rows, length)
        self._patches = torch.zeros(*shape, PATCH_VALUES, device=device)
        ids, rows, cols = torch.zeros(3, *shape, dtype=torch.int64, device=device)
        mask: Tensor | None = None
        if length == PADDED:
            mask = torch.ones(n_rows, 1, 1, length, dtype=torch.bool, device=device)
        width, like = encoder.resampler.query.shape[1], encoder.vision.post_layernorm.weight
        self._grid = PatchGrid(ids, rows, cols, mask, side_codes(LONGEST_SIDE, width, like))

    def load(self, slices: Sequence[Slice]) -> None:
        n, mine = len(slices), self._grid
        self._encoder.load(slices, self._patches)
        grid = self._encoder.grid([each.size for each in slices], self._length)
        mine.ids[:n], mine.rows[:n], mine.cols[:n] = grid.ids, grid.rows, grid.cols
        if mine.mask is not None:
            mine.mask[:n] = True if grid.mask is None else grid.mask

    def run(self) -> Tensor:
        return self._encoder.forward(self._patches, self._grid)
