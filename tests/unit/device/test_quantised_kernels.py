"""Error of quantised weights, and agreement of their kernels with the plain versions."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from MiniCPMO45.kernels import products, quantised
from MiniCPMO45.kernels.product_plans import FewRowsPlan, OneRowPlan
from MiniCPMO45.kernels.products import multiply, normalise, scale_rows
from MiniCPMO45.kernels.quantised import (
    GROUP,
    QuantisedWeight,
    Scheme,
    quantise,
    stored_shapes,
    take_rows,
    unpacked,
)
from MiniCPMO45.kernels.row_products import multiply_by_plan
from tests.unit.device.test_kernels import (
    EPS,
    FLOAT32,
    assert_near,
    measured_sizes,
    on_both,
    with_kernels,
)

MOST_ERROR = {Scheme.FP8: 0.03, Scheme.INT8: 0.01, Scheme.INT4: 0.11}  # of normal values, relative
# The largest step to a neighbour: e4m3 has three bits of mantissa, the others equal steps.
MOST_STEP = {Scheme.FP8: 1 / 16, Scheme.INT8: 0.51 / 127, Scheme.INT4: 0.27}
# A row's sums are of 16 + q where q, of -8 to 7, is meant: some four times larger, and so is their
# rounding. Eight draws differed by at most 2.5e-6.
PACKED_ROW_FLOAT32 = 4 * FLOAT32
# Norms of two kernels differ by a bit of float32, which moves some values to their e4m3 neighbours.
E4M3_FLOAT32 = 1e-3
ROWS, INPUTS, COLUMNS = 5, 2 * GROUP, 21

each_scheme = pytest.mark.parametrize("scheme", Scheme)


def drawn(scheme: Scheme, outputs: int = COLUMNS, inputs: int = INPUTS) -> QuantisedWeight:
    return quantise(torch.randn(outputs, inputs) * inputs**-0.5, scheme, "cpu")


@each_scheme
class TestRoundTrip:
    def test_the_error_is_that_of_the_scheme(self, scheme: Scheme) -> None:
        weight = torch.randn(64, 1024)
        error = (unpacked(quantise(weight, scheme, "cpu"), torch.float32) - weight).norm()
        assert error < MOST_ERROR[scheme] * weight.norm()

    def test_no_value_is_farther_off_than_a_step(self, scheme: Scheme) -> None:
        weight = torch.randn(8, GROUP)  # one group a row
        read = unpacked(quantise(weight, scheme, "cpu"), torch.float32)
        largest = weight.abs().amax(1, keepdim=True)
        assert ((read - weight).abs() <= MOST_STEP[scheme] * largest).all()

    def test_zeros_stay_zeros(self, scheme: Scheme) -> None:
        weight = torch.randn(3, 2 * GROUP)
        weight[1] = 0
        weight[2, :GROUP] = 0
        read = unpacked(quantise(weight, scheme, "cpu"), torch.float32)
        assert not read[1].any() and not read[2, :GROUP].any() and read[2, GROUP:].any()

    def test_rows_do_not_touch_each_other(self, scheme: Scheme) -> None:
        weight = torch.randn(6, 64)
        whole = unpacked(quantise(weight, scheme, "cpu"), torch.float32)
        with patch.object(quantised, "ELEMENTS_AT_ONCE", 128):
            parts = quantise(weight, scheme, "cpu")
        assert torch.equal(unpacked(parts, torch.float32), whole)

    def test_what_is_stored_is_what_was_announced(self, scheme: Scheme) -> None:
        weight = drawn(scheme)
        for tensor, shape in zip(
            (weight.values, weight.scales), stored_shapes(scheme, COLUMNS, INPUTS), strict=True
        ):
            assert (tensor.shape, tensor.dtype) == (shape.shape, shape.dtype)


def test_rows_of_a_table_are_those_of_the_matrix() -> None:
    table, ids = drawn(Scheme.INT8), torch.tensor([[3, 0], [20, 3]], dtype=torch.int32)
    rows = take_rows(table, ids, torch.float32)
    assert torch.equal(rows, unpacked(table, torch.float32)[ids.long()])


def test_inputs_that_fill_no_word_are_refused() -> None:
    with pytest.raises(ValueError, match="12 inputs .* no multiple of 8"):
        stored_shapes(Scheme.INT4, 4, 12)


def at(device: str, weight: QuantisedWeight) -> QuantisedWeight:
    return QuantisedWeight(weight.values.to(device), weight.scales.to(device))


@on_both
@each_scheme
class TestKernels:
    def test_unpacking(self, device: str, dtype: torch.dtype, scheme: Scheme) -> None:
        weight = at(device, drawn(scheme))
        plain = unpacked(weight, dtype)
        assert torch.equal(with_kernels(unpacked, weight, dtype), plain)

    @pytest.mark.parametrize("inputs", [INPUTS, 192], ids=["groups", "one group"])
    def test_one_row(self, device: str, dtype: torch.dtype, scheme: Scheme, inputs: int) -> None:
        if scheme is Scheme.FP8:
            pytest.skip("one e4m3 row is multiplied as some are")
        limit = PACKED_ROW_FLOAT32 if scheme is Scheme.INT4 else FLOAT32
        x = 3 * torch.randn(1, inputs, device=device).to(dtype)
        norm = torch.randn(inputs, device=device).to(dtype)
        residual = torch.randn(1, COLUMNS, device=device).to(dtype)
        weight = at(device, drawn(scheme, inputs=inputs))
        pair = at(device, drawn(scheme, 2 * COLUMNS, inputs))
        plan = OneRowPlan(4, 128, 2)
        found = multiply_by_plan(plan, x, weight, norm, EPS)
        assert_near(found, multiply(x, weight, norm, EPS), limit)
        found = multiply_by_plan(plan, x, weight, residual=residual)
        assert_near(found, multiply(x, weight, residual=residual), limit)
        found = multiply_by_plan(plan, x, pair, norm, EPS, is_gated=True)
        assert_near(found, wide_swiglu(x, norm, pair), limit)

    def test_some_rows(self, device: str, dtype: torch.dtype, scheme: Scheme) -> None:
        x = torch.randn(19, INPUTS, device=device).to(dtype)
        residual = torch.randn(19, COLUMNS, device=device).to(dtype)
        weight = at(device, drawn(scheme))
        pair = at(device, drawn(scheme, 2 * COLUMNS))
        plan, rows, scales = FewRowsPlan(16, GROUP, 4, 3), x, None
        if scheme is Scheme.FP8:
            rows, scales = scale_rows(x, None, EPS)
        product = partial(multiply_by_plan, plan, rows, row_scales=scales, dtype=dtype)
        found = product(weight, residual=residual)
        assert_near(found, multiply(x, weight, residual=residual))
        found = product(pair, is_gated=True)
        assert_near(found, wide_swiglu(x, None, pair))


def wide_swiglu(x: Tensor, norm: Tensor | None, weight: QuantisedWeight) -> Tensor:
    """The gated product with one rounding at the end, as the kernels have it."""
    if norm is None:
        rows = x.float()
    elif weight.scheme is Scheme.FP8:
        rows = products.rms_norm(x, norm, EPS).float()
    else:
        rows = normalise(x.float(), norm.float(), EPS)
    gate, up = multiply(rows, weight, None, EPS).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def scaled_plainly(x: Tensor, norm: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    with patch.object(products, "runs_kernels", lambda _: False):
        return scale_rows(x, norm, eps)


@on_both
@each_scheme
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_chosen_plans_fit_a_decoder(
    device: str, dtype: torch.dtype, scheme: Scheme, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, norm = (
        torch.randn(rows, INPUTS, device=device).to(dtype),
        torch.ones(INPUTS).to(device, dtype),
    )
    weight = at(device, drawn(scheme))
    if device == "cpu":  # Triton's interpreter does not round to e4m3 as a card does
        monkeypatch.setattr(products, "scale_rows", scaled_plainly)
    limit = E4M3_FLOAT32 if scheme is Scheme.FP8 else FLOAT32
    found = with_kernels(multiply, x, weight, norm, EPS)
    assert_near(found, multiply(x, weight, norm, EPS), limit)
    pair = at(device, drawn(scheme, 2 * INPUTS))
    found = with_kernels(partial(multiply, is_gated=True), x, pair, norm, EPS)
    assert_near(found, wide_swiglu(x, norm, pair), limit)


def assert_same_e4m3(found: Tensor, wanted: Tensor) -> None:
    """On a card the values are the same.

    Triton's interpreter rounds ties away from zero and loses the carry into the exponent.
    """
    found, wanted = (each.view(torch.uint8).int() for each in (found, wanted))
    if found.is_cuda:
        assert torch.equal(found, wanted)
    else:
        has_mantissa = wanted & 7 > 0
        assert ((found - wanted).abs() <= 1)[has_mantissa].all() and has_mantissa.any()


@on_both
class TestScaledRows:
    def test_the_kernel_rounds_as_the_plain_operation(
        self, device: str, dtype: torch.dtype
    ) -> None:
        sizes = torch.logspace(-6, 4, 7).to(device, dtype)
        x = torch.randn(7, 300, device=device).to(dtype) * sizes[:, None]
        x[3] = 0
        wanted, found = scale_rows(x, None, EPS), with_kernels(scale_rows, x, None, EPS)
        assert torch.equal(found[1], wanted[1])
        assert_same_e4m3(found[0], wanted[0])

    def test_a_row_is_rounded_after_its_norm(self, device: str, dtype: torch.dtype) -> None:
        x, norm = (torch.randn(*size, device=device).to(dtype) for size in ((5, 300), (300,)))
        values, scales = with_kernels(scale_rows, x, norm, EPS)
        wanted = scale_rows(with_kernels(products.rms_norm, x, norm, EPS), None, EPS)
        torch.testing.assert_close(scales, wanted[1])
        assert_same_e4m3(values, wanted[0])

    def test_a_row_does_not_depend_on_the_other_rows(self, device: str, dtype: torch.dtype) -> None:
        x = torch.randn(4, 300, device=device).to(dtype)
        alone, together = (with_kernels(scale_rows, rows, None, EPS) for rows in (x[2:3], x))
        assert torch.equal(alone[0].float(), together[0][2:3].float())
        assert torch.equal(alone[1], together[1][2:3])


FULL = [(scheme, size) for scheme in Scheme for size in measured_sizes(f"bfloat16 {scheme}")]


@pytest.mark.gpu
@pytest.mark.parametrize(("scheme", "size"), FULL)
@pytest.mark.parametrize("rows", [1, 2, 16, 33, 77, 200])
def test_measured_plans_are_right(scheme: Scheme, size: tuple[int, int], rows: int) -> None:
    columns, inputs = size
    drawn = torch.randn(columns, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
    weight = quantise(drawn, scheme, "cuda")
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    norm = torch.randn(inputs, device="cuda", dtype=torch.bfloat16)
    if scheme is Scheme.FP8:
        values, scales = scale_rows(x, norm, EPS)
        wide = values.float() * scales[:, None]
        wanted = torch.nn.functional.linear(wide, unpacked(weight, torch.float32))
    else:
        wanted = multiply(x.float(), weight, norm.float(), EPS)
    assert_near(with_kernels(multiply, x, weight, norm, EPS), wanted.to(torch.bfloat16))
