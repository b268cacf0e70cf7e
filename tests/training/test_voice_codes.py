"""Alphabet of speech codes, and codes from the timing of the target voice."""

from __future__ import annotations

import numpy as np
import pytest

from MiniCPMO45.configuration_minicpmo import SpeechTiming
from training.nano.voice.alphabet import (
    CODES_USED,
    PHONEMES,
    PITCH_CLASSES,
    SILENCE,
    code_of,
    pitch_class,
)
from training.nano.voice.pronunciation import (
    Phone,
    UnspeakableTextError,
    crop,
    first_code,
    loud_moments,
    pitch_of,
    place,
)


def test_codes_and_sounds_correspond_one_to_one() -> None:
    codes = [code_of(phoneme, pitch) for phoneme in PHONEMES for pitch in range(PITCH_CLASSES)]
    assert (*codes, SILENCE) == CODES_USED
    assert len(set(CODES_USED)) == len(CODES_USED)
    assert len(set(PHONEMES)) == len(PHONEMES)


def test_silence_code_equals_serving() -> None:
    assert SILENCE == SpeechTiming().silence_code


def test_pitch_class_increases_with_f0() -> None:
    classes = [pitch_class(hz) for hz in (0, 100, 170, 185, 200, 220, 300)]
    assert classes == list(range(PITCH_CLASSES))


def test_short_phonemes_have_a_code_and_silence_fills_the_rest() -> None:
    phones = [
        Phone("", 0.0, 0.12),
        Phone("t", 0.12, 0.13),
        Phone("u", 0.13, 0.14),
        Phone("s", 0.14, 0.30),
        Phone("", 0.30, 0.40),
    ]
    assert place(phones, 0.0, 10) == [-1, -1, -1, 1, 2, 3, 3, 3, -1, -1]


def test_phonemes_at_the_end_are_shortened_and_not_dropped() -> None:
    phones = [Phone(symbol, 0.36, 0.4) for symbol in "abd"]
    assert place(phones, 0.0, 10)[-3:] == [0, 1, 2]


def test_speech_boundaries_are_found_by_level() -> None:
    wave = np.zeros(24_000, np.float32)
    wave[12_000:18_000] = 0.5
    times = loud_moments(wave)
    assert times[0] == pytest.approx(0.5)
    assert times[-1] == pytest.approx(0.745)


def test_crop_before_the_start_is_zero_padded() -> None:
    wave = np.ones(960, np.float32)
    part = crop(wave, -0.02, 960)
    assert part[:480].sum() == 0
    assert part[480:].sum() == 480


def test_mostly_unvoiced_codes_have_no_pitch() -> None:
    f0 = np.array([200, 0, 0, 200, 210, 0], np.float32)
    assert pitch_of(f0, 0.0, 0.0375) == 0
    assert pitch_of(f0, 0.0375, 0.0375) == 205


def test_word_starts_at_its_first_audible_phoneme() -> None:
    phones = [Phone("", 0, 0.1), Phone("a", 0.1, 0.2, place=2), Phone("b", 0.2, 0.3, place=4)]
    assert first_code(phones, [-1, 1, 1, 2], 1) == 1  # a stress mark stands before the phoneme
    assert first_code(phones, [-1, 1, 1, 2], 3) == 3
    with pytest.raises(UnspeakableTextError):
        first_code(phones, [-1, 1, 1, 2], 5)
