"""What a user says into the scripted microphone: beginnings of sentences, and backchannels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tests.browser.media_files import INPUT_RATE_HZ, speech_16k
from tests.system.client import Samples

FRAME = INPUT_RATE_HZ // 100
PIECE_S = 1.2
QUIET_DB = -28.0  # below the loud parts: a pause
PAUSE_FRAMES = 8
VOICED_FRAMES = 40  # of the 60 that follow
USER_LEVEL_DB = -20.0  # somebody near the microphone, dBFS

# A hum through the nose: resonances in Hz, and how strong they are, dB.
HUM = ((260.0, 0.0), (1_000.0, -24.0), (2_200.0, -30.0))
RESONANCE_HZ = 90.0
HIGHEST_HZ = 3_600.0
EDGE_S = 0.03
BREATH_RMS = 0.012


def _levels(samples: Samples) -> Samples:
    whole = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    return np.sqrt((whole.astype(np.float64) ** 2).mean(axis=1)).astype(np.float32)


def at_level(samples: Samples, level_db: float = USER_LEVEL_DB) -> Samples:
    """Return it as loud as asked while it sounds, dBFS."""
    levels = np.sort(_levels(samples))[::-1]
    sounding = levels[: max(1, int(len(levels) * 0.6))]
    level = float(np.sqrt((sounding.astype(np.float64) ** 2).mean()))
    return np.clip(samples * (10 ** (level_db / 20) / level), -1, 1).astype(np.float32)


def beginnings() -> list[Samples]:
    """Return pieces of recorded speech, each from its first sound on, 1.2 s long."""
    found: list[Samples] = []
    for name in ("speech_8s", "question_1", "ref_voice"):
        samples = speech_16k(name)
        levels = _levels(samples)
        loud = np.sort(levels)[::-1][len(levels) // 20]
        sounds = levels > loud * 10 ** (QUIET_DB / 20)
        for index in range(PAUSE_FRAMES, len(sounds)):
            is_onset = sounds[index] and not sounds[index - PAUSE_FRAMES : index].any()
            if is_onset and sounds[index : index + 60].sum() >= VOICED_FRAMES:
                start = index * FRAME
                found.append(at_level(samples[start : start + round(PIECE_S * INPUT_RATE_HZ)]))
    return found


def backchannels(count: int) -> list[Samples]:
    """Return so many voices that say "mm-hm", each 150 to 350 ms long."""
    return [
        at_level(
            _mm_hm(
                pitch_hz=90 + 9 * index,
                syllable_s=(50 + index % 10 * 9) / 1_000,
                breath_s=(50 + index % 4 * 10) / 1_000,
            )
        )
        for index in range(count)
    ]


def _mm_hm(pitch_hz: float, syllable_s: float, breath_s: float) -> Samples:
    noise = np.random.default_rng(round(pitch_hz)).normal(0, BREATH_RMS, _samples(breath_s))
    breath: Samples = noise.astype(np.float32)
    return np.concatenate(
        [_hum(pitch_hz, -0.1, syllable_s), breath, _hum(pitch_hz, 0.25, syllable_s)]
    )


def _hum(pitch_hz: float, bend: float, length_s: float) -> Samples:
    length = _samples(length_s)
    position = np.arange(length)
    f0 = pitch_hz * (1 + bend * position / length)
    phase = 2 * np.pi * np.cumsum(f0) / INPUT_RATE_HZ
    sound = np.zeros(length)
    for harmonic in range(1, int(HIGHEST_HZ / pitch_hz)):
        gain = sum(
            10 ** (db / 20) / (1 + ((harmonic * f0 - hz) / RESONANCE_HZ) ** 2) for hz, db in HUM
        )
        sound += gain * np.sin(harmonic * phase)
    edge = np.minimum(1, np.minimum(position, length - position) / (EDGE_S * INPUT_RATE_HZ))
    hum: Samples = (sound * edge).astype(np.float32)
    return hum


def _samples(length_s: float) -> int:
    return round(length_s * INPUT_RATE_HZ)


def longest_silence_ms(times_ms: list[float], piece_ms: float) -> float:
    """Return the longest hole between pieces that follow each other."""
    holes = [later - sooner - piece_ms for sooner, later in pairwise(sorted(times_ms))]
    return max(holes, default=0.0)
