"""Sound of OpenAI's clients: 16-bit samples and G.711 into the model's samples, and back."""

from __future__ import annotations

import numpy as np

from core.audio import FloatArray, StreamResampler, resample
from core.protocols.effects import Hear
from core.protocols.events import Heard
from core.protocols.realtime_items import Sound
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from core.schemas.realtime_session import AudioFormat
from core.serving.client_sound import decoded, encoded
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad


class WindowListener:
    """Judges a stream window by window."""

    def __init__(self, detector: SileroVad) -> None:
        """Begin a stream; the detector is shared."""
        self._detector = detector
        self._state = detector.initial_state()
        self._format = AudioFormat()
        self._resampler = StreamResampler(self._format.rate_hz, INPUT_SAMPLE_RATE_HZ)
        self._rest = np.zeros(0, np.float32)  # does not fill a window yet

    def hear(self, effect: Hear) -> Heard:
        """Return how likely each window that is complete now holds speech; blocks."""
        if effect.format != self._format:
            self._format = effect.format
            self._resampler = StreamResampler(effect.format.rate_hz, INPUT_SAMPLE_RATE_HZ)
        heard = self._resampler.feed(decoded(effect.pcm, effect.format.type, effect.format.rate_hz))
        self._rest = np.concatenate([self._rest, heard])
        whole = len(self._rest) - len(self._rest) % MODEL_WINDOW_SAMPLES
        found, self._state = self._detector.probabilities(self._rest[:whole], self._state)
        self._rest = self._rest[whole:]
        samples = heard.astype("<f4", copy=False).tobytes()
        return Heard(tuple(found.tolist()), samples)


class ReplyWriter:
    """Writes the sound of one reply as its client reads it."""

    def __init__(self, written: AudioFormat) -> None:
        """Begin a reply."""
        self._format = written
        self._resampler = StreamResampler(OUTPUT_SAMPLE_RATE_HZ, written.rate_hz)

    def write(self, samples: FloatArray) -> bytes:
        """Return the bytes for samples [T] at 24 kHz; the last few may follow with the next."""
        return self._written(self._resampler.feed(samples))

    def finish(self) -> bytes:
        """Return what is left."""
        return self._written(self._resampler.finish())

    def _written(self, samples: FloatArray) -> bytes:
        kept = np.clip(samples, -1.0, 1.0)
        return encoded(kept, self._format.type, self._format.rate_hz)


def model_samples(sound: Sound) -> FloatArray:
    """Return an item's sound as the model hears it, [T] float32 at 16 kHz."""
    samples = decoded(sound.pcm, sound.format.type, sound.format.rate_hz)
    return resample(samples, sound.format.rate_hz, INPUT_SAMPLE_RATE_HZ)
