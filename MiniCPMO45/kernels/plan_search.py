"""Measures the plans of matrix products that a card has none for; Triton's cache keeps them."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product as combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from MiniCPMO45.kernels.device import triton
from MiniCPMO45.kernels.product_plans import (
    FEW_ROWS,
    FewRowsPlan,
    OneRowPlan,
    Plan,
    Plans,
    plans_from_json,
    plans_of,
    plans_to_json,
    product_name,
)
from MiniCPMO45.kernels.products import multiply
from MiniCPMO45.kernels.quantised import GROUP, QuantisedWeight, Scheme, Weight

logger = logging.getLogger(__name__)

ROWS = (1, FEW_ROWS, 32, 64, 128, 256, 512, 1024)  # the most of each plan
LEAST_BYTES = 1_000_000  # of a weight; the products of smaller ones take little time
WIDE = 128  # rows of a program, instead of 64, from so many rows on
KEPT = 3  # of the fastest plans, also measured with more rows
WARM_UP_MS, SAMPLES_MS = 2, 10
MOST_RESULTS = 2**26  # of a product; comparing so many takes a gigabyte
MOST_DISTANCE = 0.05  # of a kernel's results from PyTorch's, relative
EPS = 1e-6
FILE = "products.json"


@dataclass(frozen=True, eq=False)
class Product:
    weight: Weight  # [N, K], or [2N, K] if gated
    norm: Tensor | None = None  # [K]
    is_gated: bool = False
    adds: bool = False  # to the residual stream; then there is no norm

    @property
    def stored(self) -> Tensor:
        return self.weight.values if isinstance(self.weight, QuantisedWeight) else self.weight

    def of_random(self, rows: int, dtype: torch.dtype) -> Callable[[Plan | None], Tensor]:
        """Return a function of the plan: the products of random rows by copies of the weight.

        The copies exceed a card's cache, so that each is read from memory; the last product is
        returned.
        """
        outputs, inputs = self.weight.shape
        x = torch.randn(rows, inputs, device=self.stored.device, dtype=dtype)
        residual = x.new_zeros(rows, outputs) if self.adds else None
        calls = [
            partial(multiply, x, weight, self.norm, EPS, residual=residual, is_gated=self.is_gated)
            for weight in self._copies()
        ]
        return lambda plan: [call(choose=lambda *_: plan) for call in calls][-1]

    def _copies(self) -> Iterator[Weight]:
        yield self.weight
        if self.stored.is_cuda:
            cache = torch.cuda.get_device_properties(self.stored.device).L2_cache_size
            for _ in range(2 * cache // self.stored.nbytes):
                if isinstance(self.weight, QuantisedWeight):
                    yield QuantisedWeight(self.weight.values.clone(), self.weight.scales.clone())
                else:
                    yield self.weight.clone()


@torch.inference_mode()
def find_plans(products: Sequence[Product], dtype: torch.dtype, *, show_progress: bool) -> None:
    """Find plans for products of rows of a dtype on the current device, unless they are known.

    Compiling some twenty kernels takes most of the 14 s of a product on an H200. One thread does
    it, since Triton up to 3.6 may mix up kernels that several threads launch.
    """
    known, kept = plans_of(card := torch.cuda.get_device_name()), _kept(card)
    known.update(kept)
    missing = {
        name: product
        for product in products
        if (name := product_name(product.weight, dtype, is_gated=product.is_gated)) not in known
        and product.stored.nbytes >= LEAST_BYTES
    }
    if not missing:
        return
    start = time.perf_counter()
    logger.info("measuring the kernels of %d products, once for this card", len(missing))
    for name, product in tqdm(missing.items(), "measuring kernels", disable=not show_progress):
        try:
            known[name] = kept[name] = search(product, dtype)
        except Exception:  # a card serves without, too
            logger.exception("the kernels of %s cannot be measured", name)
    torch.cuda.empty_cache()
    logger.info("measured them in %.0f s", time.perf_counter() - start)
    try:
        _cache(card).put(plans_to_json(kept), FILE)
    except OSError as error:
        logger.warning("the measured plans of products are not kept: %s", error)


def _cache(card: str) -> Any:
    key = f"{card} {triton.__version__} {list(ROWS)}"
    return triton.runtime.cache.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())


def _kept(card: str) -> dict[str, Plans]:
    try:
        file = _cache(card).get_file(FILE)
        return plans_from_json(Path(file).read_text("utf-8")) if file else {}
    except (OSError, ValueError, TypeError) as error:
        logger.warning("the kept plans of products cannot be read: %s", error)
        return {}


def search(product: Product, dtype: torch.dtype) -> Plans:
    """Return the fastest plans by rows, up to those where PyTorch's product is faster."""
    plans: list[tuple[int, Plan | None]] = []
    tried: list[Any] = []
    for rows in ROWS:
        if rows * product.weight.shape[0] > MOST_RESULTS:
            break
        run = product.of_random(rows, dtype)
        if rows <= FEW_ROWS:
            tried = list(candidates(product.weight, rows))
        elif rows == WIDE:
            tried += [replace(plan, most_rows=WIDE) for plan in tried]
        wanted = run(None)
        right = [plan for plan in tried if _is_right(run, plan, wanted)]
        times = {plan: _median_ms(run, plan) for plan in (None, *right)}
        fastest, *others = sorted(times, key=times.__getitem__)
        tried = [plan for plan in (fastest, *others) if plan is not None][:KEPT]
        if plans and plans[-1][1] == fastest:
            plans.pop()
        plans.append((rows, fastest))
        if rows > 1 and fastest is None:
            break
    return tuple(plans)


def candidates(weight: Weight, rows: int) -> Iterator[Plan]:
    """Yield the plans to try for a weight [N, K]; their values of a thread fit its registers."""
    scheme = weight.scheme if isinstance(weight, QuantisedWeight) else None
    is_packed = scheme is Scheme.INT4
    if rows == 1 and scheme is not Scheme.FP8:
        for block_n, block_k, warps in combinations((1, 2, 4, 8), (1024, 4096), (4, 8)):
            if 16 <= block_n * block_k // (32 * warps) <= (128 if is_packed else 64):
                yield OneRowPlan(block_n, block_k, warps)
        if scheme is not Scheme.INT8:  # tensor cores can be faster for one row of these
            return
    steps, stages = ((GROUP,), (3, 5)) if is_packed else ((128, 256), (6,))
    for block_n, block_k, warps in combinations((16, 32, 64, 128), steps, (1, 2, 4, 8)):
        values = block_n * block_k // (32 * warps)
        if weight.shape[1] % block_k == 0 and values in (64, 128):
            yield from (FewRowsPlan(block_n, block_k, warps, count) for count in stages)


def _is_right(run: Callable[[Plan | None], Tensor], plan: Plan, wanted: Tensor) -> bool:
    """Whether a plan compiles, fits the card and yields PyTorch's results, but for rounding."""
    try:
        distance = (run(plan).float() - wanted.float()).norm() / wanted.float().norm()
    except Exception as error:  # of the compiler or the driver, which have many
        logger.debug("%s cannot be used: %s", plan, error)
        return False
    return distance.item() < MOST_DISTANCE


def _median_ms(run: Callable[[Plan | None], Tensor], plan: Plan | None) -> float:
    """Time a graph, since the host may take longer to launch a kernel than the card to run it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(plan)
    timed = triton.testing.do_bench(
        graph.replay, warmup=WARM_UP_MS, rep=SAMPLES_MS, return_mode="median"
    )
    return float(timed)
