"""The input side of one duplex unit: a second of audio and its pictures as prompt pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import SliceConfig, StreamTiming
from MiniCPMO45.engine.session import HearingState
from MiniCPMO45.engine.steps import Embeddings, EncodeImages, EncodeStream, Steps, TokenIds
from MiniCPMO45.processing.pictures import Slice, slice_image
from MiniCPMO45.processing.streaming_mel import push
from MiniCPMO45.processing.tokenizer import SpecialTokens


class Stopwatch:
    """Adds up seconds per stage; each lap runs from the previous lap's end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self._stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under `stage`."""
        now = self._clock()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def seconds(self, stage: str) -> float:
        """Seconds booked under `stage`, 0 if it never ran."""
        return self._stages.get(stage, 0.0)

    def total(self) -> float:
        """Seconds since the stopwatch was made."""
        return self._clock() - self._start


Pieces = list[TokenIds | Embeddings]


@dataclass(frozen=True, eq=False)
class SlicedPicture:
    """A picture cut into slices beforehand, where no other conversation waits for it.

    Attributes:
        slices: the whole picture first, then its parts.
    """

    slices: tuple[Slice, ...]


@dataclass(frozen=True, eq=False)
class SeenPicture:
    """A picture encoded ahead of its unit.

    Attributes:
        rows: [num_queries, hidden] of each slice: the whole picture first, then its parts.
        max_slices: limit that it was sliced by.
    """

    rows: tuple[Tensor, ...]
    max_slices: int


PreparedFrame = SlicedPicture | SeenPicture
"""A picture of which at least the slices are made."""

Frame = Image.Image | PreparedFrame
"""An RGB picture, prepared or not."""


def slice_pictures(
    frames: Sequence[Frame], max_slice_nums: int | Sequence[int], config: SliceConfig
) -> list[PreparedFrame]:
    """Cut pictures into slices; those that are prepared already stay as they are.

    Args:
        frames: pictures, oldest first.
        max_slice_nums: one limit for all, or one per frame.
        config: slicing parameters.

    Raises:
        ValueError: a list of limits whose length differs from the frames'.
    """
    limits = [max_slice_nums] * len(frames) if isinstance(max_slice_nums, int) else max_slice_nums
    if len(limits) != len(frames):
        raise ValueError(f"max_slice_nums has {len(limits)} entries for {len(frames)} frames")
    return [
        _sliced(frame, limit, config) if isinstance(frame, Image.Image) else frame
        for frame, limit in zip(frames, limits, strict=True)
    ]


def _sliced(frame: Image.Image, limit: int, config: SliceConfig) -> SlicedPicture:
    return SlicedPicture(slice_image(frame, limit, config).slices)


def split_unit_audio(
    hearing: HearingState, audio: np.ndarray, timing: StreamTiming
) -> tuple[Tensor | None, Tensor]:
    """Join waiting and new samples and cut off one unit's worth; `hearing` is left alone.

    The first unit is led by zeros up to 16 560 samples, of which 16 480 are consumed; later
    units consume 16 000.

    Args:
        hearing: the conversation's input state.
        audio: float32 [n] at 16 kHz.
        timing: the stream's clock.

    Returns:
        One unit's samples float32 [16480 or 16000], None while too little has arrived; and the
        samples that wait for the next call.
    """
    held = torch.cat((hearing.pending, torch.from_numpy(np.array(audio, np.float32))))
    need = timing.unit_samples
    if hearing.audio_units == 0:
        need = timing.first_unit_samples
        lead = max(0, timing.first_pad_samples - len(held))
        held = torch.cat((torch.zeros(lead), held))
    if len(held) < need:
        return None, held
    return held[:need], held[need:].clone()


def get_audio_embedding(
    hearing: HearingState, samples: Tensor, timing: StreamTiming, watch: Stopwatch
) -> Steps[Tensor]:
    """Encode one unit's samples against the stream so far.

    Args:
        hearing: the conversation's input state, advanced by one audio unit.
        samples: one unit's worth, from `split_unit_audio`.
        timing: the stream's clock.
        watch: books "audio_process" and "audio_embed".

    Returns:
        [10, hidden] embeddings.
    """
    context = timing.redundancy_frames
    prefix = 0 if hearing.audio_units == 0 else context
    mel = push(hearing.mel, samples)
    hearing.audio_units += 1
    watch.lap("audio_process")
    rows = yield EncodeStream(mel, hearing.cache, prefix, context)
    watch.lap("audio_embed")
    return rows


def see_picture(picture: SlicedPicture, max_slices: int) -> Steps[SeenPicture]:
    """Encode a picture ahead of its unit; touches no conversation.

    Args:
        picture: cut into slices.
        max_slices: limit that it was cut by.
    """
    rows = yield EncodeImages(picture.slices)
    return SeenPicture(tuple(rows), max_slices)


def picture_pieces(
    frames: Sequence[Frame],
    max_slice_nums: int | Sequence[int],
    config: SliceConfig,
    tokens: SpecialTokens,
    watch: Stopwatch,
) -> Steps[tuple[Pieces, int]]:
    """Encode pictures, unless that was done ahead, and lay them out between their marks.

    Args:
        frames: pictures, oldest first.
        max_slice_nums: one limit for all, or one per frame.
        config: slicing parameters.
        tokens: control ids.
        watch: books "vision_process" and "vision_embed".

    Returns:
        The prompt pieces, and the number of slices.

    Raises:
        ValueError: a list of limits whose length differs from the frames'.
    """
    pictures = slice_pictures(frames, max_slice_nums, config)
    watch.lap("vision_process")
    unseen = [each for each in pictures if isinstance(each, SlicedPicture)]
    slices = tuple(each for picture in unseen for each in picture.slices)
    encoded = iter((yield EncodeImages(slices)) if slices else ())
    watch.lap("vision_embed")
    pieces: Pieces = []
    count = 0
    for picture in pictures:
        if isinstance(picture, SeenPicture):
            rows = picture.rows
        else:
            rows = tuple(islice(encoded, len(picture.slices)))
        pieces += _between_marks(rows, tokens)
        count += len(rows)
    return pieces, count


def _between_marks(rows: Sequence[Tensor], tokens: SpecialTokens) -> Pieces:
    """Lay out one picture's slices, the whole picture first."""
    pieces: Pieces = []
    for index, each in enumerate(rows):
        is_source = index == 0
        opening = tokens.image_start if is_source else tokens.slice_start
        closing = tokens.image_end if is_source else tokens.slice_end
        pieces += [TokenIds((opening,)), Embeddings(each), TokenIds((closing,))]
    return pieces
