"""Log-mels and encoder outputs of whole conversations, in batches on one device.

Equal to `mel.push` and `AudioEmbedder.embed_streams` unit by unit (tested), without a Python step
per unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import ENCODER_FRAMES_PER_SECOND
from MiniCPMO45.model.audio_encoder import AudioEncoder
from MiniCPMO45.processing import mel

UNIT_FRAMES = mel.UNIT_SAMPLES // mel.HOP_SAMPLES
UNITS_BEFORE_RESET = 29  # a 30th unit with its context would reach the last position
ROWS_PER_UNIT = ENCODER_FRAMES_PER_SECOND // mel.POOL_STEP


def stream_samples(n_units: int) -> int:
    """Return the samples of `n_units` units, including the padding of the first."""
    return mel.FIRST_UNIT_SAMPLES + (n_units - 1) * mel.UNIT_SAMPLES


def stream_mels(audio: Tensor, n_units: int) -> list[Tensor]:
    """Return the log-mels of streams, one [B, 80, frames] per unit: 102 frames, then 104 each."""
    logs = mel.log10_mel(F.pad(audio[:, None], (mel.HALF_WINDOW_SAMPLES, 0), mode="reflect")[:, 0])
    loudest = logs.amax(1)  # [B, T]
    mels, base = [], 0
    for unit in range(n_units):
        end = stream_samples(unit + 1)
        if end - base >= mel.DROP_FROM_SAMPLES:
            base += mel.DROP_SAMPLES
        floor = torch.full_like(loudest[:, :1], mel.FIXED_FLOOR_LOG10)
        if end - base >= mel.DYNAMIC_FLOOR_FROM_SAMPLES:
            floor = _buffer_loudest(audio, loudest, base, end) - mel.DYNAMIC_RANGE_LOG10
        first = max(0, unit * UNIT_FRAMES - mel.CONTEXT_FRAMES)
        frames = logs[:, :, first : (unit + 1) * UNIT_FRAMES + mel.CONTEXT_FRAMES]
        mels.append((frames.maximum(floor[:, None]) + mel.SHIFT) / mel.SCALE)
    return mels


def stream_frames(encoder: AudioEncoder, mels: Sequence[Tensor]) -> Tensor:
    """Encode the units of streams with unit-causal attention: [B, 50 * units, width]."""
    hidden = _convolved(encoder, mels)  # [B, U, 50, width]
    spans = hidden.split(UNITS_BEFORE_RESET, dim=1)
    return torch.cat([_encoded(encoder, span.flatten(1, 2)) for span in spans], dim=1)


def clip_frames(
    encoder: AudioEncoder,
    clips: Tensor,
    sizes: Tensor,
    block_frames: int | None,
    change: Callable[[Tensor], Tensor] = lambda mels: mels,
) -> Tensor:
    """Encode whole clips of at most 30 s, as `EncodeClips` does with `clip_mels`.

    Clips are float32 [N, n] at 16 kHz, zero-padded after `sizes` [N] samples; `change` augments
    their spectrograms [N, 80, T].

    Returns:
        [N, T, width], of which `encoder_rows(size)` rows are those of a clip.
    """
    padded = F.pad(clips, (0, 2 * mel.N_FFT + mel.HOP_SAMPLES))
    logs = mel.log10_mel(F.pad(padded[:, None], (mel.HALF_WINDOW_SAMPLES, 0), mode="reflect")[:, 0])
    floor = logs.amax((1, 2), keepdim=True) - mel.DYNAMIC_RANGE_LOG10
    lengths = _mel_frames(sizes)
    n_frames = _mel_frames(clips.shape[1])
    mels = (logs[:, :, :n_frames].maximum(floor) + mel.SHIFT) / mel.SCALE
    is_sound = torch.arange(n_frames, device=clips.device) < lengths[:, None]
    batch = encoder.clip_batch(n_frames, lengths, block_frames)
    return encoder(change(mels) * is_sound[:, None], batch)


def encoder_rows(n_samples: int) -> int:
    return mel.encoder_frame_count(_mel_frames(n_samples))


N = TypeVar("N", int, Tensor)


def _mel_frames(n_samples: N) -> N:
    return -(-n_samples // mel.HOP_SAMPLES)


def _buffer_loudest(audio: Tensor, loudest: Tensor, base: int, end: int) -> Tensor:
    """Return the loudest bin [B, 1] of the reflection-padded buffer [base, end)."""
    last = end // mel.HOP_SAMPLES - 1  # its window extends past the end
    start = last * mel.HOP_SAMPLES - mel.HALF_WINDOW_SAMPLES
    tail = F.pad(
        audio[:, None, start:end],
        (0, last * mel.HOP_SAMPLES + mel.HALF_WINDOW_SAMPLES - end),
        "reflect",
    )[:, 0]
    parts = [mel.log10_mel(tail).amax((1, 2))[:, None]]
    first = base // mel.HOP_SAMPLES
    if base:
        stop = base + (mel.REFLECTED_FRAMES - 1) * mel.HOP_SAMPLES + mel.HALF_WINDOW_SAMPLES
        head = F.pad(audio[:, None, base : stop + 1], (mel.HALF_WINDOW_SAMPLES, 0), "reflect")[:, 0]
        parts.append(mel.log10_mel(head[:, : mel.N_FFT + mel.HOP_SAMPLES]).amax((1, 2))[:, None])
        first += mel.REFLECTED_FRAMES
    parts.append(loudest[:, first:last].amax(1, keepdim=True))
    return torch.cat(parts, dim=1).amax(1, keepdim=True)


def _convolved(encoder: AudioEncoder, mels: Sequence[Tensor]) -> Tensor:
    """Convolve every unit in its context and drop the context: [B, U, 50, width]."""
    frames = ENCODER_FRAMES_PER_SECOND
    first = encoder.convolve(mels[0])[:, None, :frames]
    if len(mels) == 1:
        return first
    later = torch.stack(list(mels[1:]), dim=1)  # [B, U - 1, 80, 104]
    rows = encoder.convolve(later.flatten(0, 1)).unflatten(0, later.shape[:2])
    return torch.cat((first, rows[:, :, 1 : 1 + frames]), dim=1)


def _encoded(encoder: AudioEncoder, rows: Tensor) -> Tensor:
    batch = encoder.clip_batch(mel.CONV_STRIDE * rows.shape[1], None, ENCODER_FRAMES_PER_SECOND)
    return encoder.transform(rows + encoder.embed_positions(batch.positions), batch.attention)
