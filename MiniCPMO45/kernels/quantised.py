"""Quantised weights: quantisation of a matrix and its inverse.

Every output has its own scale, so rows of several matrices can be joined. Nothing is calibrated: a
weight depends on the published values alone. Products read the stored form directly where that is
faster: `row_products` and `packed_products`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from MiniCPMO45.kernels.device import runs_kernels, tl, triton


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

    Attributes:
        values: float8_e4m3fn or int8 [outputs, inputs]; or int32 [outputs, inputs / 8]: the words
            of a group hold its first values at their lowest four bits, the next at the next four.
        scales: float32 [outputs], or bfloat16 [outputs, inputs / group] with int32 values.
    """

    values: Tensor
    scales: Tensor

    @property
    def scheme(self) -> Scheme:
        return next(scheme for scheme, dtype in DTYPES.items() if dtype == self.values.dtype)

    @property
    def is_e4m3(self) -> bool:
        return self.values.dtype == torch.float8_e4m3fn

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
        is_packed = scheme is Scheme.INT4
        parts.append(_pack(part, given) if is_packed else scale_each_row(part, scheme))
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
        _unpack[(triton.cdiv(count, UNPACKED_WORDS),)](
            weight.values,
            weight.scales,
            out,
            count,
            GROUP_WORDS=weight.group_words,
            IS_PACKED=weight.is_packed,
            BLOCK=UNPACKED_WORDS,
        )
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
