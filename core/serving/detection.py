"""Voice activity detection in one session, one chunk at a time.

Half duplex needs every segment; a barge-in only the beginning of speech that lasts long enough.
"""

from __future__ import annotations

from typing import Final

from core.audio import FloatArray, to_pcm
from core.endpointing import EndpointOptions, SpeechDiscarded, SpeechStarted
from core.protocols.events import Happening, Segment
from core.schemas import duplex, half_duplex
from core.vad import STREAMING_OPTIONS, SileroVad, SpeechSegment, StreamingVAD, VadEvent

# Ours: a break in the user's voice after which what was heard before counts as a burst of its own.
BARGE_IN_SILENCE_MS: Final = 192


class TurnListener:
    """Cuts a user's sound into segments."""

    def __init__(self, config: half_duplex.VadConfig, detector: SileroVad) -> None:
        longest_s = STREAMING_OPTIONS.max_speech_duration_s
        options = EndpointOptions.from_config(config, max_speech_duration_s=longest_s)
        self._vad = StreamingVAD(options, detector)

    def hear(self, samples: FloatArray) -> tuple[Happening, ...]:
        """Take in sound, [T] float32 at 16 kHz, and return what happened in it; blocks."""
        return tuple(_told(event) for event in self._vad.process(samples))

    def reset(self) -> None:
        """Forget what was heard."""
        self._vad.reset()


class BargeInListener:
    """Notices that the user has begun to speak, once per utterance."""

    def __init__(self, config: duplex.BargeInConfig, detector: SileroVad) -> None:
        options = EndpointOptions(
            threshold=config.threshold,
            min_speech_duration_ms=config.min_speech_duration_ms,
            min_silence_duration_ms=BARGE_IN_SILENCE_MS,
            max_speech_duration_s=STREAMING_OPTIONS.max_speech_duration_s,
        )
        self._vad = StreamingVAD(options, detector)
        self._fewest_samples = options.to_samples(config.min_speech_duration_ms)
        self._heard_samples = 0
        self._begun: SpeechStarted | None = None  # not long enough yet

    def hear(self, samples: FloatArray) -> tuple[Happening, ...]:
        """Take in sound as `TurnListener`; return a beginning that has become long enough."""
        self._heard_samples += len(samples)
        found: list[Happening] = []
        for event in self._vad.process(samples):
            if isinstance(event, SpeechStarted):
                self._begun = event
                continue
            if isinstance(event, SpeechSegment) and self._begun is not None:
                found.append(self._begun)
            self._begun = None
        begun = self._begun
        if begun and self._heard_samples - begun.start_samples >= self._fewest_samples:
            found.append(begun)
            self._begun = None
        return tuple(found)


def _told(event: VadEvent) -> Happening:
    match event:
        case SpeechSegment():
            return Segment(to_pcm(event.samples), event.start_samples, event.speech_samples)
        case SpeechStarted() | SpeechDiscarded():
            return event
