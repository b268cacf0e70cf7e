"""Tile sizes of the matrix products, by card, weight and number of rows.

They are measured: for the published checkpoint on an H200 in a file beside this one, and otherwise
by `plan_search` when an engine first starts on a card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from MiniCPMO45.kernels.quantised import QuantisedWeight, Scheme, Weight

FEW_ROWS = 16  # the fewest of a tensor core operation


@dataclass(frozen=True)
class OneRowPlan:
    """For one row: a program takes `block_k` inputs at a time for `block_n` output columns."""

    block_n: int
    block_k: int
    warps: int


@dataclass(frozen=True)
class FewRowsPlan:
    """For a few rows: a program takes `block_k` inputs at a time, which divide them all.

    `stages` weight tiles are in flight. Each of its rows, `most_rows` at most, takes accumulators.
    """

    block_n: int
    block_k: int
    warps: int
    stages: int
    most_rows: int = 64


Plan = OneRowPlan | FewRowsPlan
Plans = tuple[tuple[int, Plan | None], ...]  # most rows of each plan, in order; None: PyTorch's

# Without a measurement: these fit the shared memory of every card.
USUAL: Plans = ((1, OneRowPlan(4, 256, 1)), (16, FewRowsPlan(32, 64, 4, 3)))
UNMEASURED: dict[Scheme | None, Plans] = {
    Scheme.INT4: ((1, OneRowPlan(4, 1024, 1)), (16, FewRowsPlan(32, 128, 4, 3))),
    Scheme.FP8: ((128, FewRowsPlan(64, 64, 4, 3)),),  # both operands are e4m3, for tensor cores
}


@lru_cache
def plans_of(card: str) -> dict[str, Plans]:
    """Return the plans of a card by `product_name`; the search adds to them."""
    file = Path(__file__).with_name(f"{card.lower().replace(' ', '-')}.json")
    return plans_from_json(file.read_text("utf-8")) if file.is_file() else {}


def plans_from_json(text: str) -> dict[str, Plans]:
    """Raise `ValueError` or `TypeError` for anything but the text of `plans_to_json`."""
    return {
        name: tuple((int(most), _plan(sizes)) for most, sizes in plans)
        for name, plans in dict(json.loads(text)).items()
    }


def _plan(sizes: Mapping[str, int] | None) -> Plan | None:
    if sizes is None:
        return None
    return FewRowsPlan(**sizes) if "stages" in sizes else OneRowPlan(**sizes)


def plans_to_json(plans: dict[str, Plans]) -> str:
    return json.dumps(plans, default=asdict, indent=1)


def product_name(weight: Weight, dtype: torch.dtype, *, is_gated: bool) -> str:
    """Name the products of rows of a dtype and a weight [N, K], or [2N, K] if gated."""
    outputs, inputs = weight.shape
    kinds = [str(dtype).removeprefix("torch.")]
    if isinstance(weight, QuantisedWeight):
        kinds.append(weight.scheme)
    return f"{' '.join(kinds)} {outputs // 2 if is_gated else outputs}x{inputs}"


def product_plan(x: Tensor, weight: Weight, is_gated: bool = False) -> Plan | None:
    """Choose our kernel for rows [M, K] and a weight; None means PyTorch's."""
    plans = None
    if x.is_cuda:
        measured = plans_of(torch.cuda.get_device_name(x.device))
        plans = measured.get(product_name(weight, x.dtype, is_gated=is_gated))
    if plans is None:
        scheme = weight.scheme if isinstance(weight, QuantisedWeight) else None
        plans = UNMEASURED.get(scheme, USUAL)
    plan = next((each for most, each in plans if len(x) <= most), None)
    is_uneven = isinstance(plan, FewRowsPlan) and weight.shape[1] % plan.block_k > 0
    return None if is_uneven else plan
