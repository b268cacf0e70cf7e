"""Speech in another time: as long as asked for, at the same pitch."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.sound_encoder import CODINGS, encode

SECONDS = 2
TONE_HZ = 440


@pytest.mark.parametrize("name", [name for name in CODINGS if name != "pcm"])
def test_a_file_of_every_format_lasts_as_long_as_its_sound(tmp_path: Path, name: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(SECONDS * OUTPUT_SAMPLE_RATE_HZ * SAMPLE_BYTES))
    with source.open("rb") as samples, target.open("wb") as file:
        encode(samples, file, CODINGS[name])
    with av.open(target, "r") as made:
        assert name in made.streams.audio[0].codec_context.name
        frames = list(made.decode(audio=0))
    lasts_s = sum(frame.samples for frame in frames) / frames[0].sample_rate
    assert lasts_s == pytest.approx(SECONDS, abs=0.15)


@pytest.mark.parametrize("speed", [0.25, 0.5, 1.0, 1.5, 4.0])
def test_another_speed_keeps_the_pitch(tmp_path: Path, speed: float) -> None:
    times_s = np.arange(SECONDS * OUTPUT_SAMPLE_RATE_HZ) / OUTPUT_SAMPLE_RATE_HZ
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes((np.sin(2 * np.pi * TONE_HZ * times_s) / 2).astype("<f4").tobytes())
    with source.open("rb") as samples, target.open("wb") as file:
        encode(samples, file, CODINGS["pcm"], speed)
    made = np.frombuffer(target.read_bytes(), "<i2").astype(float)
    seconds = len(made) / OUTPUT_SAMPLE_RATE_HZ
    assert seconds == pytest.approx(SECONDS / speed, rel=0.05)
    assert np.abs(np.fft.rfft(made)).argmax() / seconds == pytest.approx(TONE_HZ, rel=0.02)
