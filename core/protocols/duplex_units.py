"""Units of one duplex session: waiting input, the next unit, results. Pure.

Bounded: beyond `max_chunks` the oldest chunk is dropped, beyond `max_frames` of a unit the oldest
picture. Source of the pairing rules: docs/specification/service.md#2.5.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from core.errors import ErrorCode
from core.protocols.effects import (
    Detect,
    Effect,
    Frame,
    Prefetch,
    Send,
    StartTimer,
    Step,
    StopTimer,
)
from core.protocols.events import MS_PER_S, StepDone, TimerName
from core.protocols.machine import LiveLimits
from core.schemas.duplex import AudioChunk, Result, ResultPart
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.queue import WarningMessage

DROPPED: Final = (
    (ErrorCode.LATE_CHUNK, "The model is slower than the audio: {} chunks dropped so far."),
    (ErrorCode.BAD_FRAME, "Too many pictures for one unit: {} dropped so far."),
)


@dataclass
class WaitingChunk:
    """Input of one unit that waits for the engine."""

    chunk: AudioChunk
    arrived_s: float
    frames: list[Frame] = field(default_factory=list)
    has_own_frame: bool = False  # it came with the chunk or after it
    is_detected: bool = True  # voice activity detection has processed it, or is off


class Backlog:
    """Waiting chunks, each with its pictures."""

    def __init__(self, max_chunks: int, max_frames: int, frame_grace_s: float) -> None:
        self._max_chunks = max_chunks
        self._max_frames = max_frames
        self._frame_grace_s = frame_grace_s
        self._waiting: deque[WaitingChunk] = deque()
        self._held: list[Frame] = []  # pictures that arrived before their chunk
        self._next_number = 0  # of a picture
        self._last: WaitingChunk | None = None  # the newest chunk, begun or not
        self._frames_follow = False  # the client sends each picture after its chunk
        self.dropped = dict.fromkeys((code for code, _ in DROPPED), 0)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def loose_frames(self) -> list[Frame]:
        """Waiting pictures that were sent as messages of their own, oldest first."""
        given = (frame for entry in self._waiting for frame in entry.frames)
        return [*(frame for frame in given if frame.is_separate), *self._held]

    def add_chunk(self, chunk: AudioChunk, at_s: float, *, is_detected: bool) -> None:
        if len(self._waiting) >= self._max_chunks:
            self._waiting.popleft()
            self.dropped[ErrorCode.LATE_CHUNK] += 1
        inline = [self._number(data, is_separate=False) for data in chunk.frame_base64_list or []]
        entry = WaitingChunk(chunk, at_s, has_own_frame=bool(inline), is_detected=is_detected)
        self._give(entry, [*self._held, *inline])
        self._held.clear()
        self._waiting.append(entry)
        self._last = entry

    def add_frame(self, data: str, at_s: float) -> None:
        frame = self._number(data, is_separate=True)
        last = self._last
        if last is not None and not last.has_own_frame and not last.frames:
            # Only a picture right after a chunk belongs to it.
            self._frames_follow |= at_s - last.arrived_s <= self._frame_grace_s
        if self._waiting:
            self._waiting[0].has_own_frame = True
            self._give(self._waiting[0], [frame])
            return
        self._held.append(frame)
        if len(self._held) > self._max_frames:
            self._held.pop(0)
            self.dropped[ErrorCode.BAD_FRAME] += 1

    def drop_held_frames(self) -> None:
        self._held.clear()

    def next_undetected(self) -> AudioChunk | None:
        return next((entry.chunk for entry in self._waiting if not entry.is_detected), None)

    def detected(self, chunk: AudioChunk) -> None:
        for entry in self._waiting:
            if entry.chunk is chunk:
                entry.is_detected = True

    def frame_wait_s(self, now_s: float) -> float:
        """Return how long the oldest chunk still waits for its picture; 0 if it does not."""
        if not self._waiting or not self._frames_follow or self._waiting[0].has_own_frame:
            return 0.0
        return max(0.0, self._waiting[0].arrived_s + self._frame_grace_s - now_s)

    def stop_waiting_for_frames(self) -> None:
        """Stop waiting until a picture follows a chunk again."""
        self._frames_follow = False

    def take(self) -> WaitingChunk | None:
        """Remove and return the oldest chunk if detection has processed it."""
        if not self._waiting or not self._waiting[0].is_detected:
            return None
        return self._waiting.popleft()

    def _number(self, data: str, *, is_separate: bool) -> Frame:
        self._next_number += 1
        return Frame(self._next_number, data, is_separate)

    def _give(self, entry: WaitingChunk, frames: list[Frame]) -> None:
        frames = [*entry.frames, *frames]
        surplus = max(0, len(frames) - self._max_frames)
        self.dropped[ErrorCode.BAD_FRAME] += surplus
        entry.frames = frames[surplus:]


class PrefetchPlan:
    """Chooses the pictures to encode ahead of their unit; one `Prefetch` runs at a time.

    At most `max_new` pictures are prefetched per unit, so that a client that sends more than its
    units can use does not keep the engine busy; the unit itself encodes the others.
    """

    def __init__(self, max_new: int) -> None:
        self.is_prefetching = False
        self._max_new = self._left = max_new
        self._asked: tuple[Frame, ...] = ()  # neither taken by a unit nor dropped since

    def next_prefetch(self, waiting: Iterable[Frame]) -> Prefetch | None:
        """Start the next prefetch if there is anything to encode or drop."""
        if self.is_prefetching:
            return None
        now = tuple(waiting)
        new, gone = _without(now, self._asked), _without(self._asked, now)
        prefetch = Prefetch(new[: self._left], gone)
        if not prefetch.frames and not prefetch.dropped:
            return None
        self._asked = (*_without(self._asked, gone), *prefetch.frames)
        self._left -= len(prefetch.frames)
        self.is_prefetching = True
        return prefetch

    def taken(self, frames: Iterable[Frame]) -> None:
        self._asked = _without(self._asked, frames)
        self._left = self._max_new


def _without(frames: Iterable[Frame], others: Iterable[Frame]) -> tuple[Frame, ...]:
    excluded = frozenset(others)
    return tuple(frame for frame in frames if frame not in excluded)


class ResultWriter:
    """Writes the results of a session and counts its units, turns and audio."""

    def __init__(self) -> None:
        self.is_speaking = False  # the model is in the middle of a turn
        self._steps = 0
        self._turn_id = 0
        self._received_samples = 0

    def write_part(self, audio: bytes, elapsed_ms: float) -> ResultPart:
        return ResultPart(
            audio_data=audio,
            turn_id=self._turn_id,
            step=self._steps,
            elapsed_ms=max(0.0, elapsed_ms),
        )

    def write(
        self, done: StepDone, chunk: AudioChunk, wall_clock_ms: float, finalize_ms: float = 0.0
    ) -> Result:
        """Return the result of a unit; call once for each, in order.

        Args:
            done: Outcome of the unit.
            chunk: Its audio.
            wall_clock_ms: Time from the chunk's arrival to now.
            finalize_ms: Time of `Finalize` since the last result.
        """
        given = done.result
        self._received_samples += len(chunk.audio) // SAMPLE_BYTES
        # A unit without enough audio does not end a turn.
        is_barge_in = done.was_fed and given.is_listen and self.is_speaking
        fields = dict(given) | {
            "text": "" if given.is_listen else given.text,
            "audio_data": b"" if given.is_listen else given.audio_data or b"",
            "current_time": self._received_samples * MS_PER_S // INPUT_SAMPLE_RATE_HZ,
            "cost_all_ms": given.cost_all_ms + finalize_ms,
            "wall_clock_ms": max(0.0, wall_clock_ms),
            "prefill_ms": done.prefill_ms,
            "kv_cache_length": done.kv_tokens,
            "vision_slices": done.vision_slices,
            "vision_tokens": done.vision_tokens,
            "turn_id": self._turn_id,
            "step": self._steps,
            "barge_in": is_barge_in,
        }
        self._steps += 1
        if is_barge_in or (not given.is_listen and given.end_of_turn):
            self._turn_id += 1
        if done.was_fed:
            self.is_speaking = not given.is_listen and not given.end_of_turn
        return Result.model_validate(fields)


@dataclass(frozen=True)
class DuplexLimits(LiveLimits):
    """Limits of a duplex session.

    Source of the defaults: docs/specification/service.md#2.5 and #4.1.

    Attributes:
        pause_timeout_s: longest pause.
        max_session_s: longest session; 0 is unlimited.
        prepare_timeout_s: longest time without `prepare`. Ours.
        idle_timeout_s: longest time without audio, pauses excluded; 0 is unlimited. Ours.
        stop_grace_s: how long `stop` waits for a running step. Ours.
        max_kv_tokens: tokens at which the session ends, unless `has_window`.
        kv_reserve_tokens: remaining tokens at which the client is warned. Ours.
        has_window: a sliding window drops old units, so that the cache never fills up.
        max_backlog_chunks: chunks waiting for their unit; beyond it the oldest is dropped.
        max_frames_per_chunk: pictures of a unit; beyond it the oldest is dropped.
        frame_grace_s: how long a chunk waits for a picture that follows it.
    """

    pause_timeout_s: float = 60.0
    idle_timeout_s: float = 60.0
    has_window: bool = False
    max_backlog_chunks: int = 3
    max_frames_per_chunk: int = 4
    frame_grace_s: float = 0.02


class DuplexUnits:
    """Waiting input, the current unit, and the results of one session."""

    def __init__(self, limits: DuplexLimits) -> None:
        self._backlog = Backlog(
            limits.max_backlog_chunks, limits.max_frames_per_chunk, limits.frame_grace_s
        )
        self._prefetch_plan = PrefetchPlan(limits.max_frames_per_chunk)
        self._writer = ResultWriter()
        self._finalize_ms = 0.0  # not yet included in a result
        self._current: WaitingChunk | None = None  # the unit in the engine
        self._next_index = 0
        self._detecting: AudioChunk | None = None  # in voice activity detection
        self._is_waiting_for_frame = False
        self._seen_drops = self._backlog.dropped.copy()
        self._warned: set[ErrorCode] = set()

    @property
    def is_speaking(self) -> bool:
        return self._writer.is_speaking

    @property
    def is_prefetching(self) -> bool:
        return self._prefetch_plan.is_prefetching

    def add_chunk(self, chunk: AudioChunk, at_s: float, *, is_detected: bool) -> list[Effect]:
        self._backlog.add_chunk(chunk, at_s, is_detected=is_detected)
        return self._warn_of_drops()

    def add_frame(self, data: str, at_s: float) -> list[Effect]:
        self._backlog.add_frame(data, at_s)
        return self._warn_of_drops()

    def drop_held_frames(self) -> None:
        self._backlog.drop_held_frames()

    def detect_next(self) -> list[Effect]:
        if self._detecting is not None:
            return []
        self._detecting = self._backlog.next_undetected()
        return [] if self._detecting is None else [Detect(self._detecting.audio)]

    def detected(self) -> None:
        if self._detecting is not None:
            self._backlog.detected(self._detecting)
        self._detecting = None

    def prefetch(self) -> list[Effect]:
        """Prefetch waiting pictures within the budget, unless a prefetch is running."""
        effect = self._prefetch_plan.next_prefetch(self._backlog.loose_frames)
        return [] if effect is None else [effect]

    def prefetched(self) -> None:
        self._prefetch_plan.is_prefetching = False

    def begin_next(self, now_s: float) -> tuple[list[Effect], Step | None]:
        """Begin the next unit if its input is complete.

        Returns:
            Effects on the picture's timer, and the unit if it may begin.
        """
        if (wait_s := self._backlog.frame_wait_s(now_s)) > 0:
            self._is_waiting_for_frame = True
            return [StartTimer(TimerName.FRAME, wait_s)], None
        entry = self._backlog.take()
        if entry is None:
            return [], None
        self._current = entry
        self._prefetch_plan.taken(entry.frames)
        due_s = entry.arrived_s + len(entry.chunk.audio) / SAMPLE_BYTES / INPUT_SAMPLE_RATE_HZ
        step = Step(entry.chunk, tuple(entry.frames), self._next_index, due_s)
        self._next_index += 1
        self._warned.clear()
        effects: list[Effect] = [StopTimer(TimerName.FRAME)] if self._is_waiting_for_frame else []
        self._is_waiting_for_frame = False
        return effects, step

    def give_up_frame(self) -> None:
        if self._is_waiting_for_frame:
            self._is_waiting_for_frame = False
            self._backlog.stop_waiting_for_frames()

    def part(self, audio: bytes, now_s: float) -> ResultPart:
        return self._writer.write_part(audio, self._wall_clock_ms(now_s))

    def finalized(self, finalize_ms: float) -> None:
        self._finalize_ms += finalize_ms

    def result(self, done: StepDone, now_s: float) -> Result:
        """Return the result of the current unit; call once for each."""
        assert self._current is not None
        wall_clock_ms = self._wall_clock_ms(now_s)
        finalize_ms, self._finalize_ms = self._finalize_ms, 0.0
        return self._writer.write(done, self._current.chunk, wall_clock_ms, finalize_ms)

    def _wall_clock_ms(self, now_s: float) -> float:
        assert self._current is not None
        return (now_s - self._current.arrived_s) * MS_PER_S

    def _warn_of_drops(self) -> list[Effect]:
        """Warn with the counts so far, at most once per unit and kind."""
        dropped, before = self._backlog.dropped, self._seen_drops
        if dropped == before:
            return []
        self._seen_drops = dropped.copy()
        more = {code for code, count in dropped.items() if count > before[code]} - self._warned
        self._warned |= more
        texts = ((code, text.format(dropped[code])) for code, text in DROPPED if code in more)
        return [Send(WarningMessage(code=code, message=text)) for code, text in texts]
