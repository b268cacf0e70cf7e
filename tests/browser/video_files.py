"""Videos as a user might choose them, made when a test needs one; and what a video holds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

SOUND_RATE_HZ = 48_000
SOUND_PIECE = 960
TONE_HZ = 440
TONE_PEAK = 0.2
BALL_PX = 40
BACKGROUND = (20, 60, 120)
BALL = (250, 180, 40)
VISIBLE_LUMA = 24


def write_video(
    path: Path,
    duration_s: float,
    *,
    size: tuple[int, int] = (320, 240),
    rate_hz: int = 10,
    has_sound: bool = True,
) -> Path:
    """Write a WebM file: a square that crosses the picture, with or without a tone."""
    width, height = size
    frames = round(duration_s * rate_hz)
    with av.open(str(path), "w", format="webm") as file:
        pictures = file.add_stream("libvpx", rate=rate_hz)
        pictures.width, pictures.height, pictures.pix_fmt = width, height, "yuv420p"
        pictures.options = {"deadline": "realtime", "cpu-used": "8"}
        sound = file.add_stream("libopus", rate=SOUND_RATE_HZ, layout="mono") if has_sound else None
        for index in range(frames):
            image = np.full((height, width, 3), BACKGROUND, np.uint8)
            left = (width - BALL_PX) * index // max(1, frames - 1)
            image[height // 2 : height // 2 + BALL_PX, left : left + BALL_PX] = BALL
            picture = av.VideoFrame.from_ndarray(image, "rgb24")
            picture.pts, picture.time_base = index, Fraction(1, rate_hz)
            file.mux(pictures.encode(picture))
        file.mux(pictures.encode())
        if sound:
            times = np.arange(round(duration_s * SOUND_RATE_HZ)) / SOUND_RATE_HZ
            tone = (TONE_PEAK * np.sin(2 * np.pi * TONE_HZ * times)).astype(np.float32)
            for start in range(0, len(tone), SOUND_PIECE):
                piece = av.AudioFrame.from_ndarray(
                    tone[None, start : start + SOUND_PIECE], "flt", "mono"
                )
                piece.sample_rate, piece.pts = SOUND_RATE_HZ, start
                file.mux(sound.encode(piece))
            file.mux(sound.encode())
    return path


@dataclass(frozen=True)
class Seen:
    """What a video holds.

    Attributes:
        size: of the picture.
        frame_count: pictures in all.
        is_dark: every picture is black.
        channel_count: of the sound.
        levels: how loud each channel is, of full scale.
    """

    size: tuple[int, int]
    frame_count: int
    is_dark: bool
    channel_count: int
    levels: tuple[float, ...]


def read_video(path: Path) -> Seen:
    """Decode a whole video."""
    with av.open(str(path)) as file:
        pictures = file.streams.video[0]
        size = (pictures.codec_context.width, pictures.codec_context.height)
        frames = [frame.to_ndarray(format="gray") for frame in file.decode(pictures)]
    with av.open(str(path)) as file:
        sound = [frame.to_ndarray() for frame in file.decode(file.streams.audio[0])]
    channels = np.concatenate(sound, axis=1)
    return Seen(
        size=size,
        frame_count=len(frames),
        is_dark=all(frame.mean() < VISIBLE_LUMA for frame in frames),
        channel_count=channels.shape[0],
        levels=tuple(
            float(np.sqrt((channel.astype(np.float64) ** 2).mean())) for channel in channels
        ),
    )
