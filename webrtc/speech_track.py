"""The track that a peer hears: 20 ms of Opus every 20 ms, silence where there is nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import av
import numpy as np
from aiortc import MediaStreamTrack
from av.audio.codeccontext import AudioCodecContext
from av.packet import Packet

from webrtc.playout import FRAME_MS, RATE_HZ, Note, Playout

CLOCK_HZ: Final = 48_000  # of Opus in RTP, whatever the sound's rate. Source: RFC 7587, 4.1
FRAME_TICKS: Final = CLOCK_HZ * FRAME_MS // 1_000
FRAME_S: Final = FRAME_MS / 1_000
LATE_MAX_S: Final = 0.2  # later than this, time is skipped instead of made up for
BIT_RATE: Final = 40_000  # mono speech in full quality
# In-band FEC: each packet holds a coarse copy of the one before it.
OPUS_OPTIONS: Final = {"application": "voip", "fec": "1", "packet_loss": "10"}


class SpeechTrack(MediaStreamTrack):
    """Reads a playout at the pace of the clock."""

    kind = "audio"

    def __init__(self, playout: Playout, note: Callable[[Sequence[Note]], None]) -> None:
        """Begin with the first frame that is asked for.

        Args:
            playout: what is to be played.
            note: told which responses begin and end.
        """
        super().__init__()
        self._playout, self._note = playout, note
        self._encoder = _encoder()
        self._begun_s = 0.0
        self._frames = 0

    # aiortc sends packets as they are. Any: what a packet's stream is.
    async def recv(self) -> Packet[Any]:
        """Wait until the next frame is due."""
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
        packet.pts, packet.time_base = self._frames * FRAME_TICKS, Fraction(1, CLOCK_HZ)
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
