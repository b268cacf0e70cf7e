"""A decoded film clip as message parts: how pictures and sound interleave.

Decodes nothing and chooses no instants. Source: docs/specification/model.md#4.7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from MiniCPMO45.image_processing import stack_frames

SAMPLE_RATE_HZ = 16_000
MIN_LAST_SAMPLES = 1600  # the last piece of sound is padded to this length


def video_parts(
    frames: Sequence[Image.Image],
    times_s: Sequence[float],
    audio: np.ndarray,
    duration_s: float,
    *,
    frames_per_piece: int = 1,
) -> list[Image.Image | np.ndarray]:
    """Interleave a clip: picture, its sound, composite of what came in between; piece by piece.

    Args:
        frames: pictures in time order.
        times_s: when each was on screen, from the start, rising.
        audio: the whole sound, float32 [n] mono at 16 kHz; empty when there is none.
        duration_s: length of the clip, at least the last of `times_s`.
        frames_per_piece: k; every k-th picture opens a piece, and the up to k - 1 pictures after
            it are merged into one that follows the piece's sound.

    Returns:
        Message parts, to be joined with nothing between them.

    Raises:
        ValueError: the lists differ in length, the times fall, or k is below 1.
    """
    if len(frames) != len(times_s) or frames_per_piece < 1:
        raise ValueError(f"{len(frames)} pictures, {len(times_s)} times, k={frames_per_piece}")
    if list(times_s) != sorted(times_s) or (times_s and times_s[-1] > duration_s):
        raise ValueError("times must rise and stay within the clip")
    openings = range(0, len(frames), frames_per_piece)
    edges_s = [*(times_s[i] for i in openings), duration_s]
    sounds = _cut_audio(audio, edges_s)
    parts: list[Image.Image | np.ndarray] = []
    for number, first in enumerate(openings):
        parts.append(frames[first])
        if len(sounds[number]):
            parts.append(sounds[number])
        between = frames[first + 1 : first + frames_per_piece]
        if between:
            parts.append(stack_frames([frame.convert("RGB") for frame in between]))
    return parts


def _cut_audio(audio: np.ndarray, edges_s: Sequence[float]) -> list[np.ndarray]:
    edges = [int(edge * SAMPLE_RATE_HZ) for edge in edges_s]
    pieces = [audio[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    missing = MIN_LAST_SAMPLES - len(pieces[-1]) if pieces and len(audio) else 0
    if missing > 0:
        pieces[-1] = np.concatenate([pieces[-1], np.zeros(missing, dtype=audio.dtype)])
    return pieces
