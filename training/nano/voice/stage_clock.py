"""Training loop parts: step and time limits, learning rate, weight averaging, CUDA graphs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from core.files import replacing

SAVE_EVERY_S = 120.0
WARM_UP_STEPS = 200
LAST_RATE_SHARE = 0.02
RESUMED_RATE_SHARE = 0.5  # trained weights take smaller steps
AVERAGE_DECAY = 0.999


@dataclass(frozen=True)
class Tick:
    step: int
    progress: float  # completed share of the stage, 0 to 1
    is_save_due: bool  # this is the last step, or the last save was two minutes ago
    elapsed_s: float  # training time, including earlier runs
    bar: tqdm = field(repr=False)

    def show(self, **figures: Tensor | float) -> None:
        """Show figures next to the progress bar, every 25th step to avoid synchronising the GPU."""
        if self.step % 25 == 0 or self.is_save_due:
            self.bar.set_postfix(
                {
                    name: f"{float(torch.as_tensor(value).detach()):.4f}"
                    for name, value in figures.items()
                }
            )


@dataclass(frozen=True)
class StageClock:
    """Limits of a stage, whichever is reached first; `minutes_now` limits the current run."""

    max_steps: int
    minutes: float = math.inf
    minutes_now: float = math.inf

    def ticks(
        self,
        name: str,
        *,
        first: int = 0,
        spent_s: float = 0.0,
        stop: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        is_shown: bool = True,
    ) -> Iterator[Tick]:
        """Yield one tick per step, from `first` after `spent_s` on, until a limit or `stop`."""
        start = saved = clock()
        steps = range(first, self.max_steps if stop is None else stop)
        with tqdm(
            total=self.max_steps, desc=name, initial=first, mininterval=5.0, disable=not is_shown
        ) as bar:
            for step in steps:
                now = clock()
                elapsed_s = spent_s + now - start
                progress = max(step / self.max_steps, elapsed_s / (60 * self.minutes))
                is_over = progress >= 1 or now - start > 60 * self.minutes_now
                is_last = step + 1 == steps.stop or is_over
                is_save_due = is_last or now - saved > SAVE_EVERY_S
                saved = now if is_save_due else saved
                yield Tick(step, min(1.0, progress), is_save_due, elapsed_s, bar)
                bar.update()
                if is_last:
                    return


def set_rate(
    optimizer: Optimizer, tick: Tick, peak: float, warm_up_steps: int = WARM_UP_STEPS
) -> None:
    """Set the learning rate: linear warm-up, then cosine decay; groups may have a "scale"."""
    decay = 0.5 * (1 + math.cos(math.pi * tick.progress))
    share = min((tick.step + 1) / warm_up_steps, LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * decay)
    for group in optimizer.param_groups:
        rate = peak * share * group.get("scale", 1.0)
        if isinstance(group["lr"], Tensor):  # read by a captured graph
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Average:
    """Exponential moving average of a module's parameters, which is exported."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._values = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average; the decay is smaller in the first steps."""
        decay = min(AVERAGE_DECAY, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._values, list(self.model.parameters()), 1 - decay)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore values of an earlier `state_dict`; missing parameters are unchanged."""
        for (name, _), value in zip(self.model.named_parameters(), self._values, strict=True):
            if name in state:
                value.copy_(state[name].detach())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the module's state with averaged parameters, on the CPU in float32."""
        names = [name for name, _ in self.model.named_parameters()]
        state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        state.update(zip(names, self._values, strict=True))
        return {name: value.float().cpu().clone() for name, value in state.items()}


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors as float16, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        torch.save({name: value.half().cpu() for name, value in tensors.items()}, unfinished)


def resume(model: nn.Module, path: Path) -> float:
    """Load weights written by `save`, if any; return the share of the learning rate to use."""
    if not path.is_file():
        return 1.0
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict({name: value.float() for name, value in tensors.items()})
    return RESUMED_RATE_SHARE


WARM_UP_CALLS = 3  # before capture, for lazy initialisation of libraries
Step = Callable[..., tuple[Tensor, ...]]


class ReplayedStep:
    """A training step, captured as a CUDA graph if the inputs are on a GPU."""

    def __init__(self, step: Step, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Wrap a step that takes tensors, trains, and returns figures.

        It must neither synchronise nor draw random numbers. On a GPU its optimizers need
        `capturable` and a tensor learning rate.
        """
        self._step = step
        self._optimizers = optimizers
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._figures: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run one step and return its figures, which the next call overwrites."""
        if not inputs[0].is_cuda:
            return self._step(*inputs)
        if self._graph is None:
            with torch.cuda.device(inputs[0].device):  # graphs belong to the current device
                self._record(inputs)
        assert self._graph is not None
        for static, new in zip(self._inputs, inputs, strict=True):
            static.copy_(new)
        self._graph.replay()
        return self._figures

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(each.clone() for each in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_CALLS):
                self._step(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._figures = self._step(*self._inputs)


def rate_for(device: torch.device, rate: float) -> float | Tensor:
    """Return a learning rate that a captured step can follow."""
    return torch.tensor(rate, device=device) if device.type == "cuda" else rate


def half_precision(device: torch.device) -> torch.autocast:
    """Return a bfloat16 autocast without the cast cache, which a captured graph would reuse."""
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
