"""Turns speech probabilities into "speech started" and "speech ended" on a sample clock.

Pure: no model, no audio, no wall clock. Positions are samples from the start of the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from core.schemas.common import MS_PER_S
from core.schemas.half_duplex import VadConfig
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ

# Speech ends below the threshold minus this. Source: docs/specification/service.md#2.4.3.
HYSTERESIS: Final = 0.15
LOWEST_EXIT: Final = 0.01  # so that a very low threshold can still be left
DEFAULT_WINDOW_SAMPLES: Final = 1_024


class EndpointOptions(VadConfig):
    """When speech counts as begun and as ended."""

    window_samples: int = DEFAULT_WINDOW_SAMPLES  # how far the clock moves per probability
    # Longer speech is cut. Ours: a live conversation holds a bounded amount of audio, as does the
    # model's context.
    max_speech_duration_s: float = 300.0


def to_samples(duration_ms: int) -> int:
    return duration_ms * INPUT_SAMPLE_RATE_HZ // MS_PER_S


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
        assert options.window_samples > 0 and options.max_speech_duration_s > 0
        self._options = options
        self._exit_threshold = min(
            options.threshold, max(options.threshold - HYSTERESIS, LOWEST_EXIT)
        )
        self._pad_samples = to_samples(options.speech_pad_ms)
        self.clock_samples = 0
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
        return (self.clock_samples if silence is None else silence) - self._speech_start_samples

    @property
    def needed_from_samples(self) -> int:
        """The earliest position that this or the next segment can begin at."""
        start = self._speech_start_samples
        return self._padded_start(self.clock_samples if start is None else start)

    def feed(self, probabilities: Iterable[float]) -> list[SpeechEvent]:
        """Judge the windows that follow by their probabilities of speech, 0..1."""
        return [event for each in probabilities for event in self._judge(each)]

    def flush(self) -> list[SpeechEvent]:
        """End the stream here: speech that is going on ends, however short the silence after it."""
        return [self._end_speech()] if self.is_speaking else []

    def _judge(self, probability: float) -> Iterator[SpeechEvent]:
        options, window_start = self._options, self.clock_samples
        self.clock_samples += options.window_samples
        if self._speech_start_samples is None:
            if probability < options.threshold:
                return
            self._speech_start_samples = window_start
            yield SpeechStarted(self._padded_start(window_start))
        if probability >= self._exit_threshold:
            self._silence_start_samples = None
        elif self._silence_start_samples is None:
            self._silence_start_samples = window_start
        if self._is_over(self._speech_start_samples):
            yield self._end_speech()

    def _is_over(self, speech_start: int) -> bool:
        options, silence_start = self._options, self._silence_start_samples
        if silence_start is not None:
            silence = self.clock_samples - silence_start
            if silence >= to_samples(options.min_silence_duration_ms):
                return True
        longest_samples = options.max_speech_duration_s * INPUT_SAMPLE_RATE_HZ
        return self.clock_samples - speech_start >= longest_samples

    def _end_speech(self) -> SpeechEnded | SpeechDiscarded:
        speech_start, speech_samples = self._speech_start_samples, self.speech_samples
        assert speech_start is not None
        start = self._padded_start(speech_start)
        stop = min(speech_start + speech_samples + self._pad_samples, self.clock_samples)
        self._speech_start_samples = self._silence_start_samples = None
        if speech_samples < to_samples(self._options.min_speech_duration_ms):
            return SpeechDiscarded(start, stop)
        self._free_from_samples = stop
        return SpeechEnded(start, stop, speech_samples)

    def _padded_start(self, speech_start: int) -> int:
        return max(speech_start - self._pad_samples, self._free_from_samples)
