"""Bounded queue of audio for a peer, which tracks how much was played. Pure.

Samples are 16-bit, mono, 24 kHz. Time is counted in frames taken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

RATE_HZ: Final = 24_000
FRAME_MS: Final = 20
SAMPLE_BYTES: Final = 2
FRAME_BYTES: Final = RATE_HZ * FRAME_MS // 1_000 * SAMPLE_BYTES
MS_BYTES: Final = RATE_HZ * SAMPLE_BYTES // 1_000
FINISHED_KEPT: Final = 32  # ids of finished responses; more are never queued at once


@dataclass(frozen=True)
class Part:
    """Origin of audio; empty in a protocol without responses."""

    response_id: str = ""
    item_id: str = ""
    content_index: int = 0


@dataclass(frozen=True)
class Played:
    part: Part
    played_ms: int


@dataclass(frozen=True)
class Note:
    """The first or the last sample of a response was taken."""

    what: Literal["started", "stopped"]
    response_id: str


@dataclass(eq=False, repr=False)
class Playout:
    """Bounded queue of audio that is read frame by frame."""

    capacity_ms: int
    # Silence inserted after the queue ran empty, which absorbs the jitter of a paced source.
    lead_ms: int = 0
    drops_oldest: bool = False  # if the queue is full, instead of the newest audio
    underruns: int = 0  # times that the queue ran empty within a response
    _waiting: deque[tuple[Part, bytes]] = field(default_factory=deque)
    _waiting_bytes: int = 0
    _playing: str | None = None
    _played: dict[Part, int] = field(default_factory=dict)
    _finished: deque[str] = field(default_factory=partial(deque, maxlen=FINISHED_KEPT))
    _dropped: str | None = None

    def add(self, part: Part, pcm: bytes) -> None:
        """Append audio; audio of a cleared response is dropped."""
        if part.response_id and part.response_id == self._dropped:
            return
        capacity_bytes = self.capacity_ms * MS_BYTES
        pcm = pcm[: len(pcm) // SAMPLE_BYTES * SAMPLE_BYTES]
        if pcm and not self._waiting:
            pcm = bytes(self.lead_ms * MS_BYTES) + pcm
        if not self.drops_oldest:
            pcm = pcm[: capacity_bytes - self._waiting_bytes]
        if pcm:
            self._waiting.append((part, pcm))
            self._waiting_bytes += len(pcm)
        while self._waiting_bytes > capacity_bytes:
            self._cut(self._waiting_bytes - capacity_bytes)

    def finish(self, response_id: str) -> None:
        self._finished.append(response_id)

    def take(self) -> tuple[bytes, list[Note]]:
        """Return the next frame, padded with silence, and the responses that start and stop."""
        frame, notes = bytearray(), list[Note]()
        while self._waiting and len(frame) < FRAME_BYTES:
            part = self._waiting[0][0]
            if part.response_id != self._playing:
                notes += self._stop()
                self._playing = part.response_id
                notes.append(Note("started", part.response_id))
            taken = self._cut(FRAME_BYTES - len(frame))
            self._played[part] = self._played.get(part, 0) + len(taken)
            frame += taken
        if not self._waiting and self._playing is not None:
            if self._playing in self._finished:
                notes += self._stop()
            elif 0 < len(frame) < FRAME_BYTES:
                self.underruns += 1
        return bytes(frame.ljust(FRAME_BYTES, b"\0")), notes

    def clear(self) -> list[Played]:
        """Drop the queued audio; return how much of each dropped part was played, in order."""
        cut = dict.fromkeys(part for part, _ in self._waiting)
        played = [Played(part, self._played.get(part, 0) // MS_BYTES) for part in cut]
        if played:
            self._dropped = played[-1].part.response_id
            self._playing = None
            self._played.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        return played

    def _stop(self) -> list[Note]:
        ended, self._playing = self._playing, None
        self._played.clear()
        return [] if ended is None else [Note("stopped", ended)]

    def _cut(self, wanted_bytes: int) -> bytes:
        """Remove at most `wanted_bytes` from the first part."""
        part, pcm = self._waiting.popleft()
        if len(pcm) > wanted_bytes:
            self._waiting.appendleft((part, pcm[wanted_bytes:]))
        taken = pcm[:wanted_bytes]
        self._waiting_bytes -= len(taken)
        return taken
