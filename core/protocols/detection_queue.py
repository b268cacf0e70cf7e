"""Half duplex: audio waiting for voice detection, and detected speech events. Pure.

Bounded by `HalfDuplexLimits`; the oldest is dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from core.errors import ErrorCode
from core.protocols.effects import Detect, Effect, Send
from core.protocols.events import MS_PER_S, Segment, SpeechEvent
from core.protocols.machine import AHEAD_MAX_S, LiveLimits
from core.schemas.half_duplex import COLD_START_MS, AudioChunk
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.queue import WarningMessage

COLD_START_S: Final = COLD_START_MS / MS_PER_S
COLD_START_SAMPLES: Final = COLD_START_MS * INPUT_SAMPLE_RATE_HZ // MS_PER_S


@dataclass(frozen=True)
class HalfDuplexLimits(LiveLimits):
    """Limits of a half-duplex session; the idle time-out comes with `prepare`.

    Attributes:
        max_session_s: longest session; 0 is unlimited.
        prepare_timeout_s: longest time without `prepare`. Ours.
        stop_grace_s: how long `stop` waits for a reply to end. Ours.
        max_kv_tokens: tokens at which the session ends.
        kv_reserve_tokens: remaining tokens at which the client is warned. Ours.
        max_waiting_s: audio waiting for detection; beyond it the oldest is dropped. Ours: as much
            as may arrive at once, so that a client that sends a whole file loses none of it.
        max_waiting_chunks: the same in chunks. Ours.
        max_waiting_segments: segments of one chunk waiting for their reply; beyond it the oldest is
            dropped. Ours.
    """

    max_waiting_s: float = AHEAD_MAX_S
    max_waiting_chunks: int = 512
    max_waiting_segments: int = 4


class DetectionQueue:
    """Audio waiting for detection, and detected segments waiting for a reply."""

    def __init__(self, limits: HalfDuplexLimits) -> None:
        self._limits = limits
        self._ready_s = 0.0  # when `prepared` was sent
        self._to_ignore_samples = COLD_START_SAMPLES
        self._waiting: deque[bytes] = deque()
        self._waiting_samples = 0
        self._is_detecting = False
        self._speech_events: deque[SpeechEvent] = deque()
        self._dropped = 0
        self._is_warned = False

    def begin(self, at_s: float) -> None:
        self._ready_s = at_s

    def append(self, chunk: AudioChunk, at_s: float) -> list[Effect]:
        samples = len(chunk.audio_base64) // SAMPLE_BYTES
        ignored = self._ignored_samples(samples, at_s)
        self._to_ignore_samples -= ignored
        if ignored == samples:
            return []
        self._waiting.append(chunk.audio_base64[ignored * SAMPLE_BYTES :])
        self._waiting_samples += samples - ignored
        effects = self.detect_next()
        if self._is_too_much_waiting():
            while self._is_too_much_waiting():
                self._take_oldest()
                self._dropped += 1
            effects += self._warn_of_drops()
        return effects

    def detect_next(self) -> list[Effect]:
        if self._is_detecting or not self._waiting:
            return []
        self._is_detecting = True
        return [Detect(self._take_oldest())]

    def found(self, speech_events: tuple[SpeechEvent, ...]) -> None:
        """Queue the speech events of a chunk.

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
        self._speech_events.extend(speech_events)

    def next_speech_event(self) -> SpeechEvent | None:
        return self._speech_events.popleft() if self._speech_events else None

    def drop_waiting_audio(self) -> None:
        """Drop undetected audio, as the model replies now."""
        self._waiting.clear()
        self._waiting_samples = 0

    def drop_segments(self) -> None:
        self._speech_events.clear()

    def _take_oldest(self) -> bytes:
        oldest = self._waiting.popleft()
        self._waiting_samples -= len(oldest) // SAMPLE_BYTES
        return oldest

    def _is_too_much_waiting(self) -> bool:
        max_samples = self._limits.max_waiting_s * INPUT_SAMPLE_RATE_HZ
        is_too_long = self._waiting_samples > max_samples
        return is_too_long or len(self._waiting) > self._limits.max_waiting_chunks

    def _ignored_samples(self, samples: int, at_s: float) -> int:
        """Return how many samples of a chunk belong to the cold start.

        These were recorded in the first half second after `prepared`; a chunk is assumed to arrive
        when its last sample was recorded. A client that sends a file faster than real time loses
        half a second of it at most.
        """
        recorded_from_s = at_s - samples / INPUT_SAMPLE_RATE_HZ
        early_s = max(0.0, self._ready_s + COLD_START_S - recorded_from_s)
        return min(samples, self._to_ignore_samples, round(early_s * INPUT_SAMPLE_RATE_HZ))

    def _warn_of_drops(self) -> list[Effect]:
        if self._is_warned:
            return []
        self._is_warned = True
        text = f"Detection is slower than the audio: {self._dropped} chunks dropped so far."
        return [Send(WarningMessage(code=ErrorCode.LATE_CHUNK, message=text))]
