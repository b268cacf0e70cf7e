"""Audio of a peer: received frames to 24 kHz mono, and speech to Opus packets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import av
import numpy as np
import soxr  # type: ignore[import-untyped]  # ships no type information
from aiortc import MediaStreamTrack
from av import AudioFrame
from av.audio.codeccontext import AudioCodecContext
from av.packet import Packet

from webrtc.playout import FRAME_MS, RATE_HZ, Note, Playout

OPUS_HZ: Final = 48_000  # RTP clock rate of Opus at any sample rate. Source: RFC 7587, section 4.1
GAP_MAX_SAMPLES: Final = OPUS_HZ  # longest gap that is filled with silence; a longer one is a pause
# Source: docs of soxr; a short filter, which adds less delay.
QUALITY: Final = "MQ"
FRAME_TICKS: Final = OPUS_HZ * FRAME_MS // 1_000
FRAME_S: Final = FRAME_MS / 1_000
LATE_MAX_S: Final = 0.2  # beyond this delay, time is skipped instead of caught up
BIT_RATE: Final = 40_000  # mono speech in full quality
# In-band FEC: each packet contains a low-bitrate copy of the previous one.
OPUS_OPTIONS: Final = {"application": "voip", "fec": "1", "packet_loss": "10"}


class Microphone:
    """Converts decoded frames to samples, with silence for lost packets."""

    def __init__(self) -> None:
        self._resampler = soxr.ResampleStream(OPUS_HZ, RATE_HZ, 1, dtype="int16", quality=QUALITY)
        self._next_pts: int | None = None

    def samples_of(self, frame: AudioFrame) -> bytes:
        """Return the frame's samples, after silence for a gap, as 16-bit mono at 24 kHz."""
        channels = len(frame.layout.channels)
        samples = frame.to_ndarray().reshape(-1, channels).mean(axis=1).astype(np.int16)
        pts = frame.pts or 0
        gap = 0 if self._next_pts is None else pts - self._next_pts
        self._next_pts = pts + len(samples)
        if 0 < gap <= GAP_MAX_SAMPLES:
            samples = np.concatenate([np.zeros(gap, np.int16), samples])
        made: bytes = self._resampler.resample_chunk(samples).astype("<i2").tobytes()
        return made


class SpeechTrack(MediaStreamTrack):
    """Reads a playout in real time, and reports which responses start and stop."""

    kind = "audio"

    def __init__(self, playout: Playout, note: Callable[[Sequence[Note]], None]) -> None:
        super().__init__()
        self._playout, self._note = playout, note
        self._encoder = _encoder()
        self._begun_s = 0.0
        self._frames = 0

    # aiortc sends packets unchanged. Any: type of a packet's stream.
    async def recv(self) -> Packet[Any]:
        now_s = asyncio.get_running_loop().time()
        if not self._frames:
            self._begun_s = now_s
        due_s = self._begun_s + self._frames * FRAME_S
        if now_s - due_s > LATE_MAX_S:
            self._frames += int((now_s - due_s) / FRAME_S)
        elif due_s > now_s:
            await asyncio.sleep(due_s - now_s)
        pcm, notes = self._playout.take()
        if notes:
            self._note(notes)
        packet = self._encoded(pcm)
        packet.pts, packet.time_base = self._frames * FRAME_TICKS, Fraction(1, OPUS_HZ)
        self._frames += 1
        return packet

    def _encoded(self, pcm: bytes) -> Packet[Any]:
        samples = np.frombuffer(pcm, "<i2").reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = RATE_HZ
        (packet,) = self._encoder.encode(frame)
        return packet


def _encoder() -> AudioCodecContext:
    encoder = av.CodecContext.create("libopus", "w")
    assert isinstance(encoder, AudioCodecContext)
    encoder.sample_rate, encoder.layout, encoder.format = RATE_HZ, "mono", "s16"
    encoder.bit_rate, encoder.options = BIT_RATE, dict(OPUS_OPTIONS)
    return encoder
