"""Test audio: natural voices of `benchmarks.nano`, the cascade's own, room tone and noise.

All audio is [T] float32 at 16 kHz.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.nano.utterances import natural
from core.audio import FloatArray, resample
from core.cascade.parts import Synthesizer
from core.cascade.synthesis import WORD, Sentences
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ
from training.nano.domain.kinds import Question

NOISE_DB: Final = 10.0
ROOM_LEVEL: Final = 0.0005  # of a quiet room, of full scale
ROOM_AROUND_S: Final = 0.4
SILENCE_LEVEL: Final = 0.005  # of full scale


def spoken(texts: Sequence[str], folder: Path, seed: int = 0) -> list[FloatArray]:
    """Synthesize texts with alternating natural voices; results are cached in `folder`.

    Raises:
        InputError: the voices cannot be downloaded.
    """
    asked = [Question(text, intent="") for text in texts]
    return [voiced(utterance.samples) for utterance in natural(asked, seed, folder)]


def by_cascade(synthesizer: Synthesizer, text: str) -> FloatArray:
    """Synthesize with the cascade's own voice, in the pieces in which a call speaks them."""
    sentences = Sentences()
    pieces = [piece for word in WORD.findall(text) for piece in sentences.add(word)]
    made = np.concatenate([synthesizer.speak(each) for each in [*pieces, sentences.rest]])
    return voiced(resample(made, OUTPUT_SAMPLE_RATE_HZ, INPUT_SAMPLE_RATE_HZ))


def voiced(samples: FloatArray) -> FloatArray:
    """Trim silence, so that the recording ends with its speech."""
    loud = np.flatnonzero(np.abs(samples) > SILENCE_LEVEL)
    return samples[int(loud[0]) : int(loud[-1]) + 1]


def in_room(samples: FloatArray) -> FloatArray:
    return np.concatenate([room(ROOM_AROUND_S), samples, room(ROOM_AROUND_S)])


def room(length_s: float, seed: int = 0) -> FloatArray:
    noise = np.random.default_rng(seed).normal(0, ROOM_LEVEL, int(length_s * INPUT_SAMPLE_RATE_HZ))
    return noise.astype(np.float32)


def with_noise(sound: FloatArray) -> FloatArray:
    power = float(np.mean(sound**2)) / 10 ** (NOISE_DB / 10)
    noise = np.random.default_rng(len(sound)).normal(0, power**0.5, len(sound))
    return (sound + noise).astype(np.float32)
