"""Coordinates and masks of padded batches."""

from __future__ import annotations

import pytest
import torch

from MiniCPMO45.patch_grid import patch_layout

CPU = torch.device("cpu")


def test_coordinates_run_row_by_row_and_are_zero_in_the_padding() -> None:
    layout = patch_layout([(2, 3), (1, 2)], 6, CPU)
    assert layout.rows.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert layout.cols.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 0, 0, 0, 0]]
    assert layout.mask is not None
    assert layout.mask[:, 0, 0].tolist() == [[True] * 6, [True] * 2 + [False] * 4]


def test_a_batch_without_padding_has_no_mask() -> None:
    assert patch_layout([(2, 3), (3, 2)], 6, CPU).mask is None


@pytest.mark.parametrize("size", [(0, 3), (3, 0), (3, 3)])
def test_sizes_that_do_not_fit_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        patch_layout([size], 8, CPU)


def test_layouts_stay_real_while_modules_are_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        layout = patch_layout([(5, 1)], 5, CPU)
    assert layout.rows.device.type == "cpu"
