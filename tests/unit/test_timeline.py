"""Both voices on one clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from core.talk.conversation import Timeline

RATE_HZ = 24_000


def _tone(seconds: float) -> np.ndarray:
    return np.full(int(seconds * RATE_HZ), 0.5, np.float32)


def test_speech_begins_when_its_unit_is_complete() -> None:
    timeline = Timeline(np.zeros(16_000, np.float32))
    assert timeline.place(_tone(0.5), ready_at_s=1) == 1.0
    right = timeline.mix()[:, 1]
    assert right[:RATE_HZ].max() == 0 and (right[RATE_HZ:] == 0.5).all()
    assert timeline.duration_s == 1.5


def test_speech_waits_for_what_is_still_being_said() -> None:
    timeline = Timeline(np.zeros(16_000, np.float32))
    timeline.place(_tone(1.25), ready_at_s=1)
    assert timeline.place(_tone(1), ready_at_s=2) == 2.25


def test_an_interruption_silences_what_was_still_to_come() -> None:
    timeline = Timeline(np.zeros(16_000, np.float32))
    timeline.place(_tone(2), ready_at_s=1)
    timeline.cut(2)
    assert timeline.duration_s == 2.0
    assert timeline.place(_tone(1), ready_at_s=2) == 2.0


def test_the_user_is_on_the_left(tmp_path: Path) -> None:
    heard = np.full(16_000, 0.25, np.float32)
    timeline = Timeline(heard)
    timeline.place(_tone(1), ready_at_s=1)
    timeline.write(tmp_path / "reply.wav")
    stereo, rate_hz = soundfile.read(tmp_path / "reply.wav")
    assert rate_hz == RATE_HZ and stereo.shape == (2 * RATE_HZ, 2)
    assert abs(stereo[RATE_HZ // 2, 0] - 0.25) < 1e-3 and stereo[RATE_HZ // 2, 1] == 0
