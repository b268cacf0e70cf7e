"""The excitation of the waveform generator and its short Fourier transforms.

Source: docs/specification/model.md#7.5 (neural source-filter, arXiv:1904.12088).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.kernels.convolutions import inside
from MiniCPMO45.kernels.device import runs_kernels, tl, triton
from MiniCPMO45.token2wav.config import HiFTConfig

BLOCK = 512  # values of one program
UNVOICED_NOISE_SHARE = 3.0  # unvoiced noise is the sine amplitude divided by this
LARGEST_MAGNITUDE = 100.0  # limit of the spectrum
SMALLEST_ENVELOPE = 1e-11  # below it no window covers a sample, as in torch.istft


@dataclass(frozen=True)
class Fourier:
    """The short-time Fourier transforms as matrix products.

    `forward` [n_fft, n_fft + 2] maps samples to real and imaginary parts, window included;
    `inverse` maps these to windowed samples.
    """

    forward: Tensor
    inverse: Tensor
    squared_window: Tensor


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # training may use the cached matrices
def fourier(n_fft: int, device: torch.device) -> Fourier:
    """Return the matrices for a periodic Hann window, float32 on the device."""
    window = torch.hann_window(n_fft, periodic=True, dtype=torch.float64)
    n_bins = n_fft // 2 + 1
    turns = torch.outer(torch.arange(n_fft), torch.arange(n_bins)).double() / n_fft
    cos, sin = (2 * math.pi * turns).cos(), (2 * math.pi * turns).sin()
    forward = torch.cat((cos, -sin), dim=1) * window[:, None]
    # All bins but the first and the last also represent their mirror images.
    weight = torch.full((n_bins,), 2.0 / n_fft, dtype=torch.float64)
    weight[0] = weight[-1] = 1.0 / n_fft
    inverse = torch.cat((cos * weight, -sin * weight), dim=1).T * window
    return Fourier(*(part.float().to(device) for part in (forward, inverse, window.square())))


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def cross_fade(held: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the halves of a symmetric Hamming window, in and out, float64 [held] each."""
    window = torch.hamming_window(2 * held, periodic=False, dtype=torch.float64).to(device)
    return window[:held], window[held:]


def harmonic_waves(f0: Tensor, noise: Tensor, config: HiFTConfig) -> Tensor:
    """Sines of the fundamental and its harmonics, silenced and noisy where unvoiced.

    The phase is accumulated per frame and interpolated between frame centres. A random initial
    phase would have no effect, so there is none. `f0` is in Hz, float32 [B, F]; standard normal
    draws `noise` and the result are [B, L, harmonics + 1] with L = F * samples_per_frame.
    """
    per_frame = config.samples_per_frame
    phase = F.interpolate(_frame_phases(f0, config), scale_factor=float(per_frame), mode="linear")
    waves = config.nsf_alpha * phase.sin().transpose(1, 2)  # [B, L, 9]
    voiced = (f0 > config.nsf_voiced_threshold).to(f0.dtype)
    voiced = voiced.repeat_interleave(per_frame, dim=1)[:, :, None]  # [B, L, 1]
    unvoiced = config.nsf_alpha / UNVOICED_NOISE_SHARE
    return waves * voiced + noise * (voiced * config.nsf_sigma + (1.0 - voiced) * unvoiced)


def _frame_phases(f0: Tensor, config: HiFTConfig) -> Tensor:
    """Accumulated phases of the harmonics at each frame, [B, harmonics + 1, F]."""
    order = torch.arange(1, config.nb_harmonics + 2, device=f0.device, dtype=f0.dtype)
    cycles = (f0[:, None] * order[:, None] / config.sampling_rate) % 1.0
    return cycles.cumsum(2) * (2.0 * math.pi) * config.samples_per_frame


def excite(f0: Tensor, noise: Tensor, linear: nn.Linear, config: HiFTConfig) -> Tensor:
    """Merge the harmonics of a pitch in Hz, float32 [S, F], into one excitation [S, L].

    The noise is that of `harmonic_waves`.
    """
    if runs_kernels(f0):
        n_streams, n_frames = f0.shape
        hop, n_waves = config.samples_per_frame, config.nb_harmonics + 1
        phases = _frame_phases(f0, config).contiguous()
        out = torch.empty((n_streams, n_frames * hop), dtype=torch.float32, device=f0.device)
        assert noise.is_contiguous() and f0.is_contiguous() and noise.shape[1] == n_frames * hop
        block, unvoiced_noise = BLOCK // 4, config.nsf_alpha / UNVOICED_NOISE_SHARE
        given = phases, f0, noise, linear.weight, linear.bias
        levels = config.nsf_voiced_threshold, config.nsf_alpha, config.nsf_sigma, unvoiced_noise
        sizes = {"H": n_waves, "PADDED": triton.next_power_of_2(n_waves), "HOP": hop}
        grid = triton.cdiv(n_frames * hop, block), n_streams
        _excite_samples[grid](*given, out, n_frames, *levels, **sizes, BLOCK=block)
        return out
    return torch.tanh(linear(harmonic_waves(f0, noise, config))).squeeze(2)


@triton.jit(do_not_specialize=["n_frames"])
def _excite_samples(
    phases, f0, noise, weight, bias, out, n_frames, threshold, amplitude, voiced_noise,
    unvoiced_noise,
    H: tl.constexpr, PADDED: tl.constexpr, HOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = sample < n_frames * HOP
    harmonic = tl.arange(0, PADDED)
    is_harmonic = harmonic < H
    both = inside[:, None] & is_harmonic[None, :]
    # Interpolates between frame centres, as F.interpolate with align_corners=False.
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
    mixed += tl.load(bias)
    shrunk = tl.exp(-2.0 * tl.abs(mixed))  # for tanh
    size = (1.0 - shrunk) / (1.0 + shrunk)
    answer = tl.where(mixed < 0, -size, size)
    tl.store(out + stream * n_frames * HOP + sample, answer, mask=inside)


def polar(x: Tensor, n_columns: Tensor, n_bins: int) -> Tensor:
    """Turn log magnitudes and phases into real and imaginary parts.

    `x` is [S, columns, at least 2 * n_bins], of which `n_columns` are valid, int64 [S]. The result
    is float32 [S, columns, 2 * n_bins], zero beyond a stream's end.
    """
    if runs_kernels(x):
        n_streams, length, width = x.shape
        out = torch.empty((n_streams, length, 2 * n_bins), dtype=torch.float32, device=x.device)
        columns, shape = BLOCK // 16, (n_columns.stride(0), length, width)
        sizes = {"BINS": n_bins, "PADDED": triton.next_power_of_2(n_bins), "COLUMNS": columns}
        grid = triton.cdiv(length, columns), n_streams
        _polar_columns[grid](x, n_columns, out, *shape, **sizes)
        return out
    magnitude = x[:, :, :n_bins].exp().clamp(max=LARGEST_MAGNITUDE)
    angle = x[:, :, n_bins : 2 * n_bins].sin()
    parts = torch.cat((magnitude * angle.cos(), magnitude * angle.sin()), dim=2)
    return parts * inside(parts, n_columns)


@triton.jit(
    do_not_specialize=["length_stride", "n_columns"], do_not_specialize_on_alignment=["lengths"]
)
def _polar_columns(
    x, lengths, out, length_stride, n_columns, width, BINS: tl.constexpr, PADDED: tl.constexpr,
    COLUMNS: tl.constexpr, LARGEST: tl.constexpr = LARGEST_MAGNITUDE,
):  # fmt: skip
    stream = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.arange(0, PADDED)
    inside = (column < n_columns)[:, None] & (place < BINS)[None, :]
    counts = tl.load(lengths + stream * length_stride)
    row = stream * n_columns + column
    at = x + row[:, None] * width + place[None, :]
    size = tl.minimum(tl.exp(tl.load(at, mask=inside, other=0.0)), LARGEST)
    size = tl.where((column < counts)[:, None], size, 0.0)
    angle = tl.sin(tl.load(at + BINS, mask=inside, other=0.0))
    to = out + row[:, None] * (2 * BINS) + place[None, :]
    tl.store(to, size * tl.cos(angle), mask=inside)
    tl.store(to + BINS, size * tl.sin(angle), mask=inside)


def overlap_add(pieces: Tensor, n_columns: Tensor, squared_window: Tensor, hop: int) -> Tensor:
    """Sum windowed pieces one hop apart and divide by the windows that reach each sample.

    `pieces` are float32 [S, columns, n_fft], of which `n_columns` are valid, int64 [S]; the hop
    divides n_fft. The result is float32 [S, hop * (columns - 1)]: half a window is cut at either
    end.
    """
    if runs_kernels(pieces):
        n_streams, length, n_fft = pieces.shape
        n_samples = hop * (length - 1)
        out = torch.empty((n_streams, n_samples), dtype=torch.float32, device=pieces.device)
        grid, shape = (triton.cdiv(n_samples, BLOCK), n_streams), (length, n_samples)
        _overlap_add_samples[grid](
            pieces, n_columns, squared_window, out, n_columns.stride(0), *shape, FFT=n_fft, HOP=hop
        )
        return out
    half = pieces.shape[2] // 2
    windows = squared_window.expand(1, pieces.shape[1], -1) * inside(pieces, n_columns)
    wave, envelope = _sum_shifted(pieces, hop), _sum_shifted(windows, hop)
    envelope = torch.where(envelope > SMALLEST_ENVELOPE, envelope, 1.0)
    return (wave / envelope)[:, half : wave.shape[1] - half]


def _sum_shifted(pieces: Tensor, hop: int) -> Tensor:
    """Sum pieces [S, columns, n_fft] one hop apart: [S, hop * (columns - 1) + n_fft]."""
    parts = pieces.unflatten(2, (-1, hop))  # [S, columns, n_fft / hop, hop]
    last = parts.shape[2] - 1
    shifted = [F.pad(parts[:, :, index], (0, 0, index, last - index)) for index in range(last + 1)]
    return torch.stack(shifted).sum(0).flatten(1)


@triton.jit(
    do_not_specialize=["length_stride", "n_columns", "n_samples"],
    do_not_specialize_on_alignment=["lengths"],
)
def _overlap_add_samples(
    pieces, lengths, window, out, length_stride, n_columns, n_samples, FFT: tl.constexpr,
    HOP: tl.constexpr, BLOCK: tl.constexpr = BLOCK, SMALLEST: tl.constexpr = SMALLEST_ENVELOPE,
):  # fmt: skip
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
    wave = tl.where(envelope > SMALLEST, wave / envelope, wave)
    tl.store(out + stream * n_samples + sample, wave, mask=inside)
