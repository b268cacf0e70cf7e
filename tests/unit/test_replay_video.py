"""What is on screen in a replay, and when; what is heard with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from core.audio import to_pcm
from recording import names, replay
from recording.folder import read_recording
from recording.records import ReplayTiming
from recording.replay import best_codec, build_replay
from recording.replay_plan import CaptionTurn, ReplayPlan, cues_of, plan_replay
from tests.unit.recordings import (
    Bench,
    end,
    level,
    level_pcm,
    listen,
    make_bench,
    picture,
    recording_of,
    speak,
)

Pixels = npt.NDArray[np.uint8]  # [H, W, 3]

COLOURS = ((200, 30, 30), (30, 160, 30), (30, 30, 220), (180, 180, 20))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = make_bench(tmp_path_factory.mktemp("video"))
    yield bench
    bench.threads.close()


def tone(rate_hz: int, pitch_hz: float) -> npt.NDArray[np.float32]:
    return (0.4 * np.sin(2 * np.pi * pitch_hz * np.arange(rate_hz) / rate_hz)).astype(np.float32)


def record(bench: Bench, name: str, *, damaged: bool = False) -> Path:
    """Four seconds: a colour each; speech and text in the second, whose turn ends there."""
    recorder = bench.duplex(name)
    for index, colour in enumerate(COLOURS):
        frame = picture(colour)
        if damaged and index == 2:
            frame = frame[:200] + bytes(50) + frame[-2:]
        recorder.record_input(index, to_pcm(tone(16_000, 1_000)), [frame])
        answer = (
            speak("Hello there 你好 & <b>", tone(24_000, 3_000), ends=True)
            if index == 1
            else listen()
        )
        recorder.record_result(index, answer)
    end(recorder)
    return bench.folder(name)


def pictures(path: Path) -> list[tuple[float, Pixels]]:
    with av.open(str(path)) as file:
        return [
            (float(frame.time or 0.0), np.asarray(frame.to_image()))
            for frame in file.decode(video=0)
        ]


def seen_at(shown: list[tuple[float, Pixels]], at_s: float) -> Pixels:
    return [pixels for start_s, pixels in shown if start_s <= at_s][-1]


def colour_of(pixels: Pixels) -> npt.NDArray[np.float64]:
    return np.asarray(pixels[100:400, 400:880].mean(axis=(0, 1)))


@pytest.fixture(scope="module")
def film(bench: Bench) -> Path:
    folder = record(bench, "film")
    build_replay(folder)
    return folder / names.REPLAY_VIDEO_FILE


def test_the_video_is_as_long_as_the_session(film: Path) -> None:
    with av.open(str(film)) as file:
        video, voice = file.streams.video[0], file.streams.audio[0]
        assert (video.width, video.height) == (1_280, 720)
        assert video.codec_context.name == ("h264" if best_codec() == "libx264" else "mpeg4")
        assert (voice.codec_context.name, voice.rate, voice.channels) == ("aac", 16_000, 2)
        assert file.duration is not None and abs(file.duration / 1e6 - 4.0) < 0.05
        for stream in (video, voice):
            assert stream.duration is not None and stream.time_base is not None
            assert abs(float(stream.duration * stream.time_base) - 4.0) < 0.05
    head = film.read_bytes()[:4_096]
    assert b"moov" in head, "a player can begin before all of it has arrived"


def test_each_picture_is_shown_for_its_chunk(film: Path) -> None:
    shown = pictures(film)
    for index, colour in enumerate(COLOURS):
        for at_s in (index + 0.02, index + 0.9):
            pixels = seen_at(shown, at_s)
            assert np.abs(colour_of(pixels) - colour).max() < 12, (index, at_s)
            # 4:3 in 16:9 leaves a sixth of the height on both sides.
            assert pixels[:, :150].max() < 24 and pixels[:, 1_130:].max() < 24


def test_subtitles_appear_with_their_chunk_and_end_after_their_turn(film: Path) -> None:
    folder = film.parent
    assert (folder / names.REPLAY_SUBTITLES_FILE).read_text() == (
        "WEBVTT\n\n00:00:01.000 --> 00:00:03.500\nHello there 你好 &amp; &lt;b&gt;\n"
    )
    recording = read_recording(folder)
    assert recording is not None
    assert recording.merged_replay_subtitles == names.REPLAY_SUBTITLES_FILE
    with av.open(str(film)) as file:  # also for who only has the film
        samples = [packet for packet in file.demux(subtitles=0) if packet.size > 2]
    [sample] = samples
    assert (sample.pts, sample.duration, sample.time_base) == (1_000, 2_500, Fraction(1, 1_000))
    assert bytes(sample)[2:].decode() == "Hello there 你好 & <b>"


def test_subtitles_accumulate_and_restart_before_they_cover_the_picture() -> None:
    first = CaptionTurn([(0, "one "), (16_000, "two\n\x00"), (32_000, "x" * 500)], end=80_000)
    second = CaptionTurn([(64_000, "three")], end=999_000)
    cues = cues_of(ReplayPlan(captions=[first, second], least=80_000))
    assert [(cue.start_ms, cue.end_ms) for cue in cues] == [
        (0, 1_000),
        (1_000, 2_000),
        (2_000, 4_000),
        (4_000, 5_000),
    ]
    assert [cue.text for cue in cues] == ["one", "one two", "x" * 120, "three"]


@pytest.mark.parametrize(("timing", "said_at_ms"), [("session", 2_250), ("logical", 2_750)])
def test_the_users_words_are_above_the_models(
    bench: Bench, timing: ReplayTiming, said_at_ms: int
) -> None:
    recorder = bench.duplex(timing)
    answers = [speak("One", level(0.5, 36_000)), speak(" two", level(0.5, 24_000), ends=True)]
    for index, result in enumerate([*answers, listen(), listen(), listen()]):
        recorder.record_input(index, level_pcm(0.1, 16_000))
        recorder.record_result(index, result)
    recorder.record_words("user_transcript", "Who? " * 30, 2_250, 1_000)
    end(recorder)
    folder = bench.folder(timing)
    cues = cues_of(plan_replay(folder, recording_of(folder), timing))
    assert all(cue.end_ms <= after.start_ms for cue, after in itertools.pairwise(cues))
    spoken = [cue for cue in cues if "Who" in cue.text]
    assert spoken[0].start_ms == said_at_ms
    assert spoken[0].text == "\u2013 " + ("Who? " * 22).strip() + "\nOne two"
    assert spoken[-1].text == "\u2013 " + ("Who? " * 8).strip()
    assert spoken[-1].end_ms == min(said_at_ms + 2_500, cues[-1].end_ms)


def test_words_stand_where_they_were_said_although_chunks_were_dropped(bench: Bench) -> None:
    recorder = bench.duplex("slow")
    for index, sent_ms in enumerate((0.0, 3_000.0, 4_000.0)):
        recorder.record_input(index, level_pcm(0.1, 16_000), sent_ts_ms=sent_ms)
        recorder.record_result(index, listen())
    for text, sent_ms in (("One", 500), ("Two", 2_500), ("Three", 4_250)):
        recorder.record_words("user_transcript", text, sent_ms, 100)
    end(recorder)
    folder = bench.folder("slow")
    starts = [turn.texts for turn in plan_replay(folder, recording_of(folder)).user_captions]
    assert starts == [[(8_000, "One")], [(16_000, "Two")], [(36_000, "Three")]]


def test_the_video_has_both_channels_of_the_replay(film: Path) -> None:
    with av.open(str(film)) as file:
        planes = [frame.to_ndarray() for frame in file.decode(audio=0)]
    samples = np.concatenate(planes, axis=1).astype(np.float32)  # [2, T]
    assert abs(samples.shape[1] / 16_000 - 4.0) < 0.1

    def loudest_hz(side: int, start_s: float) -> float | None:
        part = samples[side, round(start_s * 16_000) : round((start_s + 0.5) * 16_000)]
        if np.sqrt(np.mean(part**2)) < 0.01:
            return None
        return float(np.argmax(np.abs(np.fft.rfft(part))) * 2)

    user = [loudest_hz(0, index + 0.25) for index in range(4)]
    model = [loudest_hz(1, index + 0.25) for index in range(4)]
    assert user == pytest.approx([1_000] * 4, abs=10)
    assert model == [None, pytest.approx(3_000, abs=10), None, None]


def test_without_h264_the_video_is_mpeg4_and_bad_pictures_are_skipped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "best_codec", lambda: "mpeg4")
    folder = record(bench, "plain", damaged=True)
    build_replay(folder)
    film = folder / names.REPLAY_VIDEO_FILE
    shown = pictures(film)
    with av.open(str(film)) as file:
        assert file.streams.video[0].codec_context.name == "mpeg4"
        assert file.duration is not None and abs(file.duration / 1e6 - 4.0) < 0.05
    assert np.abs(colour_of(seen_at(shown, 1.5)) - COLOURS[1]).max() < 12
    assert np.abs(colour_of(seen_at(shown, 3.5)) - COLOURS[3]).max() < 12


@pytest.mark.parametrize(
    ("part", "changed"), [("TIME_LIMIT_S", 0.0), ("best_codec", lambda: "libnone")]
)
def test_a_video_that_is_too_slow_or_fails_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: str, changed: object
) -> None:
    folder = record(bench, part)
    monkeypatch.setattr(replay, part, changed)
    build_replay(folder)
    assert not list(folder.glob("*.mp4*"))
    recording = read_recording(folder)
    assert recording is not None and recording.merged_replay_video is None
    assert recording.merged_replay is not None
