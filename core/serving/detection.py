"""Streaming voice activity detection of one session; every `detect` blocks.

Half duplex needs each segment of speech, barge-in only the start of speech that is long enough, and
the Realtime protocol the probability of each window.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from core.audio import FloatArray, to_pcm
from core.endpointing import (
    EndpointOptions,
    SpeechDiscarded,
    SpeechStarted,
    SpeechSuspected,
    to_samples,
)
from core.protocols.effects import ScoreSpeech
from core.protocols.events import MS_PER_S, Segment, SpeechEvent, SpeechScored
from core.protocols.realtime_input import LEVEL_MS
from core.schemas import duplex, half_duplex
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.realtime_session import AudioFormat
from core.serving.openai_clients import ClientSound
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad, SpeechSegment, StreamingVAD

LEVEL_SAMPLES: Final = LEVEL_MS * INPUT_SAMPLE_RATE_HZ // MS_PER_S
# Ours: a pause that ends a burst of speech.
BARGE_IN_SILENCE_MS: Final = 192


class TurnDetector:
    """Splits a user's audio into segments of speech."""

    def __init__(self, config: half_duplex.VadConfig, detector: SileroVad) -> None:
        self._vad = StreamingVAD(EndpointOptions(**dict(config)), detector)

    def detect(self, samples: FloatArray) -> tuple[SpeechEvent, ...]:
        """Return the events in the next audio, [T] float32 at 16 kHz."""
        return tuple(
            Segment(to_pcm(event.samples), event.start_samples)
            if isinstance(event, SpeechSegment)
            else event
            for event in self._vad.process(samples)
        )

    def reset(self) -> None:
        self._vad.reset()


class BargeInDetector:
    """Detects that the user begins to speak, once per burst of speech."""

    def __init__(self, config: duplex.BargeInConfig, detector: SileroVad) -> None:
        options = EndpointOptions(
            **dict(config),
            min_silence_duration_ms=BARGE_IN_SILENCE_MS,
            window_samples=MODEL_WINDOW_SAMPLES,
        )
        self._vad = StreamingVAD(options, detector)
        self._fewest_samples = to_samples(config.min_speech_duration_ms)
        self._begun: SpeechStarted | None = None  # a burst that is not long enough yet

    def detect(self, samples: FloatArray) -> tuple[SpeechEvent, ...]:
        """Detect in [T] float32 at 16 kHz.

        Returns:
            `SpeechSuspected` at the first window of a burst; then `SpeechStarted` once it is long
            enough, or `SpeechDiscarded` if it ends before.
        """
        found: list[SpeechEvent] = []
        for event in self._vad.process(samples):
            match event:
                case SpeechStarted(start):
                    self._begun = event
                    found.append(SpeechSuspected(start))
                    continue
                case SpeechSegment() if self._begun is not None:
                    found.append(self._begun)
                case SpeechDiscarded():
                    found.append(event)
            self._begun = None
        if self._begun and self._vad.speech_samples >= self._fewest_samples:
            found.append(self._begun)
            self._begun = None
        return tuple(found)


class WindowDetector:
    def __init__(self, detector: SileroVad) -> None:
        self._detector = detector  # shared by all sessions
        self._state = detector.initial_state()
        self._sound = ClientSound(AudioFormat())
        self._rest = np.zeros(0, np.float32)  # of an incomplete window

    def detect(self, effect: ScoreSpeech) -> SpeechScored:
        """Return the speech probability of each window that is complete now."""
        if effect.format != self._sound.format:
            self._sound = ClientSound(effect.format)
        resampled = self._sound.feed(effect.pcm)
        self._rest = np.concatenate([self._rest, resampled])
        parts = self._rest[: len(self._rest) // LEVEL_SAMPLES * LEVEL_SAMPLES]
        parts = parts.reshape(-1, LEVEL_SAMPLES)
        levels = np.einsum("pt,pt->p", parts, parts) / LEVEL_SAMPLES
        whole = len(self._rest) - len(self._rest) % MODEL_WINDOW_SAMPLES
        found, self._state = self._detector.probabilities(self._rest[:whole], self._state)
        self._rest = self._rest[whole:]
        samples = resampled.astype("<f4", copy=False).tobytes()
        return SpeechScored(tuple(found.tolist()), samples, tuple(levels.tolist()))
