"""Encodes streamed speech: float32 samples on standard input, a file on standard output.

Run as `python -m core.sound_encoder FORMAT SPEED`, one process per file, by a program that loads no
codec itself. The file is written as a stream, so its header contains no length.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from types import MappingProxyType, SimpleNamespace
from typing import BinaryIO, Final, NamedTuple

import av
import av.filter
import numpy as np

from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES

READ_BYTES: Final = 64 * 1024
YIELDING: Final = 10  # niceness: conversations have priority
SLOWEST_AT_ONCE: Final = 0.5  # of one `atempo` filter


class Coding(NamedTuple):
    """Container and codec of a file (FFmpeg's names); `bit_rate` 0 is lossless."""

    container: str
    codec: str
    bit_rate: int = 0
    options: tuple[tuple[str, str], ...] = ()


CODINGS: Final = MappingProxyType(
    {
        "mp3": Coding("mp3", "libmp3lame", 64_000, (("write_xing", "0"), ("id3v2_version", "0"))),
        "opus": Coding("ogg", "libopus", 32_000, (("page_duration", "200000"),)),  # microseconds
        "aac": Coding("adts", "aac", 64_000),
        "flac": Coding("flac", "flac"),
        "pcm": Coding("s16le", "pcm_s16le"),
    }
)


def encode(source: BinaryIO, target: BinaryIO, coding: Coding, speed: float = 1.0) -> None:
    """Encode float32 little-endian samples, mono, 24 kHz, writing each packet immediately.

    `speed` 2 halves the duration at the same pitch.
    """
    options = {"flush_packets": "1", **dict(coding.options)}
    # Not seekable, so that the container is written as a stream.
    one_way = SimpleNamespace(write=target.write, flush=target.flush)
    with av.open(one_way, "w", format=coding.container, options=options) as file:
        stream = file.add_stream(coding.codec, rate=OUTPUT_SAMPLE_RATE_HZ, layout="mono")
        assert isinstance(stream, av.AudioStream)
        if coding.bit_rate:
            stream.bit_rate = coding.bit_rate
        written = 0
        for frame in _at_speed(_frames(source), speed):
            frame.sample_rate, frame.pts = OUTPUT_SAMPLE_RATE_HZ, written
            written += frame.samples
            file.mux(stream.encode(frame))
            target.flush()
        file.mux(stream.encode(None))


def _frames(source: BinaryIO) -> Iterator[av.AudioFrame]:
    held, read = b"", 0
    while block := os.read(source.fileno(), READ_BYTES):
        held += block
        samples = np.frombuffer(held[: len(held) - len(held) % SAMPLE_BYTES], dtype="<f4")
        held = held[samples.nbytes :]
        if len(samples):
            sound = samples.clip(-1.0, 1.0)[None]
            frame = av.AudioFrame.from_ndarray(sound, format="flt", layout="mono")
            frame.sample_rate, frame.pts = OUTPUT_SAMPLE_RATE_HZ, read
            read += len(samples)
            yield frame


def _at_speed(frames: Iterator[av.AudioFrame], speed: float) -> Iterator[av.AudioFrame]:
    if speed == 1:
        yield from frames
        return
    graph, factors = av.filter.Graph(), []
    while speed < SLOWEST_AT_ONCE:
        factors.append(SLOWEST_AT_ONCE)
        speed /= SLOWEST_AT_ONCE
    into = graph.add_abuffer(format="flt", sample_rate=OUTPUT_SAMPLE_RATE_HZ, layout="mono")
    filters = [graph.add("atempo", str(factor)) for factor in (*factors, speed)]
    graph.link_nodes(into, *filters, graph.add("abuffersink")).configure()
    for frame in chain(frames, [None]):
        graph.push(frame)
        with suppress(BlockingIOError, EOFError):  # it needs more input, or has ended
            while True:
                made = graph.pull()
                assert isinstance(made, av.AudioFrame)
                yield made


if __name__ == "__main__":
    os.nice(YIELDING)
    encode(sys.stdin.buffer, sys.stdout.buffer, CODINGS[sys.argv[1]], float(sys.argv[2]))
