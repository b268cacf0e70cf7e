"""Units of one duplex session: waiting input, the next unit, results, the text so far. Pure.

Bounded: beyond `max_chunks` the oldest chunk is dropped, beyond `max_frames` of a unit the oldest
picture. Source of the pairing rules: docs/specification/service.md#2.5.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from core.errors import ErrorCode
from core.protocols.effects import Detect, Effect, Frame, Prefetch, Send, StartTimer, StopTimer
from core.protocols.events import MS_PER_S, StepDone, TimerName
from core.protocols.machine import LiveLimits
from core.schemas.duplex import AudioChunk, Result, ResultPart
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.queue import WarningMessage

DROPPED: Final = {
    ErrorCode.LATE_CHUNK: "The model is slower than the audio: {} chunks dropped so far.",
    ErrorCode.BAD_FRAME: "Too many pictures for one unit: {} dropped so far.",
}


@dataclass(frozen=True)
class DuplexLimits(LiveLimits):
    """Limits of a duplex session.

    Source of the defaults: docs/specification/service.md#2.5 and #4.1; the idle time-out is ours.
    """

    pause_timeout_s: float = 60.0  # longest pause
    idle_timeout_s: float = 60.0  # longest time without audio, pauses excluded; 0 is unlimited
    has_window: bool = False  # a sliding window drops old units, so that the cache never fills up
    max_backlog_chunks: int = 3  # chunks waiting for their unit; beyond it the oldest is dropped
    max_frames_per_chunk: int = 4  # pictures of a unit; beyond it the oldest is dropped
    frame_grace_s: float = 0.02  # how long a chunk waits for a picture that follows it


@dataclass
class WaitingChunk:
    """Input of one unit that waits for the engine."""

    chunk: AudioChunk
    arrived_s: float
    start_samples: int  # in the sent audio
    frames: list[Frame] = field(default_factory=list)
    has_own_frame: bool = False  # it came with the chunk or after it
    is_detected: bool = True  # voice activity detection has processed it, or is off


class PrefetchPlan:
    """Chooses the pictures to encode ahead of their unit; one `Prefetch` runs at a time.

    At most `max_new` pictures are prefetched per unit, so that a client that sends more than its
    units can use does not keep the engine busy; the unit itself encodes the others.
    """

    def __init__(self, max_new: int) -> None:
        self.is_prefetching = False
        self._max_new = self._left = max_new
        self._asked: list[Frame] = []  # neither taken by a unit nor dropped since

    def next_prefetch(self, waiting: Sequence[Frame]) -> list[Effect]:
        """Start the next prefetch if there is anything to encode or drop."""
        new = tuple(frame for frame in waiting if frame not in self._asked)[: self._left]
        gone = tuple(frame for frame in self._asked if frame not in waiting)
        if self.is_prefetching or not (new or gone):
            return []
        self._asked = [*(frame for frame in self._asked if frame in waiting), *new]
        self._left -= len(new)
        self.is_prefetching = True
        return [Prefetch(new, gone)]

    def taken(self, frames: Sequence[Frame]) -> None:
        self._asked = [frame for frame in self._asked if frame not in frames]
        self._left = self._max_new


class UnitInput:
    """Waiting chunks, each with its pictures, and the chunk in voice activity detection."""

    def __init__(self, limits: DuplexLimits) -> None:
        self.prefetch_plan = PrefetchPlan(limits.max_frames_per_chunk)
        self._limits = limits
        self._waiting: deque[WaitingChunk] = deque()
        self.held: list[Frame] = []  # pictures that arrived before their chunk
        self.received_samples = 0
        self._next_number = 0  # of a picture
        self._last: WaitingChunk | None = None  # the newest chunk, begun or not
        self._frames_follow = False  # the client sends each picture after its chunk
        self._is_waiting_for_frame = False  # the timer runs
        self._detecting: WaitingChunk | None = None
        self._dropped = dict.fromkeys(DROPPED, 0)
        self._warned: set[ErrorCode] = set()  # since the last unit began

    def add_chunk(self, chunk: AudioChunk, at_s: float, *, is_detected: bool) -> list[Effect]:
        """Add a chunk; return the warnings."""
        effects: list[Effect] = []
        if len(self._waiting) >= self._limits.max_backlog_chunks:
            self._waiting.popleft()
            effects += self._drop(ErrorCode.LATE_CHUNK, 1)
        inline = [self._number(data, is_separate=False) for data in chunk.frame_base64_list or []]
        entry = WaitingChunk(chunk, at_s, self.received_samples, is_detected=is_detected)
        entry.has_own_frame = bool(inline)
        self.received_samples += len(chunk.audio) // SAMPLE_BYTES
        effects += self._give(entry, [*self.held, *inline])
        self.held.clear()
        self._waiting.append(entry)
        self._last = entry
        return effects

    def add_frame(self, data: str, at_s: float) -> list[Effect]:
        """Add a picture; return the warnings."""
        frame = self._number(data, is_separate=True)
        last = self._last
        if last is not None and not last.has_own_frame and not last.frames:
            # Only a picture right after a chunk belongs to it.
            self._frames_follow |= at_s - last.arrived_s <= self._limits.frame_grace_s
        if self._waiting:
            self._waiting[0].has_own_frame = True
            return self._give(self._waiting[0], [frame])
        self.held.append(frame)
        if len(self.held) <= self._limits.max_frames_per_chunk:
            return []
        self.held.pop(0)
        return self._drop(ErrorCode.BAD_FRAME, 1)

    def detect_next(self) -> list[Effect]:
        if self._detecting is not None:
            return []
        self._detecting = next((entry for entry in self._waiting if not entry.is_detected), None)
        return [] if self._detecting is None else [Detect(self._detecting.chunk.audio)]

    def detected(self) -> None:
        if self._detecting is not None:
            self._detecting.is_detected = True
        self._detecting = None

    def prefetch(self) -> list[Effect]:
        """Prefetch waiting pictures that were sent as messages of their own, oldest first."""
        given = (frame for entry in self._waiting for frame in entry.frames)
        loose = [*(frame for frame in given if frame.is_separate), *self.held]
        return self.prefetch_plan.next_prefetch(loose)

    def take(self, now_s: float) -> tuple[list[Effect], WaitingChunk | None]:
        """Remove the oldest chunk if it waits neither for a picture nor for detection.

        Return the effects on the picture's timer, and the chunk if its unit may begin.
        """
        if not self._waiting:
            return [], None
        entry = self._waiting[0]
        wait_s = entry.arrived_s + self._limits.frame_grace_s - now_s
        if self._frames_follow and not entry.has_own_frame and wait_s > 0:
            self._is_waiting_for_frame = True
            return [StartTimer(TimerName.FRAME, wait_s)], None
        if not entry.is_detected:
            return [], None
        self._waiting.popleft()
        self.prefetch_plan.taken(entry.frames)
        self._warned.clear()
        effects: list[Effect] = [StopTimer(TimerName.FRAME)] if self._is_waiting_for_frame else []
        self._is_waiting_for_frame = False
        return effects, entry

    def give_up_frame(self) -> None:
        """Stop waiting for pictures until one follows a chunk again."""
        if self._is_waiting_for_frame:
            self._is_waiting_for_frame = self._frames_follow = False

    def _number(self, data: str, *, is_separate: bool) -> Frame:
        self._next_number += 1
        return Frame(self._next_number, data, is_separate)

    def _give(self, entry: WaitingChunk, frames: list[Frame]) -> list[Effect]:
        frames = [*entry.frames, *frames]
        surplus = max(0, len(frames) - self._limits.max_frames_per_chunk)
        entry.frames = frames[surplus:]
        return self._drop(ErrorCode.BAD_FRAME, surplus)

    def _drop(self, code: ErrorCode, count: int) -> list[Effect]:
        """Count what was dropped; warn at most once per unit and kind."""
        self._dropped[code] += count
        if not count or code in self._warned:
            return []
        self._warned.add(code)
        text = DROPPED[code].format(self._dropped[code])
        return [Send(WarningMessage(code=code, message=text))]


class UnitResults:
    """Writes the results of a session's units, and counts units, turns and audio."""

    def __init__(self) -> None:
        self.is_speaking = False  # the model is in the middle of a turn
        self.finalize_ms = 0.0  # not yet included in a result
        self._unit: WaitingChunk | None = None  # in the engine
        self._steps = 0
        self._turn_id = 0
        self._received_samples = 0

    def begin(self, unit: WaitingChunk) -> int:
        """Begin a unit, which ends with its `result`; return its number."""
        self._unit = unit
        return self._steps

    def part(self, audio: bytes, now_s: float) -> ResultPart:
        return ResultPart(
            audio_data=audio,
            turn_id=self._turn_id,
            step=self._steps,
            elapsed_ms=self._wall_clock_ms(now_s),
        )

    def result(self, done: StepDone, now_s: float) -> Result:
        assert self._unit is not None
        given = done.result
        self._received_samples += len(self._unit.chunk.audio) // SAMPLE_BYTES
        # A unit without enough audio does not end a turn.
        is_barge_in = done.was_fed and given.is_listen and self.is_speaking
        fields = dict(given) | {
            "text": "" if given.is_listen else given.text,
            "audio_data": b"" if given.is_listen else given.audio_data or b"",
            "current_time": self._received_samples * MS_PER_S // INPUT_SAMPLE_RATE_HZ,
            "cost_all_ms": given.cost_all_ms + self.finalize_ms,
            "wall_clock_ms": self._wall_clock_ms(now_s),
            "turn_id": self._turn_id,
            "step": self._steps,
            "barge_in": is_barge_in,
        }
        self.finalize_ms = 0.0
        self._steps += 1
        if is_barge_in or (not given.is_listen and given.end_of_turn):
            self._turn_id += 1
        if done.was_fed:
            self.is_speaking = not given.is_listen and not given.end_of_turn
        return Result.model_validate(fields)

    def _wall_clock_ms(self, now_s: float) -> float:
        assert self._unit is not None
        return max(0.0, (now_s - self._unit.arrived_s) * MS_PER_S)


# --- the conversation as text ---

HISTORY_TOKENS: Final = 1_024  # ours: of the conversation so far
ITEMS_MAX: Final = 256
ITEM_MAX_CHARS: Final = 1_000  # ours: of one speaker's consecutive text, whose end is kept
USER_SPOKE: Final = "[the user spoke]"

CountTokens = Callable[[str], int]


class Speaker(StrEnum):
    USER = "User"
    ASSISTANT = "Assistant"
    DEVELOPER = "Note"


SPEAKER_OF: Final = {
    "user": Speaker.USER,
    "assistant": Speaker.ASSISTANT,
    "developer": Speaker.DEVELOPER,
    "system": Speaker.DEVELOPER,
}
"""Speaker by message role."""


class _Said(NamedTuple):
    """Consecutive text of one speaker, or `USER_SPOKE` until there is a transcript."""

    speaker: Speaker
    text: str
    start_samples: int = 0  # of speech without a transcript, in the input


class SpokenHistory:
    """The conversation so far, as text."""

    def __init__(self, count_tokens: CountTokens) -> None:
        self.count_tokens = count_tokens
        self._items: deque[_Said] = deque(maxlen=ITEMS_MAX)

    def clear(self) -> None:
        self._items.clear()

    def add(self, speaker: Speaker, text: str) -> None:
        """Add text; consecutive text of one speaker is one item."""
        before = self._items[-1] if self._items else None
        if before is not None and before.speaker is speaker and before.text != USER_SPOKE:
            self._items.pop()
            text = before.text + text
        self._items.append(_Said(speaker, text[-ITEM_MAX_CHARS:]))

    def add_speech(self, start_samples: int) -> None:
        """Note that the user speaks; consecutive speech without a transcript is one item."""
        if not self._items or self._items[-1].text != USER_SPOKE:
            self._items.append(_Said(Speaker.USER, USER_SPOKE, start_samples))

    def set_transcript(self, text: str, end_samples: int) -> None:
        """Set the transcript of the user's newest speech without one that began before its end."""
        for index, item in reversed(list(enumerate(self._items))):
            if item.text == USER_SPOKE and item.start_samples <= end_samples:
                self._items[index] = item._replace(text=text)
                return
        self.add(Speaker.USER, f" {text}")

    def lines(self) -> list[str]:
        """Return the newest items within `HISTORY_TOKENS`, oldest first."""
        left_tokens, lines = HISTORY_TOKENS, deque[str]()
        for said in reversed(self._items):
            line = f"{said.speaker.value}: {said.text.strip()}"
            left_tokens -= self.count_tokens(line)
            if left_tokens < 0:
                break
            lines.appendleft(line)
        return list(lines)
