"""Triton where it can run, and what all kernels share: dependent launch and prefetching.

An operation stands in one file: its plain form in PyTorch, which says what it does, and its kernel.
A kernel launched dependently may start while the one before it runs. Its programs call
`await_rows` before they read what that one wrote, and before they write; so every kernel ends
after the one before it.
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
    from triton.language.extra import cuda
else:
    triton = tl = cuda = _Absent()


def runs_kernels(x: Tensor) -> bool:
    """Whether an operation on x launches kernels; else it is computed in plain PyTorch.

    Kernels record no gradients and know no autocast.
    """
    is_plain = torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type)
    return x.is_cuda and HAS_TRITON and not is_plain


HOPPER = 9  # major compute capability from which dependent launch exists
LINE = tl.constexpr(64)  # bfloat16 values in a line of the L2 cache


@triton.jit
def let_next_start(OVERLAPS: tl.constexpr):
    """Let the next kernel start beside this one.

    Called before `await_rows`, it saves time, but the next kernel may then start before the one
    before this has ended: its part before its own `await_rows` may read constants only.
    """
    if OVERLAPS:
        cuda.gdc_launch_dependents()


@triton.jit
def await_rows(OVERLAPS: tl.constexpr):
    """Wait until the kernel before this one has written everything."""
    if OVERLAPS:
        cuda.gdc_wait()


@triton.jit
def prefetch_line(pointers, OVERLAPS: tl.constexpr):
    """Ask for one 128-byte line per pointer to be brought to the L2 cache."""
    if OVERLAPS:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def overlaps_launches(x: Tensor) -> bool:
    """Whether kernels on this tensor's device may start before the one before them has ended."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= HOPPER
