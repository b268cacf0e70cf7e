"""Pictures and sound out of video files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from core.errors import OmniError, PictureError, PictureTooLargeError
from core.video import read_video
from tests.unit.media import encode_sound, encode_video, tone

UNTURNED = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
# The matrix a phone writes when it is held upright: turn by 90° to the right.
TURNED = struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, 48 << 16, 0, 0x40000000)


def brightness(frame: Image.Image) -> int:
    return int(np.asarray(frame)[-4, -4].mean())


def test_one_frame_a_second_and_all_of_the_sound() -> None:
    clip = read_video(encode_video(seconds=4, sound=True))
    assert clip.times_s[:4] == (0.0, 1.0, 2.0, 3.0)
    assert [brightness(frame) for frame in clip.frames[:4]] == pytest.approx([0, 20, 40, 60], abs=6)
    assert len(clip.audio) == pytest.approx(4 * 16_000, abs=2_000)
    assert clip.duration_s == pytest.approx(4, abs=0.1)
    assert all(frame.mode == "RGB" for frame in clip.frames)


def test_pictures_that_begin_after_the_sound_keep_their_times() -> None:
    clip = read_video(encode_video(seconds=3, sound=True, pictures_from_s=2))
    assert clip.times_s[:5] == (0.0, 1.0, 2.0, 3.0, 4.0)
    seen = [brightness(frame) for frame in clip.frames[:5]]
    assert seen == pytest.approx([0, 0, 0, 20, 40], abs=6)


def test_sound_that_begins_after_the_pictures_keeps_its_time() -> None:
    clip = read_video(encode_video(seconds=3, sound=True, sound_from_s=2))
    assert [brightness(frame) for frame in clip.frames[:3]] == pytest.approx([0, 20, 40], abs=6)
    assert len(clip.audio) == pytest.approx(5 * 16_000, abs=2_000)
    begins_s = np.flatnonzero(np.abs(clip.audio) > 0.1)[0] / 16_000
    assert begins_s == pytest.approx(2, abs=0.1)


def test_more_frames_a_second(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode_video(seconds=2))
    clip = read_video(path, fps=4)
    assert clip.times_s == tuple(index / 4 for index in range(8))
    assert [brightness(frame) for frame in clip.frames] == pytest.approx([0] * 4 + [20] * 4, abs=6)
    assert clip.audio.size == 0


def test_long_videos_are_looked_at_evenly() -> None:
    clip = read_video(encode_video(seconds=6), max_frames=3)
    assert clip.times_s == pytest.approx((1.0, 3.0, 5.0))
    assert [brightness(frame) for frame in clip.frames] == pytest.approx([20, 60, 100], abs=6)


def test_a_video_shorter_than_a_second_has_one_frame() -> None:
    assert len(read_video(encode_video(seconds=1, fps=2), fps=0.5).frames) == 1


def test_frames_are_scaled_down() -> None:
    clip = read_video(encode_video(seconds=1, width=640, height=360), max_side_px=320)
    assert clip.frames[0].size == (320, 180)


def test_the_way_the_phone_was_held() -> None:
    # The file has one matrix for the film and, after it, one for the track.
    before, _, after = encode_video(seconds=1).rpartition(UNTURNED)
    frame = read_video(before + TURNED + after).frames[0]
    assert frame.size == (48, 64)
    pixels = np.asarray(frame)
    assert pixels[4, -4, 0] > 200  # the red quarter has moved to the upper right
    assert pixels[4, 4, 0] < 60


def test_too_long() -> None:
    with pytest.raises(PictureTooLargeError, match="longer than 2 s"):
        read_video(encode_video(seconds=4), max_duration_s=2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello " * 100,
        encode_video(seconds=1)[:600],
        encode_sound(tone(16_000, 1.0), 16_000, container="mp4", codec="aac"),
    ],
)
def test_what_is_no_video_gets_one_clear_sentence(content: bytes) -> None:
    with pytest.raises(PictureError) as caught:
        read_video(content)
    assert type(caught.value) is PictureError
    assert str(caught.value).endswith(".")


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="There is no video file"):
        read_video(tmp_path / "none.mp4")


def test_damaged_files_are_videos_or_one_of_our_errors() -> None:
    content, rng = encode_video(seconds=1, sound=True), np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        for at in rng.integers(0, len(content), 30):
            damaged[at] = rng.integers(0, 256)
        try:
            assert read_video(bytes(damaged)).frames
        except OmniError as error:
            assert error.message
