"""Log-mels and encoder outputs of whole conversations, in batches on one device.

Equal to `mel.push` and `AudioEmbedder.embed_streams` unit by unit (tested); the encoder takes all
units at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import ENCODER_FRAMES_PER_SECOND
from MiniCPMO45.model.audio_encoder import AudioEncoder
from MiniCPMO45.processing import mel

UNITS_BEFORE_RESET = 29  # a 30th unit with its context would reach the last position
ROWS_PER_UNIT = ENCODER_FRAMES_PER_SECOND // mel.POOL_STEP


def stream_samples(n_units: int) -> int:
    """Return the samples of `n_units` units, including the padding of the first."""
    return mel.FIRST_UNIT_SAMPLES + (n_units - 1) * mel.UNIT_SAMPLES


def stream_mels(audio: Tensor, n_units: int) -> list[Tensor]:
    """Return the log-mels of streams, one [B, 80, frames] per unit: 102 frames, then 104 each."""
    nothing, frames = audio[:, :0], audio.new_zeros(len(audio), mel.N_MELS, 0)
    state = mel.MelState(nothing, loudest=nothing, frames=frames)
    ends = [0, *(stream_samples(number) for number in range(1, n_units + 1))]
    return [mel.advance(state, audio[:, start:stop]) for start, stop in pairwise(ends)]


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
