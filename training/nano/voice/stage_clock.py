"""How long a stage trains: by steps or by the clock, whichever ends first."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
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
RESUMED_RATE_SHARE = 0.5  # weights that have learned already take smaller steps
AVERAGE_DECAY = 0.999


@dataclass(frozen=True)
class Tick:
    """One step of a stage.

    Attributes:
        step: counted from 0.
        progress: share of the stage that is over, 0 to 1.
        is_save_due: two minutes have passed since the last save, or this is the last step.
        show: puts figures beside the progress bar.
    """

    step: int
    progress: float
    is_save_due: bool
    bar: tqdm = field(repr=False)

    def show(self, **figures: Tensor | float) -> None:
        """Show figures beside the progress bar; every 25th step, so that a GPU need not wait."""
        if self.step % 25 == 0 or self.is_save_due:
            self.bar.set_postfix(
                {
                    name: f"{float(torch.as_tensor(value).detach()):.4f}"
                    for name, value in figures.items()
                }
            )


@dataclass(frozen=True)
class StageClock:
    """Limits of a stage.

    Attributes:
        max_steps: steps at most.
        minutes: by the clock at most.
    """

    max_steps: int
    minutes: float = math.inf

    def ticks(self, name: str) -> Iterator[Tick]:
        """Yield one tick per step until a limit is reached."""
        began = saved = time.monotonic()
        with tqdm(total=self.max_steps, desc=name, mininterval=5.0) as bar:
            for step in range(self.max_steps):
                now = time.monotonic()
                progress = max(step / self.max_steps, (now - began) / (60 * self.minutes))
                is_last = step + 1 == self.max_steps or progress >= 1
                is_save_due = is_last or now - saved > SAVE_EVERY_S
                saved = now if is_save_due else saved
                yield Tick(step, min(1.0, progress), is_save_due, bar)
                bar.update()
                if is_last:
                    return


def set_rate(
    optimizer: Optimizer, tick: Tick, peak: float, warm_up_steps: int = WARM_UP_STEPS
) -> None:
    """Warm up linearly, then fall along a cosine over the stage.

    Args:
        optimizer: its groups may have a "scale" of their own.
        tick: where the stage is.
        peak: rate after the warm-up.
        warm_up_steps: of the stage's first steps.
    """
    falling = 0.5 * (1 + math.cos(math.pi * tick.progress))
    share = min((tick.step + 1) / warm_up_steps, LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * falling)
    for group in optimizer.param_groups:
        rate = peak * share * group.get("scale", 1.0)
        if isinstance(group["lr"], Tensor):  # a recorded step reads it from where it is
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Average:
    """Running average of a module's parameters, which is what gets exported."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._values = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the newest parameters in; the first steps count more."""
        decay = min(AVERAGE_DECAY, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._values, list(self.model.parameters()), 1 - decay)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take values over that an earlier `state_dict` gave; other parameters stay."""
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
    """Write tensors as float16 so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        torch.save({name: value.half().cpu() for name, value in tensors.items()}, unfinished)


def resume(model: nn.Module, path: Path) -> float:
    """Load weights written by `save` if there are any; returns the share of the rate to use."""
    if not path.is_file():
        return 1.0
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict({name: value.float() for name, value in tensors.items()})
    return RESUMED_RATE_SHARE
