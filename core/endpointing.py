"""Turns speech probabilities into "speech started" and "speech ended" on a sample clock.

Pure: no model, no audio, no wall clock. Positions are samples from the start of the stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from core.schemas.half_duplex import VadConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ

# Speech ends below the threshold minus this. Source: docs/specification/service.md#2.4.3.
HYSTERESIS: Final = 0.15
LOWEST_EXIT: Final = 0.01  # so that a very low threshold can still be left
DEFAULT_WINDOW_SAMPLES: Final = 1_024
MS_PER_S: Final = 1_000


@dataclass(frozen=True)
class EndpointOptions:
    """When speech counts as begun and as ended; the defaults are those of a live conversation."""

    threshold: float = 0.8
    min_speech_duration_ms: int = 128
    min_silence_duration_ms: int = 800
    speech_pad_ms: int = 30
    window_samples: int = DEFAULT_WINDOW_SAMPLES  # how far the clock moves per probability
    max_speech_duration_s: float = math.inf
    sample_rate_hz: int = INPUT_SAMPLE_RATE_HZ

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be in (0, 1], not {self.threshold}")
        if self.window_samples < 1 or self.sample_rate_hz < 1:
            raise ValueError("window_samples and sample_rate_hz must be at least 1")
        lengths = (self.min_speech_duration_ms, self.min_silence_duration_ms, self.speech_pad_ms)
        if min(lengths) < 0 or not self.max_speech_duration_s > 0:
            raise ValueError("durations must not be negative, the longest speech must not be 0")

    @classmethod
    def from_config(
        cls, config: VadConfig, max_speech_duration_s: float = math.inf
    ) -> EndpointOptions:
        return cls(
            threshold=config.threshold,
            min_speech_duration_ms=config.min_speech_duration_ms,
            min_silence_duration_ms=config.min_silence_duration_ms,
            speech_pad_ms=config.speech_pad_ms,
            max_speech_duration_s=max_speech_duration_s,
        )

    @property
    def exit_threshold(self) -> float:
        """Below this a window is silence."""
        return min(self.threshold, max(self.threshold - HYSTERESIS, LOWEST_EXIT))

    @property
    def pad_samples(self) -> int:
        """Kept before and after the speech."""
        return self.to_samples(self.speech_pad_ms)

    @property
    def max_speech_samples(self) -> float:
        """Speech is cut at this length; may be infinite."""
        return self.max_speech_duration_s * self.sample_rate_hz

    def to_samples(self, duration_ms: int) -> int:
        return duration_ms * self.sample_rate_hz // MS_PER_S


@dataclass(frozen=True)
class SpeechStarted:
    """Speech began; the segment will begin at `start_samples`, pre-roll included."""

    start_samples: int


@dataclass(frozen=True)
class SpeechSuspected:
    """A first window sounds like speech, which may still turn out too short to be any."""

    start_samples: int


@dataclass(frozen=True)
class SpeechEnded:
    """A segment is complete: [start, stop) with its padding; `speech_samples` counts without."""

    start_samples: int
    stop_samples: int
    speech_samples: int


@dataclass(frozen=True)
class SpeechDiscarded:
    """What had started was too short to be speech."""

    start_samples: int
    stop_samples: int


SpeechEvent = SpeechStarted | SpeechEnded | SpeechDiscarded


class Endpointer:
    """Counts windows of speech and silence; how they are grouped into calls makes no difference.

    Segments never overlap: padding reaches at most to the end of the segment before and to the
    clock.
    """

    def __init__(self, options: EndpointOptions) -> None:
        self._options = options
        self._clock_samples = 0
        self._speech_start_samples: int | None = None
        self._silence_start_samples: int | None = None
        self._free_from_samples = 0  # no segment may begin before

    @property
    def is_speaking(self) -> bool:
        return self._speech_start_samples is not None

    @property
    def speech_samples(self) -> int:
        """How long the speech that has started is so far, up to the silence that may end it."""
        if self._speech_start_samples is None:
            return 0
        silence = self._silence_start_samples
        return (self._clock_samples if silence is None else silence) - self._speech_start_samples

    @property
    def clock_samples(self) -> int:
        return self._clock_samples

    @property
    def needed_from_samples(self) -> int:
        """The earliest position that this or the next segment can begin at."""
        start = self._speech_start_samples
        return self._padded_start(self._clock_samples if start is None else start)

    def feed(self, probabilities: Iterable[float]) -> list[SpeechEvent]:
        """Judge the windows that follow.

        Args:
            probabilities: Of speech, one per window, 0..1, oldest first.

        Returns:
            What happened, oldest first.
        """
        events: list[SpeechEvent] = []
        for probability in probabilities:
            events += self._judge(probability)
        return events

    def flush(self) -> list[SpeechEvent]:
        """End the stream here: speech that is going on ends, however short the silence after it."""
        return [self._end_speech()] if self.is_speaking else []

    def reset(self) -> None:
        self._clock_samples = 0
        self._speech_start_samples = None
        self._silence_start_samples = None
        self._free_from_samples = 0

    def _judge(self, probability: float) -> list[SpeechEvent]:
        options, window_start = self._options, self._clock_samples
        self._clock_samples += options.window_samples
        events: list[SpeechEvent] = []
        if self._speech_start_samples is None:
            if probability < options.threshold:
                return events
            self._speech_start_samples = window_start
            events.append(SpeechStarted(self._padded_start(window_start)))
        if probability >= options.exit_threshold:
            self._silence_start_samples = None
        elif self._silence_start_samples is None:
            self._silence_start_samples = window_start
        if self._is_over(self._speech_start_samples):
            events.append(self._end_speech())
        return events

    def _is_over(self, speech_start: int) -> bool:
        options, silence_start = self._options, self._silence_start_samples
        if silence_start is not None:
            silence = self._clock_samples - silence_start
            if silence >= options.to_samples(options.min_silence_duration_ms):
                return True
        return self._clock_samples - speech_start >= options.max_speech_samples

    def _end_speech(self) -> SpeechEnded | SpeechDiscarded:
        options, silence_start = self._options, self._silence_start_samples
        assert self._speech_start_samples is not None
        speech_stop = self._clock_samples if silence_start is None else silence_start
        speech_samples = speech_stop - self._speech_start_samples
        start = self._padded_start(self._speech_start_samples)
        stop = min(speech_stop + options.pad_samples, self._clock_samples)
        self._speech_start_samples = None
        self._silence_start_samples = None
        if speech_samples < options.to_samples(options.min_speech_duration_ms):
            return SpeechDiscarded(start, stop)
        self._free_from_samples = stop
        return SpeechEnded(start, stop, speech_samples)

    def _padded_start(self, speech_start: int) -> int:
        return max(speech_start - self._options.pad_samples, self._free_from_samples)
