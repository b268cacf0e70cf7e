"""What the host knows, on the device, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

STAGED_BYTES = 2**22  # a camera picture of 1280x720 at once


def upload(values: Sequence[int], into: Tensor) -> None:
    """Copy integers into a tensor of the same length, in the order of the current stream.

    Args:
        values: n integers.
        into: [n], any integer dtype; on a GPU the copy passes through pinned memory, which
            torch keeps until the copy is done.
    """
    staged = torch.tensor(values, dtype=into.dtype, pin_memory=into.is_cuda)
    into.copy_(staged, non_blocking=True)


def upload_array(values: np.ndarray, device: torch.device) -> Tensor:
    """Return an array's copy on the device, there in the order of the current stream.

    Args:
        values: of a dtype torch knows, with at least one axis.
        device: where; the copy to a GPU passes through pinned memory, as above, in parts, because
            torch never gives pinned memory back.
    """
    dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
    copy = torch.empty(values.shape, dtype=dtype, device=device)
    step = max(1, STAGED_BYTES * len(values) // max(values.nbytes, 1))
    for start in range(0, len(values), step):
        part = values[start : start + step]
        staged = torch.empty(part.shape, dtype=dtype, pin_memory=device.type == "cuda")
        np.copyto(staged.numpy(), part)
        copy[start : start + step].copy_(staged, non_blocking=True)
    return copy
