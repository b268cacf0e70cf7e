"""Writes `merged_replay.wav`: left the user, right the model, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import soxr  # type: ignore[import-untyped]  # ships no type information

from recording.files import SAMPLE_BYTES, WAV_HEADER_BYTES, wav_header
from recording.pcm import PCM_SCALE
from recording.replay_plan import REPLAY_RATE_HZ, ReplayPlan, Span

Pcm = npt.NDArray[np.int16]

BLOCK_SAMPLES: Final = 16_384  # about a second; what is held in memory at a time
CHANNELS: Final = 2


def write_replay_sound(path: Path, plan: ReplayPlan) -> None:
    """Write the whole replay.

    Args:
        path: Where; overwritten.
        plan: What is heard when.

    Raises:
        OSError: A file cannot be read, or the disk is full.
    """
    total = plan.samples
    with path.open("wb") as file:
        file.write(wav_header(REPLAY_RATE_HZ, CHANNELS, total * CHANNELS * SAMPLE_BYTES))
        for left, right in zip(track(plan.user, total), track(plan.ai, total), strict=True):
            file.write(np.stack([left, right], axis=1).astype("<i2").tobytes())  # [T, 2]


def track(spans: Iterable[Span], total: int) -> Iterator[Pcm]:
    """Yield one side of the replay in blocks of `BLOCK_SAMPLES`, the last one shorter.

    Args:
        spans: In order, none overlapping the next.
        total: Samples at 16 kHz to yield in all.
    """
    held = np.zeros(0, np.int16)
    left = total
    for piece in _pieces(spans, total):
        held = np.concatenate([held, piece[: left - len(held)]])
        while len(held) >= BLOCK_SAMPLES:
            yield held[:BLOCK_SAMPLES]
            held = held[BLOCK_SAMPLES:]
            left -= BLOCK_SAMPLES
    if len(held):
        yield held


def _pieces(spans: Iterable[Span], total: int) -> Iterator[Pcm]:
    """Yield sound and silence alternately, each piece a few blocks at most."""
    position = 0
    for span in spans:
        yield from _silence(span.start - position)
        yield from _fit(_played(span), span.samples)
        position = span.end
    yield from _silence(total - position)


def _silence(samples: int) -> Iterator[Pcm]:
    for start in range(0, samples, BLOCK_SAMPLES):
        yield np.zeros(min(BLOCK_SAMPLES, samples - start), np.int16)


def _fit(pieces: Iterator[Pcm], samples: int) -> Iterator[Pcm]:
    """Cut to a length, or fill up with silence when a file turned out shorter."""
    for piece in pieces:
        if samples <= 0:
            return
        yield piece[:samples]
        samples -= len(piece)
    yield from _silence(samples)


def _played(span: Span) -> Iterator[Pcm]:
    """Yield a span at 16 kHz; band-limited as one stream, so that files join without a seam."""
    if span.rate_hz == REPLAY_RATE_HZ:
        yield from _read(span)
        return
    stream = soxr.ResampleStream(span.rate_hz, REPLAY_RATE_HZ, 1, dtype="float32")
    for block in _read(span):
        yield _to_pcm(stream.resample_chunk(block.astype(np.float32) / PCM_SCALE))
    yield _to_pcm(stream.resample_chunk(np.zeros(0, np.float32), last=True))


def _to_pcm(samples: npt.NDArray[np.float32]) -> Pcm:
    scaled: npt.NDArray[np.float32] = np.rint(np.clip(samples, -1.0, 1.0) * PCM_SCALE)
    return scaled.astype(np.int16)


def _read(span: Span) -> Iterator[Pcm]:
    """Yield the samples of a span's files as they are."""
    for path in span.files:
        with path.open("rb") as file:
            file.seek(WAV_HEADER_BYTES)
            while block := file.read(BLOCK_SAMPLES * SAMPLE_BYTES):
                whole = len(block) - len(block) % SAMPLE_BYTES
                yield np.frombuffer(block[:whole], "<i2").astype(np.int16)
