"""Makes small sound and video files for tests."""

from __future__ import annotations

import io

import av
import numpy as np
import numpy.typing as npt

BLOCK_SAMPLES = 1_024


def tone(rate_hz: int, duration_s: float) -> npt.NDArray[np.float32]:
    """Return 440 Hz at a third of full scale [T]."""
    at_s = np.arange(round(rate_hz * duration_s)) / rate_hz
    return (np.sin(2 * np.pi * 440 * at_s) / 3).astype(np.float32)


def encode_sound(
    samples: npt.NDArray[np.float32], rate_hz: int, *, container: str, codec: str
) -> bytes:
    """Encode mono samples [T] with FFmpeg."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate_hz, layout="mono")
        assert isinstance(stream, av.AudioStream)
        to_codec = av.AudioResampler(format=stream.format, layout="mono", rate=rate_hz)
        for first in range(0, len(samples), BLOCK_SAMPLES):
            block = samples[None, first : first + BLOCK_SAMPLES]
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate_hz, first
            for converted in to_codec.resample(frame):
                file.mux(stream.encode(converted))
        file.mux(stream.encode(None))
    return out.getvalue()


def encode_video(
    *,
    seconds: int,
    fps: int = 10,
    sound: bool = False,
    width: int = 64,
    height: int = 48,
    pictures_from_s: int = 0,
    sound_from_s: int = 0,
) -> bytes:
    """Encode an MP4 whose brightness grows by 20 each second; its top left quarter is red."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("mpeg4", rate=fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = 2_000_000
        voice = file.add_stream("aac", rate=16_000, layout="mono") if sound else None
        for index in range(seconds * fps):
            picture = np.full((height, width, 3), index // fps * 20, np.uint8)
            picture[: height // 2, : width // 2] = (255, 0, 0)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index + pictures_from_s * fps
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if isinstance(voice, av.AudioStream):
            samples = tone(16_000, seconds)
            for first in range(0, len(samples), BLOCK_SAMPLES):
                block = samples[None, first : first + BLOCK_SAMPLES]
                heard = av.AudioFrame.from_ndarray(block, format="fltp", layout="mono")
                heard.sample_rate, heard.pts = 16_000, first + sound_from_s * 16_000
                file.mux(voice.encode(heard))
            file.mux(voice.encode(None))
    return out.getvalue()
