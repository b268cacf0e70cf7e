"""From 16 kHz audio to the log-mel the audio encoder reads, for whole clips and for live streams.

A stream gives what the mel of its whole buffer would give, but transforms only windows that are
new: of older ones the loudest bin is enough, because that is all the moving floor asks for. Buffers
and tensors in a state are replaced and never written to, so states may share them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """Return triangular filters on Slaney's scale, each of unit area in Hz: [n_mels, n_fft // 2 +
    1].

    The result is shared between callers and must not be written to.

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

# Clock of a duplex stream. Source: docs/specification/model.md#4.5 and #6.2.
UNIT_SAMPLES = SAMPLE_RATE_HZ  # what a unit consumes after the first
FIRST_PAD_SAMPLES = 16_560  # what the first unit is padded to in front, 1,035 ms
FIRST_UNIT_SAMPLES = FIRST_PAD_SAMPLES // HOP_SAMPLES * HOP_SAMPLES  # what it consumes
CONTEXT_FRAMES = 2  # of convolutions, on each side

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

    `audio` is [n] float32 mono at 16 kHz; a DYNAMIC floor refers to each padded piece.

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
    """Embeddings a whole clip becomes, 10 per second, or 0 below `MIN_CLIP_SAMPLES`.

    Clips over 30 s are counted piece by piece.

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

    Returns:
        float32 [80, n_frames], no value below -10.
    """
    windows = samples.unfold(0, N_FFT, HOP_SAMPLES)[:n_frames]  # [T, 400]
    window = _hann_window().to(samples.device)
    power = torch.view_as_real(torch.fft.rfft(windows * window)).square().sum(-1)  # [T, 201]
    filters = mel_filter_bank(SAMPLE_RATE_HZ, N_FFT, N_MELS, 0.0, MAX_HZ).to(samples.device)
    return (filters @ power.T).clamp(min=POWER_FLOOR).log10()  # [80, T]


def normalise(frames: Tensor, floor: LogFloor, loudest: Tensor | float) -> Tensor:
    """Cut quiet bins off and bring log10 mel power [80, T] into the encoder's range, about ±1.5.

    `loudest` is the largest bin of the signal that a DYNAMIC floor refers to.
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


# Source of all four: docs/specification/model.md#4.5.
DYNAMIC_FLOOR_FROM_SAMPLES = 5 * SAMPLE_RATE_HZ
DROP_FROM_SAMPLES = 30 * SAMPLE_RATE_HZ
DROP_SAMPLES = 10 * SAMPLE_RATE_HZ
KEEP_AT_LEAST_SAMPLES = 1 * SAMPLE_RATE_HZ

MIRRORED_FRAMES = 2  # frames at the start of the buffer whose window reaches over its edge


@dataclass
class MelState:
    """What one stream remembers. Mel frames are counted from the start of the stream.

    Attributes:
        samples: audio that was not dropped [n].
        base_frames: first mel frame of the buffer; earlier audio was dropped.
        loudest: largest log10 bin of each stable frame of the buffer [frames].
        frames: log10 mel power of the stable frames that may still be returned [80, k].
        core_end: one past the last frame that was returned, without convolution context.
    """

    samples: Tensor = field(default_factory=lambda: torch.zeros(0))
    base_frames: int = 0
    loudest: Tensor = field(default_factory=lambda: torch.zeros(0))
    frames: Tensor = field(default_factory=lambda: torch.zeros(N_MELS, 0))
    frames_start: int = 0
    core_end: int = 0

    @property
    def full_frames(self) -> int:
        """Frames of the buffer, counting one whose window reaches over the end."""
        return len(self.samples) // HOP_SAMPLES

    @property
    def stable_frames(self) -> int:
        """Frames of the buffer that more audio will not change."""
        inside = (len(self.samples) - HALF_WINDOW_SAMPLES) // HOP_SAMPLES + 1
        return max(0, min(self.full_frames, inside))

    @property
    def stable_frames_global(self) -> int:
        """Frames of the stream that more audio will not change."""
        return self.base_frames + self.stable_frames

    @property
    def floor(self) -> LogFloor:
        """Where quiet bins are cut off now: a short buffer says too little about loudness."""
        is_short = len(self.samples) < DYNAMIC_FLOOR_FROM_SAMPLES
        return LogFloor.FIXED if is_short else LogFloor.DYNAMIC

    @property
    def nbytes(self) -> int:
        return self.samples.nbytes + self.loudest.nbytes + self.frames.nbytes


def push(state: MelState, samples: np.ndarray | Tensor, *, is_last: bool = False) -> Tensor:
    """Add audio and return the next mel frames once they can no longer change.

    One call returns at most one unit: its frames with convolution context on both sides (none
    on the left of the first unit), 102 frames the first time and 104 later on.

    With `is_last` it returns what there is, although frames at the end lack context.

    Returns:
        float32 [80, frames]; no frames while the unit is incomplete.

    Raises:
        ValueError: the audio is not one-dimensional.

    Source: docs/specification/model.md#4.5.
    """
    state.samples = torch.cat((state.samples, as_samples(samples).cpu()))
    _drop_old_audio(state)
    nothing = state.frames[:, :0]
    if len(state.samples) < MIN_REFLECT_SAMPLES:
        return nothing
    unstable = _add_frames(state)
    chunk_frames = UNIT_SAMPLES // HOP_SAMPLES
    start = state.core_end - CONTEXT_FRAMES
    stop = state.core_end + chunk_frames + CONTEXT_FRAMES
    if state.stable_frames_global < stop and not is_last:
        return nothing
    mel = _normalised(state, unstable, start, stop)
    state.core_end += chunk_frames
    _forget_frames(state, state.core_end - CONTEXT_FRAMES)
    return mel


def _drop_old_audio(state: MelState) -> None:
    length = len(state.samples)
    if length < DROP_FROM_SAMPLES:
        return
    n_frames = min(DROP_SAMPLES, length - KEEP_AT_LEAST_SAMPLES) // HOP_SAMPLES
    state.samples = state.samples[n_frames * HOP_SAMPLES :].clone()
    state.base_frames += n_frames
    if state.frames_start < state.base_frames + MIRRORED_FRAMES:  # far behind: begin anew
        state.frames_start = state.base_frames
        state.frames = state.frames[:, :0]
        state.loudest = state.loudest[:0]
        return
    # The buffer now starts elsewhere, and its first windows see themselves mirrored there.
    mirrored = _log10_frames(state.samples, 0, MIRRORED_FRAMES)
    state.loudest = torch.cat([mirrored.amax(0), state.loudest[n_frames + MIRRORED_FRAMES :]])


def _add_frames(state: MelState) -> Tensor:
    """Compute what is new, keep the stable part and return the rest [80, 0 or 1]."""
    first = state.frames_start + state.frames.shape[1] - state.base_frames  # not known as stable
    if first >= state.full_frames:
        return state.frames[:, :0]
    new = _log10_frames(state.samples, first, state.full_frames)
    n_stable = state.stable_frames - first
    state.frames = torch.cat([state.frames, new[:, :n_stable]], dim=1)
    state.loudest = torch.cat([state.loudest, new[:, :n_stable].amax(0)])
    return new[:, n_stable:]


def _normalised(state: MelState, unstable: Tensor, start: int, stop: int) -> Tensor:
    """Return frames [start, stop) of the stream, as far as they exist."""
    known = torch.cat([state.frames, unstable], dim=1)
    loudest = torch.cat([state.loudest, unstable.amax(0)]).max()
    first, last = (max(0, frame - state.frames_start) for frame in (start, stop))
    return normalise(known[:, first:last], state.floor, loudest)


def _forget_frames(state: MelState, before: int) -> None:
    n_old = min(max(0, before - state.frames_start), state.frames.shape[1])
    state.frames = state.frames[:, n_old:].clone()
    state.frames_start += n_old


def _log10_frames(samples: Tensor, first: int, stop: int) -> Tensor:
    """Frames [first, stop) of audio whose edges are mirrored: [80, stop - first]."""
    begin = first * HOP_SAMPLES - HALF_WINDOW_SAMPLES
    end = (stop - 1) * HOP_SAMPLES + HALF_WINDOW_SAMPLES
    over = (max(0, -begin), max(0, end - len(samples)))
    # One sample more: half a window mirrors around it.
    piece = samples[max(0, begin) : end + 1]
    if any(over):
        piece = F.pad(piece[None], over, mode="reflect")[0]
    return log10_mel(piece, stop - first)
