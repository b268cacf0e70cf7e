"""From 16 kHz audio to the log-mel pictures the audio encoder reads, for whole clips.

Also says how many embeddings a clip becomes. Keeps no state: the floor is an argument of every
call. Streams are the business of `streaming_mel`.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import audio_utils


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # the cached value serves training, too
def mel_filter_bank(
    sample_rate_hz: int, n_fft: int, n_mels: int, f_min_hz: float, f_max_hz: float
) -> Tensor:
    """Return triangular filters on Slaney's scale, each of unit area in Hz.

    The result is shared between callers and must not be written to.

    Args:
        sample_rate_hz: sample rate of the audio.
        n_fft: length of the Fourier transform in samples.
        n_mels: number of filters.
        f_min_hz: lower edge of the first filter.
        f_max_hz: upper edge of the last filter.

    Returns:
        float32 [n_mels, n_fft // 2 + 1] on the CPU.

    Raises:
        ValueError: the band is empty or reaches above half the sample rate.
    """
    if not 0 <= f_min_hz < f_max_hz <= sample_rate_hz / 2:
        raise ValueError(f"mel band {f_min_hz}..{f_max_hz} Hz at {sample_rate_hz} Hz")
    filters = audio_utils.mel_filter_bank(
        n_fft // 2 + 1,
        n_mels,
        f_min_hz,
        f_max_hz,
        sample_rate_hz,
        norm="slaney",
        mel_scale="slaney",
    )
    return torch.from_numpy(filters.T.astype(np.float32))


def filter_centres_hz(n_mels: int, f_min_hz: float, f_max_hz: float) -> np.ndarray:
    """Return where the filters of a bank are highest: float64 [n_mels], rising."""
    ends = [audio_utils.hertz_to_mel(hz, mel_scale="slaney") for hz in (f_min_hz, f_max_hz)]
    edges_mel = np.linspace(ends[0], ends[1], n_mels + 2)
    return np.asarray(audio_utils.mel_to_hertz(edges_mel, mel_scale="slaney"))[1:-1]


# Front end of Whisper. Source: arXiv:2212.04356, section 2.2; docs/specification/model.md#4.4.
SAMPLE_RATE_HZ = 16_000
N_FFT = 400  # samples, 25 ms
HOP_SAMPLES = 160  # 10 ms
N_MELS = 80
MAX_HZ = 8000.0
HALF_WINDOW_SAMPLES = N_FFT // 2
POWER_FLOOR = 1e-10
FIXED_FLOOR_LOG10 = -10.0
DYNAMIC_RANGE_LOG10 = 8.0  # the floor lies this far below the loudest bin
SHIFT = 4.0
SCALE = 4.0

PIECE_SAMPLES = 30 * SAMPLE_RATE_HZ  # the encoder's positions end here
CONV_STRIDE = 2  # of the encoder's second convolution
POOL_STEP = 5  # encoder frames averaged into one embedding
MIN_REFLECT_SAMPLES = HALF_WINDOW_SAMPLES + 1  # a shorter signal cannot be mirrored at its edges

# Shortest clip that gives an embedding: nine mel frames, the ninth just begun.
MIN_CLIP_SAMPLES = (CONV_STRIDE * (POOL_STEP - 1)) * HOP_SAMPLES + 1


class LogFloor(Enum):
    """Where quiet bins are cut off."""

    FIXED = auto()  # at FIXED_FLOOR_LOG10
    DYNAMIC = auto()  # DYNAMIC_RANGE_LOG10 below the loudest bin


def clip_mels(audio: np.ndarray | Tensor, floor: LogFloor = LogFloor.DYNAMIC) -> list[Tensor]:
    """Log-mels of a whole clip, one per piece of 30 s.

    Each piece counts as padded with zeros to 30 s, and is cut to the frames that hold audio.

    Args:
        audio: [n] float32 mono at 16 kHz.
        floor: where quiet bins are cut off; DYNAMIC looks at each padded piece.

    Returns:
        ceil(n / 480 000) tensors, float32 [80, f] with f = ceil(piece samples / 160).

    Raises:
        ValueError: the audio is not one-dimensional.
    """
    return [
        _piece_mel(piece, floor)
        for piece in as_samples(audio).split(PIECE_SAMPLES)
        if piece.shape[0]
    ]


def embedding_count(n_samples: int) -> int:
    """Embeddings a whole clip becomes, 10 per second; 0 below `MIN_CLIP_SAMPLES`.

    Args:
        n_samples: length of the clip at 16 kHz; clips over 30 s are counted piece by piece.

    Source: docs/specification/model.md#4.4.
    """
    pieces, rest = divmod(n_samples, PIECE_SAMPLES)
    return pieces * _piece_embedding_count(PIECE_SAMPLES) + _piece_embedding_count(rest)


def encoder_frame_count(n_mel_frames: int) -> int:
    """Encoder frames that come out of the strided convolution, 50 per second."""
    return (n_mel_frames - 1) // CONV_STRIDE + 1


def as_samples(audio: np.ndarray | Tensor) -> Tensor:
    """Return audio as a float32 tensor [n].

    Raises:
        ValueError: the audio is not one-dimensional.
    """
    if isinstance(audio, np.ndarray):  # copied: the array may be read-only or reversed
        audio = torch.from_numpy(np.array(audio, dtype=np.float32))
    samples = audio.to(torch.float32)
    if samples.ndim != 1:
        raise ValueError(f"mono audio has one dimension, got {tuple(samples.shape)}")
    return samples


def mirror_edges(samples: Tensor) -> Tensor:
    """Mirror half a window of a signal [n], n > 200, at both ends: [n + 400]."""
    edges = (HALF_WINDOW_SAMPLES, HALF_WINDOW_SAMPLES)
    return F.pad(samples[None], edges, mode="reflect")[0]


def log10_mel(samples: Tensor, n_frames: int) -> Tensor:
    """Log10 of mel power of windows that start at samples 0, 160, 320 …

    Args:
        samples: float32 [m], m ≥ (n_frames - 1) · 160 + 400.
        n_frames: how many windows to take.

    Returns:
        float32 [80, n_frames], no value below -10.
    """
    windows = samples.unfold(0, N_FFT, HOP_SAMPLES)[:n_frames]  # [T, 400]
    window = _hann_window().to(samples.device)
    power = torch.view_as_real(torch.fft.rfft(windows * window)).square().sum(-1)  # [T, 201]
    filters = mel_filter_bank(SAMPLE_RATE_HZ, N_FFT, N_MELS, 0.0, MAX_HZ).to(samples.device)
    return (filters @ power.T).clamp(min=POWER_FLOOR).log10()  # [80, T]


def normalise(frames: Tensor, floor: LogFloor, loudest: Tensor | float) -> Tensor:
    """Cut quiet bins off and bring log10 mel power into the encoder's range.

    Args:
        frames: log10 mel power [80, T].
        floor: where quiet bins are cut off.
        loudest: largest log10 bin of the signal the floor refers to; unused by FIXED.

    Returns:
        [80, T], about -1.5 … 1.5.
    """
    lowest = FIXED_FLOOR_LOG10 if floor is LogFloor.FIXED else float(loudest) - DYNAMIC_RANGE_LOG10
    return (frames.clamp(min=lowest) + SHIFT) / SCALE


def _piece_mel(piece: Tensor, floor: LogFloor) -> Tensor:
    n_frames = -(-piece.shape[0] // HOP_SAMPLES)
    # Past the audio every bin lies at the lowest value, so two windows of zeros say all that
    # thirty seconds of zeros would.
    padded_samples = min(PIECE_SAMPLES, n_frames * HOP_SAMPLES + 2 * N_FFT)
    padded = F.pad(piece, (0, padded_samples - piece.shape[0]))
    frames = log10_mel(mirror_edges(padded), padded_samples // HOP_SAMPLES)
    return normalise(frames, floor, frames.max())[:, :n_frames]


def _piece_embedding_count(n_samples: int) -> int:
    n_mel_frames = -(-n_samples // HOP_SAMPLES)
    return encoder_frame_count(n_mel_frames) // POOL_STEP


@lru_cache(maxsize=1)
@torch.inference_mode(False)  # the cached value serves training, too
def _hann_window() -> Tensor:
    return torch.hann_window(N_FFT, periodic=True, device="cpu")
