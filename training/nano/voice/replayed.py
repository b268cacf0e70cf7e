"""A training step as one CUDA graph: small kernels cost their own time, not that of a launch.

On other devices the step just runs. Shapes must stay the same from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP_CALLS = 3  # before recording, so that every library has made its plans
Step = Callable[..., tuple[Tensor, ...]]


class ReplayedStep:
    """Calls a step, from the first call on as a recorded graph if the inputs are on a GPU."""

    def __init__(self, step: Step, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Remember the step.

        Args:
            step: takes tensors, trains, and returns figures; it must neither wait for the device
                nor draw random numbers.
            optimizers: those it uses, with `capturable` and a tensor for a rate on a GPU.
        """
        self._step = step
        self._optimizers = optimizers
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._figures: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Take one step and return its figures, which the next call overwrites."""
        if not inputs[0].is_cuda:
            return self._step(*inputs)
        if self._graph is None:
            with torch.cuda.device(inputs[0].device):  # graphs are of the current one
                self._record(inputs)
        assert self._graph is not None
        for held, new in zip(self._inputs, inputs, strict=True):
            held.copy_(new)
        self._graph.replay()
        return self._figures

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(each.clone() for each in inputs)
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP_CALLS):
                self._step(*self._inputs)
        torch.cuda.current_stream().wait_stream(beside)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._figures = self._step(*self._inputs)


def rate_for(device: torch.device, rate: float) -> float | Tensor:
    """Return a learning rate in the form a recorded step can follow."""
    return torch.tensor(rate, device=device) if device.type == "cuda" else rate


def half_precision(device: torch.device) -> torch.autocast:
    """Multiply in bfloat16; nothing that a recorded step would replay stale is kept."""
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
