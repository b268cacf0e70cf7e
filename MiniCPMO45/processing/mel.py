"""Whisper log-mel spectrograms of 16 kHz audio, for whole clips and incrementally for streams.

A stream returns what the spectrogram of its whole buffer would, but transforms new windows only: of
earlier ones it keeps the loudest bin, on which the dynamic floor depends. Buffers and tensors of a
state are replaced and never written to, so copies of a state may share them.

Source: arXiv:2212.04356, section 2.2; docs/specification/model.md#4.4 and #4.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import audio_utils

SAMPLE_RATE_HZ = 16_000
N_FFT = 400  # samples, 25 ms
HOP_SAMPLES = 160  # 10 ms
N_MELS = 80
MAX_HZ = 8000.0
HALF_WINDOW_SAMPLES = N_FFT // 2
POWER_FLOOR = 1e-10
FIXED_FLOOR_LOG10 = -10.0
DYNAMIC_RANGE_LOG10 = 8.0  # the dynamic floor lies this far below the loudest bin
SHIFT = 4.0
SCALE = 4.0

# Whole clips.
PIECE_SAMPLES = 30 * SAMPLE_RATE_HZ  # what the encoder's positions cover
CONV_STRIDE = 2  # of the encoder's second convolution
POOL_STEP = 5  # encoder frames averaged into one embedding
# Shortest clip that gives an embedding: nine mel frames, the ninth just begun.
MIN_CLIP_SAMPLES = (CONV_STRIDE * (POOL_STEP - 1)) * HOP_SAMPLES + 1

# Duplex streams.
UNIT_SAMPLES = SAMPLE_RATE_HZ  # consumed by each unit but the first
FIRST_PAD_SAMPLES = 16_560  # the first unit is left-padded to this length, 1,035 ms
FIRST_UNIT_SAMPLES = FIRST_PAD_SAMPLES // HOP_SAMPLES * HOP_SAMPLES  # consumed by the first unit
CONTEXT_FRAMES = 2  # of the convolutions, on each side
DYNAMIC_FLOOR_FROM_SAMPLES = 5 * SAMPLE_RATE_HZ
DROP_FROM_SAMPLES = 30 * SAMPLE_RATE_HZ
DROP_SAMPLES = 10 * SAMPLE_RATE_HZ
KEEP_AT_LEAST_SAMPLES = 1 * SAMPLE_RATE_HZ
REFLECTED_FRAMES = 2  # leading frames of the buffer whose windows extend into the padding


class ProcessingError(ValueError):
    """A part of a message, or the audio of a unit, cannot be used."""


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # the cached tensor is used in training, too
def mel_filter_bank(
    sample_rate_hz: int, n_fft: int, n_mels: int, f_min_hz: float, f_max_hz: float
) -> Tensor:
    """Slaney-normalised triangular filters, shared and read-only: [n_mels, n_fft // 2 + 1]."""
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


def clip_mels(audio: np.ndarray | Tensor) -> list[Tensor]:
    """Compute the log-mels of a clip, mono [n] at 16 kHz, one per 30 s.

    Each part is zero-padded to 30 s, which its floor includes, and trimmed to the frames that hold
    audio.

    Returns:
        ceil(n / 480 000) tensors, float32 [80, f] with f = ceil(samples / 160).
    """
    return [_clip_mel(part) for part in as_samples(audio).split(PIECE_SAMPLES) if len(part)]


def _clip_mel(part: Tensor) -> Tensor:
    n_frames = -(-len(part) // HOP_SAMPLES)
    # Silence is at the lowest value in every bin, so two windows of it stand for the whole padding.
    padded_samples = min(PIECE_SAMPLES, n_frames * HOP_SAMPLES + 2 * N_FFT)
    padded = F.pad(part, (0, padded_samples - len(part)))
    reflected = F.pad(padded[None], (HALF_WINDOW_SAMPLES, HALF_WINDOW_SAMPLES), mode="reflect")[0]
    frames = log10_mel(reflected, padded_samples // HOP_SAMPLES)
    return _normalise(frames, float(frames.max()) - DYNAMIC_RANGE_LOG10)[:, :n_frames]


def embedding_count(n_samples: int) -> int:
    """Return the embeddings of a whole clip, ten per second; 0 below `MIN_CLIP_SAMPLES`."""

    def of_part(n_samples: int) -> int:
        return encoder_frame_count(-(-n_samples // HOP_SAMPLES)) // POOL_STEP

    parts, rest = divmod(n_samples, PIECE_SAMPLES)
    return parts * of_part(PIECE_SAMPLES) + of_part(rest)


def encoder_frame_count(n_mel_frames: int) -> int:
    """Return the output frames of the strided convolution, 50 per second."""
    return (n_mel_frames - 1) // CONV_STRIDE + 1


def checked_sound(sound: np.ndarray) -> np.ndarray:
    """Return a sound as float32 [n]; raises `ProcessingError` if it is not mono float samples."""
    if sound.ndim != 1 or sound.dtype.kind != "f":
        raise ProcessingError(
            f"a sound must be mono float samples, got {sound.dtype} of shape {sound.shape}"
        )
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, and is refused
        sound = sound.astype(np.float32, copy=False)
    if not sound.size or not np.isfinite(sound).all():
        raise ProcessingError("a sound is empty or holds values that are not numbers")
    return sound


def as_samples(audio: np.ndarray | Tensor) -> Tensor:
    """Return audio as a float32 tensor [n].

    Raises:
        ValueError: the audio is not one-dimensional.
    """
    if isinstance(audio, np.ndarray):  # copied: the array may be read-only or reversed
        audio = torch.from_numpy(np.array(audio, dtype=np.float32))
    if audio.ndim != 1:
        raise ValueError(f"mono audio has one dimension, got {tuple(audio.shape)}")
    return audio.to(torch.float32)


@dataclass
class MelState:
    """State of one stream, or of several of the same age, whose tensors have one more dimension.

    Mel frames are numbered from the start of the stream.
    """

    samples: Tensor = field(default_factory=lambda: torch.zeros(0))  # buffered audio [n]
    base_frames: int = 0  # first mel frame of the buffer
    # Largest log10 bin of each stable frame of the buffer [frames].
    loudest: Tensor = field(default_factory=lambda: torch.zeros(0))
    # Log10 mel power of the stable frames that may still be returned [80, k].
    frames: Tensor = field(default_factory=lambda: torch.zeros(N_MELS, 0))
    frames_start: int = 0  # first of `frames`
    core_end: int = 0  # end of the frames returned so far, without convolution context

    @property
    def full_frames(self) -> int:
        """Frames of the buffer, including one whose window extends past the end."""
        return self.samples.shape[-1] // HOP_SAMPLES

    @property
    def stable_frames(self) -> int:
        """Frames of the buffer that further audio will not change."""
        inside = (self.samples.shape[-1] - HALF_WINDOW_SAMPLES) // HOP_SAMPLES + 1
        return max(0, min(self.full_frames, inside))


def push(state: MelState, samples: np.ndarray | Tensor, *, is_last: bool = False) -> Tensor:
    """Append audio and return the next unit's mel frames, once they are stable.

    A unit comes with convolution context on both sides, except on the left of the first: 102 frames
    at first, then 104. With `is_last` the available frames are returned, even without context on
    the right.

    Returns:
        float32 [80, frames]; no frames while the unit is incomplete.
    """
    return advance(state, as_samples(samples).cpu(), is_last=is_last)


def advance(state: MelState, samples: Tensor, *, is_last: bool = False) -> Tensor:
    """Do as `push` with float32 audio [..., n] on the state's device: [..., 80, frames]."""
    state.samples = torch.cat((state.samples, samples), dim=-1)
    _drop_old_audio(state)
    nothing = state.frames[..., :0]
    n_samples = state.samples.shape[-1]
    if n_samples <= HALF_WINDOW_SAMPLES:  # too short for reflection padding
        return nothing
    unstable = _add_frames(state)
    unit_frames = UNIT_SAMPLES // HOP_SAMPLES
    start = state.core_end - CONTEXT_FRAMES
    stop = state.core_end + unit_frames + CONTEXT_FRAMES
    if state.base_frames + state.stable_frames < stop and not is_last:
        return nothing
    known = torch.cat([state.frames, unstable], dim=-1)
    lowest: float | Tensor = FIXED_FLOOR_LOG10  # while the buffer is too short for an estimate
    if n_samples >= DYNAMIC_FLOOR_FROM_SAMPLES:
        loudest = torch.cat([state.loudest, unstable.amax(-2)], dim=-1).amax(-1)
        lowest = loudest[..., None, None] - DYNAMIC_RANGE_LOG10
    first, last = (max(0, frame - state.frames_start) for frame in (start, stop))
    mel = _normalise(known[..., first:last], lowest)
    state.core_end += unit_frames
    n_old = max(0, state.core_end - CONTEXT_FRAMES - state.frames_start)
    n_old = min(n_old, state.frames.shape[-1])
    state.frames = state.frames[..., n_old:].clone()
    state.frames_start += n_old
    return mel


def _drop_old_audio(state: MelState) -> None:
    length = state.samples.shape[-1]
    if length < DROP_FROM_SAMPLES:
        return
    n_frames = min(DROP_SAMPLES, length - KEEP_AT_LEAST_SAMPLES) // HOP_SAMPLES
    state.samples = state.samples[..., n_frames * HOP_SAMPLES :].clone()
    state.base_frames += n_frames
    if state.frames_start < state.base_frames + REFLECTED_FRAMES:  # frames were dropped unreturned
        state.frames_start = state.base_frames
        state.frames = state.frames[..., :0]
        state.loudest = state.loudest[..., :0]
        return
    # The reflection padding now starts elsewhere, which changes the first windows.
    first = _buffer_frames(state.samples, 0, REFLECTED_FRAMES)
    kept = state.loudest[..., n_frames + REFLECTED_FRAMES :]
    state.loudest = torch.cat([first.amax(-2), kept], dim=-1)


def _add_frames(state: MelState) -> Tensor:
    """Compute new frames, keep the stable ones and return the others [..., 80, 0 or 1]."""
    first = state.frames_start + state.frames.shape[-1] - state.base_frames
    if first >= state.full_frames:
        return state.frames[..., :0]
    new = _buffer_frames(state.samples, first, state.full_frames)
    stable, unstable = new.tensor_split([state.stable_frames - first], dim=-1)
    state.frames = torch.cat([state.frames, stable], dim=-1)
    state.loudest = torch.cat([state.loudest, stable.amax(-2)], dim=-1)
    return unstable


def _buffer_frames(samples: Tensor, first: int, stop: int) -> Tensor:
    """Compute frames [first, stop) of a reflection-padded buffer: [..., 80, stop - first]."""
    begin = first * HOP_SAMPLES - HALF_WINDOW_SAMPLES
    end = (stop - 1) * HOP_SAMPLES + HALF_WINDOW_SAMPLES
    padding = (max(0, -begin), max(0, end - samples.shape[-1]))
    # Reflection needs one sample more than half a window.
    part = samples[..., max(0, begin) : end + 1]
    if any(padding):
        part = F.pad(part[None], padding, mode="reflect")[0]
    return log10_mel(part, stop - first)


def log10_mel(samples: Tensor, n_frames: int | None = None) -> Tensor:
    """Compute log10 mel power of windows at samples 0, 160, 320 … of [..., n]: [..., 80, T].

    T is `n_frames`, or the number of whole windows.
    """
    windows = samples.unfold(-1, N_FFT, HOP_SAMPLES)[..., :n_frames, :]  # [..., T, 400]
    window, filters = _window_and_filters(samples.device)
    power = torch.view_as_real(torch.fft.rfft(windows * window)).square().sum(-1)  # [..., T, 201]
    return (filters @ power.mT).clamp(min=POWER_FLOOR).log10()


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # the cached tensors are used in training, too
def _window_and_filters(device: torch.device) -> tuple[Tensor, Tensor]:
    filters = mel_filter_bank(SAMPLE_RATE_HZ, N_FFT, N_MELS, 0.0, MAX_HZ)
    return torch.hann_window(N_FFT, periodic=True, device="cpu").to(device), filters.to(device)


def _normalise(frames: Tensor, lowest: float | Tensor) -> Tensor:
    """Clip log10 mel power [..., 80, T] from below and scale it to the range of about ±1.5."""
    return (frames.clamp(min=lowest) + SHIFT) / SCALE
