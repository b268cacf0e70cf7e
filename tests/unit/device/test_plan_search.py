"""The search of plans for matrix products; the times are scripted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from MiniCPMO45.kernels import plan_search, product_plans, products
from MiniCPMO45.kernels.plan_search import Product, candidates, find_plans, search
from MiniCPMO45.kernels.product_plans import (
    FewRowsPlan,
    OneRowPlan,
    Plan,
    plans_from_json,
    plans_of,
    plans_to_json,
    product_name,
    product_plan,
)
from MiniCPMO45.kernels.quantised import Scheme, quantise
from tests.unit.device.test_kernels import with_kernels
from tests.unit.device.test_quantised_kernels import scaled_plainly

pytest.importorskip("triton", reason="Triton is not installed")

CARD = "Some Card 24GB"
COLUMNS, INPUTS = 16, 256
ROW, TILE = OneRowPlan(4, 1024, 4), FewRowsPlan(32, 128, 2, 6)
LONG = FewRowsPlan(32, 256, 4, 6)
Cost = Callable[[Plan | None, int], float]


def cost(plan: Plan | None, rows: int) -> float:
    """Milliseconds: one kernel is the fastest for one row, one up to 32, then PyTorch's."""
    if plan is None:
        return 2.0
    if rows == 1:
        return 1.0 if plan == ROW else 3.0
    if rows > 32:
        return 5.0
    return 1.0 if plan == TILE else 1.5 if plan == LONG else 4.0


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan | None, int]]:
    """Script the times by `cost`; return what was timed. Without kernels, PyTorch multiplies."""
    timed: list[tuple[Plan | None, int]] = []

    def median_ms(run: Callable[[Plan | None], Tensor], plan: Plan | None) -> float:
        timed.append((plan, len(run(None))))
        return cost(*timed[-1])

    monkeypatch.setattr(plan_search, "_median_ms", median_ms)
    return timed


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(COLUMNS, INPUTS) * INPUTS**-0.5


WANTED = ((1, ROW), (32, TILE), (64, None))


@pytest.mark.parametrize(("is_gated", "adds"), [(False, False), (True, False), (False, True)])
def test_the_fastest_plans_are_found(
    measured: list[tuple[Plan | None, int]], weight: Tensor, is_gated: bool, adds: bool
) -> None:
    product = Product(weight, is_gated=is_gated, adds=adds)
    assert search(product, torch.float32) == WANTED
    assert {rows for _, rows in measured} == {1, 16, 32, 64}
    with_more = {plan for plan, rows in measured if rows == 64}
    assert len(with_more) == plan_search.KEPT + 1 and {None, TILE, LONG} <= with_more


def test_products_too_large_to_compare_are_not_measured(
    measured: list[tuple[Plan | None, int]], weight: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_search, "MOST_RESULTS", 32 * COLUMNS)
    assert search(Product(weight), torch.float32) == WANTED[:2]


def test_a_plan_that_fails_or_is_wrong_is_left_out(
    measured: list[tuple[Plan | None, int]], weight: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply = plan_search.multiply

    def broken(*given: Any, choose: Callable[[], Plan | None], **options: Any) -> Tensor:
        if choose() == ROW:
            raise RuntimeError("out of resource: shared memory")
        answer = multiply(*given, **options)
        return answer * float("nan") if choose() == TILE else answer

    monkeypatch.setattr(plan_search, "multiply", broken)
    found = search(Product(weight), torch.float32)
    assert found == ((1, None), (32, LONG), (64, None))
    assert not {ROW, TILE} & {plan for plan, _ in measured}


@pytest.mark.interpreted
@pytest.mark.parametrize("scheme", [None, *Scheme])
@pytest.mark.parametrize("rows", [1, 16])
def test_every_candidate_is_right(
    scheme: Scheme | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Triton's interpreter does not round to e4m3 as a card does.
    monkeypatch.setattr(products, "scale_rows", scaled_plainly)
    drawn = torch.randn(COLUMNS, INPUTS) * INPUTS**-0.5
    weight = drawn if scheme is None else quantise(drawn, scheme, "cpu")
    run = Product(weight).of_random(rows, torch.float32)
    tried = list(candidates(weight, rows))
    wanted = run(None)
    assert tried
    wrong = [p for p in tried if not with_kernels(plan_search._is_right, run, p, wanted)]
    assert wrong == []


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A card without plans, and an empty cache of Triton's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: CARD)
    monkeypatch.setattr(plan_search, "LEAST_BYTES", COLUMNS * INPUTS * 4)
    plans_of.cache_clear()
    return CARD


def find(weight: Tensor) -> None:
    products = [Product(weight), Product(weight[1:])]
    find_plans(products, torch.float32, show_progress=False)


def test_plans_are_searched_once_for_a_card(
    card: str, measured: list[tuple[Plan | None, int]], weight: Tensor
) -> None:
    find(weight)
    name = product_name(weight, torch.float32, is_gated=False)
    assert plans_of(card) == {name: WANTED}  # not of the smaller weight
    measured.clear()
    find(weight)
    plans_of.cache_clear()  # as a new process
    find(weight)
    assert plans_of(card) == {name: WANTED}
    assert measured == []


def test_a_damaged_file_is_replaced(
    card: str,
    measured: list[tuple[Plan | None, int]],
    weight: Tensor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    find(weight)
    [file] = tmp_path.rglob(plan_search.FILE)
    whole = file.read_text()
    file.write_text('{"float32 16x256": [[1, {"block": 3}]]}')
    plans_of.cache_clear()
    find(weight)
    assert "cannot be read" in caplog.text
    assert file.read_text() == whole


def test_a_search_needs_no_folder(
    card: str,
    measured: list[tuple[Plan | None, int]],
    weight: Tensor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "cache").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        find(weight)
    assert "are not kept" in caplog.text
    assert list(plans_of(card).values()) == [WANTED]


def test_a_failed_search_leaves_the_plans_for_any_card(
    card: str, weight: Tensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> float:
        raise RuntimeError("no clock")

    monkeypatch.setattr(plan_search, "_median_ms", fail)
    monkeypatch.setattr(plan_search, "_is_right", lambda *_: True)
    find(weight)
    assert "float32 16x256 cannot be measured" in caplog.text
    assert plans_of(card) == {}


@pytest.mark.gpu
def test_plans_are_measured_on_a_card() -> None:
    weight = torch.randn(2304, 768, device="cuda", dtype=torch.bfloat16) * 768**-0.5
    plans = with_kernels(search, Product(weight), torch.bfloat16)
    assert plans[0][1] is not None, "PyTorch has no kernel for one row that is as fast"
    assert [most for most, _ in plans] == sorted(most for most, _ in plans)


def test_the_published_checkpoint_needs_no_search_on_an_h200() -> None:
    plans = plans_of("NVIDIA H200")
    layers = ("6144x4096", "4096x4096", "12288x4096", "4096x12288")
    heads = ("151748x4096", "int8 151748x4096")
    speech = ("2304x768", "768x768", "3072x768", "768x3072")
    kinds = [f"{scheme} {size}" for scheme in (Scheme.INT4, Scheme.FP8) for size in layers]
    assert set(plans) == {f"bfloat16 {name}" for name in (*layers, *heads, *speech, *kinds)}
    assert plans_from_json(plans_to_json(plans)) == plans


def test_a_plan_whose_tiles_do_not_divide_the_inputs_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(product_plans, "USUAL", ((16, FewRowsPlan(16, 128, 1, 3)),))
    assert product_plan(torch.zeros(2, 192), torch.zeros(4, 192)) is None
    assert product_plan(torch.zeros(2, 256), torch.zeros(4, 256)) is not None
