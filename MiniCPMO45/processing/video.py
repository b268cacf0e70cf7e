"""Message parts of a decoded video clip, and composites of several frames.

Source: docs/specification/model.md#4.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from PIL import Image

from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.pictures import Grid, Size, require_rgb, resize

MIN_LAST_SAMPLES = 1600  # the last segment of audio is padded to this length


def video_parts(
    frames: Sequence[Image.Image],
    times_s: Sequence[float],
    audio: np.ndarray,
    duration_s: float,
    *,
    frames_per_piece: int = 1,
) -> list[Image.Image | np.ndarray]:
    """Interleave the frames and audio of a clip, segment by segment.

    Every k-th frame, k = `frames_per_piece`, starts a segment: that frame, the segment's audio, and
    a composite of the other frames. `times_s` are the frames' times, ascending; `audio` is float32
    [n] mono at 16 kHz. The parts are to be joined without a separator.

    Raises:
        ValueError: the lists differ in length, the times are not ascending, or k is below 1.
    """
    if len(frames) != len(times_s) or frames_per_piece < 1:
        raise ValueError(f"{len(frames)} pictures, {len(times_s)} times, k={frames_per_piece}")
    if list(times_s) != sorted(times_s) or (times_s and times_s[-1] > duration_s):
        raise ValueError("times must rise and stay within the clip")
    starts = range(0, len(frames), frames_per_piece)
    sounds = _split_audio(audio, [*(times_s[i] for i in starts), duration_s])
    parts: list[Image.Image | np.ndarray] = []
    for start, sound in zip(starts, sounds, strict=True):
        parts += [frames[start], *([sound] if len(sound) else [])]
        between = frames[start + 1 : start + frames_per_piece]
        if between:
            parts.append(stack_frames([frame.convert("RGB") for frame in between]))
    return parts


def _split_audio(audio: np.ndarray, edges_s: Sequence[float]) -> list[np.ndarray]:
    edges = [int(edge * SAMPLE_RATE_HZ) for edge in edges_s]
    segments = [audio[start:stop] for start, stop in pairwise(edges)]
    if segments and len(audio):
        missing = max(0, MIN_LAST_SAMPLES - len(segments[-1]))
        segments[-1] = np.pad(segments[-1], (0, missing))
    return segments


SEPARATOR_PX = 6  # between stacked frames; section 4.7
SEPARATOR_COLOUR = (0, 0, 0)
LETTERBOX_COLOUR = (255, 255, 255)
SQUARE_STACK = 4  # this many frames form a 2x2 composite; section 4.7


def stack_frames(frames: Sequence[Image.Image]) -> Image.Image:
    """Merge the frames of one second into a composite, in reading order.

    Two or three frames form a row or a column, whichever is nearer to a square; four form 2x2; any
    other number forms a row. Cells are as large as the largest frame; smaller frames are enlarged
    to fit, centred on white. Black lines of 6 pixels separate the cells.
    """
    if not frames:
        raise ValueError("no frames to stack")
    for frame in frames:
        require_rgb(frame)
    width = max(frame.width for frame in frames)
    height = max(frame.height for frame in frames)
    cols, rows = _stack_layout(len(frames), width, height)
    canvas = Image.new("RGB", _canvas_size(cols, rows, width, height), SEPARATOR_COLOUR)
    for index, frame in enumerate(frames):
        row, col = divmod(index, cols)
        left, top = col * (width + SEPARATOR_PX), row * (height + SEPARATOR_PX)
        canvas.paste(_letterbox(frame, width, height), (left, top))
    return canvas


def _stack_layout(count: int, width: int, height: int) -> Grid:
    if count == SQUARE_STACK:
        return 2, 2
    if count > SQUARE_STACK:
        return count, 1

    def distance_from_square(layout: Grid) -> float:
        canvas_width, canvas_height = _canvas_size(*layout, width, height)
        return abs(canvas_width / canvas_height - 1.0)

    return min(((count, 1), (1, count)), key=distance_from_square)


def _canvas_size(cols: int, rows: int, width: int, height: int) -> Size:
    return (cols * width + (cols - 1) * SEPARATOR_PX, rows * height + (rows - 1) * SEPARATOR_PX)


def _letterbox(frame: Image.Image, width: int, height: int) -> Image.Image:
    if frame.size == (width, height):
        return frame
    scale = min(width / frame.width, height / frame.height)
    fitted = (max(1, round(frame.width * scale)), max(1, round(frame.height * scale)))
    cell = Image.new("RGB", (width, height), LETTERBOX_COLOUR)
    cell.paste(resize(frame, fitted), ((width - fitted[0]) // 2, (height - fitted[1]) // 2))
    return cell
