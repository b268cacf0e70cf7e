"""Coordinates, positions and masks of padded batches."""

from __future__ import annotations

import pytest
import torch

from MiniCPMO45.model.vision import PatchGrid, PatchSize, patch_grid, position_buckets

BUCKETS = 70
# Counts up to 140 where float32 rounding moves a bucket. Source: docs/specification/model.md#1.4.
MOVED = {25, 49, 50, 55, 58, 77, 82, 86, 94, 98, 100, 110, 115, 135}


def grid_of(sizes: list[PatchSize], length: int) -> PatchGrid:
    like = torch.empty(0, device="cpu")
    return patch_grid(sizes, length, buckets=BUCKETS, width=8, like=like)


def test_coordinates_run_row_by_row_and_are_zero_in_the_padding() -> None:
    grid = grid_of([(2, 3), (1, 2)], 6)
    assert grid.rows.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert grid.cols.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 0, 0, 0, 0]]
    assert grid.mask is not None
    assert grid.mask[:, 0, 0].tolist() == [[True] * 6, [True] * 2 + [False] * 4]


def test_position_ids_combine_both_sides_and_are_zero_in_the_padding() -> None:
    ids = grid_of([(2, 3), (1, 1)], 6).ids
    rows, cols = position_buckets(2, BUCKETS), position_buckets(3, BUCKETS)
    assert ids[0].tolist() == [r * BUCKETS + c for r in rows for c in cols]
    assert ids[1].tolist() == [0] * 6


def test_a_batch_without_padding_has_no_mask() -> None:
    assert grid_of([(2, 3), (3, 2)], 6).mask is None


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (3, 3)])
def test_sizes_that_do_not_fit_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        grid_of([size], 8)


def test_grids_stay_real_while_modules_are_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        grid = grid_of([(5, 1)], 5)
    assert {each.device.type for each in (grid.ids, grid.rows, grid.codes)} == {"cpu"}


@pytest.mark.parametrize("count", range(1, 141))
def test_position_buckets_follow_the_float32_formula(count: int) -> None:
    # one over an integer tensor is a float32 step: that rounding is the whole point
    step = (1 / torch.tensor(count, dtype=torch.int32)).item()
    coordinates = torch.arange(0, 1 - 1e-6, step)
    borders = torch.arange(1 / BUCKETS, 1, 1 / BUCKETS)
    buckets = list(position_buckets(count, BUCKETS))
    assert buckets == torch.bucketize(coordinates, borders, right=True).tolist()
    assert len(buckets) == count
    whole = [i * BUCKETS // count for i in range(count)]
    assert (buckets != whole) == (count in MOVED)
    assert all(exact - bucket in (0, 1) for bucket, exact in zip(buckets, whole, strict=True))


def test_position_buckets_of_fifty() -> None:
    buckets = position_buckets(50, BUCKETS)
    assert [buckets[i] for i in (5, 10, 15, 20, 30, 40)] == [6, 13, 20, 27, 41, 55]


@pytest.mark.parametrize("count", [141, 500, 1024])
def test_position_buckets_of_long_sides_stay_in_the_table(count: int) -> None:
    buckets = position_buckets(count, BUCKETS)
    assert (len(buckets), buckets[0], buckets[-1]) == (count, 0, BUCKETS - 1)
    assert list(buckets) == sorted(buckets)


def test_an_empty_side_has_no_buckets() -> None:
    with pytest.raises(ValueError, match="at least one"):
        position_buckets(0, BUCKETS)
