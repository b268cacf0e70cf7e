"""Triton kernels of the excitation and the short transforms; imported only on a card.

Each has a twin of the same signature in `wave_plain`, which says in plain words what it does.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from MiniCPMO45.device.wave_plain import SMALLEST_ENVELOPE
from MiniCPMO45.token2wav.hift import LARGEST_MAGNITUDE
from MiniCPMO45.token2wav.source import UNVOICED_NOISE_SHARE, HarmonicSource

BLOCK = 512  # values of one program


@triton.jit
def _tanh(x):
    shrunk = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -size, size)


@triton.jit(do_not_specialize=["n_frames"])
def _excite(
    phases,
    f0,
    noise,
    weight,
    bias,
    out,
    n_frames,
    threshold,
    amplitude,
    voiced_noise,
    unvoiced_noise,
    H: tl.constexpr,
    PADDED: tl.constexpr,
    HOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(1).to(tl.int64)
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < n_frames * HOP
    harmonic = tl.arange(0, PADDED)
    is_harmonic = harmonic < H
    both = inside[:, None] & is_harmonic[None, :]
    # Between the middles of two mel frames, as a linear resize that keeps the corners apart.
    place = tl.maximum((sample.to(tl.float32) + 0.5) * (1.0 / HOP) - 0.5, 0.0)
    before = tl.minimum(place.to(tl.int32), n_frames - 1)
    after = tl.minimum(before + 1, n_frames - 1)
    share = (place - before.to(tl.float32))[:, None]
    of_harmonic = phases + (stream * H + harmonic)[None, :] * n_frames
    phase = (1.0 - share) * tl.load(of_harmonic + before[:, None], mask=both, other=0.0)
    phase += share * tl.load(of_harmonic + after[:, None], mask=both, other=0.0)
    pitch = tl.load(f0 + stream * n_frames + sample // HOP, mask=inside, other=0.0)
    is_voiced = (pitch > threshold)[:, None]
    wave = tl.where(is_voiced, amplitude * tl.sin(phase), 0.0)
    drawn = (stream * n_frames * HOP + sample)[:, None] * H + harmonic[None, :]
    level = tl.where(is_voiced, voiced_noise, unvoiced_noise)
    wave += tl.load(noise + drawn, mask=both, other=0.0) * level
    mixed = tl.sum(wave * tl.load(weight + harmonic, mask=is_harmonic, other=0.0)[None, :], 1)
    mixed = _tanh(mixed + tl.load(bias))
    tl.store(out + stream * n_frames * HOP + sample, mixed, mask=inside)


def excite(source: HarmonicSource, f0: Tensor, noise: Tensor) -> Tensor:
    """See `wave_ops.excite`."""
    config, n_streams, n_frames = source.config, *f0.shape
    hop, n_waves = config.samples_per_frame, config.nb_harmonics + 1
    order = torch.arange(1, n_waves + 1, device=f0.device, dtype=f0.dtype)
    cycles = (f0[:, None] * order[:, None] / config.sampling_rate) % 1.0
    phases = (cycles.cumsum(2) * (2.0 * math.pi) * hop).contiguous()  # [S, H, F]
    out = torch.empty((n_streams, n_frames * hop), dtype=torch.float32, device=f0.device)
    assert noise.is_contiguous() and f0.is_contiguous() and noise.shape[1] == n_frames * hop
    block = BLOCK // 4
    _excite[(triton.cdiv(n_frames * hop, block), n_streams)](
        phases,
        f0,
        noise,
        source.l_linear.weight,
        source.l_linear.bias,
        out,
        n_frames,
        config.nsf_voiced_threshold,
        config.nsf_alpha,
        config.nsf_sigma,
        config.nsf_alpha / UNVOICED_NOISE_SHARE,
        H=n_waves,
        PADDED=triton.next_power_of_2(n_waves),
        HOP=hop,
        BLOCK=block,
    )
    return out


@triton.jit(
    do_not_specialize=["length_stride", "n_columns"],
    do_not_specialize_on_alignment=["lengths"],
)
def _polar(
    x,
    lengths,
    out,
    length_stride,
    n_columns,
    width,
    largest,
    BINS: tl.constexpr,
    PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    stream = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.arange(0, PADDED)
    inside = (column < n_columns)[:, None] & (place < BINS)[None, :]
    counts = tl.load(lengths + stream * length_stride)
    row = stream * n_columns + column
    at = x + row[:, None] * width + place[None, :]
    size = tl.minimum(tl.exp(tl.load(at, mask=inside, other=0.0)), largest)
    size = tl.where((column < counts)[:, None], size, 0.0)
    angle = tl.sin(tl.load(at + BINS, mask=inside, other=0.0))
    to = out + row[:, None] * (2 * BINS) + place[None, :]
    tl.store(to, size * tl.cos(angle), mask=inside)
    tl.store(to + BINS, size * tl.sin(angle), mask=inside)


def polar(x: Tensor, n_columns: Tensor, n_bins: int) -> Tensor:
    """See `wave_ops.polar`."""
    n_streams, length, width = x.shape
    out = torch.empty((n_streams, length, 2 * n_bins), dtype=torch.float32, device=x.device)
    columns = BLOCK // 16
    _polar[(triton.cdiv(length, columns), n_streams)](
        x,
        n_columns,
        out,
        n_columns.stride(0),
        length,
        width,
        LARGEST_MAGNITUDE,
        BINS=n_bins,
        PADDED=triton.next_power_of_2(n_bins),
        COLUMNS=columns,
    )
    return out


@triton.jit(
    do_not_specialize=["length_stride", "n_columns", "n_samples"],
    do_not_specialize_on_alignment=["lengths"],
)
def _overlap_add(
    pieces,
    lengths,
    window,
    out,
    length_stride,
    n_columns,
    n_samples,
    smallest,
    FFT: tl.constexpr,
    HOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(1).to(tl.int64)
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < n_samples
    place = sample + FFT // 2
    counts = tl.load(lengths + stream * length_stride)
    wave = tl.zeros((BLOCK,), tl.float32)
    envelope = tl.zeros((BLOCK,), tl.float32)
    for index in tl.static_range(FFT // HOP):
        column = place // HOP - index
        offset = place % HOP + index * HOP
        reaches = inside & (column >= 0) & (column < counts)
        at = pieces + (stream * n_columns + column) * FFT + offset
        wave += tl.load(at, mask=reaches, other=0.0)
        envelope += tl.load(window + offset, mask=reaches, other=0.0)
    wave = tl.where(envelope > smallest, wave / envelope, wave)
    tl.store(out + stream * n_samples + sample, wave, mask=inside)


def overlap_add(pieces: Tensor, n_columns: Tensor, squared_window: Tensor, hop: int) -> Tensor:
    """See `wave_ops.overlap_add`."""
    n_streams, length, n_fft = pieces.shape
    n_samples = hop * (length - 1)
    out = torch.empty((n_streams, n_samples), dtype=torch.float32, device=pieces.device)
    _overlap_add[(triton.cdiv(n_samples, BLOCK), n_streams)](
        pieces,
        n_columns,
        squared_window,
        out,
        n_columns.stride(0),
        length,
        n_samples,
        SMALLEST_ENVELOPE,
        FFT=n_fft,
        HOP=hop,
        BLOCK=BLOCK,
    )
    return out
