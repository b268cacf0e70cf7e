"""Writes the merged replay: the sound, and the video with the camera's pictures and subtitles.

Left is the user, right the model. A picture is encoded only when it changes; one is held in memory
at a time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final

import av
import numpy as np
import numpy.typing as npt
import soxr  # type: ignore[import-untyped]  # ships no type information
from av.audio import AudioStream
from av.container import OutputContainer
from av.video import VideoStream
from PIL import Image, ImageOps

from core.errors import PictureError
from core.images import FRAME_LIMITS, read_picture
from recording.files import SAMPLE_BYTES, WAV_HEADER_BYTES, wav_header
from recording.media import PCM_SCALE
from recording.replay_plan import REPLAY_RATE_HZ, SAMPLES_PER_MS, ReplayPlan, Span
from recording.subtitles import MS, Cue, add_track

# Source: docs/specification/service.md#5.5.
WIDTH_PX: Final = 1_280
HEIGHT_PX: Final = 720
TIME_LIMIT_S: Final = 120.0

NOMINAL_RATE_HZ: Final = 25  # only a hint; pictures carry their own times, in ms
LAST_PICTURE_MS: Final = 1_000 // NOMINAL_RATE_HZ  # how long a player shows the last one
H264: Final = "libx264"
H264_OPTIONS: Final = {"preset": "veryfast", "crf": "23", "bf": "0"}
PLAIN_CODEC: Final = "mpeg4"
PLAIN_BIT_RATE: Final = 2_000_000
SOUND_BIT_RATE: Final = 96_000
SOUND_BLOCK: Final = 1_024  # samples of one AAC frame
BLACK: Final = (0, 0, 0)

Pcm = npt.NDArray[np.int16]

BLOCK_SAMPLES: Final = 16_384  # about a second; what is held in memory at a time
CHANNELS: Final = 2


def write_replay_sound(path: Path, plan: ReplayPlan) -> None:
    """Write the WAV file of a replay, in place of an earlier one."""
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
    for path in span.files:
        with path.open("rb") as file:
            file.seek(WAV_HEADER_BYTES)
            while block := file.read(BLOCK_SAMPLES * SAMPLE_BYTES):
                whole = len(block) - len(block) % SAMPLE_BYTES
                yield np.frombuffer(block[:whole], "<i2").astype(np.int16)


class ReplayTooSlowError(Exception):
    """Making the video took longer than allowed."""


@dataclass(frozen=True)
class VideoOptions:
    """`codec` is FFmpeg's name, the best available by default; tests set the others."""

    codec: str | None = None  # FFmpeg's name; the best there is by default
    limit_s: float = TIME_LIMIT_S
    monotonic_s: Callable[[], float] = time.monotonic


def best_codec() -> str:
    """Return H.264 if this build of FFmpeg can write it, MPEG-4 otherwise."""
    return H264 if H264 in av.codec.codecs_available else PLAIN_CODEC


def write_replay_video(
    path: Path,
    plan: ReplayPlan,
    sound: Path,
    cues: list[Cue],
    options: VideoOptions | None = None,
) -> None:
    """Write the whole video.

    Args:
        path: Where; overwritten.
        plan: What is seen when.
        sound: The replay's WAV file, which gives the length.
        cues: Its subtitles.
        options: How; sensible ones by default.

    Raises:
        ReplayTooSlowError: It took longer than allowed; the file is not complete.
        OSError: A file cannot be read, or the disk is full.
        av.FFmpegError: The encoder failed.
        av.codec.codec.UnknownCodecError: There is no such encoder.
    """
    chosen = options or VideoOptions()
    deadline_s = chosen.monotonic_s() + chosen.limit_s
    with (
        sound.open("rb") as source,
        av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as file,
    ):
        video = _video_stream(file, chosen.codec or best_codec())
        voice = file.add_stream("aac", rate=REPLAY_RATE_HZ, layout="stereo")
        voice.bit_rate = SOUND_BIT_RATE
        words = add_track(file, cues) if cues else ()
        for packet in words:
            file.mux(packet)
        sounds = _Sounds(file, voice, source)
        for at_ms, picture in _pictures(plan):
            if chosen.monotonic_s() > deadline_s:
                raise ReplayTooSlowError
            sounds.write_until(at_ms * SAMPLES_PER_MS)
            frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")
            frame.pts, frame.time_base = at_ms, MS
            file.mux(video.encode(frame))
        sounds.write_until(plan.samples)
        file.mux(video.encode(None))
        file.mux(voice.encode(None))


def _video_stream(file: OutputContainer, codec: str) -> VideoStream:
    stream = file.add_stream(codec, rate=NOMINAL_RATE_HZ)
    assert isinstance(stream, VideoStream)
    stream.width, stream.height, stream.pix_fmt = WIDTH_PX, HEIGHT_PX, "yuv420p"
    stream.time_base = stream.codec_context.time_base = MS
    if codec == H264:
        stream.options = dict(H264_OPTIONS)
    else:
        stream.bit_rate = PLAIN_BIT_RATE
    return stream


class _Sounds:
    """Feeds the replay's WAV file to the encoder, as far as the pictures have come."""

    def __init__(self, file: OutputContainer, stream: AudioStream, source: BinaryIO) -> None:
        self._file = file
        self._stream = stream
        self._source = source
        self._position = 0
        source.seek(WAV_HEADER_BYTES)

    def write_until(self, position: int) -> None:
        """Encode up to a sample or a little further, in whole blocks."""
        while self._position < position:
            raw = self._source.read(SOUND_BLOCK * CHANNELS * SAMPLE_BYTES)
            block = np.frombuffer(raw, "<i2").astype(np.int16)
            if block.size == 0:
                return
            frame = av.AudioFrame.from_ndarray(block[None], format="s16", layout="stereo")
            frame.sample_rate, frame.pts = REPLAY_RATE_HZ, self._position
            self._file.mux(self._stream.encode(frame))
            self._position += block.size // CHANNELS


def _pictures(plan: ReplayPlan) -> Iterator[tuple[int, Image.Image]]:
    """Yield what is on screen at the start, at each change and at the end, with the time in ms."""
    picture = Image.new("RGB", (WIDTH_PX, HEIGHT_PX), BLACK)
    last_ms = max(1, plan.samples // SAMPLES_PER_MS - LAST_PICTURE_MS)
    changes: list[tuple[int, Path | None]] = [(0, None)]
    changes += [(min(at // SAMPLES_PER_MS, last_ms), path) for at, path in plan.pictures]
    changes.append((last_ms, None))
    for at_ms, together in itertools.groupby(changes, key=itemgetter(0)):
        for _, path in together:
            picture = (_letterboxed(path) if path else None) or picture
        yield at_ms, picture


def _letterboxed(path: Path) -> Image.Image | None:
    """Fit a picture into the frame; None if it cannot be opened."""
    try:
        picture = read_picture(path, allowed=FRAME_LIMITS)
    except PictureError:
        return None
    return ImageOps.pad(picture, (WIDTH_PX, HEIGHT_PX), color=BLACK)
