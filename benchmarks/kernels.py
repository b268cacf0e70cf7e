"""Measures the operations of the device engine: `python -m benchmarks.kernels`.

Every figure is a replay of a CUDA graph over weights larger than the L2 cache, compared with the
time of the bytes at the run's copy bandwidth and with the library.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from benchmarks.floors import measure_rates
from benchmarks.machine import describe
from benchmarks.summary import EXIT_REFUSED, format_table, write_json
from MiniCPMO45.configuration_minicpmo import DecoderConfig, MiniCPMOConfig
from MiniCPMO45.kernels.attention import PAGE_TOKENS, RowMap, attend
from MiniCPMO45.kernels.cached_rows import encode_rows
from MiniCPMO45.kernels.products import multiply

DTYPE = torch.bfloat16
ROWS = (1, 4, 16, 32, 64, 128)
STEP_ROWS = (1, 4, 16, 64)
PREFILL_ROWS = 80  # an omni unit
PREFILL_TILE = 16
STEP_TOKENS = {"llm": 4_096, "tts": 256}
LONG_TOKENS = 8_192
CACHE_TOKENS = (4_096, 16_384)  # at which the bf16 and int8 caches are compared
MOST_CACHE_TOKENS = 262_144  # of all sequences: 39 GB of values
US_PER_S = 1e6
US_PER_MS = 1_000.0
WARM_UPS = 3
REPLAYS = 5
SAMPLES = 9
ROTATED_BYTES = 5e8  # of weights used in rotation: ten times the L2 cache

Pages = tuple[Tensor, Tensor | None]
"""Pages of one layer, and their scales if they hold codes."""


@dataclass(frozen=True)
class Product:
    name: str
    columns: int
    inputs: int
    is_gated: bool = False  # a gated product after a norm
    adds: bool = False  # to the residual stream; otherwise the input is normalised

    def weight(self) -> Tensor:
        rows = 2 * self.columns if self.is_gated else self.columns
        drawn = torch.randn(rows, self.inputs, device="cuda", dtype=DTYPE)
        return drawn * self.inputs**-0.5

    def run(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, residual: Tensor) -> Tensor:
        if self.adds:
            return multiply(x, weight, residual=residual)
        return multiply(x, weight, norm, eps, is_gated=self.is_gated)


def products(shape: DecoderConfig, head_columns: int) -> dict[str, Product]:
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


def pages_bytes(cache: list[Pages]) -> int:
    return sum(part.nbytes for pages in cache for part in pages if part is not None)


def replay_us(work: Callable[[], object]) -> float:
    """Capture `work` and return the median time of a replay in microseconds."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()  # loads and compiles what a capture must not
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for _ in range(WARM_UPS):
        graph.replay()
    taken = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * US_PER_MS / REPLAYS)
    return statistics.median(taken)


@dataclass(frozen=True)
class Timing:
    name: str
    rows: int
    tokens: int  # length of each sequence; 0 if irrelevant
    floor_us: float  # the bytes that must be read, at copy bandwidth
    us: float  # measured
    library_us: float | None  # the same in the library; None if not measured

    def cells(self) -> list[str]:
        library = "" if self.library_us is None else f"{self.library_us:.1f}"
        share = f"{100 * self.floor_us / self.us:.0f} %"
        numbers = (f"{self.floor_us:.1f}", f"{self.us:.1f}", share, library)
        return [self.name, str(self.rows), str(self.tokens or ""), *numbers]


class Decoder:
    """A decoder, whose head has `head_columns` outputs, and the times of its operations."""

    def __init__(
        self, name: str, shape: DecoderConfig, head_columns: int, bytes_per_us: float
    ) -> None:
        self.name, self.shape, self.bytes_per_us = name, shape, bytes_per_us
        self._products = products(shape, head_columns)
        layers = shape.num_hidden_layers
        self._layers = [
            {name: self._products[name].weight() for name in self._products if name != "head"}
            for _ in range(layers)
        ]
        self._head = self._products["head"].weight()
        self._norm = torch.randn(shape.hidden_size, device="cuda", dtype=DTYPE)
        norm = torch.randn(shape.head_dim, device="cuda", dtype=DTYPE)
        self._head_norms = (norm, norm) if isinstance(shape, MiniCPMOConfig) else None
        angles = torch.randn(shape.max_position_embeddings, shape.head_dim, device="cuda")
        self._cos, self._sin = angles.cos(), angles.sin()
        weights = [weight for layer in self._layers for weight in layer.values()]
        # Read by each step.
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

    def measure(self) -> Iterator[Timing]:
        for product in self._products.values():
            yield from self._alone(product)
        tokens = STEP_TOKENS[self.name]
        for rows in STEP_ROWS:
            yield self._step(rows, 1, tokens)
            yield self._attention(rows, 1, tokens)
        if self.shape.max_position_embeddings >= LONG_TOKENS:
            yield self._step(1, PREFILL_ROWS, LONG_TOKENS)
            yield self._attention(1, PREFILL_ROWS, LONG_TOKENS)

    def _alone(self, product: Product) -> Iterator[Timing]:
        first = product.weight()
        others = range(min(int(ROTATED_BYTES // first.nbytes), self.shape.num_hidden_layers - 1))
        weights = [first, *(product.weight() for _ in others)]
        norm, eps = torch.randn(product.inputs, device="cuda", dtype=DTYPE), self.shape.rms_norm_eps
        for rows in ROWS:
            x = torch.randn(rows, product.inputs, device="cuda", dtype=DTYPE)
            residual = torch.randn(rows, product.columns, device="cuda", dtype=DTYPE)

            def ours(x: Tensor = x, residual: Tensor = residual) -> None:
                for weight in weights:
                    product.run(x, norm, eps, weight, residual)

            def library(x: Tensor = x) -> None:
                for weight in weights:
                    F.linear(x, weight)

            count = len(weights)
            yield Timing(
                f"{self.name} {product.name}",
                rows,
                0,
                first.nbytes / self.bytes_per_us,
                replay_us(ours) / count,
                replay_us(library) / count,
            )

    def caches(self) -> Iterator[Timing]:
        for tokens in CACHE_TOKENS:
            for rows in (each for each in STEP_ROWS if each * tokens <= MOST_CACHE_TOKENS):
                for has_codes in (False, True):
                    yield self._attention(rows, 1, tokens, has_codes=has_codes)
            for has_codes in (False, True):
                yield self._attention(1, PREFILL_ROWS, tokens, has_codes=has_codes)

    def _attention(
        self, sequences: int, rows: int, tokens: int, *, has_codes: bool = False
    ) -> Timing:
        row_map = lay_out(sequences, rows, tokens, 1 if rows == 1 else PREFILL_TILE)
        cache = self.cache(row_map, has_codes=has_codes)
        shape = self.shape
        columns = (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
        qkv = torch.randn(sequences * rows, columns, device="cuda", dtype=DTYPE)
        us = replay_us(lambda: [self.attend(qkv, row_map, pages) for pages in cache])
        name = f"{self.name} attention" + (", codes" if has_codes else "")
        name += "" if rows == 1 else ", prefill"
        layers = shape.num_hidden_layers
        floor_us = pages_bytes(cache) / layers / self.bytes_per_us
        return Timing(name, sequences * rows, tokens, floor_us, us / layers, None)

    def _step(self, sequences: int, rows: int, tokens: int) -> Timing:
        row_map = lay_out(sequences, rows, tokens, 1 if rows == 1 else PREFILL_TILE)
        cache = self.cache(row_map)
        x = torch.randn(sequences * rows, self.shape.hidden_size, device="cuda", dtype=DTYPE)
        us = replay_us(lambda: self.run(x, row_map, cache))
        floor_us = (self.weight_bytes + pages_bytes(cache)) / self.bytes_per_us
        name = f"{self.name} step" if rows == 1 else f"{self.name} pass, prefill"
        return Timing(name, sequences * rows, tokens, floor_us, us, None)


@torch.inference_mode()
def main(
    decoder: Annotated[str, typer.Option(help="llm, tts or both")] = "both",
    caches: Annotated[bool, typer.Option(help="attention over values and codes alone")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="keep everything here")] = None,
) -> None:
    """Measure the operations of the device engine on the card."""
    if not torch.cuda.is_available():
        typer.echo("the kernels need a card", err=True)
        raise typer.Exit(EXIT_REFUSED)
    torch.manual_seed(0)
    device = torch.device("cuda")
    rates = measure_rates(device, DTYPE)
    bytes_per_us = rates.bytes_per_s / US_PER_S
    print(f"{describe(device)['device_name']}, copies {bytes_per_us / US_PER_S:.2f} TB/s")
    config = MiniCPMOConfig()
    shapes = {
        "llm": (config, config.vocab_size),
        "tts": (config.tts_config, config.tts_config.num_audio_tokens),
    }
    header = ["operation", "rows", "tokens", "floor, us", "us", "of the floor", "library, us"]
    found: list[Timing] = []
    for name, (shape, head_columns) in shapes.items():
        if decoder in (name, "both"):
            measured = Decoder(name, shape, head_columns, bytes_per_us)
            timings = list(measured.caches() if caches else measured.measure())
            print(format_table(header, [timing.cells() for timing in timings]), flush=True)
            found += timings
            del measured  # frees its weights
            torch.cuda.empty_cache()
    write_json(json_file, {"bytes_per_s": rates.bytes_per_s, "timings": found})


if __name__ == "__main__":
    typer.run(main)
