"""Norms, matrix products and rotary positions of a decoder, and the layers that hold its matrices.

A weight is dense or quantised; `product_plans` chooses the kernel. Layers keep their
published names; a quantised layer has the buffers `values` and `scales` in place of `weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import ScalingType

from MiniCPMO45.kernels.device import (
    await_rows,
    dependent_launch,
    let_next_start,
    runs_kernels,
    tl,
    triton,
)
from MiniCPMO45.kernels.product_plans import OneRowPlan, Plan, product_plan
from MiniCPMO45.kernels.quantised import (
    DTYPES,
    LARGEST,
    QuantisedWeight,
    Scheme,
    Weight,
    scale_each_row,
    stored_shapes,
    take_rows,
    unpacked,
)
from MiniCPMO45.kernels.row_products import multiply_by_plan, silu_gate

LARGEST_E4M3 = tl.constexpr(LARGEST[Scheme.FP8])
NORM_WARPS = 32
ALIGNMENT = 16  # both sizes of an FP8 weight are multiples of it for PyTorch's product


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis of x [M, K] with float32 statistics, in the dtype of `x`."""
    if not runs_kernels(x):
        return normalise(x, weight, eps)
    return _launch(x, weight, eps, torch.empty_like(x), None)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in plain PyTorch, for any number of axes."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


@triton.jit
def _normalise_row(
    x, weight, out, scales, eps, K: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):
    """With scales the row, rounded as without, is then scaled and rounded to e4m3."""
    let_next_start(OVERLAPS)
    k = tl.arange(0, BLOCK)
    if weight is not None:
        factors = tl.load(weight + k, mask=k < K, other=0.0)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    at = row * K + k
    values = tl.load(x + at, mask=k < K, other=0.0)
    if weight is not None:
        wide = values.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 0) / K + eps)
        values = factors * (wide * scale).to(values.dtype)
    if scales is not None:
        wide = values.to(tl.float32)
        scale = tl.max(tl.abs(wide), 0) / LARGEST_E4M3
        values = tl.div_rn(wide, tl.where(scale > 0, scale, 1.0))
        tl.store(scales + row, scale)
    tl.store(out + at, values.to(out.dtype.element_ty), mask=k < K)


def _launch(
    x: Tensor, weight: Tensor | None, eps: float, out: Tensor, scales: Tensor | None
) -> Tensor:
    count, k = x.shape
    sizes = {"K": k, "BLOCK": triton.next_power_of_2(k), "num_warps": NORM_WARPS}
    _normalise_row[(count,)](x, weight, out, scales, eps, **sizes, **dependent_launch(x))
    return out


def scale_rows(x: Tensor, norm: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Round rows [M, K], contiguous and normalised first if there is a norm, to e4m3.

    The results are float8_e4m3fn [M, K], and the scale of each row, float32 [M].
    """
    if not runs_kernels(x):
        return scale_each_row((x if norm is None else normalise(x, norm, eps)).float(), Scheme.FP8)
    scales = x.new_empty(len(x), dtype=torch.float32)
    return _launch(x, norm, eps, torch.empty_like(x, dtype=DTYPES[Scheme.FP8]), scales), scales


def multiply(
    x: Tensor,
    weight: Weight,
    norm: Tensor | None = None,
    eps: float = 0.0,
    *,
    residual: Tensor | None = None,
    is_gated: bool = False,
    choose: Callable[[Tensor, Weight, bool], Plan | None] = product_plan,
) -> Tensor:
    """Multiply contiguous rows x [M, K], normalised first if there is a norm [K]: [M, N].

    The weight is [N, K], or if gated [2N, K], and the result silu(gate) * up of its halves. A
    residual [M, N] is added; then there is no norm. `choose` returns the kernel's plan, or None for
    PyTorch's product, which is also used where kernels do not run.
    """
    by_kernel, dtype = runs_kernels(x), x.dtype
    plan = choose(x, weight, is_gated) if by_kernel else None
    scales: Tensor | None = None
    if isinstance(weight, QuantisedWeight) and weight.scheme is Scheme.FP8:
        x, scales = scale_rows(x, norm, eps)  # tensor cores read both operands as they are stored
        norm = None
    if norm is not None and not isinstance(plan, OneRowPlan):
        x, norm = rms_norm(x, norm, eps), None
    if plan is not None:
        return multiply_by_plan(
            plan, x, weight, norm, eps, residual, scales, is_gated=is_gated, dtype=dtype
        )
    # PyTorch supports row scales on CUDA with bfloat16 results only.
    can_scale = scales is not None and by_kernel and dtype == torch.bfloat16
    if can_scale and not any(side % ALIGNMENT for side in weight.shape):
        assert isinstance(weight, QuantisedWeight) and scales is not None
        scaling = scales[:, None], ScalingType.RowWise, weight.scales[None], ScalingType.RowWise
        product = F.scaled_mm(
            x, weight.values.t(), *scaling, output_dtype=dtype, use_fast_accum=True
        )
    else:
        if scales is not None:
            x, by_kernel = (x.float() * scales[:, None]).to(dtype), False
        matrix = weight if isinstance(weight, Tensor) else unpacked(weight, dtype)
        if by_kernel and residual is not None:
            return torch.addmm(residual, x, matrix.t())
        product = F.linear(x, matrix)
    if is_gated and by_kernel:
        product = silu_gate(product)
    elif is_gated:
        gate, up = product.chunk(2, dim=-1)
        product = F.silu(gate) * up
    return product if residual is None else residual + product


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map x [..., in] to [..., out] and apply the tanh approximation of GELU, fused on a card."""
    if not x.is_cuda or torch.is_grad_enabled():
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")
    flat = torch._addmm_activation(bias, x.flatten(0, -2), weight.T, use_gelu=True)
    return flat.unflatten(0, x.shape[:-1])


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary frequencies of a decoder: theta^(-2i/d) for i = 0 ... d/2-1, float32 [d/2].

    Source: arXiv:2104.09864, section 3.2.2.
    """

    frequencies: Tensor

    @classmethod
    def build(cls, head_dim: int, theta: float, *, device: torch.device) -> Rope:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return cls((1.0 / theta**exponents).to(device))

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin for integer positions [n], each `dtype` [n, d]."""
        angles = positions.float()[:, None] * self.frequencies  # [n, d/2]
        angles = torch.cat((angles, angles), dim=-1)  # [n, d]
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def move(self, keys: Tensor, start: int, target: int) -> Tensor:
        """Rotate keys [..., n, d] of consecutive positions from `start` on to those from `target`.

        Source: a rotation per position composes, so a shift is one more rotation
            (arXiv:2104.09864, section 3.2).
        """
        if start == target:
            return keys
        offset = torch.full((1,), target - start, device=keys.device)  # without waiting for a GPU
        return rotate(keys, *self.tables(offset, torch.float32))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [M, heads, D] by float32 tables [M or 1, D] with one rounding at the end."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos[:, None] + turned * sin[:, None]).to(x.dtype)


class Quantisable(nn.Module):
    """A layer with one matrix, [outputs, inputs]."""

    weight: Tensor
    values: Tensor
    scales: Tensor

    def reserve(self, scheme: Scheme, dtype: torch.dtype) -> None:
        """Replace the matrix by buffers for a quantised one, to be loaded later."""
        values, scales = stored_shapes(scheme, *self.weight.shape)
        self.register_parameter("weight", None)
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.dtype = dtype

    @property
    def is_quantised(self) -> bool:
        return "values" in self._buffers

    @property
    def stored(self) -> Weight:
        return QuantisedWeight(self.values, self.scales) if self.is_quantised else self.weight


_MATRIX_PARTS = {"weight", "bias", "parametrizations"}


def matrix_of(layer: nn.Module) -> Weight:
    """Return the matrix of a layer that is multiplied without being called; raises as below."""
    return layer.stored if isinstance(layer, Quantisable) else dense_matrix_of(layer)


def dense_matrix_of(layer: nn.Module) -> Tensor:
    """Return the weight of a layer without a quantised form.

    Raises:
        TypeError: the layer is more than its matrix, and what it adds would have no effect.
    """
    added = (layer._parameters.keys() | layer._modules.keys()) - _MATRIX_PARTS
    if added:
        raise TypeError(
            f"{type(layer).__name__} with {', '.join(sorted(added))} is not called, only its "
            "weight is used: merge adapters into it, or parametrise it (docs/transformers.md)"
        )
    assert isinstance(layer.weight, Tensor)
    return layer.weight


class Linear(Quantisable, nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [M, inputs] to [M, outputs]."""
        if self.is_quantised:
            return multiply(x, self.stored)
        return F.linear(x, self.weight)


class FrameConvolution(nn.Conv1d):
    """A convolution of frames [B, T, inputs] to [B, T', outputs].

    Once packed, as on a card, it is one product, where PyTorch's convolution uses TF32 by default
    and converts the weight's layout in every call.
    """

    is_packed = False

    def pack(self) -> None:
        """Make the weight's inputs adjacent in memory; its shape and values are unchanged."""
        self.weight.data = self.weight.data.transpose(1, 2).contiguous().transpose(1, 2)
        self.is_packed = True

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.is_packed:
            return super().forward(x.transpose(1, 2)).transpose(1, 2)
        assert isinstance(self.padding, tuple)
        [kernel], [stride], [pad] = self.kernel_size, self.stride, self.padding
        windows = F.pad(x, (0, 0, pad, pad)).unfold(1, kernel, stride)  # [B, T', inputs, kernel]
        weight = self.weight.transpose(1, 2).flatten(1)  # [outputs, kernel * inputs]
        return F.linear(windows.transpose(2, 3).flatten(2), weight, self.bias)


class Embedding(Quantisable, nn.Embedding):
    """An embedding table; if quantised, with 8-bit values."""

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids` [...], [..., width]."""
        stored = self.stored
        if isinstance(stored, QuantisedWeight):
            return take_rows(stored, ids, self.dtype)
        return F.embedding(ids, stored)


class JoinedWeight:
    """The parameters of linear layers with one input, joined: a matrix [all outputs, inputs].

    The layers keep their parameters and so their names in a state dict. Once `fuse` was called,
    these are views of the joined tensors, which costs no memory and no copy.
    """

    def __init__(self, modules: Mapping[str, Any], *names: str) -> None:
        """`modules` are a module's own, looked up by name in each call: one may be replaced."""
        self._modules, self._names = modules, names
        self._fused: list[Tensor] = []

    def __call__(self) -> Weight:
        """Return the matrix of layers without biases."""
        joined = self.tensors()
        return joined[0] if len(joined) == 1 else QuantisedWeight(*joined)

    def tensors(self) -> list[Tensor]:
        """Return the weight, with the bias if there is one, or quantised values and scales.

        With gradients enabled they are copies that record them.
        """
        # A conversion replaces the memory of the layers' parameters.
        is_current = self._fused and _are_rows_of(self._fused[0], self._matrices())
        if is_current and not torch.is_grad_enabled():
            return self._fused
        return [torch.cat(each) for each in self._parts()]

    @torch.inference_mode(False)
    @torch.no_grad()
    def fuse(self) -> None:
        """Make the layers' parameters views of the joined tensors; again only if they are not."""
        parts = self._parts()
        if not self._fused or not all(map(_are_rows_of, self._fused, parts)):
            self._fused = [torch.cat([part.data for part in each]) for each in parts]
        for joined, each in zip(self._fused, parts, strict=True):
            for part, view in zip(each, joined.split([len(part) for part in each]), strict=True):
                part.data = view

    @property
    def _linears(self) -> list[nn.Linear]:
        return [self._modules[name] for name in self._names]

    def _matrices(self) -> list[Tensor]:
        stored = [matrix_of(each) for each in self._linears]
        return [each.values if isinstance(each, QuantisedWeight) else each for each in stored]

    def _parts(self) -> list[list[Tensor]]:
        """The layers' matrices, and their scales if quantised or else their biases, if any."""
        parts, first = [self._matrices()], self._linears[0]
        if isinstance(first, Quantisable) and first.is_quantised:
            parts.append([each.get_buffer("scales") for each in self._linears])
        elif first.bias is not None:
            zeros = torch.zeros_like(first.bias)
            parts.append([zeros if each.bias is None else each.bias for each in self._linears])
        return parts


def _are_rows_of(joined: Tensor, parts: list[Tensor]) -> bool:
    starts = accumulate((part.nbytes for part in parts), initial=joined.data_ptr())
    return all(part.data_ptr() == start for part, start in zip(parts, starts, strict=False))
