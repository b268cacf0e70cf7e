"""Norms, matrix products and rotary positions of a decoder, and which kernel computes which shape.

Plans are measured on one H200, see benchmarks/README.md. A plan is a constant: nothing is tuned at
run time, so every start runs the same code. Figures are from `python -m benchmarks.kernels`:
weights of several layers in turn, inside a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.kernels.device import (
    await_rows,
    let_next_start,
    overlaps_launches,
    runs_kernels,
    tl,
    triton,
)
from MiniCPMO45.kernels.row_products import FewRowsPlan, OneRowPlan, multiply_row, multiply_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis with float32 statistics.

    Args:
        x: [M, K].
        weight: [K].
        eps: added to the mean square.

    Returns:
        The shape and dtype of `x`.
    """
    if runs_kernels(x):
        return normalise_rows(x, weight, eps)
    return normalise(x, weight, eps)


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise as `rms_norm` does, whatever the number of axes, in plain PyTorch."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def norm_linear(x: Tensor, norm_weight: Tensor | None, eps: float, weight: Tensor) -> Tensor:
    """Multiply the normalised rows with a weight.

    Args:
        x: [M, K] contiguous.
        norm_weight: [K], or None to leave the norm out.
        eps: of the norm.
        weight: [N, K] contiguous.

    Returns:
        [M, N] in the dtype of `x`.
    """
    if runs_kernels(x):
        plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, norm_weight, eps, weight, None, is_gated=False, plan=plan)
        if plan is not None:
            normed = x if norm_weight is None else rms_norm(x, norm_weight, eps)
            return multiply_rows(normed, weight, None, is_gated=False, plan=plan)
    return F.linear(x if norm_weight is None else rms_norm(x, norm_weight, eps), weight)


def norm_swiglu(x: Tensor, norm_weight: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """Return silu(n @ gate.T) * (n @ up.T) of the normalised rows n.

    Args:
        x: [M, K] contiguous.
        norm_weight: [K].
        eps: of the norm.
        gate_up: [2F, K] contiguous; the first F rows are the gate.

    Returns:
        [M, F] in the dtype of `x`.
    """
    if runs_kernels(x):
        plan = product_plan(x.shape[0], gate_up.shape[0] // 2, x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, norm_weight, eps, gate_up, None, is_gated=True, plan=plan)
        normed = rms_norm(x, norm_weight, eps)
        if plan is None:
            return silu_gate(F.linear(normed, gate_up))
        return multiply_rows(normed, gate_up, None, is_gated=True, plan=plan)
    gate, up = F.linear(rms_norm(x, norm_weight, eps), gate_up).chunk(2, dim=-1)
    return F.silu(gate) * up


def linear_add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Return residual + x @ weight.T; the residual is left as it is.

    Args:
        x: [M, K] contiguous.
        weight: [N, K] contiguous.
        residual: [M, N] contiguous.

    Returns:
        [M, N] in the dtype of `x`.
    """
    if runs_kernels(x):
        plan = product_plan(x.shape[0], weight.shape[0], x.shape[1], x.dtype)
        if isinstance(plan, OneRowPlan):
            return multiply_row(x, None, 0.0, weight, residual, is_gated=False, plan=plan)
        if plan is None:
            return torch.addmm(residual, x, weight.t())
        return multiply_rows(x, weight, residual, is_gated=False, plan=plan)
    return residual + F.linear(x, weight)


NORM_WARPS = 8
GATE_BLOCK = 1024  # values of one program


@triton.jit
def _normalise_row(
    x, weight, out, eps, K: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):
    let_next_start(OVERLAPS)
    k = tl.arange(0, BLOCK)
    factors = tl.load(weight + k, mask=k < K, other=0.0)
    await_rows(OVERLAPS)
    at = tl.program_id(0).to(tl.int64) * K + k
    values = tl.load(x + at, mask=k < K, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / K + eps)
    kind = out.dtype.element_ty
    tl.store(out + at, factors * (values * scale).to(kind), mask=k < K)


def normalise_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows [M, K]."""
    count, k = x.shape
    out = x.new_empty(count, k)
    overlaps = overlaps_launches(x)
    _normalise_row[(count,)](
        x,
        weight,
        out,
        eps,
        K=k,
        BLOCK=triton.next_power_of_2(k),
        OVERLAPS=overlaps,
        num_warps=NORM_WARPS,
        launch_pdl=overlaps,
    )
    return out


@triton.jit
def _gate(gate_up, out, F, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = gate_up + row * 2 * F + column
    gate = tl.load(own, mask=column < F, other=0.0).to(tl.float32)
    up = tl.load(own + F, mask=column < F, other=0.0).to(tl.float32)
    answer = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * F + column, answer.to(out.dtype.element_ty), mask=column < F)


def silu_gate(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of rows [M, 2F] whose first half is the gate: [M, F]."""
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(count, width)
    overlaps = overlaps_launches(gate_up)
    _gate[(count, triton.cdiv(width, GATE_BLOCK))](
        gate_up, out, width, BLOCK=GATE_BLOCK, OVERLAPS=overlaps, launch_pdl=overlaps
    )
    return out


@dataclass(frozen=True)
class ProductPlan:
    """How one shape is multiplied.

    Attributes:
        one_row: for one row.
        few_rows: for more rows, where the library is slower.
        most_rows: rows up to which it is.
    """

    one_row: OneRowPlan
    few_rows: FewRowsPlan
    most_rows: int


DEEP = FewRowsPlan(64, 128, 4, 6)
SHALLOW = FewRowsPlan(64, 128, 4, 4)  # two weights at a time, or so many columns that it suffices
NARROW = FewRowsPlan(16, 128, 2, 6)  # few columns

PRODUCTS: dict[tuple[int, int], ProductPlan] = {
    # (columns, inputs) of the language model
    (6144, 4096): ProductPlan(OneRowPlan(8, 1024, 4), DEEP, 64),  # queries, keys, values
    (4096, 4096): ProductPlan(OneRowPlan(1, 4096, 4), DEEP, 32),  # attention output
    (12288, 4096): ProductPlan(OneRowPlan(4, 256, 1), SHALLOW, 16),  # gate and up
    (4096, 12288): ProductPlan(OneRowPlan(2, 4096, 8), DEEP, 32),  # down
    # The library has no fast kernel for rows of 151,748 values, which are not aligned.
    (151748, 4096): ProductPlan(OneRowPlan(8, 512, 2), SHALLOW, 1024),  # head
    # of the speech decoder, where one row takes all inputs at once
    (2304, 768): ProductPlan(OneRowPlan(2, 1024, 1), NARROW, 64),
    (768, 768): ProductPlan(OneRowPlan(2, 1024, 4), SHALLOW, 64),
    (3072, 768): ProductPlan(OneRowPlan(1, 1024, 1), NARROW, 64),
    (768, 3072): ProductPlan(OneRowPlan(1, 4096, 8), NARROW, 64),
}
MEASURED_BYTES = 2  # of a value
OTHER_PRODUCTS = ProductPlan(OneRowPlan(4, 256, 1), FewRowsPlan(32, 64, 4, 3), 16)


def product_plan(
    rows: int, columns: int, inputs: int, dtype: torch.dtype
) -> OneRowPlan | FewRowsPlan | None:
    """Choose the kernel of a product; None is the library's.

    Args:
        rows: M.
        columns: N, of the gate alone where there is one.
        inputs: K.
        dtype: of the values; wider ones than were measured would need more shared memory.
    """
    is_measured = dtype.itemsize == MEASURED_BYTES
    plan = PRODUCTS.get((columns, inputs), OTHER_PRODUCTS) if is_measured else OTHER_PRODUCTS
    if rows == 1:
        return plan.one_row
    if rows > plan.most_rows or inputs % plan.few_rows.block_k:
        return None
    return plan.few_rows


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """Return theta^(-2i/d) for i = 0 ... d/2-1, float32 [d/2].

    Source: arXiv:2104.09864, section 3.2.2.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / theta**exponents


@dataclass(frozen=True, eq=False)
class Rope:
    """Frequencies of one decoder.

    Attributes:
        frequencies: float32 [d/2], what the decoder rotates with.
    """

    frequencies: Tensor

    @classmethod
    def build(cls, head_dim: int, theta: float, *, device: torch.device) -> Rope:
        """Make the table on `device`."""
        return cls(inverse_frequencies(head_dim, theta).to(device))

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin for integer positions [n], each `dtype` [n, d]."""
        return _tables(positions, self.frequencies, dtype)

    def move(self, keys: Tensor, start: int, target: int) -> Tensor:
        """Rotate keys of consecutive positions to others.

        Args:
            keys: [..., n, d], rotated for positions start ... start+n-1.
            start: position of the first row now.
            target: position of the first row afterwards.

        Returns:
            Keys rotated for positions target ... target+n-1, same shape and dtype.

        Source: a rotation per position composes, so a shift is one more rotation
            (arXiv:2104.09864, section 3.2).
        """
        if start == target:
            return keys
        offset = torch.full((1,), target - start, device=keys.device)  # without waiting for a GPU
        cos, sin = _tables(offset, self.frequencies, torch.float32)
        return _turned(keys, cos, sin)


def _tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = positions.float()[:, None] * frequencies  # [n, d/2]
    angles = torch.cat((angles, angles), dim=-1)  # [n, d]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [M, heads, D] by float32 tables [M, D] with one rounding at the end."""
    return _turned(x, cos[:, None], sin[:, None])


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)


def move_tokens(
    pool: Tensor, pages: Tensor, start: int, target: int, count: int, cos: Tensor, sin: Tensor
) -> None:
    """Move cached tokens of one sequence towards its front, in every layer and in place.

    Args:
        pool: [layers, pages, 2, KVH, page tokens, D].
        pages: int32 [max_pages] pages of the sequence.
        start: position of the first token now.
        target: its position afterwards, smaller than `start`.
        count: tokens to move.
        cos: float32 [D], rotary table of the distance `target - start`.
        sin: float32 [D].
    """
    if runs_kernels(pool):
        shift_tokens(pool, pages, start, target, count, cos, sin)
        return
    page_tokens = pool.shape[4]
    places = torch.arange(count, device=pool.device)
    old, new = places + start, places + target
    for layer in pool:  # one at a time, to need little memory
        keys, values = layer[pages[old // page_tokens].long(), :, :, old % page_tokens].unbind(1)
        into = pages[new // page_tokens].long(), new % page_tokens
        layer[into[0], 0, :, into[1]] = rotate(keys, cos[None], sin[None])
        layer[into[0], 1, :, into[1]] = values


TOKENS_AT_ONCE = 64
WARPS = 4


@triton.jit(do_not_specialize=["start", "target", "count"])  # or some values compile it anew
def _shift_plane(
    pool,
    pages,
    cos,
    sin,
    start,
    target,
    count,
    LAYER_STRIDE,
    PAGE_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """One program: the keys or the values of one head of one layer, front to back.

    What is written lies in front of everything that is still to be read.
    """
    layer, head, is_value = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own = pool + layer.to(tl.int64) * LAYER_STRIDE + is_value * PLANE_STRIDE + head * PAGE * D
    half = tl.arange(0, D // 2)
    token = tl.arange(0, TOKENS)
    cosine, sine = tl.load(cos + half)[None, :], tl.load(sin + half)[None, :]
    for first in range(0, count, TOKENS):
        exists = first + token < count
        at, to = start + first + token, target + first + token
        at_page = tl.load(pages + at // PAGE, mask=exists, other=0).to(tl.int64)
        to_page = tl.load(pages + to // PAGE, mask=exists, other=0).to(tl.int64)
        source = own + (at_page * PAGE_STRIDE + at % PAGE * D)[:, None] + half[None, :]
        into = own + (to_page * PAGE_STRIDE + to % PAGE * D)[:, None] + half[None, :]
        lower = tl.load(source, mask=exists[:, None])
        upper = tl.load(source + D // 2, mask=exists[:, None])
        if is_value == 0:
            x, y = lower.to(tl.float32), upper.to(tl.float32)
            lower = (x * cosine - y * sine).to(lower.dtype)
            upper = (y * cosine + x * sine).to(upper.dtype)
        tl.debug_barrier()  # every thread has read before one writes
        tl.store(into, lower, mask=exists[:, None])
        tl.store(into + D // 2, upper, mask=exists[:, None])
        tl.debug_barrier()


def shift_tokens(
    pool: Tensor, pages: Tensor, start: int, target: int, count: int, cos: Tensor, sin: Tensor
) -> None:
    """Move tokens of one sequence to the front; see `move_tokens`."""
    layers, _, _, kv_heads, page_tokens, d = pool.shape
    _shift_plane[(layers, kv_heads, 2)](
        pool,
        pages,
        cos,
        sin,
        start,
        target,
        count,
        pool.stride(0),
        PAGE_STRIDE=pool.stride(1),
        PLANE_STRIDE=pool.stride(2),
        D=d,
        PAGE=page_tokens,
        TOKENS=TOKENS_AT_ONCE,
        num_warps=WARPS,
    )
