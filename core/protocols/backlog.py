"""Chunks and pictures that wait for their unit: who belongs to whom, and what is too much.

Pure; bounded: beyond `max_chunks` the oldest chunk goes, beyond `max_frames` of one unit the
oldest picture. Source of the pairing rules: docs/specification/service.md#2.5.4.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from core.protocols.effects import Frame
from core.schemas.duplex import AudioChunk


@dataclass
class WaitingChunk:
    """One unit's input on its way to the engine."""

    chunk: AudioChunk
    arrived_s: float
    frames: list[Frame] = field(default_factory=list)
    has_own_frame: bool = False  # one that came with the chunk or after it
    is_judged: bool = True  # voice activity detection has heard it, or need not


class Backlog:
    """The chunks that wait, each with the pictures that will go with it."""

    def __init__(self, max_chunks: int, max_frames: int, frame_grace_s: float) -> None:
        """Begin empty.

        Args:
            max_chunks: Most chunks that wait.
            max_frames: Most pictures of one unit.
            frame_grace_s: How long a chunk waits for its picture when pictures follow chunks.
        """
        self._max_chunks = max_chunks
        self._max_frames = max_frames
        self._frame_grace_s = frame_grace_s
        self._waiting: deque[WaitingChunk] = deque()
        self._held: list[Frame] = []  # pictures that came before their chunk
        self._next_number = 0  # of a picture
        self._last: WaitingChunk | None = None  # the newest chunk, begun or not
        self._frames_follow = False  # this client sends each picture after its chunk
        self.dropped_chunks = 0
        self.dropped_frames = 0

    def __len__(self) -> int:
        """How many chunks wait."""
        return len(self._waiting)

    @property
    def loose_frames(self) -> list[Frame]:
        """The pictures that wait and were sent as messages of their own, oldest first."""
        given = (frame for entry in self._waiting for frame in entry.frames)
        return [*(frame for frame in given if frame.is_separate), *self._held]

    def add_chunk(self, chunk: AudioChunk, at_s: float, *, is_judged: bool) -> None:
        """Take in a chunk; pictures that waited for one go with it.

        Args:
            chunk: The message.
            at_s: When it arrived.
            is_judged: It need not wait for voice activity detection.
        """
        if len(self._waiting) >= self._max_chunks:
            self._waiting.popleft()
            self.dropped_chunks += 1
        inline = [self._number(data, is_separate=False) for data in chunk.frame_base64_list or []]
        entry = WaitingChunk(chunk, at_s, has_own_frame=bool(inline), is_judged=is_judged)
        self._give(entry, [*self._held, *inline])
        self._held.clear()
        self._waiting.append(entry)
        self._last = entry

    def add_frame(self, data: str, at_s: float) -> None:
        """Take in a picture: for the oldest chunk that waits, else for the next to come."""
        frame = self._number(data, is_separate=True)
        last = self._last
        if last is not None and not last.has_own_frame and not last.frames:
            # Only what comes right behind a chunk is meant for it.
            self._frames_follow |= at_s - last.arrived_s <= self._frame_grace_s
        if self._waiting:
            self._waiting[0].has_own_frame = True
            self._give(self._waiting[0], [frame])
            return
        self._held.append(frame)
        if len(self._held) > self._max_frames:
            self._held.pop(0)
            self.dropped_frames += 1

    def drop_held_frames(self) -> None:
        """Forget the pictures that wait for a chunk; they do not count as surplus."""
        self._held.clear()

    def next_unjudged(self) -> AudioChunk | None:
        """Return the oldest chunk that detection has not heard."""
        return next((entry.chunk for entry in self._waiting if not entry.is_judged), None)

    def judged(self, chunk: AudioChunk) -> None:
        """Note that detection has heard a chunk, if it still waits."""
        for entry in self._waiting:
            if entry.chunk is chunk:
                entry.is_judged = True

    def frame_wait_s(self, now_s: float) -> float:
        """Return how long the oldest chunk must still wait for its picture; 0 is not at all."""
        if not self._waiting or not self._frames_follow or self._waiting[0].has_own_frame:
            return 0.0
        return max(0.0, self._waiting[0].arrived_s + self._frame_grace_s - now_s)

    def stop_waiting_for_frames(self) -> None:
        """No picture came in time: do not wait again until one follows a chunk again."""
        self._frames_follow = False

    def take(self) -> WaitingChunk | None:
        """Hand out the oldest chunk if detection has heard it."""
        if not self._waiting or not self._waiting[0].is_judged:
            return None
        return self._waiting.popleft()

    def _number(self, data: str, *, is_separate: bool) -> Frame:
        self._next_number += 1
        return Frame(self._next_number, data, is_separate)

    def _give(self, entry: WaitingChunk, frames: list[Frame]) -> None:
        frames = [*entry.frames, *frames]
        surplus = max(0, len(frames) - self._max_frames)
        self.dropped_frames += surplus
        entry.frames = frames[surplus:]
