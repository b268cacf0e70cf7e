"""Full duplex: prepare, then listen or speak unit by unit; pause, interrupt, stop.

A unit's result is sent before its `Finalize`, and no unit begins before the `Finalize` of the last
has ended.
"""

from __future__ import annotations

from typing import ClassVar, Final

from core import errors
from core.endpointing import SpeechStarted
from core.protocols import events
from core.protocols.duplex_context import Rebase
from core.protocols.duplex_units import (
    ITEM_MAX_CHARS,
    CountTokens,
    DuplexLimits,
    Speaker,
    UnitInput,
    UnitResults,
)
from core.protocols.effects import (
    Effect,
    Finalize,
    Interrupt,
    Prefill,
    Send,
    StartTimer,
    Step,
    StopTimer,
)
from core.protocols.events import MS_PER_S, Event, Received, TimerName
from core.protocols.machine import (
    DROP_EARLY,
    ENDING,
    TIMEOUT,
    AudioRateLimit,
    LiveMachine,
    SessionIds,
    live_rows,
    timer,
    warn,
    warns_once,
)
from core.protocols.tables import CLOSED, SAME, Phase, Row, index_rows
from core.schemas import duplex as messages
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.realtime_session import AudioFormat
from core.schemas.worker import WorkerStatus


class DuplexMachine(LiveMachine):
    busy_status = WorkerStatus.DUPLEX_ACTIVE
    stopped = messages.Stopped
    timed_out = messages.Timeout
    is_inner: ClassVar = False  # another protocol detects speech, and adds to the history
    client_format: AudioFormat | None = None  # of a client of OpenAI's protocols
    _limits: DuplexLimits

    def __init__(
        self,
        ids: SessionIds,
        limits: DuplexLimits | None = None,
        count_tokens: CountTokens = len,
    ) -> None:
        self._limits = limits or DuplexLimits()
        super().__init__(ids)
        self.rebase = Rebase(messages.Prepare(), count_tokens)
        self._input = UnitInput(self._limits)
        self._results = UnitResults()
        self._pace = AudioRateLimit()
        self._held_result: events.StepDone | None = None  # sent after `Finalize`

    @property
    def status(self) -> WorkerStatus:
        is_paused = self.phase == Phase.PAUSED
        return WorkerStatus.DUPLEX_PAUSED if is_paused else super().status

    @property
    def is_working(self) -> bool:
        return super().is_working or self._input.prefetch_plan.is_prefetching

    @property
    def is_speaking(self) -> bool:
        """Whether the model is in the middle of a turn."""
        return self._results.is_speaking

    @property
    def must_speak(self) -> bool:
        """Whether the next unit has to speak: the first one whose prompt contains all text."""
        return self.rebase.wants_speech and not self.rebase.is_stale

    def prepare(self, event: Received[messages.Prepare]) -> list[Effect]:
        self.rebase.first = event.message
        self.phase = Phase.PREPARING
        return [StopTimer(TimerName.PREPARE), self._begin(Prefill(self.rebase.first_prompt()))]

    def prepared(self, event: events.PrefillDone) -> list[Effect]:
        self.phase = Phase.ACTIVE
        self._ready_s = self._since_s = event.at_s
        config = self.rebase.first.config
        message = messages.Prepared(
            **vars(self._ids),
            prompt_length=event.prompt_length,
            prompt_tokens=event.input_tokens,
            chunk_ms=config.chunk_ms,
            max_kv_tokens=self._limits.max_kv_tokens,
            pause_timeout=self._limits.pause_timeout_s,
        )
        effects: list[Effect] = [Send(message)]
        if unknown := config.unknown("settings"):
            effects.append(warn(errors.BadConfigError(unknown)))
        effects += self._restart_idle_timer()
        effects += timer(TimerName.SESSION, self._limits.max_session_s)
        return [*effects, *self._input.prefetch()]

    # --- input ---

    def chunk(self, event: Received[messages.AudioChunk]) -> list[Effect]:
        self._since_s = event.at_s
        # A short chunk costs the engine as much as a whole unit.
        first = self.rebase.first
        if problem := self._pace.take(event.message.audio, event.at_s, first.config.chunk_ms):
            return self.fail(problem)
        is_detected = self.is_inner or (first.barge_in is None and not first.transcribe)
        effects = self._input.add_chunk(event.message, event.at_s, is_detected=is_detected)
        effects += self._restart_idle_timer()
        effects += [*self._input.detect_next(), *self._begin_unit(event.at_s)]
        return [*effects, *self._input.prefetch()]

    def frame(self, event: Received[messages.VideoFrame]) -> list[Effect]:
        """Add a picture; a chunk may wait for it, or it is encoded ahead of its chunk."""
        effects = self._input.add_frame(event.message.frame, event.at_s)
        if self.phase != Phase.ACTIVE:
            return effects
        return [*effects, *self._begin_unit(event.at_s), *self._input.prefetch()]

    def prefetched(self, event: events.Prefetched) -> list[Effect]:
        self._input.prefetch_plan.is_prefetching = False
        return self._input.prefetch()

    def frame_is_late(self, event: events.TimerFired) -> list[Effect]:
        self._input.give_up_frame()
        return self._begin_unit(event.at_s)

    def detected(self, event: events.Detected) -> list[Effect]:
        """Interrupt the model if the user begins to speak over it."""
        self._input.detected()
        begun = [each for each in event.speech_events if isinstance(each, SpeechStarted)]
        if begun:
            self.rebase.history.add_speech(begun[0].start_samples)
        effects: list[Effect] = [Interrupt()] if begun and self.is_speaking else []
        return [*effects, *self._input.detect_next(), *self._begin_unit(event.at_s)]

    def text(self, event: Received[messages.TextInput]) -> list[Effect]:
        text = event.message.text.strip()
        if not text:
            return [warn(errors.BadPayloadError("'text' is empty."))]
        if len(text) > ITEM_MAX_CHARS:
            problem = f"'text' has {len(text)} characters; {ITEM_MAX_CHARS} are allowed."
        elif not self.rebase.type(text, must_speak=event.message.force_speak):
            problem = f"'text' was dropped: {ITEM_MAX_CHARS} characters wait for the model already."
        else:
            received_ms = self._input.received_samples * MS_PER_S // INPUT_SAMPLE_RATE_HZ
            return [Send(messages.TextAdded(text=text, start_ms=received_ms))]
        return [warn(errors.TooBigError(problem))]

    def transcribed(self, event: events.Transcribed) -> list[Effect]:
        if event.text:
            self.rebase.history.set_transcript(event.text, event.segment.end_samples)
        return super().transcribed(event)

    # --- units ---

    def audio_ready(self, event: events.AudioReady) -> list[Effect]:
        return [Send(self._results.part(event.pcm, event.at_s))]

    def step_done(self, event: events.StepDone) -> list[Effect]:
        """Send the result, then finalize the unit; the reverse without `deferred_finalize`."""
        if not self.rebase.first.deferred_finalize:
            self._held_result = event
            return [self._begin(Finalize())]
        effects = [self._result(event, event.at_s), *self._check(event.result.kv_cache_length)]
        return effects if self.is_closed else [*effects, self._begin(Finalize())]

    def rebased(self, event: events.PrefillDone) -> list[Effect]:
        self.rebase.done()
        return self._begin_unit(event.at_s)

    def finalize_done(self, event: events.FinalizeDone) -> list[Effect]:
        self._results.finalize_ms += event.finalize_ms
        effects: list[Effect] = []
        if self._held_result is not None:
            effects.append(self._result(self._held_result, event.at_s))
            self._held_result = None
        effects += self._check(event.kv_tokens)
        return effects if self.is_closed else [*effects, *self._begin_unit(event.at_s)]

    def interrupt(self, event: Event) -> list[Effect]:
        return [Interrupt(), Send(messages.Interrupted())]

    def pause(self, event: Received[messages.Pause]) -> list[Effect]:
        """Begin no unit until `resume`; waiting chunks are kept, pictures without one dropped."""
        longest = self._limits.pause_timeout_s
        timeout_s = min(event.message.timeout or longest, longest)
        self.phase = Phase.PAUSED
        self._since_s = event.at_s
        self._warned.discard("paused")
        self._input.held.clear()
        return [
            StopTimer(TimerName.IDLE),
            StartTimer(TimerName.PAUSE, timeout_s),
            Send(messages.Paused(timeout=timeout_s)),
            *self._input.prefetch(),
        ]

    def resume(self, event: Event) -> list[Effect]:
        self.phase = Phase.ACTIVE
        self._since_s = event.at_s
        effects: list[Effect] = [StopTimer(TimerName.PAUSE), *self._restart_idle_timer()]
        return [*effects, Send(messages.Resumed()), *self._begin_unit(event.at_s)]

    def _result(self, event: events.StepDone, now_s: float) -> Effect:
        result = self._results.result(event, now_s)
        if result.text and not self.is_inner:
            self.rebase.history.add(Speaker.ASSISTANT, result.text)
        return Send(result)

    def begin_anew(self) -> list[Effect]:
        """Restart with a prompt that contains the conversation, if text was added to it."""
        is_busy = self.work is not None or self.is_speaking
        if self.phase != Phase.ACTIVE or is_busy or not self.rebase.is_stale:
            return []
        return [self._begin(Prefill(self.rebase.begin()))]

    def _restart_idle_timer(self) -> list[Effect]:
        return timer(TimerName.IDLE, self._limits.idle_timeout_s)

    def _begin_unit(self, now_s: float) -> list[Effect]:
        if self.phase != Phase.ACTIVE or self.work is not None:
            return []
        if anew := self.begin_anew():
            return anew
        effects, unit = self._input.take(now_s)
        if unit is None:
            return effects
        index, must_speak = self._results.begin(unit), self.must_speak
        if must_speak:
            self.rebase.wants_speech = False
        frames = tuple(unit.frames)
        chunk, start = unit.chunk, unit.start_samples
        due_s = unit.arrived_s + len(chunk.audio) / SAMPLE_BYTES / INPUT_SAMPLE_RATE_HZ
        step = Step(chunk, frames, index, due_s, start, must_speak, self.client_format)
        return [*effects, self._begin(step)]

    def _check(self, kv_tokens: int) -> list[Effect]:
        limits = self._limits
        if limits.has_window:
            return []
        return self._check_context(kv_tokens, limits.max_kv_tokens, limits.kv_reserve_tokens)


BEGUN: Final = "active paused"
RUNNING: Final = f"waiting preparing {BEGUN}"
STAY_OR_CLOSE: Final = f"{SAME} {CLOSED}"
STOP: Final = "Cancel StartTimer(stopping) Send(stopped) Release Close"
UNIT: Final = "StartTimer(frame) StopTimer(frame) Step Prefill"
ENDS_OF_WORK: Final = "prefill_done step_done finalize_done engine_failed"
MACHINE: Final = DuplexMachine
DROPPED: Final = "Paused: what is sent now is dropped."
DROP_PAUSED: Final = warns_once("paused", errors.OutOfOrderError, DROPPED)  # once per pause
PREPARED: Final = "Send(prepared) Send(warning) StartTimer(idle) StartTimer(session) Prefetch"
CHUNK: Final = f"Send(warning) StartTimer(idle) Detect {UNIT} Prefetch {ENDING}"
FRAME: Final = "Send(warning) StopTimer(frame) Step Prefill Prefetch"
STEPPED: Final = f"Send(result) Send(warning) Finalize {ENDING}"
FINALIZED: Final = f"Send(result) Send(warning) {UNIT} {ENDING}"
PAUSE: Final = "StopTimer(idle) StartTimer(pause) Send(paused) Prefetch"
RESUME: Final = f"StopTimer(pause) StartTimer(idle) Send(resumed) {UNIT}"

TABLE: Final = (
    Row("waiting", "prepare", "preparing", MACHINE.prepare, "StopTimer(prepare) Prefill"),
    Row("preparing", "prefill_done", "active", MACHINE.prepared, PREPARED),
    Row("waiting", "video_frame", SAME, DROP_EARLY, "Send(warning)"),
    Row("active", "audio_chunk", STAY_OR_CLOSE, MACHINE.chunk, CHUNK),
    Row("preparing active", "video_frame", SAME, MACHINE.frame, FRAME),
    Row("paused", "audio_chunk video_frame", SAME, DROP_PAUSED, "Send(warning)"),
    Row(BEGUN, "text_input", SAME, MACHINE.text, "Send(text_added) Send(warning)"),
    Row(BEGUN, "prefill_done", SAME, MACHINE.rebased, UNIT),
    Row(BEGUN, "frame_timer", SAME, MACHINE.frame_is_late, "Step Prefill"),
    Row(BEGUN, "detected", SAME, MACHINE.detected, f"Interrupt Detect {UNIT}"),
    Row(BEGUN, "transcribed", SAME, MACHINE.transcribed, "Send(user_transcript)"),
    Row(BEGUN, "prefetched", SAME, MACHINE.prefetched, "Prefetch"),
    Row(BEGUN, "audio_ready", SAME, MACHINE.audio_ready, "Send(result_part)"),
    Row(BEGUN, "step_done", STAY_OR_CLOSE, MACHINE.step_done, STEPPED),
    Row(BEGUN, "finalize_done", STAY_OR_CLOSE, MACHINE.finalize_done, FINALIZED),
    Row(BEGUN, "interrupt", SAME, MACHINE.interrupt, "Interrupt Send(interrupted)"),
    Row("active", "pause", "paused", MACHINE.pause, PAUSE),
    Row("paused", "resume", "active", MACHINE.resume, RESUME),
    Row("paused", "pause_timer", CLOSED, MACHINE.time_out_session, TIMEOUT),
    Row("active", "idle_timer", CLOSED, MACHINE.time_out_session, TIMEOUT),
    Row(RUNNING, "stop_requested", f"stopping {CLOSED}", MACHINE.stop, STOP),
    Row(f"{RUNNING} stopping", "client_diagnostic", SAME, MACHINE.ignore, ""),
    *live_rows(BEGUN, ENDS_OF_WORK, "pause resume interrupt text_input"),
)
"""All transitions of `/ws/duplex`. A unit begins with `Step` and ends with `finalize_done`."""

DuplexMachine.rows = index_rows(TABLE)
