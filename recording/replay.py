"""Builds the merged replay of a finished recording from its folder.

Command line: `python -m recording.replay FOLDER`. The user is on the left channel, the model on
the right. Pictures are encoded when they change; one is in memory at a time.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import time
from collections.abc import Iterator
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Final

import av
import numpy as np
import numpy.typing as npt
import soxr  # type: ignore[import-untyped]  # ships no type information
from av import Packet
from av.audio import AudioStream
from av.codec.codec import UnknownCodecError
from av.container import OutputContainer
from av.stream import Stream
from av.video import VideoStream
from PIL import Image, ImageOps

from core.errors import PictureError
from core.files import atomic_write, replacing
from core.images import FRAME_LIMITS, read_picture
from recording.folder import (
    PCM16_BYTES,
    WAV_HEADER_BYTES,
    read_recording,
    wav_header,
    write_recording,
)
from recording.media import PCM_SCALE, to_pcm16
from recording.names import REPLAY_SOUND_FILE, REPLAY_SUBTITLES_FILE, REPLAY_VIDEO_FILE
from recording.records import ReplayTiming
from recording.replay_plan import (
    REPLAY_RATE_HZ,
    SAMPLES_PER_MS,
    Cue,
    ReplayPlan,
    Span,
    cues_of,
    plan_replay,
    webvtt,
)

MS: Final = Fraction(1, 1_000)
LENGTH_BYTES: Final = 2  # source: 3GPP TS 26.245, section 5.17
# The minimal header that FFmpeg's encoder of MP4 subtitles accepts, in the ASS format.
# Source: FFmpeg, libavcodec/movtextenc.c.
STYLE_HEADER: Final = b"""[Script Info]
ScriptType: v4.00+
[V4+ Styles]
Format: Name, Fontname, Fontsize
Style: Default,Sans,16
[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
# Source: docs/specification/service.md#5.5.
WIDTH_PX: Final = 1_280
HEIGHT_PX: Final = 720
TIME_LIMIT_S: Final = 120.0

NOMINAL_RATE_HZ: Final = 25  # a hint; pictures carry their own times, in ms
LAST_PICTURE_MS: Final = 1_000 // NOMINAL_RATE_HZ  # display time of the last picture
H264: Final = "libx264"
H264_OPTIONS: Final = {"preset": "veryfast", "crf": "23", "bf": "0"}
PLAIN_CODEC: Final = "mpeg4"
PLAIN_BIT_RATE: Final = 2_000_000
SOUND_BIT_RATE: Final = 96_000
SOUND_BLOCK: Final = 1_024  # samples of one AAC frame
BLACK: Final = (0, 0, 0)

Pcm = npt.NDArray[np.int16]

BLOCK_SAMPLES: Final = 16_384  # of a file, about a second
CHANNELS: Final = 2


def write_replay_sound(path: Path, plan: ReplayPlan) -> None:
    """Write the user's and the model's track; the spans of each do not overlap."""
    with path.open("wb") as file:
        size_bytes = plan.samples * CHANNELS * PCM16_BYTES
        file.write(wav_header(REPLAY_RATE_HZ, CHANNELS, size_bytes))
        file.truncate(WAV_HEADER_BYTES + size_bytes)  # silence
    sound = np.memmap(path, "<i2", "r+", WAV_HEADER_BYTES, (plan.samples, CHANNELS))  # [T, 2]
    for channel, spans in enumerate((plan.user, plan.ai)):
        for span in spans:
            start = span.start
            for piece in _played(span):
                stop = min(start + len(piece), span.end)
                sound[start:stop, channel] = piece[: stop - start]
                start = stop
    sound.flush()


def _played(span: Span) -> Iterator[Pcm]:
    """Yield a span at 16 kHz; its files are resampled as one stream, to join seamlessly."""
    if span.rate_hz == REPLAY_RATE_HZ:
        yield from _read(span)
        return
    stream = soxr.ResampleStream(span.rate_hz, REPLAY_RATE_HZ, 1, dtype="float32")
    for block in _read(span):
        yield to_pcm16(stream.resample_chunk(block.astype(np.float32) / PCM_SCALE))
    yield to_pcm16(stream.resample_chunk(np.zeros(0, np.float32), last=True))


def _read(span: Span) -> Iterator[Pcm]:
    for path in span.files:
        with path.open("rb") as file:
            file.seek(WAV_HEADER_BYTES)
            while block := file.read(BLOCK_SAMPLES * PCM16_BYTES):
                whole = len(block) - len(block) % PCM16_BYTES
                yield np.frombuffer(block[:whole], "<i2").astype(np.int16)


def best_codec() -> str:
    return H264 if H264 in av.codec.codecs_available else PLAIN_CODEC


def write_replay_video(path: Path, plan: ReplayPlan, sound: Path, cues: list[Cue]) -> None:
    """Write the video of a replay's WAV file; an error of time or encoder leaves it incomplete."""
    deadline_s = time.monotonic() + TIME_LIMIT_S
    samples = np.memmap(sound, "<i2", "r", WAV_HEADER_BYTES, (plan.samples, CHANNELS))  # [T, 2]
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as file:
        video = _video_stream(file, best_codec())
        voice = file.add_stream("aac", rate=REPLAY_RATE_HZ, layout="stereo")
        voice.bit_rate = SOUND_BIT_RATE
        if cues:
            _write_subtitles(file, cues)
        written = 0
        for at_ms, picture in _pictures(plan):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"it takes more than {TIME_LIMIT_S:g} s")
            written = _write_sound(file, voice, samples, written, at_ms * SAMPLES_PER_MS)
            frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")
            frame.pts, frame.time_base = at_ms, MS
            file.mux(video.encode(frame))
        _write_sound(file, voice, samples, written, plan.samples)
        file.mux(video.encode(None))
        file.mux(voice.encode(None))


def _write_subtitles(file: OutputContainer, cues: list[Cue]) -> None:
    """Write the last track of a file, before the others' data."""
    stream = file.add_stream("mov_text")
    stream.codec_context.subtitle_header = STYLE_HEADER
    stream.time_base = MS
    for cue in cues:
        text = cue.text.encode()
        packet: Packet[Stream] = Packet(len(text).to_bytes(LENGTH_BYTES, "big") + text)
        packet.stream, packet.time_base = stream, MS
        packet.pts = packet.dts = cue.start_ms
        packet.duration = cue.end_ms - cue.start_ms
        file.mux(packet)


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


def _write_sound(
    file: OutputContainer, stream: AudioStream, sound: Pcm, start: int, stop: int
) -> int:
    """Encode whole blocks of [T, 2] until `stop` is passed; return where the last one ends."""
    while start < min(stop, len(sound)):
        block = np.array(sound[start : start + SOUND_BLOCK], np.int16)
        frame = av.AudioFrame.from_ndarray(block.reshape(1, -1), format="s16", layout="stereo")
        frame.sample_rate, frame.pts = REPLAY_RATE_HZ, start
        file.mux(stream.encode(frame))
        start += len(block)
    return start


def _pictures(plan: ReplayPlan) -> Iterator[tuple[int, Image.Image]]:
    """Yield time, ms, and picture on screen: at the start, at each change and at the end."""
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
    try:
        picture = read_picture(path, allowed=FRAME_LIMITS)
    except PictureError:
        return None
    return ImageOps.pad(picture, (WIDTH_PX, HEIGHT_PX), color=BLACK)


logger: Final = logging.getLogger(__name__)

MAX_REPLAY_S: Final = 4 * 3_600.0  # of which the WAV file has 0.9 GB
LOW_PRIORITY: Final = 10  # added to a process's niceness


def build_replay(folder: Path, *, timing: ReplayTiming = "session") -> None:
    """Make `merged_replay.wav`, and if there are pictures `merged_replay.mp4` with subtitles.

    Memory is independent of the session's length. Files appear when complete and are then named in
    `recording.json`. A replay beyond `MAX_REPLAY_S` is not made; a video that takes too long or
    cannot be encoded is left out.
    """
    recording = read_recording(folder)
    if recording is None:
        return
    plan = plan_replay(folder, recording, timing)
    if not 0 < plan.samples <= MAX_REPLAY_S * REPLAY_RATE_HZ:
        return
    sound = folder / REPLAY_SOUND_FILE
    with replacing(sound) as unfinished:
        write_replay_sound(unfinished, plan)
    known: dict[str, str] = {"merged_replay": sound.name, "merged_replay_timing": timing}
    if plan.pictures:
        film, cues = folder / REPLAY_VIDEO_FILE, cues_of(plan)
        try:
            with replacing(film) as unfinished:
                write_replay_video(unfinished, plan, sound, cues)
            known["merged_replay_video"] = film.name
            if cues:
                atomic_write(folder / REPLAY_SUBTITLES_FILE, webvtt(cues).encode())
                known["merged_replay_subtitles"] = REPLAY_SUBTITLES_FILE
        except (TimeoutError, av.FFmpegError, UnknownCodecError) as error:
            logger.warning("no video of %s: %r", folder.name, error)
    write_recording(folder, recording.model_copy(update=known))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the merged replay of a recording.")
    parser.add_argument("folder", type=Path, help="the recording's folder")
    parser.add_argument("--timing", choices=("session", "logical"), default="session")
    arguments = parser.parse_args()
    os.nice(LOW_PRIORITY)
    build_replay(arguments.folder, timing=arguments.timing)


if __name__ == "__main__":
    main()
