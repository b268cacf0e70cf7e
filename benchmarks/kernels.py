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
from benchmarks.rig import module_bytes, random_llm
from benchmarks.summary import EXIT_REFUSED, format_table, write_json
from MiniCPMO45.configuration_minicpmo import DecoderConfig, MiniCPMOConfig
from MiniCPMO45.engine.kv_cache import PREFILL_TILE_ROWS, FedRows, KvStore, PackedRows, Rows
from MiniCPMO45.kernels.attention import PAGE_TOKENS
from MiniCPMO45.kernels.products import multiply
from MiniCPMO45.model.transformer import CausalLM, DecoderLayer

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
ROWS = (1, 4, 16, 32, 64, 128)
STEP_ROWS = (1, 4, 16, 64)
PREFILL_ROWS = 80  # an omni unit
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
LARGEST_CODE, CODE_SCALE = 127, 0.02  # of random rows


@dataclass(frozen=True)
class Product:
    name: str
    weights: list[Tensor]  # [N, K] each, used in rotation
    is_gated: bool = False  # a gated product after a norm
    adds: bool = False  # to the residual stream; otherwise the input is normalised

    def run(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, residual: Tensor) -> Tensor:
        if self.adds:
            return multiply(x, weight, residual=residual)
        return multiply(x, weight, norm, eps, is_gated=self.is_gated)


def products(llm: CausalLM) -> Iterator[Product]:
    layers = [layer for layer in llm.model.layers if isinstance(layer, DecoderLayer)]
    head = llm.lm_head.weight
    copies = range(min(int(ROTATED_BYTES // head.nbytes), len(layers) - 1))
    for name, weights, is_gated, adds in (
        ("qkv", [each.self_attn.qkv() for each in layers], False, False),
        ("out", [each.self_attn.o_proj.weight for each in layers], False, True),
        ("gate_up", [each.mlp.gate_up() for each in layers], True, False),
        ("down", [each.mlp.down_proj.weight for each in layers], False, True),
        ("head", [head, *(head.clone() for _ in copies)], False, False),
    ):
        [first, *others] = [weight for weight in weights if isinstance(weight, Tensor)]
        used = int(ROTATED_BYTES // first.nbytes)
        yield Product(name, [first, *others[:used]], is_gated, adds)


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
    """A decoder with random weights, and the times of its operations."""

    def __init__(self, name: str, shape: DecoderConfig, bytes_per_us: float) -> None:
        self.name, self.shape, self.bytes_per_us = name, shape, bytes_per_us
        with torch.inference_mode(False):  # whose tensors cannot be fused
            self._llm = random_llm(shape, device=DEVICE)
            self._llm.model.fuse()
        # Read by each step.
        self.weight_bytes = module_bytes(self._llm.model.layers, self._llm.lm_head)

    def measure(self) -> Iterator[Timing]:
        for product in products(self._llm):
            yield from self._alone(product)
        tokens = STEP_TOKENS[self.name]
        for rows in STEP_ROWS:
            yield self._step(rows, 1, tokens)
            yield self._attention(rows, 1, tokens)
        if self.shape.max_position_embeddings >= LONG_TOKENS:
            yield self._step(1, PREFILL_ROWS, LONG_TOKENS)
            yield self._attention(1, PREFILL_ROWS, LONG_TOKENS)

    def caches(self) -> Iterator[Timing]:
        longest = self.shape.max_position_embeddings
        for tokens in (each for each in CACHE_TOKENS if each <= longest):
            for rows in (each for each in STEP_ROWS if each * tokens <= MOST_CACHE_TOKENS):
                for has_codes in (False, True):
                    yield self._attention(rows, 1, tokens, has_codes=has_codes)
            for has_codes in (False, True):
                yield self._attention(1, PREFILL_ROWS, tokens, has_codes=has_codes)

    def _alone(self, product: Product) -> Iterator[Timing]:
        weights, eps = product.weights, self.shape.rms_norm_eps
        columns, inputs = weights[0].shape
        norm = torch.randn(inputs, device=DEVICE, dtype=DTYPE)
        for rows in ROWS:
            x = torch.randn(rows, inputs, device=DEVICE, dtype=DTYPE)
            residual = torch.randn(rows, columns, device=DEVICE, dtype=DTYPE)

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
                weights[0].nbytes / self.bytes_per_us,
                replay_us(ours) / count,
                replay_us(library) / count,
            )

    def _attention(
        self, sequences: int, rows: int, tokens: int, *, has_codes: bool = False
    ) -> Timing:
        packed, shape = self._packed(sequences, rows, tokens, has_codes=has_codes), self.shape
        columns = (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
        qkv = torch.randn(sequences * rows, columns, device=DEVICE, dtype=DTYPE)
        first, layers = self._llm.model.layers[0], shape.num_hidden_layers
        assert isinstance(first, DecoderLayer)
        norms = first.self_attn.norms
        us = replay_us(lambda: [packed.attend(layer, qkv, norms) for layer in range(layers)])
        name = f"{self.name} attention" + (", codes" if has_codes else "")
        name += "" if rows == 1 else ", prefill"
        floor_us = packed_bytes(packed) / layers / self.bytes_per_us
        return Timing(name, sequences * rows, tokens, floor_us, us / layers, None)

    def _step(self, sequences: int, rows: int, tokens: int) -> Timing:
        packed, llm = self._packed(sequences, rows, tokens), self._llm
        x = torch.randn(sequences * rows, self.shape.hidden_size, device=DEVICE, dtype=DTYPE)
        us = replay_us(lambda: multiply(llm.model(x, packed.batch()), llm.lm_head.stored))
        floor_us = (self.weight_bytes + packed_bytes(packed)) / self.bytes_per_us
        name = f"{self.name} step" if rows == 1 else f"{self.name} pass, prefill"
        return Timing(name, sequences * rows, tokens, floor_us, us, None)

    def _packed(
        self, sequences: int, rows: int, tokens: int, *, has_codes: bool = False
    ) -> PackedRows:
        """Return new rows of each of some sequences, which have `tokens` tokens with them."""
        pages = sequences * -(-tokens // PAGE_TOKENS)
        store = KvStore(self.shape, device=DEVICE, dtype=DTYPE, pages=pages, has_codes=has_codes)
        if store.scales is None:
            store.pool.normal_()
        else:
            store.pool.random_(-LARGEST_CODE, LARGEST_CODE + 1)
            store.scales.fill_(CODE_SCALE)
        handles = [store.open() for _ in range(sequences)]
        for kv in handles:
            kv.reserve(tokens)
            kv.advance(tokens - rows)
        tile = 1 if rows == 1 else PREFILL_TILE_ROWS
        packed = PackedRows(store, sequences * rows, rows_per_tile=tile)
        packed.load([FedRows(kv, Rows((0,) * rows)) for kv in handles])
        return packed


def packed_bytes(packed: PackedRows) -> int:
    scales = packed.store.scales
    return packed.store.pool.nbytes + (0 if scales is None else scales.nbytes)


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
    rates = measure_rates(DEVICE, DTYPE)
    bytes_per_us = rates.bytes_per_s / US_PER_S
    print(f"{describe(DEVICE)['device_name']}, copies {bytes_per_us / US_PER_S:.2f} TB/s")
    config = MiniCPMOConfig()
    speech = config.tts_config
    speech.vocab_size = speech.num_audio_tokens  # its head yields codes
    shapes = {"llm": config, "tts": speech}
    header = ["operation", "rows", "tokens", "floor, us", "us", "of the floor", "library, us"]
    found: list[Timing] = []
    for name, shape in shapes.items():
        if decoder in (name, "both"):
            measured = Decoder(name, shape, bytes_per_us)
            timings = list(measured.caches() if caches else measured.measure())
            print(format_table(header, [timing.cells() for timing in timings]), flush=True)
            found += timings
            del measured  # frees its weights
            torch.cuda.empty_cache()
    write_json(json_file, {"bytes_per_s": rates.bytes_per_s, "timings": found})


if __name__ == "__main__":
    typer.run(main)
