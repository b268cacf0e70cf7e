"""Several processes that train one model together, each on a GPU and on batches of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    """Which of the processes this is; alone unless `torchrun` started it.

    Attributes:
        number: of this process, from 0; the first one saves and reports.
        count: of all processes.
    """

    number: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Ranks:
        """Meet the others that `torchrun` started, if it did."""
        if not dist.is_torchelastic_launched():
            return cls()
        dist.init_process_group(backend())
        return cls(dist.get_rank(), dist.get_world_size())

    def leave(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        return self.number == 0

    def device(self, name: str) -> torch.device:
        """Return a device; of several processes on "cuda" each has a GPU of its own."""
        device = torch.device(name)
        if self.count > 1 and device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        return device

    def now_s(self) -> float:
        """Return the first one's monotonic clock; all ask equally often and wait for each other."""
        now = torch.tensor(time.monotonic(), dtype=torch.float64)
        if self.count > 1:
            dist.broadcast(now, src=0)
        return now.item()

    def average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Give all processes the mean of their gradients; a missing one counts as zero."""
        if self.count == 1:
            return
        grads: list[Tensor] = []
        for each in parameters:
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            grads.append(each.grad)
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        flat /= self.count
        parts = flat.split([grad.numel() for grad in grads])
        torch._foreach_copy_(grads, [p.view_as(g) for p, g in zip(parts, grads, strict=True)])


def backend() -> str:
    """Return what tensors travel by: those of the CPU by Gloo, those of GPUs by NCCL."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


ALONE = Ranks()
