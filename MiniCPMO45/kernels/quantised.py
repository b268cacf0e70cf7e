"""Quantised weights: quantisation of a matrix, its inverse, and products with 4-bit weights.

Every output has its own scale, so rows of several matrices can be joined. Nothing is calibrated: a
weight depends on the published values alone. Products read the stored form directly where that is
faster: here with 4 bits, otherwise in `row_products`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from MiniCPMO45.kernels.device import await_rows, let_next_start, runs_kernels, tl, triton


class Scheme(StrEnum):
    """How the values of a matrix are stored.

    FP8 is e4m3 (OCP 8-bit floating point, revision 1.0) and INT8 an integer, both with a float32
    scale for each row; INT4 has a bfloat16 scale for each `GROUP` inputs of a row.
    """

    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


GROUP = 128  # inputs that share a scale of INT4
PLACES = 8  # values in an int32 word
ZERO = 8  # subtracted from a stored 4-bit number, 0 ... 15
LARGEST = {Scheme.FP8: 448.0, Scheme.INT8: 127.0}  # the value farthest from zero is stored as
DTYPES = {Scheme.FP8: torch.float8_e4m3fn, Scheme.INT8: torch.int8, Scheme.INT4: torch.int32}
SHRINKINGS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of a group's scale; the best one is taken
ELEMENTS_AT_ONCE = 2**24  # quantised at a time, which bounds the temporary memory


@dataclass(frozen=True, eq=False)
class QuantisedWeight:
    """A quantised matrix [outputs, inputs].

    Values are float8_e4m3fn or int8 [outputs, inputs], with scales float32 [outputs]; or int32
    [outputs, inputs / 8] with scales bfloat16 [outputs, inputs / group]: the words of a group hold
    its first values at their lowest four bits, the next at the next four.
    """

    values: Tensor
    scales: Tensor

    @property
    def scheme(self) -> Scheme:
        return next(scheme for scheme, dtype in DTYPES.items() if dtype == self.values.dtype)

    @property
    def is_packed(self) -> bool:
        return self.values.dtype == torch.int32

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns * PLACES if self.is_packed else columns

    @property
    def group_words(self) -> int:
        """Words, or 8-bit values, that share a scale."""
        return self.values.numel() // self.scales.numel()


Weight = Tensor | QuantisedWeight


def stored_shapes(scheme: Scheme, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Return empty values and scales for a matrix, on the meta device.

    Raises:
        ValueError: the number of inputs does not fill whole words.
    """
    if scheme is not Scheme.INT4:
        values, scales = (outputs, inputs), torch.empty(outputs, device="meta")
    else:
        if inputs % PLACES:
            raise ValueError(f"{inputs} inputs cannot be stored in 4 bits: no multiple of {PLACES}")
        values = outputs, inputs // PLACES
        groups = inputs // _group(inputs)
        scales = torch.empty(outputs, groups, dtype=torch.bfloat16, device="meta")
    return torch.empty(values, dtype=DTYPES[scheme], device="meta"), scales


def _group(inputs: int) -> int:
    return GROUP if inputs % GROUP == 0 else inputs


def quantise(
    weight: Tensor, scheme: Scheme, device: torch.device | str, scales: Tensor | None = None
) -> QuantisedWeight:
    """Quantise a matrix [outputs, inputs] on a device, some rows at a time.

    INT4 also considers `scales` [outputs, groups] of 128 inputs, as an already quantised matrix
    has them.
    """
    rows = max(1, ELEMENTS_AT_ONCE // weight.shape[1])
    parts = []
    for start in range(0, len(weight), rows):
        part = weight[start : start + rows].to(device, torch.float32)
        given = None if scales is None else scales[start : start + rows].to(device)
        parts.append(_pack(part, given) if scheme is Scheme.INT4 else scale_each_row(part, scheme))
    values, chosen = (torch.cat(each) for each in zip(*parts, strict=True))
    return QuantisedWeight(values, chosen)


def scale_each_row(rows: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Round float32 rows [M, K] to 8 bits: values [M, K], and scales, float32 [M]."""
    largest = LARGEST[scheme]
    scales = rows.abs().amax(1) / largest
    scaled = (rows / scales.where(scales > 0, 1.0)[:, None]).clamp(-largest, largest)
    if scheme is Scheme.INT8:
        scaled = scaled.round()
    return scaled.to(DTYPES[scheme]), scales


def _pack(rows: Tensor, given: Tensor | None) -> tuple[Tensor, Tensor]:
    """Choose for each group the candidate scale with the least squared error.

    The value farthest from zero is stored as -8, whatever its sign, so that all sixteen are used,
    unless the `given` scale [M, groups] serves better.
    """
    count, inputs = rows.shape
    groups = rows.view(count, -1, _group(inputs))
    farthest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    best = torch.full_like(farthest, torch.inf)
    chosen, scales = torch.zeros_like(groups), torch.zeros_like(farthest)
    candidates = [farthest * (-shrinking / ZERO) for shrinking in SHRINKINGS]
    if given is not None and given.shape == farthest.shape[:2]:
        candidates.append(given[..., None])
    for candidate in candidates:
        scale = candidate.bfloat16().float()
        numbers = (groups / scale.where(scale != 0, 1.0)).round().clamp(-ZERO, ZERO - 1)
        error = (numbers * scale - groups).square().sum(2, keepdim=True)
        is_better = error < best
        best = torch.where(is_better, error, best)
        chosen = torch.where(is_better, numbers, chosen)
        scales = torch.where(is_better, scale, scales)
    numbers = (chosen.int() + ZERO).view(count, farthest.shape[1], PLACES, -1)
    words = sum(numbers[:, :, place] << 4 * place for place in range(PLACES))
    assert isinstance(words, Tensor)
    return words.reshape(count, -1), scales[..., 0].bfloat16()


def unpacked(weight: QuantisedWeight, dtype: torch.dtype) -> Tensor:
    """Return the dequantised matrix [outputs, inputs]."""
    if runs_kernels(weight.values):
        out = torch.empty(weight.shape, dtype=dtype, device=weight.values.device)
        count = weight.values.numel()
        form = {"GROUP_WORDS": weight.group_words, "IS_PACKED": weight.is_packed}
        grid = (triton.cdiv(count, UNPACKED_WORDS),)
        _unpack[grid](weight.values, weight.scales, out, count, **form, BLOCK=UNPACKED_WORDS)
        return out
    if not weight.is_packed:
        return (weight.values.float() * weight.scales[:, None]).to(dtype)
    count, groups = weight.scales.shape
    words = weight.values.view(count, groups, 1, -1)
    shifts = 4 * torch.arange(PLACES, dtype=torch.int32, device=words.device)
    numbers = ((words >> shifts[:, None]) & 15) - ZERO  # [outputs, groups, PLACES, group words]
    return (numbers * weight.scales.float()[:, :, None, None]).to(dtype).view(weight.shape)


def take_rows(weight: QuantisedWeight, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return dequantised rows of an 8-bit matrix, [*ids, inputs]."""
    flat = ids.flatten()
    values = weight.values.index_select(0, flat).float()
    rows = values * weight.scales.index_select(0, flat)[:, None]
    return rows.to(dtype).view(*ids.shape, -1)


@triton.jit
def value_of(words, PLACE: tl.constexpr):
    """Return 1 + q / 16 of the number q at one of eight places: its bits become a mantissa."""
    if PLACE < 5:
        moved = words << (19 - 4 * PLACE)
    else:
        moved = words >> (4 * PLACE - 19)
    return ((moved & 0x780000) | 0x3F800000).to(tl.float32, bitcast=True)


UNPACKED_WORDS = 1024  # of one program; or so many values of 8 bits


@triton.jit
def _unpack(
    values, scales, out, n_values, GROUP_WORDS: tl.constexpr, IS_PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each GROUP_WORDS words, or values of 8 bits, share a scale."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = at < n_values
    value = tl.load(values + at, mask=exists)
    scale = tl.load(scales + at // GROUP_WORDS, mask=exists).to(tl.float32)
    kind = out.dtype.element_ty
    if IS_PACKED:
        to = out + at // GROUP_WORDS * (8 * GROUP_WORDS) + at % GROUP_WORDS
        for place in tl.static_range(8):
            number = (value_of(value, place) - 1.5) * 16.0
            tl.store(to + place * GROUP_WORDS, (number * scale).to(kind), mask=exists)
    else:
        tl.store(out + at, (value.to(tl.float32) * scale).to(kind), mask=exists)


# Products with 4-bit weights. Eight numbers share a word; a shift and a mask unpack each as
# 1 + q / 16, without a conversion. The constant difference to the value is subtracted from sums
# over the row alone (one row) or from the number (few rows).


@triton.jit
def _words(weight, line, at, W: tl.constexpr):
    """Load the words `at` of lines [N, 1]; zero out of range."""
    return tl.load(weight + line * W + at[None, :], mask=(at < W)[None, :], other=0)


@triton.jit
def _scales(scales, line, at, W: tl.constexpr, GROUP: tl.constexpr):
    """Load the scale of each word; zero out of range."""
    own = scales + line * (W // GROUP) + (at // GROUP)[None, :]
    return tl.load(own, mask=(at < W)[None, :], other=0.0).to(tl.float32)


@triton.jit
def multiply_packed_row(
    x, norm, weight, scales, residual, out, N, eps, W: tl.constexpr, GROUP: tl.constexpr,
    HAS_GATE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Row [8 W] times words [N, W] with scales [N, W / GROUP]; HAS_GATE doubles N."""
    IS_BEFORE_ATTENTION: tl.constexpr = not HAS_GATE and residual is None  # attention prefetches
    let_next_start(OVERLAPS and not IS_BEFORE_ATTENTION)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = tl.arange(0, BLOCK_W)
    line = tl.minimum(n, N - 1).to(tl.int64)[:, None]
    tile = _words(weight, line, w, W)
    if HAS_GATE:
        up_tile = _words(weight, line + N, w, W)
    await_rows(OVERLAPS)
    let_next_start(OVERLAPS and IS_BEFORE_ATTENTION)
    total = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
    squares = tl.zeros((BLOCK_W,), tl.float32)
    if residual is not None:
        before = tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
    for start in range(0, W, BLOCK_W):
        at = start + w
        factor = _scales(scales, line, at, W, GROUP)
        if HAS_GATE:
            up_factor = _scales(scales, line + N, at, W, GROUP)
        if W > BLOCK_W:
            following = _words(weight, line, at + BLOCK_W, W)
            if HAS_GATE:
                up_following = _words(weight, line + N, at + BLOCK_W, W)
        part = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
        up_part = tl.zeros((BLOCK_N, BLOCK_W), tl.float32)
        row = tl.zeros((BLOCK_W,), tl.float32)
        for place in tl.static_range(8):
            k = at // GROUP * (8 * GROUP) + place * GROUP + at % GROUP
            value = tl.load(x + k, mask=at < W, other=0.0).to(tl.float32)
            if norm is not None:
                squares += value * value
                value *= tl.load(norm + k, mask=at < W, other=0.0).to(tl.float32)
            row += value
            part += value_of(tile, place) * value[None, :]
            if HAS_GATE:
                up_part += value_of(up_tile, place) * value[None, :]
        total += (part - 1.5 * row[None, :]) * factor
        if HAS_GATE:
            up_total += (up_part - 1.5 * row[None, :]) * up_factor
        if W > BLOCK_W:
            tile = following
            if HAS_GATE:
                up_tile = up_following
    scale = 16.0 * tl.rsqrt(tl.sum(squares, 0) / (8 * W) + eps) if norm is not None else 16.0
    answer = tl.sum(total, 1) * scale
    if HAS_GATE:
        answer = answer / (1.0 + tl.exp(-answer)) * (tl.sum(up_total, 1) * scale)
    if residual is not None:
        answer += before
    tl.store(out + n, answer.to(out.dtype.element_ty), mask=n < N)


@triton.jit
def store_tile(total, up_total, residual, out, m, n, M, N, HAS_GATE: tl.constexpr):
    """Store a product's tile [n, m] in rows [M, N], gated and with the residual added."""
    if HAS_GATE:
        total = total / (1.0 + tl.exp(-total)) * up_total
    at = m.to(tl.int64)[None, :] * N + n[:, None]
    fits = (m < M)[None, :] & (n < N)[:, None]
    if residual is not None:
        total += tl.load(residual + at, mask=fits, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=fits)


@triton.jit
def multiply_packed_rows(
    x, weight, scales, residual, out, M, N, W: tl.constexpr, GROUP: tl.constexpr,
    HAS_GATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Rows [M, 8 W] times words [N, W] with scales [N, W / GROUP]; HAS_GATE doubles N."""
    IS_BEFORE_ATTENTION: tl.constexpr = not HAS_GATE and residual is None  # attention prefetches
    let_next_start(OVERLAPS and not IS_BEFORE_ATTENTION)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    w = tl.arange(0, GROUP)[None, :]
    line = tl.minimum(n, N - 1).to(tl.int64)
    own, own_scale = weight + line[:, None] * W, scales + line * (W // GROUP)
    up, up_scale = own + N.to(tl.int64) * W, own_scale + N.to(tl.int64) * (W // GROUP)
    await_rows(OVERLAPS)
    let_next_start(OVERLAPS and IS_BEFORE_ATTENTION)
    rows = x + m[:, None] * (8 * W)
    is_row = (m < M)[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up_total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for group in range(0, W // GROUP):
        factor = tl.load(own_scale + group).to(tl.float32)
        tile = tl.load(own + group * GROUP + w)
        part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        if HAS_GATE:
            up_factor = tl.load(up_scale + group).to(tl.float32)
            up_tile = tl.load(up + group * GROUP + w)
            up_part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for place in tl.static_range(8):
            at = group * (8 * GROUP) + place * GROUP
            values = tl.trans(tl.load(rows + at + w, mask=is_row, other=0.0))  # [GROUP, M]
            number = (value_of(tile, place) - 1.5).to(values.dtype)
            part = tl.dot(number, values, part, input_precision="ieee")
            if HAS_GATE:
                number = (value_of(up_tile, place) - 1.5).to(values.dtype)
                up_part = tl.dot(number, values, up_part, input_precision="ieee")
        total += part * (16.0 * factor)[:, None]
        if HAS_GATE:
            up_total += up_part * (16.0 * up_factor)[:, None]
    store_tile(total, up_total, residual, out, m, n, M, N, HAS_GATE)
