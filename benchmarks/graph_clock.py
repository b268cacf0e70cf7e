"""Times GPU work by replaying a CUDA graph, without launch overhead."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

US_PER_MS = 1_000.0
WARM_UPS = 3
REPLAYS = 5
SAMPLES = 9


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
