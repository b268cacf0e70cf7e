"""Few numbers from the device to the host: the one place where the engine waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def read_back(values: Tensor) -> Tensor:
    """Return a copy on the host, once everything queued before it is done.

    Args:
        values: any shape and dtype; on a GPU the copy passes through pinned memory.
    """
    if not values.is_cuda:
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return host
