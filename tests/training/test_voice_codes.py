"""A speech code is a phoneme at a pitch; timing of the target voice becomes codes."""

from __future__ import annotations

import numpy as np
import pytest

from MiniCPMO45.configuration_minicpmo import SpeechTiming
from training.nano.voice.alphabet import (
    CODES_USED,
    PHONEMES,
    PITCH_CLASSES,
    SILENCE,
    Sound,
    pitch_class,
    sound_of,
)
from training.nano.voice.pronunciation import (
    Phone,
    UnspeakableTextError,
    cut,
    first_code,
    loud_moments,
    pitch_of,
    place,
)


def test_every_code_used_stands_for_one_sound() -> None:
    assert len(set(CODES_USED)) == len(CODES_USED) == len(PHONEMES) * PITCH_CLASSES + 1
    assert all(sound_of(code).code == code for code in CODES_USED)
    assert len(set(PHONEMES)) == len(PHONEMES)


def test_silence_keeps_the_number_that_serving_writes() -> None:
    assert Sound("").code == SILENCE == SpeechTiming().silence_code


def test_a_code_outside_the_alphabet_is_refused() -> None:
    with pytest.raises(ValueError, match="not in the nano's alphabet"):
        sound_of(SILENCE - 1)


def test_pitch_classes_rise_with_the_fundamental() -> None:
    classes = [pitch_class(hz) for hz in (0, 100, 170, 185, 200, 220, 300)]
    assert classes == list(range(PITCH_CLASSES))


def test_short_phonemes_own_a_code_and_silence_takes_what_is_left() -> None:
    phones = [
        Phone("", 0.0, 0.12),
        Phone("t", 0.12, 0.13),
        Phone("u", 0.13, 0.14),
        Phone("s", 0.14, 0.30),
        Phone("", 0.30, 0.40),
    ]
    assert place(phones, 0.0, 10) == [-1, -1, -1, 1, 2, 3, 3, 3, -1, -1]


def test_phonemes_at_the_end_are_squeezed_together_rather_than_lost() -> None:
    phones = [Phone(symbol, 0.36, 0.4) for symbol in "abd"]
    assert place(phones, 0.0, 10)[-3:] == [0, 1, 2]


def test_sound_is_found_where_it_is_loud() -> None:
    wave = np.zeros(24_000, np.float32)
    wave[12_000:18_000] = 0.5
    times = loud_moments(wave)
    assert times[0] == pytest.approx(0.5)
    assert times[-1] == pytest.approx(0.745)


def test_a_cut_before_the_beginning_is_filled_with_silence() -> None:
    wave = np.ones(960, np.float32)
    part = cut(wave, -0.02, 960)
    assert part[:480].sum() == 0
    assert part[480:].sum() == 480


def test_mostly_unvoiced_stretches_have_no_pitch() -> None:
    f0 = np.array([200, 0, 0, 200, 210, 0], np.float32)
    assert pitch_of(f0, 0.0, 0.0375) == 0
    assert pitch_of(f0, 0.0375, 0.0375) == 205


def test_a_word_begins_with_its_first_phone_that_is_heard() -> None:
    phones = [Phone("", 0, 0.1), Phone("a", 0.1, 0.2, place=2), Phone("b", 0.2, 0.3, place=4)]
    assert first_code(phones, [-1, 1, 1, 2], 1) == 1  # a stress mark stands before the phoneme
    assert first_code(phones, [-1, 1, 1, 2], 3) == 3
    with pytest.raises(UnspeakableTextError):
        first_code(phones, [-1, 1, 1, 2], 5)
