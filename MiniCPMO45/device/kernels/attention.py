"""Launches attention over paged keys and values, cut so that the card is filled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from MiniCPMO45.device.kernels.decode_attention import attend_one_row
from MiniCPMO45.device.kernels.launch import overlaps_launches
from MiniCPMO45.device.kernels.paged import combine_splits
from MiniCPMO45.device.kernels.prefill_attention import attend_tile, rotate_and_store
from MiniCPMO45.device.row_map import PAGE_TOKENS, RowMap

FEWEST_LINES = 16  # of a tensor core's product
NARROWEST_HEAD = 16  # the same
MOST_HEADS_TOGETHER = 8  # a power of two: heads one program rotates


@dataclass(frozen=True)
class AttentionPlan:
    """How attention is cut into programs.

    Attributes:
        splits: ranges the keys of a tile are cut into, a power of two.
        warps: per program.
        stages: loads in flight.
        early_pages: of a split asked for before the rows are there; in decoding.
    """

    splits: int
    warps: int
    stages: int
    early_pages: int = 0


@dataclass(frozen=True, eq=False)
class Attention:
    """One layer's attention of a pass; the attributes are those of `ops.attend`, and the cut."""

    qkv: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    cos_table: Tensor
    sin_table: Tensor
    rows: RowMap
    kv_layer: Tensor
    scale: float
    plan: AttentionPlan

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.qkv.shape[1] // self.kv_layer.shape[4] - 2 * self.kv_layer.shape[2]

    def run(self) -> Tensor:
        """Launch the kernels: [M, H * D]."""
        count, heads, d = self.qkv.shape[0], self.heads, self.kv_layer.shape[4]
        splits = self.plan.splits
        mixed = self.qkv.new_empty(count, heads * d)
        parts = stats = mixed
        if splits > 1:
            parts = self.qkv.new_empty((count, heads, splits, d), dtype=torch.float32)
            stats = self.qkv.new_empty((count, heads, splits, 2), dtype=torch.float32)
        if self.rows.rows_per_tile == 1:
            self._attend_rows(mixed, parts, stats)
        else:
            self._attend_tiles(self._rotate(mixed), mixed, parts, stats)
        if splits > 1:
            combine_splits[(count, heads)](
                parts,
                stats,
                self.rows.positions,
                mixed,
                H=heads,
                D=d,
                WIDE=self._wide,
                SPLITS=splits,
                num_warps=1,
                **self._overlap(),
            )
        return mixed

    def _inputs(self) -> tuple[Tensor | None, ...]:
        """What the kernels that rotate take first."""
        rows = self.rows
        norms, tables = (self.q_norm, self.k_norm), (self.cos_table, self.sin_table)
        places = (rows.positions, rows.sequences, rows.page_table)
        return (self.qkv, *norms, *tables, *places, self.kv_layer)

    def _attend_rows(self, mixed: Tensor, parts: Tensor, stats: Tensor) -> None:
        attend_one_row[(self.plan.splits, self.kv_layer.shape[2], self.qkv.shape[0])](
            *self._inputs(),
            mixed,
            parts,
            stats,
            self.rows.page_table.shape[1],
            self.eps,
            self.scale,
            HAS_NORM=self.q_norm is not None,
            EARLY_PAGES=self.plan.early_pages,
            **self._cut(),
        )

    def _rotate(self, mixed: Tensor) -> Tensor:
        kv_heads, d = self.kv_layer.shape[2], self.kv_layer.shape[4]
        together = math.gcd(self.heads, kv_heads, MOST_HEADS_TOGETHER)
        queries = torch.empty_like(mixed)
        rotate_and_store[(self.qkv.shape[0], (self.heads + 2 * kv_heads) // together)](
            *self._inputs(),
            queries,
            mixed,
            self.rows.page_table.shape[1],
            self.eps,
            HAS_NORM=self.q_norm is not None,
            HALF=triton.next_power_of_2(d // 2),
            HEADS=together,
            num_warps=1,
            **self._shape(),
        )
        return queries

    def _attend_tiles(self, queries: Tensor, mixed: Tensor, parts: Tensor, stats: Tensor) -> None:
        tiles = self.rows.tile_rows.shape[0]
        attend_tile[(self.plan.splits, self.kv_layer.shape[2], tiles)](
            queries,
            self.kv_layer,
            self.rows.positions,
            self.rows.sequences,
            self.rows.page_table,
            self.rows.tile_first_row,
            self.rows.tile_rows,
            mixed,
            parts,
            stats,
            self.rows.page_table.shape[1],
            self.scale,
            **self._cut(),
        )

    @property
    def _wide(self) -> int:
        return max(triton.next_power_of_2(self.kv_layer.shape[4]), NARROWEST_HEAD)

    def _overlap(self) -> dict[str, bool]:
        overlaps = overlaps_launches(self.qkv)
        return {"OVERLAPS": overlaps, "launch_pdl": overlaps}

    def _shape(self) -> dict[str, int]:
        kv_heads, d = self.kv_layer.shape[2], self.kv_layer.shape[4]
        return {"H": self.heads, "KVH": kv_heads, "D": d, "PAGE": PAGE_TOKENS, **self._overlap()}

    def _cut(self) -> dict[str, int]:
        group = self.heads // self.kv_layer.shape[2]
        lines = triton.next_power_of_2(self.rows.rows_per_tile * group)
        return {
            "LINES": max(lines, FEWEST_LINES),
            "WIDE": self._wide,
            "SPLITS": self.plan.splits,
            "num_warps": self.plan.warps,
            "num_stages": self.plan.stages,
            **self._shape(),
        }
