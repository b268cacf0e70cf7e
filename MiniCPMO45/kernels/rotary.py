"""Rotary position embedding: tables, rotating heads, and moving cached keys along."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.kernels.launch import runs_kernels, tl, triton


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """Return theta^(-2i/d) for i = 0 ... d/2-1, float32 [d/2].

    Source: arXiv:2104.09864, section 3.2.2.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return 1.0 / theta**exponents


@dataclass(frozen=True, eq=False)
class Rope:
    """Frequencies of one decoder.

    Attributes:
        frequencies: float32 [d/2], what the decoder rotates with.
    """

    frequencies: Tensor

    @classmethod
    def build(cls, head_dim: int, theta: float, *, device: torch.device) -> Rope:
        """Make the table on `device`."""
        return cls(inverse_frequencies(head_dim, theta).to(device))

    def tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin for integer positions [n], each `dtype` [n, d]."""
        return _tables(positions, self.frequencies, dtype)

    def move(self, keys: Tensor, start: int, target: int) -> Tensor:
        """Rotate keys of consecutive positions to others.

        Args:
            keys: [..., n, d], rotated for positions start ... start+n-1.
            start: position of the first row now.
            target: position of the first row afterwards.

        Returns:
            Keys rotated for positions target ... target+n-1, same shape and dtype.

        Source: a rotation per position composes, so a shift is one more rotation
            (arXiv:2104.09864, section 3.2).
        """
        if start == target:
            return keys
        offset = torch.full((1,), target - start, device=keys.device)  # without waiting for a GPU
        cos, sin = _tables(offset, self.frequencies, torch.float32)
        return _turned(keys, cos, sin)


def _tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = positions.float()[:, None] * frequencies  # [n, d/2]
    angles = torch.cat((angles, angles), dim=-1)  # [n, d]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [M, heads, D] by float32 tables [M, D] with one rounding at the end."""
    return _turned(x, cos[:, None], sin[:, None])


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)


def move_tokens(
    pool: Tensor, pages: Tensor, start: int, target: int, count: int, cos: Tensor, sin: Tensor
) -> None:
    """Move cached tokens of one sequence towards its front, in every layer and in place.

    Args:
        pool: [layers, pages, 2, KVH, page tokens, D].
        pages: int32 [max_pages] pages of the sequence.
        start: position of the first token now.
        target: its position afterwards, smaller than `start`.
        count: tokens to move.
        cos: float32 [D], rotary table of the distance `target - start`.
        sin: float32 [D].
    """
    if runs_kernels(pool):
        shift_tokens(pool, pages, start, target, count, cos, sin)
        return
    page_tokens = pool.shape[4]
    places = torch.arange(count, device=pool.device)
    old, new = places + start, places + target
    for layer in pool:  # one at a time, to need little memory
        keys, values = layer[pages[old // page_tokens].long(), :, :, old % page_tokens].unbind(1)
        into = pages[new // page_tokens].long(), new % page_tokens
        layer[into[0], 0, :, into[1]] = rotate(keys, cos[None], sin[None])
        layer[into[0], 1, :, into[1]] = values


TOKENS_AT_ONCE = 64
WARPS = 4


@triton.jit(do_not_specialize=["start", "target", "count"])  # or some values compile it anew
def _shift_plane(
    pool,
    pages,
    cos,
    sin,
    start,
    target,
    count,
    LAYER_STRIDE,
    PAGE_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """One program: the keys or the values of one head of one layer, front to back.

    What is written lies in front of everything that is still to be read.
    """
    layer, head, is_value = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own = pool + layer.to(tl.int64) * LAYER_STRIDE + is_value * PLANE_STRIDE + head * PAGE * D
    half = tl.arange(0, D // 2)
    token = tl.arange(0, TOKENS)
    cosine, sine = tl.load(cos + half)[None, :], tl.load(sin + half)[None, :]
    for first in range(0, count, TOKENS):
        exists = first + token < count
        at, to = start + first + token, target + first + token
        at_page = tl.load(pages + at // PAGE, mask=exists, other=0).to(tl.int64)
        to_page = tl.load(pages + to // PAGE, mask=exists, other=0).to(tl.int64)
        source = own + (at_page * PAGE_STRIDE + at % PAGE * D)[:, None] + half[None, :]
        into = own + (to_page * PAGE_STRIDE + to % PAGE * D)[:, None] + half[None, :]
        lower = tl.load(source, mask=exists[:, None])
        upper = tl.load(source + D // 2, mask=exists[:, None])
        if is_value == 0:
            x, y = lower.to(tl.float32), upper.to(tl.float32)
            lower = (x * cosine - y * sine).to(lower.dtype)
            upper = (y * cosine + x * sine).to(upper.dtype)
        tl.debug_barrier()  # every thread has read before one writes
        tl.store(into, lower, mask=exists[:, None])
        tl.store(into + D // 2, upper, mask=exists[:, None])
        tl.debug_barrier()


def shift_tokens(
    pool: Tensor, pages: Tensor, start: int, target: int, count: int, cos: Tensor, sin: Tensor
) -> None:
    """Move tokens of one sequence to the front; see `move_tokens`."""
    layers, _, _, kv_heads, page_tokens, d = pool.shape
    _shift_plane[(layers, kv_heads, 2)](
        pool,
        pages,
        cos,
        sin,
        start,
        target,
        count,
        pool.stride(0),
        PAGE_STRIDE=pool.stride(1),
        PLANE_STRIDE=pool.stride(2),
        D=d,
        PAGE=page_tokens,
        TOKENS=TOKENS_AT_ONCE,
        num_warps=WARPS,
    )
