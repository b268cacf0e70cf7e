"""The decoder's layers whose weight may be quantised, and joining the weights of several.

A layer keeps its published name; quantised it has two buffers, `values` and `scales`, in place of
the parameter `weight`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from MiniCPMO45.kernels.products import norm_linear
from MiniCPMO45.kernels.quantised import QuantisedWeight, Scheme, Weight, stored_shapes, take_rows


class Quantisable(nn.Module):
    """A layer with one matrix, [outputs, inputs]."""

    weight: Tensor
    values: Tensor
    scales: Tensor

    def reserve(self, scheme: Scheme, dtype: torch.dtype) -> None:
        """Expect a quantised matrix from now on, which has yet to be loaded.

        Args:
            scheme: how it is stored.
            dtype: of what a table of rows gives out.
        """
        values, scales = stored_shapes(scheme, *self.weight.shape)
        self.register_parameter("weight", None)
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.dtype = dtype

    @property
    def is_quantised(self) -> bool:
        """Whether the matrix is, or will be, quantised."""
        return "values" in self._buffers

    @property
    def stored(self) -> Weight:
        """The matrix as it is stored."""
        return QuantisedWeight(self.values, self.scales) if self.is_quantised else self.weight


class Linear(Quantisable, nn.Linear):
    """A linear layer without a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [M, inputs] to [M, outputs]."""
        if self.is_quantised:
            return norm_linear(x, None, 0.0, self.stored)
        return F.linear(x, self.weight)


class Embedding(Quantisable, nn.Embedding):
    """A table of rows; quantised, one of 8 bits."""

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids` [...], [..., width]."""
        stored = self.stored
        if isinstance(stored, QuantisedWeight):
            return take_rows(stored, ids, self.dtype)
        return F.embedding(ids, stored)


class JoinedWeight:
    """The weights of linear layers with one input as one matrix, [all outputs, inputs].

    The layers keep their parameters and so their names in a state dict. Once `fuse` was called,
    their weights are views of the matrix, which costs no memory and no copy.
    """

    def __init__(self, *linears: Linear) -> None:
        self._linears = linears
        self._fused: list[Tensor] = []

    def __call__(self) -> Weight:
        """Return the matrix: a copy that records gradients where they are wanted, else shared."""
        parts = self._parts()
        is_current = bool(self._fused) and self._fused[0].data_ptr() == parts[0][0].data_ptr()
        joined = self._fused
        if not is_current or torch.is_grad_enabled():
            joined = [torch.cat(each) for each in parts]
        return joined[0] if len(joined) == 1 else QuantisedWeight(*joined)

    def fuse(self) -> None:
        """Make the layers' weights views of one matrix; harmless where they are."""
        parts = self._parts()
        if not self._fused or not all(map(_are_rows_of, self._fused, parts)):
            self._fused = [torch.cat([part.data for part in each]) for each in parts]
        for joined, each in zip(self._fused, parts, strict=True):
            for part, view in zip(each, joined.split([len(part) for part in each]), strict=True):
                part.data = view

    def _parts(self) -> list[list[Tensor]]:
        """The layers' weights; or their values, and their scales."""
        if self._linears[0].is_quantised:
            return [
                [each.values for each in self._linears],
                [each.scales for each in self._linears],
            ]
        return [[each.weight for each in self._linears]]


def _are_rows_of(joined: Tensor, parts: list[Tensor]) -> bool:
    at = joined.data_ptr()
    for part in parts:
        if part.data_ptr() != at:
            return False
        at += part.nbytes
    return True
