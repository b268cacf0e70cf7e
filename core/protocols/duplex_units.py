"""The units of a duplex session: what goes into the next one and what came of the last. Pure.

It knows if the input of a unit is complete; the machine, if the session lets it begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ErrorCode
from core.protocols.backlog import Backlog, WaitingChunk
from core.protocols.effects import Detect, Effect, Send, StartTimer, Step, StopTimer
from core.protocols.events import MS_PER_S, StepDone, TimerName
from core.protocols.lookout import Lookout
from core.protocols.unit_results import ResultWriter, audio_samples
from core.schemas.duplex import AudioChunk, Result, ResultPart
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.queue import WarningMessage


@dataclass(frozen=True)
class DuplexLimits:
    """What a duplex session may take.

    Source of the defaults: docs/specification/service.md#2.5 and #4.1.

    Attributes:
        pause_timeout_s: longest pause.
        max_session_s: longest session; 0 is without end.
        prepare_timeout_s: longest time without `prepare`. Ours.
        idle_timeout_s: longest time without audio, pauses apart; 0 is without end. Ours.
        stop_grace_s: how long `stop` waits for a running step. Ours.
        max_kv_tokens: tokens at which the session ends, unless `has_window`.
        kv_reserve_tokens: the client is warned when no more than this is left. Ours.
        has_window: old units leave the cache, so that it never fills up.
        max_backlog_chunks: most chunks that wait for their unit; the oldest goes.
        max_frames_per_chunk: most pictures of a unit; the oldest goes.
        frame_grace_s: how long a chunk waits for a picture that follows it.
    """

    pause_timeout_s: float = 60.0
    max_session_s: float = 0.0
    prepare_timeout_s: float = 60.0
    idle_timeout_s: float = 60.0
    stop_grace_s: float = 5.0
    max_kv_tokens: int = 8_192
    kv_reserve_tokens: int = 512
    has_window: bool = False
    max_backlog_chunks: int = 3
    max_frames_per_chunk: int = 4
    frame_grace_s: float = 0.02


class DuplexUnits:
    """Input that waits, the unit the engine works on, and the results so far."""

    def __init__(self, limits: DuplexLimits) -> None:
        """Begin without input."""
        self._backlog = Backlog(
            limits.max_backlog_chunks, limits.max_frames_per_chunk, limits.frame_grace_s
        )
        self._lookout = Lookout(limits.max_frames_per_chunk)
        self._writer = ResultWriter()
        self._finalize_ms = 0.0  # of bookkeeping that no result has counted yet
        self._current: WaitingChunk | None = None  # the one the engine works on
        self._next_index = 0
        self._judging: AudioChunk | None = None  # what detection listens to
        self._is_waiting_for_frame = False
        self._warned: set[ErrorCode] = set()

    @property
    def is_speaking(self) -> bool:
        """The model is in the middle of a turn."""
        return self._writer.is_speaking

    @property
    def is_looking(self) -> bool:
        """Pictures are looked at ahead of their unit."""
        return self._lookout.is_looking

    def add_chunk(self, chunk: AudioChunk, at_s: float, *, is_judged: bool) -> list[Effect]:
        """Take in audio; returns warnings of what it pushed out."""
        chunks, frames = self._backlog.dropped_chunks, self._backlog.dropped_frames
        self._backlog.add_chunk(chunk, at_s, is_judged=is_judged)
        return self._warn_of_drops(chunks, frames)

    def add_frame(self, data: str, at_s: float) -> list[Effect]:
        """Take in a picture; returns a warning if it pushed one out."""
        chunks, frames = self._backlog.dropped_chunks, self._backlog.dropped_frames
        self._backlog.add_frame(data, at_s)
        return self._warn_of_drops(chunks, frames)

    def drop_held_frames(self) -> None:
        """Forget the pictures that wait for a chunk."""
        self._backlog.drop_held_frames()

    def judge_next(self) -> list[Effect]:
        """Let detection hear the oldest chunk it has not heard, one at a time."""
        if self._judging is not None:
            return []
        self._judging = self._backlog.next_unjudged()
        return [] if self._judging is None else [Detect(self._judging)]

    def judged(self) -> None:
        """Detection has heard its chunk."""
        if self._judging is not None:
            self._backlog.judged(self._judging)
        self._judging = None

    def look_ahead(self) -> list[Effect]:
        """Have pictures that wait looked at, within the budget, unless a look is under way."""
        look = self._lookout.next_look(self._backlog.loose_frames)
        return [] if look is None else [look]

    def looked(self) -> None:
        """The look has ended."""
        self._lookout.looked()

    def begin_next(self, now_s: float) -> tuple[list[Effect], Step | None]:
        """Begin the next unit if its input is complete.

        Returns:
            What to do with the picture's timer, and the unit if it may begin.
        """
        if (wait_s := self._backlog.frame_wait_s(now_s)) > 0:
            self._is_waiting_for_frame = True
            return [StartTimer(TimerName.FRAME, wait_s)], None
        entry = self._backlog.take()
        if entry is None:
            return [], None
        self._current = entry
        self._lookout.taken(entry.frames)
        due_s = entry.arrived_s + audio_samples(entry.chunk.audio) / INPUT_SAMPLE_RATE_HZ
        step = Step(entry.chunk, tuple(entry.frames), self._next_index, due_s)
        self._next_index += 1
        self._warned.clear()
        effects: list[Effect] = [StopTimer(TimerName.FRAME)] if self._is_waiting_for_frame else []
        self._is_waiting_for_frame = False
        return effects, step

    def give_up_frame(self) -> None:
        """The picture that the oldest chunk waits for did not come in time."""
        if self._is_waiting_for_frame:
            self._is_waiting_for_frame = False
            self._backlog.stop_waiting_for_frames()

    def part(self, audio_data: str, now_s: float) -> ResultPart:
        """Describe sound of the unit the engine works on.

        Args:
            audio_data: Wire audio.
            now_s: When it is sent.
        """
        return self._writer.write_part(audio_data, self._wall_clock_ms(now_s))

    def finalized(self, finalize_ms: float) -> None:
        """Note what a unit's bookkeeping took; the next result counts it."""
        self._finalize_ms += finalize_ms

    def result(self, done: StepDone, now_s: float) -> Result:
        """Describe the unit the engine has worked on; once for each.

        Args:
            done: What the model did.
            now_s: When the result is sent.
        """
        assert self._current is not None
        wall_clock_ms = self._wall_clock_ms(now_s)
        finalize_ms, self._finalize_ms = self._finalize_ms, 0.0
        return self._writer.write(done, self._current.chunk, wall_clock_ms, finalize_ms)

    def _wall_clock_ms(self, now_s: float) -> float:
        assert self._current is not None
        return (now_s - self._current.arrived_s) * MS_PER_S

    def _warn_of_drops(self, chunks_before: int, frames_before: int) -> list[Effect]:
        """Warn with the counts so far; at most once each between the beginnings of two units."""
        backlog = self._backlog
        late, surplus = backlog.dropped_chunks, backlog.dropped_frames
        texts: list[tuple[ErrorCode, str]] = []
        if late > chunks_before:
            text = f"The model is slower than the audio: {late} chunks dropped so far."
            texts.append((ErrorCode.LATE_CHUNK, text))
        if surplus > frames_before:
            text = f"Too many pictures for one unit: {surplus} dropped so far."
            texts.append((ErrorCode.BAD_FRAME, text))
        news = [(code, text) for code, text in texts if code not in self._warned]
        self._warned |= {code for code, _ in news}
        return [Send(WarningMessage(code=code, message=text)) for code, text in news]
