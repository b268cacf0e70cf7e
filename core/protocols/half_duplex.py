"""Half duplex: the user speaks until silence, the model replies, then listens again.

Detection processes one chunk at a time; audio that arrives during a reply is dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from core.endpointing import SpeechStarted
from core.errors import ContextFullError, ErrorCode
from core.protocols import events
from core.protocols.effects import (
    Detect,
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
from core.protocols.events import MS_PER_S, Event, Received, Segment, SpeechEvent, TimerName
from core.protocols.machine import (
    AHEAD_MAX_S,
    FAILURE,
    TIMEOUT,
    AudioRateLimit,
    LiveLimits,
    LiveMachine,
    Reply,
    SessionIds,
    live_rows,
    timer,
    warn,
)
from core.protocols.tables import CLOSED, SAME, Phase, Row, index_rows
from core.schemas import half_duplex as messages
from core.schemas.common import TokenStats
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.queue import WarningMessage
from core.schemas.worker import WorkerStatus

COLD_START_SAMPLES: Final = messages.COLD_START_MS * INPUT_SAMPLE_RATE_HZ // MS_PER_S


@dataclass(frozen=True)
class HalfDuplexLimits(LiveLimits):
    """Limits of a half-duplex session, which are ours; the idle time-out comes with `prepare`."""

    # Audio waiting for detection; beyond it the oldest is dropped. Ours: as much as may arrive at
    # once, so that a client that sends a whole file loses none of it.
    max_waiting_s: float = AHEAD_MAX_S
    max_waiting_chunks: int = 512  # the same in chunks
    # Segments of one chunk waiting for their reply; beyond it the oldest is dropped.
    max_waiting_segments: int = 4


class DetectionQueue:
    """Audio waiting for detection, and detected speech events waiting for a reply.

    Bounded by `HalfDuplexLimits`; the oldest is dropped.
    """

    def __init__(self, limits: HalfDuplexLimits) -> None:
        self.ready_s = 0.0  # when `prepared` was sent
        self.speech_events: deque[SpeechEvent] = deque()
        self._limits = limits
        self._to_ignore_samples = COLD_START_SAMPLES
        self.waiting: deque[tuple[int, bytes]] = deque()  # audio and its position in what was sent
        self._sent_samples = 0  # by the client
        self._clock_samples = 0  # of the detector: what it was given since its last reset
        self._origin_samples = 0  # what turns a time of its clock into a position in what was sent
        self._is_detecting = False
        self._dropped = 0
        self._is_warned = False

    def append(self, chunk: messages.AudioChunk, at_s: float) -> list[Effect]:
        """Add a chunk, without audio recorded in the first half second after `prepared`.

        A chunk is assumed to arrive when its last sample was recorded. A client that sends a file
        faster than real time loses half a second of it at most.
        """
        samples, begin_samples = len(chunk.audio_base64) // SAMPLE_BYTES, self._sent_samples
        self.count(chunk)
        recorded_from_s = at_s - samples / INPUT_SAMPLE_RATE_HZ
        early_s = max(0.0, self.ready_s + messages.COLD_START_MS / MS_PER_S - recorded_from_s)
        ignored = min(samples, self._to_ignore_samples, round(early_s * INPUT_SAMPLE_RATE_HZ))
        self._to_ignore_samples -= ignored
        if ignored == samples:
            return []
        heard = chunk.audio_base64[ignored * SAMPLE_BYTES :]
        self.waiting.append((begin_samples + ignored, heard))
        effects = self.detect_next()
        max_chunks, dropped_before = self._limits.max_waiting_chunks, self._dropped
        max_bytes = self._limits.max_waiting_s * INPUT_SAMPLE_RATE_HZ * SAMPLE_BYTES
        while (
            len(self.waiting) > max_chunks or sum(len(each) for _, each in self.waiting) > max_bytes
        ):
            self.waiting.popleft()
            self._dropped += 1
        if self._dropped > dropped_before and not self._is_warned:
            self._is_warned = True
            text = f"Detection is slower than the audio: {self._dropped} chunks dropped so far."
            effects.append(Send(WarningMessage(code=ErrorCode.LATE_CHUNK, message=text)))
        return effects

    def count(self, chunk: messages.AudioChunk) -> None:
        """Count audio as sent."""
        self._sent_samples += len(chunk.audio_base64) // SAMPLE_BYTES

    def reset(self) -> list[Effect]:
        self._clock_samples = 0
        return [ResetDetector()]

    def detect_next(self) -> list[Effect]:
        if self._is_detecting or not self.waiting:
            return []
        self._is_detecting = True
        begin_samples, audio = self.waiting.popleft()
        self._origin_samples = begin_samples - self._clock_samples
        self._clock_samples += len(audio) // SAMPLE_BYTES
        return [Detect(audio)]

    def found(self, speech_events: tuple[SpeechEvent, ...]) -> None:
        """Queue the speech events of a chunk; segments with their position in what was sent.

        Events after the last complete segment are dropped: detection restarts after the reply.
        """
        self._is_detecting = False
        self._is_warned = False
        segments = [i for i, found in enumerate(speech_events) if isinstance(found, Segment)]
        if segments:
            speech_events = speech_events[: segments[-1] + 1]
        surplus = len(segments) - self._limits.max_waiting_segments
        if surplus > 0:
            speech_events = speech_events[segments[surplus - 1] + 1 :]
        self.speech_events.extend(map(self._placed, speech_events))

    def _placed(self, found: SpeechEvent) -> SpeechEvent:
        if not isinstance(found, Segment):
            return found
        return replace(found, start_samples=self._origin_samples + found.start_samples)


class HalfDuplexMachine(LiveMachine):
    busy_status = WorkerStatus.BUSY_HALF_DUPLEX
    stopped = messages.Stopped
    timed_out = messages.Timeout
    _limits: HalfDuplexLimits

    def __init__(self, ids: SessionIds, limits: HalfDuplexLimits | None = None) -> None:
        self._limits = limits or HalfDuplexLimits()
        super().__init__(ids)
        self._timeout_s = 0.0
        self._detection = DetectionQueue(self._limits)
        self._pace = AudioRateLimit()
        self._reply = Reply()
        self._turn_index = 0
        self._turn_began_s = 0.0
        self._kv_tokens = 0  # in the cache after the last complete turn

    def prepare(self, event: Received[messages.Prepare]) -> list[Effect]:
        self._timeout_s = event.message.config.session.timeout_s
        self.phase = Phase.PREPARING
        return [StopTimer(TimerName.PREPARE), self._begin(Prefill(event.message))]

    def prepared(self, event: events.PrefillDone) -> list[Effect]:
        self.phase = Phase.LISTENING
        self._ready_s = self._detection.ready_s = event.at_s
        self._kv_tokens = event.kv_tokens
        message = messages.Prepared(**vars(self._ids), timeout_s=self._timeout_s)
        session = timer(TimerName.SESSION, self._limits.max_session_s)
        return [Send(message), *self._wait_for_audio(event.at_s), *session]

    def chunk(self, event: Received[messages.AudioChunk]) -> list[Effect]:
        """Add audio; even ignored audio restarts the idle timer."""
        if problem := self._pace.take(event.message.audio_base64, event.at_s):
            return self.fail(problem)
        waiting = self._wait_for_audio(event.at_s)
        return [*waiting, *self._detection.append(event.message, event.at_s)]

    def ignore_chunk(self, event: Received[messages.AudioChunk]) -> list[Effect]:
        self._detection.count(event.message)
        return []

    def detected(self, event: events.Detected) -> list[Effect]:
        self._detection.found(event.speech_events)
        effects = self._take_speech_events(event.at_s)
        if self.phase == Phase.LISTENING:
            effects += self._detection.detect_next()
        return effects

    def piece(self, event: events.ChunkReady) -> list[Effect]:
        return [self._reply.add(event.chunk, event.at_s)]

    def turn_done(self, event: events.GenerateDone) -> list[Effect]:
        effects = self._turn_done(event, event.at_s)
        limits = self._limits
        room = (limits.max_kv_tokens, limits.kv_reserve_tokens)
        effects += self._check_context(event.kv_tokens, *room)
        return effects if self.is_closed else [*effects, *self._listen_again(event.at_s)]

    def turn_failed(self, event: events.TurnFailed) -> list[Effect]:
        """Undo the turn and continue; if it cannot be undone, end."""
        if not event.can_rollback or isinstance(event.error, ContextFullError):
            return self.fail(event.error)
        stats = TokenStats(total_tokens=self._kv_tokens)
        cut_short = events.GenerateDone(self._reply.text, True, stats, self._kv_tokens)
        done = self._turn_done(cut_short, event.at_s)
        return [Rollback(), warn(event.error), *done, *self._listen_again(event.at_s)]

    def interrupt(self, event: Event) -> list[Effect]:
        self._detection.speech_events.clear()
        return [Interrupt()]

    def _turn_done(self, end: events.GenerateDone, now_s: float) -> list[Effect]:
        self._kv_tokens = end.kv_tokens
        message = messages.TurnDone(
            turn_index=self._turn_index,
            text=end.text,
            interrupted=end.stopped,
            elapsed_ms=round(max(0.0, now_s - self._turn_began_s) * MS_PER_S, 1),
            kv_cache_length=end.kv_tokens,
            token_stats=end.token_stats,
        )
        return [*self._reply.last_chunk(), Send(message)]

    def _take_speech_events(self, now_s: float) -> list[Effect]:
        """Report speech events up to a segment, which begins a reply."""
        effects: list[Effect] = []
        while self._detection.speech_events:
            speech_event = self._detection.speech_events.popleft()
            is_speaking = isinstance(speech_event, SpeechStarted)
            effects.append(Send(messages.VadState(speaking=is_speaking)))
            if isinstance(speech_event, Segment):
                self.phase = Phase.GENERATING
                self._reply = Reply(self._reply.playback_end_s)
                self._turn_began_s = now_s
                self._detection.waiting.clear()
                begun = messages.Generating(speech_duration_ms=speech_event.duration_ms)
                reply = self._begin(Generate(speech_event, self._turn_index))
                return [*effects, StopTimer(TimerName.IDLE), Send(begun), reply]
        return effects

    def _listen_again(self, now_s: float) -> list[Effect]:
        self._turn_index += 1
        self.phase = Phase.LISTENING
        effects = self._take_speech_events(now_s)
        if self.phase == Phase.LISTENING:
            effects += [*self._detection.reset(), *self._wait_for_audio(now_s)]
        return effects

    def _wait_for_audio(self, now_s: float) -> list[Effect]:
        """Restart the idle timer from the end of playback, until which the client is silent."""
        self._since_s = max(now_s, self._reply.playback_end_s)
        return [StartTimer(TimerName.IDLE, self._since_s - now_s + self._timeout_s)]


BEGUN: Final = "listening generating"
TURN_ENDS: Final = f"{SAME} listening {CLOSED}"
NEXT: Final = (
    "Send(vad_state) StopTimer(idle) Send(generating) Generate ResetDetector StartTimer(idle)"
)
ENDS_OF_WORK: Final = "prefill_done turn_failed generate_done engine_failed"
MACHINE: Final = HalfDuplexMachine
PREPARED: Final = "Send(prepared) StartTimer(idle) StartTimer(session)"
CHUNK: Final = f"StartTimer(idle) Send(warning) Detect {FAILURE}"
SPEECH: Final = "Send(vad_state) Detect StopTimer(idle) Send(generating) Generate"
REPLIED: Final = f"Send(chunk) Send(turn_done) Send(warning) {NEXT} {FAILURE}"
FAILED: Final = f"Rollback Send(warning) Send(chunk) Send(turn_done) {NEXT} {FAILURE}"

TABLE: Final = (
    Row("waiting", "prepare", "preparing", MACHINE.prepare, "StopTimer(prepare) Prefill"),
    Row("preparing", "prefill_done", "listening", MACHINE.prepared, PREPARED),
    Row("listening", "audio_chunk", f"{SAME} {CLOSED}", MACHINE.chunk, CHUNK),
    Row("listening", "detected", f"{SAME} generating", MACHINE.detected, SPEECH),
    Row("listening", "idle_timer", CLOSED, MACHINE.time_out_session, TIMEOUT),
    Row("generating", "audio_chunk", SAME, MACHINE.ignore_chunk, ""),
    Row("generating", "chunk_ready", SAME, MACHINE.piece, "Send(chunk)"),
    Row("generating", "generate_done", TURN_ENDS, MACHINE.turn_done, REPLIED),
    Row("generating", "turn_failed", TURN_ENDS, MACHINE.turn_failed, FAILED),
    Row("generating", "interrupt stop_requested", SAME, MACHINE.interrupt, "Interrupt"),
    Row(BEGUN, "transcribed", SAME, MACHINE.transcribed, "Send(user_transcript)"),
    *live_rows(BEGUN, ENDS_OF_WORK, "interrupt"),
)
"""All transitions of `/ws/half_duplex`. A `stop_requested` outside a reply stops nothing."""

HalfDuplexMachine.rows = index_rows(TABLE)
