"""A table of words written on the host and copied to the device without waiting for it."""

from __future__ import annotations

import numpy as np
import torch


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
