"""Half duplex: the user speaks until silence, the model replies, then listens again.

Detection processes one chunk at a time; audio that arrives during a reply is dropped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from core.endpointing import SpeechStarted
from core.errors import ContextFullError
from core.protocols.detection_queue import DetectionQueue, HalfDuplexLimits
from core.protocols.effects import (
    Close,
    Effect,
    Generate,
    Interrupt,
    Prefill,
    ResetDetector,
    Rollback,
    Send,
    StartTimer,
    StopTimer,
)
from core.protocols.events import (
    MS_PER_S,
    ChunkReady,
    Detected,
    Event,
    GenerateDone,
    PrefillDone,
    Received,
    Segment,
    TimerFired,
    TimerName,
    TurnFailed,
)
from core.protocols.machine import (
    FAILURE,
    AudioRateLimit,
    LiveMachine,
    Reply,
    SessionIds,
    common_rows,
    live_rows,
    warn,
)
from core.protocols.tables import SAME, Row, index_rows
from core.schemas.half_duplex import (
    AudioChunk,
    Generating,
    Prepare,
    Prepared,
    Stopped,
    Timeout,
    TurnDone,
    VadState,
)
from core.schemas.worker import WorkerStatus


class HalfDuplexPhase(StrEnum):
    """Phase of a half-duplex session."""

    WAITING = "waiting"
    PREPARING = "preparing"
    LISTENING = "listening"
    GENERATING = "generating"
    STOPPING = "stopping"
    CLOSED = "closed"


class HalfDuplexMachine(LiveMachine[HalfDuplexPhase]):
    """State machine of one `/ws/half_duplex` session."""

    stopped = Stopped
    _limits: HalfDuplexLimits

    def __init__(self, ids: SessionIds, limits: HalfDuplexLimits | None = None) -> None:
        self._limits = limits or HalfDuplexLimits()
        super().__init__(ids, HalfDuplexPhase.WAITING)
        self._timeout_s = 0.0
        self._detection = DetectionQueue(self._limits)
        self._pace = AudioRateLimit()
        self._reply = Reply()
        self._turn_index = 0
        self._turn_began_s = 0.0
        self._ready_s = 0.0  # when `prepared` was sent
        self._received_s = 0.0  # when audio last arrived, or playback ended

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus.IDLE if self.is_closed else WorkerStatus.BUSY_HALF_DUPLEX

    # --- preparation ---

    def prepare(self, event: Received[Prepare]) -> list[Effect]:
        self._timeout_s = event.message.config.session.timeout_s
        self._phase = HalfDuplexPhase.PREPARING
        return [StopTimer(TimerName.PREPARE), self._begin(Prefill(event.message))]

    def prepared(self, event: PrefillDone) -> list[Effect]:
        self._work = None
        self._phase = HalfDuplexPhase.LISTENING
        self._ready_s = event.at_s
        self._detection.begin(event.at_s)
        message = Prepared(
            session_id=self._ids.session_id,
            timeout_s=self._timeout_s,
            recording_session_id=self._ids.recording_session_id,
            session_secret=self._ids.session_secret,
        )
        return [Send(message), *self._wait_for_audio(event.at_s), *self._session_timer()]

    # --- listening ---

    def chunk(self, event: Received[AudioChunk]) -> list[Effect]:
        """Add audio; even ignored audio restarts the idle timer."""
        if problem := self._pace.take(event.message.audio_base64, event.at_s):
            return self.fail(problem)
        waiting = self._wait_for_audio(event.at_s)
        return [*waiting, *self._detection.append(event.message, event.at_s)]

    def detected(self, event: Detected) -> list[Effect]:
        self._detection.found(event.speech_events)
        effects = self._take_speech_events(event.at_s)
        if self._phase == HalfDuplexPhase.LISTENING:
            effects += self._detection.detect_next()
        return effects

    # --- replying ---

    def piece(self, event: ChunkReady) -> list[Effect]:
        return [Send(self._reply.add(event.chunk, event.at_s))]

    def turn_done(self, event: GenerateDone) -> list[Effect]:
        self._work = None
        message = TurnDone(
            turn_index=self._turn_index,
            text=event.text,
            interrupted=event.stopped,
            elapsed_ms=self._elapsed_ms(event.at_s),
            kv_cache_length=event.kv_tokens,
            token_stats=event.token_stats,
        )
        effects: list[Effect] = [Send(last) for last in self._reply.last_chunk()]
        effects.append(Send(message))
        left = self._limits.max_kv_tokens - event.kv_tokens
        if left <= 0:
            return [*effects, *self.fail(ContextFullError())]
        effects += self._warn_if_nearly_full(left, self._limits.kv_reserve_tokens)
        return [*effects, *self._listen_again(event.at_s)]

    def turn_failed(self, event: TurnFailed) -> list[Effect]:
        """Undo the turn and continue; if it cannot be undone, end."""
        self._work = None
        if not event.can_rollback or isinstance(event.error, ContextFullError):
            return self.fail(event.error)
        message = TurnDone(
            turn_index=self._turn_index,
            text=self._reply.text,
            interrupted=True,
            elapsed_ms=self._elapsed_ms(event.at_s),
        )
        effects: list[Effect] = [Rollback(), warn(event.error)]
        effects += [Send(last) for last in self._reply.last_chunk()]
        return [*effects, Send(message), *self._listen_again(event.at_s)]

    def interrupt(self, event: Event) -> list[Effect]:
        """Cut the reply short, and drop segments that wait for one."""
        self._detection.drop_segments()
        return [Interrupt()]

    # --- limits ---

    def time_out_session(self, event: TimerFired) -> list[Effect]:
        is_idle = event.name == TimerName.IDLE
        since_s = self._received_s if is_idle else self._ready_s
        message = Timeout(
            elapsed_s=round(max(0.0, event.at_s - since_s), 1),
            reason="inactivity" if is_idle else "max_session",
        )
        return self._end(message, close=Close())

    # --- helpers ---

    def _take_speech_events(self, now_s: float) -> list[Effect]:
        """Report speech events up to a segment, which begins a reply."""
        effects: list[Effect] = []
        while (speech_event := self._detection.next_speech_event()) is not None:
            is_speaking = isinstance(speech_event, SpeechStarted)
            effects.append(Send(VadState(speaking=is_speaking)))
            if isinstance(speech_event, Segment):
                return [*effects, *self._answer(speech_event, now_s)]
        return effects

    def _answer(self, segment: Segment, now_s: float) -> list[Effect]:
        self._phase = HalfDuplexPhase.GENERATING
        self._reply = Reply(self._reply.playback_end_s)
        self._turn_began_s = now_s
        self._detection.drop_waiting_audio()
        return [
            StopTimer(TimerName.IDLE),
            Send(Generating(speech_duration_ms=segment.duration_ms)),
            self._begin(Generate(segment, self._turn_index)),
        ]

    def _listen_again(self, now_s: float) -> list[Effect]:
        self._turn_index += 1
        self._phase = HalfDuplexPhase.LISTENING
        effects = self._take_speech_events(now_s)
        if self._phase == HalfDuplexPhase.LISTENING:
            effects += [ResetDetector(), *self._wait_for_audio(now_s)]
        return effects

    def _wait_for_audio(self, now_s: float) -> list[Effect]:
        """Restart the idle timer from the end of playback, until which the client is silent."""
        self._received_s = max(now_s, self._reply.playback_end_s)
        return [StartTimer(TimerName.IDLE, self._received_s - now_s + self._timeout_s)]

    def _elapsed_ms(self, now_s: float) -> float:
        return round(max(0.0, now_s - self._turn_began_s) * MS_PER_S, 1)


WAITING, PREPARING = (HalfDuplexPhase.WAITING,), (HalfDuplexPhase.PREPARING,)
LISTENING, GENERATING = (HalfDuplexPhase.LISTENING,), (HalfDuplexPhase.GENERATING,)
RUNNING: Final = (*WAITING, *PREPARING, *LISTENING, *GENERATING)
OPEN: Final = (*RUNNING, HalfDuplexPhase.STOPPING)
CLOSED: Final = HalfDuplexPhase.CLOSED
TIMEOUT: Final = "Cancel Send(timeout) Release Close"
TURN_ENDS: Final = f"{SAME} {HalfDuplexPhase.LISTENING} {CLOSED}"
NEXT: Final = (
    "Send(vad_state) StopTimer(idle) Send(generating) Generate ResetDetector StartTimer(idle)"
)
ENDS_OF_WORK: Final = "prefill_done turn_failed generate_done engine_failed"
MACHINE: Final = HalfDuplexMachine

TABLE: Final[tuple[Row[HalfDuplexMachine, Effect], ...]] = (
    Row(WAITING, "opened", SAME, "StartTimer(prepare)", MACHINE.open),
    Row(WAITING, "prepare", "preparing", "StopTimer(prepare) Prefill", MACHINE.prepare),
    Row(WAITING, "prepare_timer", CLOSED, FAILURE, MACHINE.time_out),
    Row(
        PREPARING,
        "prefill_done",
        "listening",
        "Send(prepared) StartTimer(idle) StartTimer(session)",
        MACHINE.prepared,
    ),
    Row(PREPARING, "turn_failed", CLOSED, FAILURE, MACHINE.preparation_failed),
    Row(RUNNING[1:], "prepare", SAME, "Send(warning)", MACHINE.already_prepared),
    Row(RUNNING[:2], "audio_chunk", SAME, "Send(warning)", MACHINE.not_prepared_once),
    Row(RUNNING[:2], "interrupt", SAME, "Send(warning)", MACHINE.not_prepared),
    Row(
        LISTENING,
        "audio_chunk",
        f"{SAME} {CLOSED}",
        f"StartTimer(idle) Send(warning) Detect {FAILURE}",
        MACHINE.chunk,
    ),
    Row(
        LISTENING,
        "detected",
        f"{SAME} generating",
        "Send(vad_state) Detect StopTimer(idle) Send(generating) Generate",
        MACHINE.detected,
    ),
    Row(LISTENING, "idle_timer", CLOSED, TIMEOUT, MACHINE.time_out_session),
    Row(GENERATING, "audio_chunk", SAME, "", MACHINE.ignore),
    Row(GENERATING, "chunk_ready", SAME, "Send(chunk)", MACHINE.piece),
    Row(
        GENERATING,
        "generate_done",
        TURN_ENDS,
        f"Send(chunk) Send(turn_done) Send(warning) {NEXT} {FAILURE}",
        MACHINE.turn_done,
    ),
    Row(
        GENERATING,
        "turn_failed",
        TURN_ENDS,
        f"Rollback Send(warning) Send(chunk) Send(turn_done) {NEXT} {FAILURE}",
        MACHINE.turn_failed,
    ),
    Row(GENERATING, "interrupt", SAME, "Interrupt", MACHINE.interrupt),
    Row(GENERATING, "stop_requested", SAME, "Interrupt", MACHINE.interrupt),
    Row(RUNNING[2:], "session_timer", CLOSED, TIMEOUT, MACHINE.time_out_session),
    Row(RUNNING[2:], "transcribed", SAME, "Send(user_transcript)", MACHINE.transcribed),
    *live_rows(RUNNING, HalfDuplexPhase.STOPPING, CLOSED, ENDS_OF_WORK),
    *common_rows(OPEN, CLOSED),
)
"""All transitions of `/ws/half_duplex`. A `stop_requested` outside a reply stops nothing."""

HalfDuplexMachine.rows = index_rows(TABLE)
