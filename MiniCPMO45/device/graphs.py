"""Fixed pieces of device work: captured once as CUDA graphs and replayed, plainly called on a CPU.

A piece reads and writes tensors whose addresses never change. All graphs share one memory pool,
so they are replayed one after the other, on one stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch
from tqdm import tqdm

logger = logging.getLogger(__name__)

T = TypeVar("T")
SLOW_REHEARSAL_S = 1.0  # worth a line in the log: kernels were compiled, as on a first start


class Piece(Generic[T]):
    """Device work that may be replayed.

    Attributes:
        name: shown while it is captured.
    """

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        """Take the work; it is called as it is until `Graphs.capture` has captured it.

        Args:
            name: shown while it is captured.
            work: reads and writes static tensors; never waits for the device. Its result, tensors,
                is valid until the next replay.
        """
        self.name = name
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: T | None = None

    def run(self) -> T:
        """Do the work, in the order of the current stream."""
        if self._graph is None:
            return self._work()
        self._graph.replay()
        return cast(T, self._result)

    def rehearse(self) -> None:
        """Do the work once as it is: kernels are compiled and libraries set up."""
        self._work()

    def capture(self, pool: Any) -> None:
        """Capture the work; it must be harmless to run with what its tensors hold now.

        Args:
            pool: a handle of `torch.cuda.graph_pool_handle`, whose type has no public name.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.rehearse()  # libraries are set up for each thread of its own
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = self._work()
        self._graph, self._result = graph, result


def capture_all(families: Sequence[Sequence[Piece[Any]]], *, show_progress: bool) -> None:
    """Capture pieces into graphs of one pool, on the current device.

    Compiling kernels takes nearly all the time of a first start, so families are rehearsed side by
    side beforehand.

    Args:
        families: pieces, largest first so that memory is reused; families share no settings of
            libraries.
        show_progress: draw progress bars.
    """
    pieces = [piece for family in families for piece in family]
    with tqdm(total=len(pieces), desc="compiling kernels", disable=not show_progress) as bar:
        with ThreadPoolExecutor(len(families), "rehearsal") as threads:
            list(threads.map(partial(_rehearse, torch.cuda.current_device(), bar), families))
    torch.cuda.empty_cache()
    pool = torch.cuda.graph_pool_handle()
    with torch.inference_mode():
        for piece in tqdm(pieces, desc="capturing graphs", disable=not show_progress):
            piece.capture(pool)
        torch.cuda.synchronize()


def _rehearse(device: int, bar: tqdm[Any], family: Sequence[Piece[Any]]) -> None:
    """Rehearse a family on a thread of its own."""
    with torch.inference_mode(), torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for piece in family:
                start = time.perf_counter()
                piece.rehearse()
                seconds = time.perf_counter() - start
                if seconds > SLOW_REHEARSAL_S:
                    logger.info("rehearsed %s in %.1f s", piece.name, seconds)
                bar.update()
        stream.synchronize()
