"""Copies between host and device; only `read_back` waits for the device."""

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


class Staging:
    """Host memory beside a device table of the same shape.

    Attributes:
        device_words: int32 [rows, columns], what the device reads.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        """Allocate both, zeroed."""
        is_cuda = device.type == "cuda"
        self.device_words = torch.zeros(rows, columns, dtype=torch.int32, device=device)
        self._host = torch.zeros(rows, columns, dtype=torch.int32, pin_memory=is_cuda)
        self._words = self._host.numpy()
        self._copied = torch.cuda.Event() if is_cuda else None

    def begin(self) -> np.ndarray:
        """Return the host's words, int32 [rows, columns], once the last copy has left them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._words

    def send(self) -> None:
        """Copy the words in the order of the current stream."""
        self.device_words.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


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
