"""How a decoded clip is dealt out as message parts."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from MiniCPMO45.processing.pictures import MIN_LAST_SAMPLES, video_parts


def frames(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (32, 18), (10 * i, 0, 0)) for i in range(count)]


def sound(duration_s: float) -> np.ndarray:
    return np.arange(int(duration_s * 16_000), dtype=np.float32)


def kinds(parts: list[Image.Image | np.ndarray]) -> str:
    return "".join("s" if isinstance(part, np.ndarray) else "p" for part in parts)


def test_pictures_and_seconds_alternate_and_no_sample_is_lost() -> None:
    audio = sound(3.5)
    parts = video_parts(frames(4), [0, 1, 2, 3], audio, 3.5)
    assert kinds(parts) == "pspspsps"
    heard = np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
    assert np.array_equal(heard, audio)


def test_the_last_piece_is_padded() -> None:
    parts = video_parts(frames(2), [0, 1], sound(1.02), 1.02)
    last = parts[-1]
    assert isinstance(last, np.ndarray)
    assert len(last) == MIN_LAST_SAMPLES
    assert not last[320:].any()


def test_frames_in_between_become_one_picture_after_the_sound() -> None:
    shown = frames(6)
    parts = video_parts(shown, [i / 3 for i in range(6)], sound(2.0), 2.0, frames_per_piece=3)
    assert kinds(parts) == "psppsp"
    assert [parts[0], parts[3]] == [shown[0], shown[3]]
    merged = parts[2]
    assert isinstance(merged, Image.Image)
    assert merged.size == (32, 18 * 2 + 6)  # two wide pictures stand nearer a square in a column


def test_a_silent_film_has_no_sound_parts() -> None:
    assert kinds(video_parts(frames(2), [0, 1], np.zeros(0, np.float32), 2.0)) == "pp"
    assert video_parts([], [], sound(1.0), 1.0) == []


@pytest.mark.parametrize(
    ("times_s", "per_piece"), [([0.0], 1), ([1.0, 0.0], 1), ([0.0, 9.0], 1), ([0.0, 1.0], 0)]
)
def test_contradictions_are_refused(times_s: list[float], per_piece: int) -> None:
    with pytest.raises(ValueError):
        video_parts(frames(2), times_s, sound(2.0), 2.0, frames_per_piece=per_piece)
