"""Pictures and audio of a video file, at the few frames per second the model uses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

import av
import numpy as np
from av.container import InputContainer
from PIL import Image

from core.audio import (
    NO_SAMPLES,
    FloatArray,
    MediaSource,
    container_duration_s,
    opened,
    opened_container,
    read_audio,
)
from core.errors import AudioEmptyError, NotAudioError, PictureError, PictureTooLargeError
from core.schemas.limits import CHAT_AUDIO_MAX_S, INPUT_SAMPLE_RATE_HZ, PICTURE_MAX_PIXELS

DEFAULT_MAX_FRAMES: Final = 64  # source: docs/specification/model.md#4.7
CANDIDATES_PER_S: Final = 10  # of which the frames of a long clip are chosen; same source
DEFAULT_MAX_SIDE_PX: Final = 1_344  # three tiles of the vision encoder's 448 pixels
THREADS: Final = 2  # ours: each buffers a few pictures, and live calls need the other cores
QUARTER_TURN_DEG: Final = 90
FULL_TURN: Final = 4  # quarter turns


@dataclass(frozen=True)
class VideoClip:
    frames: tuple[Image.Image, ...]  # RGB, upright
    times_s: tuple[float, ...]  # presentation times from the start of the video
    audio: FloatArray  # [T] float32 at 16 kHz; empty when the video has no sound
    duration_s: float


def read_video(
    source: MediaSource,
    *,
    fps: float = 1.0,
    max_frames: int = DEFAULT_MAX_FRAMES,
    max_duration_s: float = CHAT_AUDIO_MAX_S,
    max_side_px: int = DEFAULT_MAX_SIDE_PX,
) -> VideoClip:
    """Read audio and frames of a video file, `fps` per second from second 0 on.

    If that were more than `max_frames`, so many are spread evenly over the video; they are scaled
    down until no side is longer than `max_side_px`.
    Raises `PictureTooLargeError` also for a clip that is too long, `PictureError` for anything that
    is no video with pictures, `AudioError` for its audio.
    """
    with opened(source, "video", PictureError) as file, _opened_video(file) as (container, stream):
        duration_s = _duration_s(container, stream)
        if duration_s > max_duration_s:
            raise PictureTooLargeError(
                f"The video is longer than {max_duration_s:g} s: it lasts {duration_s:.0f} s."
            )
        times_s = _frame_times_s(duration_s, fps, max_frames)
        sound_s = _start_s(*container.streams.audio[:1])
        start_s = min(_start_s(stream), sound_s)
        frames = _frames_at([at_s + start_s for at_s in times_s], container, stream, max_side_px)
        if not frames:
            raise PictureError("The video holds no pictures.")
    try:
        audio = read_audio(source, max_duration_s=max_duration_s)
        late_s = min(sound_s - start_s, max_duration_s)  # its decoder leaves out the wait before it
        audio = np.pad(audio, (round(late_s * INPUT_SAMPLE_RATE_HZ), 0))
        audio = audio[: round(max_duration_s * INPUT_SAMPLE_RATE_HZ)]
    except (NotAudioError, AudioEmptyError):
        audio = NO_SAMPLES
    longest_s = max(duration_s, len(audio) / INPUT_SAMPLE_RATE_HZ)
    return VideoClip(tuple(frames), tuple(times_s[: len(frames)]), audio, longest_s)


def _frame_times_s(duration_s: float, fps: float, max_frames: int) -> list[float]:
    """Return the times of the frames, ascending; source: docs/specification/model.md#4.7."""
    wanted = max(1, math.ceil(round(duration_s * fps, 3)))
    if wanted <= max_frames:
        return [index / fps for index in range(wanted)]
    candidates = max(max_frames, int(duration_s * CANDIDATES_PER_S))
    gap = candidates / max_frames
    spacing_s = min(1 / CANDIDATES_PER_S, duration_s / candidates)
    return [int(index * gap + gap / 2) * spacing_s for index in range(max_frames)]


@contextmanager
def _opened_video(file: BinaryIO) -> Iterator[tuple[InputContainer, av.VideoStream]]:
    unreadable = PictureError("The file is not a video that can be read.")
    with opened_container(file, unreadable, PictureError("The video is damaged.")) as container:
        if not container.streams.video:
            raise PictureError("The file holds no pictures.")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise PictureError("The video's pictures are in a form that cannot be read.")
        if stream.width * stream.height > PICTURE_MAX_PIXELS:
            raise PictureTooLargeError(
                f"The video is {stream.width} x {stream.height} pixels, which is too large."
            )
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = THREADS
        yield container, stream


def _duration_s(container: InputContainer, stream: av.VideoStream) -> float:
    """Return the length of the video; without one in the header, read all packets."""
    claimed_s = container_duration_s(container)
    if claimed_s is not None and claimed_s > 0:
        return claimed_s
    last_s = 0.0
    for packet in container.demux(stream):
        if packet.pts is not None and packet.time_base is not None:
            last_s = max(last_s, float((packet.pts + (packet.duration or 0)) * packet.time_base))
    container.seek(0)
    return last_s


def _start_s(stream: av.VideoStream | av.AudioStream | None = None) -> float:
    """Return the time of a stream's beginning, infinity for none, 0 where the file has no times."""
    if stream is None:
        return math.inf
    if stream.start_time is None or stream.time_base is None:
        return 0.0
    return float(stream.start_time * stream.time_base)


def _frames_at(
    times_s: Sequence[float], container: InputContainer, stream: av.VideoStream, max_side_px: int
) -> list[Image.Image]:
    """Decode the video once, and return the frame that is shown at each time, or the first one."""
    chosen: list[Image.Image] = []
    shown: av.VideoFrame | None = None
    for frame in container.decode(stream):
        at_s = frame.time or 0.0
        while shown and len(chosen) < len(times_s) and times_s[len(chosen)] < at_s:
            chosen.append(_to_picture(shown, max_side_px))
        shown = frame
        if len(chosen) == len(times_s):
            break
    if shown is not None:
        chosen += [_to_picture(shown, max_side_px) for _ in times_s[len(chosen) :]]
    return chosen


def _to_picture(frame: av.VideoFrame, max_side_px: int) -> Image.Image:
    scale = min(1.0, max_side_px / max(frame.width, frame.height))
    width_px, height_px = round(frame.width * scale), round(frame.height * scale)
    small = frame.reformat(
        max(1, width_px), max(1, height_px), format="rgb24", interpolation="BICUBIC"
    )
    picture = Image.fromarray(small.to_ndarray())  # [H, W, 3]
    turns = round(frame.rotation / QUARTER_TURN_DEG) % FULL_TURN
    return picture.rotate(turns * QUARTER_TURN_DEG, expand=True) if turns else picture
