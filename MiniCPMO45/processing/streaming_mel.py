"""Log-mel of a live stream: audio goes in by the second, the encoder's mel frames come out.

Gives what the mel of the whole audio buffer would give, but transforms only windows that are new:
of older ones the loudest bin is enough, because that is all the moving floor asks for. Buffers and
tensors in a state are replaced and never written to, so states may share them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import StreamTiming
from MiniCPMO45.processing.audio_features import (
    HALF_WINDOW_SAMPLES,
    HOP_SAMPLES,
    MIN_REFLECT_SAMPLES,
    N_MELS,
    SAMPLE_RATE_HZ,
    LogFloor,
    as_samples,
    log10_mel,
    normalise,
)

SHORT_PIECE_SAMPLES = 16_000  # a shorter last piece is joined with what follows


@dataclass(frozen=True)
class SampleBuffer:
    """Samples in pieces.

    Attributes:
        pieces: float32 [n] each, oldest first; never written to.
        length: samples in all.
    """

    pieces: tuple[Tensor, ...] = ()
    length: int = 0

    @property
    def nbytes(self) -> int:
        """Memory of the pieces."""
        return sum(piece.nbytes for piece in self.pieces)

    def append(self, samples: Tensor) -> SampleBuffer:
        """Return the buffer with more samples [n] behind."""
        pieces, length = self.pieces, self.length + len(samples)
        if pieces and len(pieces[-1]) < SHORT_PIECE_SAMPLES:
            samples = torch.cat((pieces[-1], samples))
            pieces = pieces[:-1]
        return SampleBuffer((*pieces, samples), length)

    def drop(self, count: int) -> SampleBuffer:
        """Return the buffer without its first `count` samples, whose memory is let go."""
        kept = []
        skipped = count
        for piece in self.pieces:
            if skipped < len(piece):
                kept.append(piece[skipped:].clone() if skipped else piece)
            skipped = max(0, skipped - len(piece))
        return SampleBuffer(tuple(kept), self.length - count)

    def between(self, start: int, stop: int) -> Tensor:
        """Return samples [start, stop) as one tensor, as far as they exist."""
        found = []
        end = self.length
        for piece in reversed(self.pieces):
            begin = end - len(piece)
            if begin < stop and start < end:
                found.append(piece[max(0, start - begin) : stop - begin])
            if begin <= start:
                break
            end = begin
        if len(found) == 1:
            return found[0]
        return torch.cat(found[::-1]) if found else torch.zeros(0)


# Source of all four: docs/specification/model.md#4.5.
DYNAMIC_FLOOR_FROM_SAMPLES = 5 * SAMPLE_RATE_HZ
DROP_FROM_SAMPLES = 30 * SAMPLE_RATE_HZ
DROP_SAMPLES = 10 * SAMPLE_RATE_HZ
KEEP_AT_LEAST_SAMPLES = 1 * SAMPLE_RATE_HZ

MIRRORED_FRAMES = 2  # frames at the start of the buffer whose window reaches over its edge
DEFAULT_TIMING = StreamTiming()


@dataclass
class MelState:
    """What one stream remembers. Mel frames are counted from the start of the stream.

    Attributes:
        buffer: audio still there.
        base_frames: first mel frame of the buffer; earlier audio was dropped.
        loudest: largest log10 bin of each stable frame of the buffer [frames].
        frames: log10 mel power of the stable frames that may still be handed out [80, k].
        frames_start: number of the first of these.
        core_end: one past the last frame that was handed out, without convolution context.
    """

    buffer: SampleBuffer = SampleBuffer()
    base_frames: int = 0
    loudest: Tensor = field(default_factory=lambda: torch.zeros(0))
    frames: Tensor = field(default_factory=lambda: torch.zeros(N_MELS, 0))
    frames_start: int = 0
    core_end: int = 0

    @property
    def buffer_len_samples(self) -> int:
        """Audio in the buffer."""
        return self.buffer.length

    @property
    def samples(self) -> Tensor:
        """Audio in the buffer as one tensor [n]."""
        return self.buffer.between(0, self.buffer.length)

    @property
    def full_frames(self) -> int:
        """Frames of the buffer, counting one whose window reaches over the end."""
        return self.buffer_len_samples // HOP_SAMPLES

    @property
    def stable_frames(self) -> int:
        """Frames of the buffer that more audio will not change."""
        inside = (self.buffer_len_samples - HALF_WINDOW_SAMPLES) // HOP_SAMPLES + 1
        return max(0, min(self.full_frames, inside))

    @property
    def stable_frames_global(self) -> int:
        """Frames of the stream that more audio will not change."""
        return self.base_frames + self.stable_frames

    @property
    def frames_stop(self) -> int:
        """Number of the first frame that was not computed as stable yet."""
        return self.frames_start + self.frames.shape[1]

    @property
    def floor(self) -> LogFloor:
        """Where quiet bins are cut off now: a short buffer says too little about loudness."""
        is_short = self.buffer_len_samples < DYNAMIC_FLOOR_FROM_SAMPLES
        return LogFloor.FIXED if is_short else LogFloor.DYNAMIC

    @property
    def nbytes(self) -> int:
        """Memory of the tensors."""
        return self.buffer.nbytes + self.loudest.nbytes + self.frames.nbytes

    def clone(self) -> MelState:
        """Return a state that goes its own way; free of charge, tensors are never written to."""
        return replace(self)


def push(
    state: MelState,
    samples: np.ndarray | Tensor,
    *,
    is_last: bool = False,
    timing: StreamTiming = DEFAULT_TIMING,
) -> Tensor:
    """Add audio and return the next mel frames once they can no longer change.

    One call hands out at most one unit: its frames with convolution context on both sides (none
    on the left of the first unit), 102 frames the first time and 104 later on.

    Args:
        state: the stream; changed.
        samples: [n] float32 mono at 16 kHz, n ≥ 0.
        is_last: hand out what there is, although frames at the end lack context.
        timing: unit length and convolution context.

    Returns:
        float32 [80, frames]; no frames while the unit is incomplete.

    Raises:
        ValueError: the audio is not one-dimensional.

    Source: docs/specification/model.md#4.5.
    """
    state.buffer = state.buffer.append(as_samples(samples).cpu())
    _drop_old_audio(state)
    nothing = state.frames[:, :0]
    if state.buffer_len_samples < MIN_REFLECT_SAMPLES:
        return nothing
    unstable = _add_frames(state)
    chunk_frames = timing.unit_samples // HOP_SAMPLES
    start = state.core_end - timing.redundancy_frames
    stop = state.core_end + chunk_frames + timing.redundancy_frames
    if state.stable_frames_global < stop and not is_last:
        return nothing
    mel = _normalised(state, unstable, start, stop)
    state.core_end += chunk_frames
    _forget_frames(state, state.core_end - timing.redundancy_frames)
    return mel


def _drop_old_audio(state: MelState) -> None:
    length = state.buffer_len_samples
    if length < DROP_FROM_SAMPLES:
        return
    n_frames = min(DROP_SAMPLES, length - KEEP_AT_LEAST_SAMPLES) // HOP_SAMPLES
    state.buffer = state.buffer.drop(n_frames * HOP_SAMPLES)
    state.base_frames += n_frames
    if state.frames_start < state.base_frames + MIRRORED_FRAMES:  # far behind: begin anew
        state.frames_start = state.base_frames
        state.frames = state.frames[:, :0]
        state.loudest = state.loudest[:0]
        return
    # The buffer now starts elsewhere, and its first windows see themselves mirrored there.
    mirrored = _log10_frames(state.buffer, 0, MIRRORED_FRAMES)
    state.loudest = torch.cat([mirrored.amax(0), state.loudest[n_frames + MIRRORED_FRAMES :]])


def _add_frames(state: MelState) -> Tensor:
    """Compute what is new, keep the stable part and return the rest [80, 0 or 1]."""
    first = state.frames_stop - state.base_frames
    if first >= state.full_frames:
        return state.frames[:, :0]
    new = _log10_frames(state.buffer, first, state.full_frames)
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


def _log10_frames(buffer: SampleBuffer, first: int, stop: int) -> Tensor:
    """Frames [first, stop) of a buffer whose edges are mirrored: [80, stop - first]."""
    begin = first * HOP_SAMPLES - HALF_WINDOW_SAMPLES
    end = (stop - 1) * HOP_SAMPLES + HALF_WINDOW_SAMPLES
    over = (max(0, -begin), max(0, end - buffer.length))
    # One sample more: half a window mirrors around it.
    piece = buffer.between(max(0, begin), end + 1)
    if any(over):
        piece = F.pad(piece[None], over, mode="reflect")[0]
    return log10_mel(piece, stop - first)
