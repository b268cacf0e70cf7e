"""What the served encoder makes of whole conversations, computed in batches on one device.

Equal to feeding `mel.push` and `AudioEmbedder.embed_streams` unit by unit (a test
compares them), but without a Python step per unit. Uses the served modules and mel functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import ENCODER_FRAMES_PER_SECOND
from MiniCPMO45.model.audio_encoder import AudioEncoder
from MiniCPMO45.model.transformer import DenseAttention, Projector
from MiniCPMO45.processing.mel import (
    CONTEXT_FRAMES,
    DROP_FROM_SAMPLES,
    DROP_SAMPLES,
    DYNAMIC_FLOOR_FROM_SAMPLES,
    DYNAMIC_RANGE_LOG10,
    FIRST_UNIT_SAMPLES,
    FIXED_FLOOR_LOG10,
    HALF_WINDOW_SAMPLES,
    HOP_SAMPLES,
    MAX_HZ,
    MIRRORED_FRAMES,
    N_FFT,
    N_MELS,
    POOL_STEP,
    POWER_FLOOR,
    SAMPLE_RATE_HZ,
    SCALE,
    SHIFT,
    UNIT_SAMPLES,
    encoder_frame_count,
    mel_filter_bank,
)

UNIT_FRAMES = UNIT_SAMPLES // HOP_SAMPLES
CONTEXT = CONTEXT_FRAMES
UNITS_BEFORE_RESET = 29  # a thirtieth unit with its context would reach the last position
ROWS_PER_UNIT = ENCODER_FRAMES_PER_SECOND // POOL_STEP


def stream_samples(n_units: int) -> int:
    """Samples that `n_units` units consume, the leading zeros of the first included."""
    return FIRST_UNIT_SAMPLES + (n_units - 1) * UNIT_SAMPLES


def stream_mels(audio: Tensor, n_units: int) -> list[Tensor]:
    """Log-mels of streams, as the served path hands them out unit by unit.

    Returns:
        One [B, 80, frames] per unit: 102 frames in the first, 104 in the others.
    """
    logs = _log10_mel(F.pad(audio[:, None], (HALF_WINDOW_SAMPLES, 0), mode="reflect")[:, 0])
    loudest = logs.amax(1)  # [B, T]
    mels, base = [], 0
    for unit in range(n_units):
        end = stream_samples(unit + 1)
        if end - base >= DROP_FROM_SAMPLES:
            base += DROP_SAMPLES
        floor = torch.full_like(loudest[:, :1], FIXED_FLOOR_LOG10)
        if end - base >= DYNAMIC_FLOOR_FROM_SAMPLES:
            floor = _buffer_loudest(audio, loudest, base, end) - DYNAMIC_RANGE_LOG10
        first = max(0, unit * UNIT_FRAMES - CONTEXT)
        frames = logs[:, :, first : (unit + 1) * UNIT_FRAMES + CONTEXT]
        mels.append((frames.maximum(floor[:, None]) + SHIFT) / SCALE)
    return mels


def stream_frames(encoder: AudioEncoder, mels: Sequence[Tensor]) -> Tensor:
    """Encode mels of units from a stream's beginning: [B, 50 * units, width].

    A frame sees its own unit and those before it.
    """
    hidden = _convolved(encoder, mels)  # [B, U, 50, width]
    pieces = []
    for start in range(0, hidden.shape[1], UNITS_BEFORE_RESET):
        rows = hidden[:, start : start + UNITS_BEFORE_RESET].flatten(1, 2)
        pieces.append(_encoded(encoder, rows))
    return torch.cat(pieces, dim=1)


def embed_frames(projection: Projector, frames: Tensor) -> Tensor:
    """Project and pool frames [B, T, width]: [B, T // 5, llm width]."""
    projected = projection(frames)
    n_groups = projected.shape[1] // POOL_STEP
    return projected[:, : n_groups * POOL_STEP].unflatten(1, (n_groups, POOL_STEP)).mean(2)


def clip_frames(
    encoder: AudioEncoder,
    clips: Tensor,
    sizes: Tensor,
    block_frames: int | None,
    change: Callable[[Tensor], Tensor] = lambda mels: mels,
) -> Tensor:
    """Encode whole clips of at most 30 s, as `EncodeClips` does with `clip_mels`.

    Clips are float32 [N, n] at 16 kHz, zero behind each one's end after `sizes` [N] samples.
    `change` is one of the spectrograms [N, 80, T].

    Returns:
        [N, T, width]; `encoder_rows(size)` rows of each count.
    """
    padded = F.pad(clips, (0, 2 * N_FFT + HOP_SAMPLES))
    logs = _log10_mel(F.pad(padded[:, None], (HALF_WINDOW_SAMPLES, 0), mode="reflect")[:, 0])
    floor = logs.amax((1, 2), keepdim=True) - DYNAMIC_RANGE_LOG10
    lengths = _mel_frames(sizes)
    n_frames = _mel_frames(clips.shape[1])
    mels = (logs[:, :, :n_frames].maximum(floor) + SHIFT) / SCALE
    is_sound = torch.arange(n_frames, device=clips.device) < lengths[:, None]
    batch = encoder.clip_batch(n_frames, lengths, block_frames)
    return encoder(change(mels) * is_sound[:, None], batch)


def encoder_rows(n_samples: int) -> int:
    return encoder_frame_count(_mel_frames(n_samples))


N = TypeVar("N", int, Tensor)


def _mel_frames(n_samples: N) -> N:
    return -(-n_samples // HOP_SAMPLES)


def _log10_mel(samples: Tensor) -> Tensor:
    """Log10 of mel power of every whole window of [B, n]: [B, 80, T]."""
    windows = samples.unfold(1, N_FFT, HOP_SAMPLES)
    power = torch.view_as_real(torch.fft.rfft(windows * _window(samples.device))).square().sum(-1)
    return (_filters(samples.device) @ power.transpose(1, 2)).clamp(min=POWER_FLOOR).log10()


def _buffer_loudest(audio: Tensor, loudest: Tensor, base: int, end: int) -> Tensor:
    """Loudest bin [B, 1] of the buffer [base, end), mirrored at both of its edges."""
    last = end // HOP_SAMPLES - 1  # its window reaches over the end
    start = last * HOP_SAMPLES - HALF_WINDOW_SAMPLES
    tail = F.pad(
        audio[:, None, start:end], (0, last * HOP_SAMPLES + HALF_WINDOW_SAMPLES - end), "reflect"
    )[:, 0]
    parts = [_log10_mel(tail).amax((1, 2))[:, None]]
    first = base // HOP_SAMPLES
    if base:
        stop = base + (MIRRORED_FRAMES - 1) * HOP_SAMPLES + HALF_WINDOW_SAMPLES
        head = F.pad(audio[:, None, base : stop + 1], (HALF_WINDOW_SAMPLES, 0), "reflect")[:, 0]
        parts.append(_log10_mel(head[:, : N_FFT + HOP_SAMPLES]).amax((1, 2))[:, None])
        first += MIRRORED_FRAMES
    parts.append(loudest[:, first:last].amax(1, keepdim=True))
    return torch.cat(parts, dim=1).amax(1, keepdim=True)


def _convolved(encoder: AudioEncoder, mels: Sequence[Tensor]) -> Tensor:
    """Convolve every unit in its own context and cut the context off: [B, U, 50, width]."""
    frames = ENCODER_FRAMES_PER_SECOND
    first = encoder.convolve(mels[0])[:, None, :frames]
    if len(mels) == 1:
        return first
    later = torch.stack(list(mels[1:]), dim=1)  # [B, U - 1, 80, 104]
    rows = encoder.convolve(later.flatten(0, 1)).unflatten(0, later.shape[:2])
    return torch.cat((first, rows[:, :, 1 : 1 + frames]), dim=1)


def _encoded(encoder: AudioEncoder, rows: Tensor) -> Tensor:
    rows = rows + encoder.embed_positions.weight[: rows.shape[1]]
    unit = torch.arange(rows.shape[1], device=rows.device) // ENCODER_FRAMES_PER_SECOND
    mask = unit[None, :] <= unit[:, None]
    return encoder.transform(rows, DenseAttention(encoder.heads, mask))


@cache
def _window(device: torch.device) -> Tensor:
    return torch.hann_window(N_FFT, periodic=True, device=device)


@cache
def _filters(device: torch.device) -> Tensor:
    return mel_filter_bank(SAMPLE_RATE_HZ, N_FFT, N_MELS, 0.0, MAX_HZ).to(device)
