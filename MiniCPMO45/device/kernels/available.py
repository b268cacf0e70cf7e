"""Triton where it can run; elsewhere stand-ins with which a file of kernels can be imported.

An operation stands in one file: its plain form in PyTorch, which says what it does, and its kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

# Without a card only Triton's interpreter runs kernels; importing the compiler would take memory.
HAS_TRITON = find_spec("triton") is not None and (
    torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ
)


class _Absent:
    """Takes the place of a missing module; its functions are never called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **options: lambda function: function

    @staticmethod
    def jit(function: Any = None, **options: Any) -> Any:
        return function if function is not None else lambda each: each


if HAS_TRITON:
    import triton
    import triton.language as tl
else:
    triton = tl = _Absent()


def runs_kernels(x: Tensor) -> bool:
    """Whether an operation on x launches kernels; else it is computed in plain PyTorch.

    Kernels record no gradients and know no autocast.
    """
    is_plain = torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type)
    return x.is_cuda and HAS_TRITON and not is_plain
