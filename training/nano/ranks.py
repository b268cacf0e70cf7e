"""Data-parallel training in several processes, each with a GPU and batches of its own."""

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
    """Rank and world size; the first rank saves and reports."""

    number: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Ranks:
        """Join the process group if `torchrun` started this process."""
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
        """Return a device; with several processes on "cuda", the GPU of this one."""
        device = torch.device(name)
        if self.count > 1 and device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        return device

    def now_s(self) -> float:
        """Return the first rank's monotonic clock; a barrier, so all must call it equally often."""
        now = torch.tensor(time.monotonic(), dtype=torch.float64)
        if self.count > 1:
            dist.broadcast(now, src=0)
        return now.item()

    def average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace gradients by their mean over all ranks; a missing one counts as zero."""
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
    """Return the communication backends: Gloo for CPU tensors, NCCL for GPU tensors."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


ALONE = Ranks()
