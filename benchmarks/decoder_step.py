"""One decode step built from the device operations, with random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.kernels.attention import PAGE_TOKENS, RowMap, attend
from MiniCPMO45.kernels.cached_rows import encode_rows
from MiniCPMO45.kernels.products import linear_add, norm_linear, norm_swiglu

DTYPE = torch.bfloat16

Pages = tuple[Tensor, Tensor | None]
"""Pages of one layer, and their scales if they hold codes."""


@dataclass(frozen=True)
class Product:
    """A matrix product of a decoder layer, or the head.

    Attributes:
        is_gated: a gated product after a norm.
        adds: the output is added to the residual stream; otherwise the input is normalised.
    """

    name: str
    columns: int
    inputs: int
    is_gated: bool = False
    adds: bool = False

    def weight(self) -> Tensor:
        rows = 2 * self.columns if self.is_gated else self.columns
        drawn = torch.randn(rows, self.inputs, device="cuda", dtype=DTYPE)
        return drawn * self.inputs**-0.5

    def run(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, residual: Tensor) -> Tensor:
        if self.adds:
            return linear_add(x, weight, residual)
        if self.is_gated:
            return norm_swiglu(x, norm, eps, weight)
        return norm_linear(x, norm, eps, weight)


def products(shape: DecoderConfig, head_columns: int) -> dict[str, Product]:
    """Return the products of a layer by name, and that of the head."""
    width, inner = shape.hidden_size, shape.intermediate_size
    heads, kv_heads, d = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    return {
        product.name: product
        for product in (
            Product("qkv", (heads + 2 * kv_heads) * d, width),
            Product("out", width, heads * d, adds=True),
            Product("gate_up", inner, width, is_gated=True),
            Product("down", width, inner, adds=True),
            Product("head", head_columns, width),
        )
    }


def lay_out(sequences: int, rows_each: int, tokens: int, rows_per_tile: int) -> RowMap:
    """Return the layout of equally long sequences with pages in random order.

    Each has `tokens` tokens, of which `rows_each` are new; for `rows_per_tile` see `RowMap`.
    """

    def on_device(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    pages = -(-tokens // PAGE_TOKENS)
    starts = range(0, rows_each, rows_per_tile)
    return RowMap(
        positions=on_device([*range(tokens - rows_each, tokens)] * sequences),
        sequences=on_device([s for s in range(sequences) for _ in range(rows_each)]),
        page_table=torch.randperm(sequences * pages, device="cuda").view(sequences, -1).int(),
        tile_first_row=on_device([s * rows_each + at for s in range(sequences) for at in starts]),
        tile_rows=on_device([min(rows_per_tile, rows_each - at) for at in starts] * sequences),
        rows_per_tile=rows_per_tile,
    )


class DecoderStep:
    """Weights of a decoder and memory for its KV cache.

    Attributes:
        weight_bytes: read by each step.
    """

    def __init__(self, shape: DecoderConfig, head_columns: int) -> None:
        self.shape = shape
        self._products = products(shape, head_columns)
        layers = shape.num_hidden_layers
        self._layers = [
            {name: self._products[name].weight() for name in self._products if name != "head"}
            for _ in range(layers)
        ]
        self._head = self._products["head"].weight()
        self._norm = torch.randn(shape.hidden_size, device="cuda", dtype=DTYPE)
        norm = torch.randn(shape.head_dim, device="cuda", dtype=DTYPE)
        self._head_norms = (norm, norm) if shape.has_qk_norm else None
        angles = torch.randn(shape.max_position_embeddings, shape.head_dim, device="cuda")
        self._cos, self._sin = angles.cos(), angles.sin()
        weights = [weight for layer in self._layers for weight in layer.values()]
        self.weight_bytes = self._head.nbytes + sum(weight.nbytes for weight in weights)

    def cache(self, row_map: RowMap, *, has_codes: bool = False) -> list[Pages]:
        shape = self.shape
        kv_heads, d = shape.num_key_value_heads, shape.head_dim
        size = (row_map.page_table.numel(), 2, kv_heads, PAGE_TOKENS, d)
        layers = (
            torch.randn(size, device="cuda", dtype=DTYPE) for _ in range(shape.num_hidden_layers)
        )
        return [encode_rows(layer) if has_codes else (layer, None) for layer in layers]

    def attend(self, qkv: Tensor, row_map: RowMap, pages: Pages) -> Tensor:
        eps, tables = self.shape.rms_norm_eps, (self._cos, self._sin)
        return attend(qkv, self._head_norms, eps, tables, row_map, *pages)

    def run(self, rows: Tensor, row_map: RowMap, cache: list[Pages]) -> Tensor:
        """Run rows [M, width] through all layers and the head."""
        eps, norm, each = self.shape.rms_norm_eps, self._norm, self._products
        for weights, pages in zip(self._layers, cache, strict=True):
            qkv = each["qkv"].run(rows, norm, eps, weights["qkv"], rows)
            mixed = self.attend(qkv, row_map, pages)
            rows = each["out"].run(mixed, norm, eps, weights["out"], rows)
            inner = each["gate_up"].run(rows, norm, eps, weights["gate_up"], rows)
            rows = each["down"].run(inner, norm, eps, weights["down"], rows)
        return each["head"].run(rows, norm, eps, self._head, rows)


def pages_bytes(cache: list[Pages]) -> int:
    return sum(part.nbytes for pages in cache for part in pages if part is not None)
