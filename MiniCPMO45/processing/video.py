"""A decoded film clip as message parts, and several frames stacked into one picture.

Decodes nothing and chooses no instants. Source: docs/specification/model.md#4.7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.pictures import Grid, Size, require_rgb, resize

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

    `times_s` rise and say when each picture was on screen; `audio` is float32 [n] mono at 16 kHz.
    Every k-th picture, k = `frames_per_piece`, opens a piece, and the up to k - 1 pictures after it
    are merged into one that follows the piece's sound.

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


SEPARATOR_PX = 6  # between stacked frames; section 4.7
SEPARATOR_COLOUR = (0, 0, 0)
LETTERBOX_COLOUR = (255, 255, 255)
SQUARE_STACK = 4  # this many frames form a 2x2 composite; section 4.7


def stack_frames(frames: Sequence[Image.Image]) -> Image.Image:
    """Merge the frames of one second into one picture, in reading order.

    Two or three frames stand in a row or a column, whichever is nearer to a square; four form
    2x2; any other number forms a row. Cells are as large as the largest frame; smaller frames are
    enlarged to fit, centred on white. Black lines of 6 pixels separate the cells.
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
