"""Media files are decoded in processes of their own, which end when they must."""

from __future__ import annotations

import base64
import io
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core.engine import WorkCancelledError
from core.errors import (
    AudioError,
    AudioTooLongError,
    NotAudioError,
    PictureError,
    PictureTooLargeError,
)
from core.media import Media, MediaContent, read_media
from core.media_process import MediaProcesses
from core.schemas.common import ImageContent, VideoContent
from core.serving.runtime import ThreadPools
from core.serving.session_handler import SessionThreads
from core.video import VideoClip
from tests.unit.media import encode_sound, encode_video, tone


def picture(width: int, height: int) -> ImageContent:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(out, "PNG")
    return ImageContent(data=base64.b64encode(out.getvalue()).decode())


def decode_media(
    processes: MediaProcesses, items: Sequence[MediaContent], *, is_given_up: bool = False
) -> list[Media]:
    threads = SessionThreads(ThreadPools(1), processes)
    if is_given_up:
        threads.cancelled.set()
    return threads.read_media(items)


PICTURE = picture(64, 48)
FILM = VideoContent(data=base64.b64encode(encode_video(seconds=2, sound=True)).decode())


@pytest.fixture(scope="module")
def processes() -> Iterator[MediaProcesses]:
    """Processes with a spare, as a worker has them."""
    made = MediaProcesses(keeps_spare=True)
    yield made
    made.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    known: list[subprocess.Popen[bytes]] = []

    class Known(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            known.append(self)

    monkeypatch.setattr(subprocess, "Popen", Known)
    return known


def pixels(media: Sequence[Media]) -> list[np.ndarray]:
    """Everything that was decoded, as arrays."""
    found: list[np.ndarray] = []
    for each in media:
        frames = each.frames if isinstance(each, VideoClip) else [each]
        found += [np.asarray(frame) for frame in frames]
        if isinstance(each, VideoClip):
            found += [each.audio, np.array([*each.times_s, each.duration_s])]
    return found


def test_what_comes_back_is_what_would_be_decoded_here(processes: MediaProcesses) -> None:
    items: list[MediaContent] = [PICTURE, FILM, PICTURE]
    made = decode_media(processes, items)
    assert isinstance(made[0], Image.Image) and isinstance(made[1], VideoClip)
    for ours, theirs in zip(pixels(read_media(items)), pixels(made), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("item", "error", "told"),
    [
        (ImageContent(data="AAAA"), PictureError, "not one of"),
        (ImageContent(data="ÄÄ"), PictureError, "Base64"),
        (VideoContent(data="AAAA"), PictureError, "not a video"),
        (picture(17_000, 1), PictureTooLargeError, "16384"),
    ],
)
def test_a_refusal_is_the_same_error_as_here(
    processes: MediaProcesses, item: MediaContent, error: type[PictureError], told: str
) -> None:
    with pytest.raises(error, match=told) as caught:
        decode_media(processes, [item])
    assert type(caught.value) is error


def test_a_spare_that_cannot_be_started_takes_no_answer_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [subprocess.Popen]

    def start_once(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        if not left:
            raise OSError("Too many open files")
        return left.pop()(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", start_once)
    made = decode_media(MediaProcesses(keeps_spare=True), [PICTURE])
    assert [type(each) for each in made] == [Image.Image]


def test_sound_comes_back_at_16_khz(processes: MediaProcesses) -> None:
    file = encode_sound(tone(48_000, 1.0), 48_000, container="wav", codec="pcm_s16le")
    head = {"max_duration_s": 2, "as_wav": False}
    _, [samples] = processes.run("sound", head, [file], problem=NotAudioError)
    assert len(samples) == pytest.approx(16_000 * 4, abs=400)
    with pytest.raises(AudioTooLongError, match=r"longer than 0\.5 s"):
        processes.run("sound", {**head, "max_duration_s": 0.5}, [file], problem=NotAudioError)


def test_a_session_that_is_given_up_waits_for_no_decoder(
    started: list[subprocess.Popen[bytes]],
) -> None:
    alone, is_taken, is_over = MediaProcesses(at_once=1), threading.Event(), threading.Event()

    def hold() -> None:
        is_taken.set()
        is_over.wait()
        raise WorkCancelledError

    def decode(is_given_up: bool) -> None:
        decode_media(alone, [FILM], is_given_up=is_given_up)

    def occupy() -> None:
        with pytest.raises(WorkCancelledError):
            alone.run("media", [], [], problem=PictureError, check=hold)

    other = threading.Thread(target=occupy)
    other.start()
    is_taken.wait()
    with pytest.raises(WorkCancelledError):
        decode(is_given_up=True)  # while it waits for its turn
    is_over.set()
    other.join()
    assert [process.poll() for process in started] == [-signal.SIGKILL]
    decode(is_given_up=False)


def test_a_decoder_that_crashes_or_takes_too_long_is_the_files_fault(
    started: list[subprocess.Popen[bytes]],
) -> None:
    with pytest.raises(PictureError, match="could not be decoded"):
        MediaProcesses().run("no such task", {}, [], problem=PictureError)
    with pytest.raises(PictureError, match="longer than 0 s"):
        MediaProcesses(wait_s=0).run("media", [], [], problem=PictureError)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_process_that_computes_for_too_long_is_ended(
    started: list[subprocess.Popen[bytes]],
) -> None:
    ten_minutes = np.random.default_rng(0).uniform(-1, 1, 600 * 24_000).astype("<f4").tobytes()
    as_mp3 = {"container": "MP3", "codec": "MPEG_LAYER_III"}
    with pytest.raises(AudioError, match="more than 1 s of computing"):
        MediaProcesses(cpu_s=1).run("speech", as_mp3, [ten_minutes], problem=AudioError)
    assert [process.poll() for process in started] == [-signal.SIGXCPU]
