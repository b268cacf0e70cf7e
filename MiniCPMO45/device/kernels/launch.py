"""What all kernels share: programmatic dependent launch, and prefetching what does not depend.

A kernel launched so may start while the one before it runs. Its programs call `await_rows` before
they read what that one wrote, and before they write; so every kernel ends after the one before it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

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
