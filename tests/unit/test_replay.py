"""Where sound stands in a replay, on which side, how loud, to the sample."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr  # type: ignore[import-untyped]  # ships no type information

from core.audio import encode_wav
from core.schemas.duplex import Result
from recording import names
from recording import replay as replay_module
from recording.folder import read_recording, wav_header, write_recording
from recording.recorder import RecorderThreads, ReplayProcess
from recording.records import Chunk, DuplexRecording, TextInput, TurnTiming
from recording.replay import build_replay
from tests.unit.recordings import (
    START,
    WAIT_S,
    Bench,
    end,
    level,
    level_pcm,
    listen,
    make_bench,
    record_duplex,
    recording_of,
    speak,
)

Sides = npt.NDArray[np.int16]  # [T, 2]: user, model

UNIT = 16_000
# A resampled step rings for some samples; away from it the level is exact.
EDGE = 200


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = make_bench(tmp_path)
    yield bench
    bench.threads.close()


def replay_of(bench: Bench, results: Sequence[Result], *, logical: bool = False) -> Sides:
    """Record a session without pictures, and read its replay with another reader than ours."""
    recorder = bench.duplex("dx", "audio_duplex")
    for index, result in enumerate(results):
        recorder.record_input(index, level_pcm((index + 1) / 100, UNIT))
        recorder.record_result(index, result)
    end(recorder)
    build_replay(bench.folder("dx"), timing="logical" if logical else "session")
    return sides(bench.folder("dx"))


def sides(folder: Path) -> Sides:
    samples, rate_hz = soundfile.read(folder / names.REPLAY_SOUND_FILE, dtype="int16")
    assert (rate_hz, samples.ndim, samples.shape[1]) == (16_000, 2, 2)
    return np.asarray(samples)


def user_level(index: int) -> int:
    return round((index + 1) / 100 * 32_767)


def heard(track: npt.NDArray[np.int16], start: int, stop: int, value: float) -> None:
    """Check that a stretch has a level inside, and nothing of it before and after."""
    inside = track[start + EDGE : stop - EDGE].astype(int)
    assert len(inside) and np.abs(inside - round(value * 32_767)).max() <= 1
    half = value * 32_767 / 2
    around = track[max(0, start - EDGE) : stop + EDGE].astype(int)
    above = np.flatnonzero(around > half) + max(0, start - EDGE)
    assert (above[0], above[-1]) == (start, stop - 1)


def test_left_is_the_user_unbroken_and_right_the_model(bench: Bench) -> None:
    results = [listen(), speak("a", level(0.5, 24_000), ends=True), listen()]
    replay = replay_of(bench, results)
    assert len(replay) == 3 * UNIT
    for index in range(3):
        assert set(replay[index * UNIT : (index + 1) * UNIT, 0]) == {user_level(index)}
    heard(replay[:, 1], UNIT, 2 * UNIT, 0.5)
    assert not replay[: UNIT - EDGE, 1].any() and not replay[2 * UNIT + EDGE :, 1].any()


def test_speech_longer_than_its_unit_does_not_stretch_the_user(bench: Bench) -> None:
    # 1.5 s from unit 1 and 1 s from unit 2: 2.5 s without a gap from unit 1 on, past the end.
    results = [listen(), speak("a", level(0.5, 36_000)), speak("b", level(0.5, 24_000), ends=True)]
    replay = replay_of(bench, results)
    assert len(replay) == UNIT + 2.5 * UNIT
    assert set(replay[2 * UNIT : 3 * UNIT, 0]) == {user_level(2)}
    assert not replay[3 * UNIT :, 0].any()
    track = np.append(replay[:, 1], np.zeros(EDGE, np.int16))
    heard(track, UNIT, 3 * UNIT + UNIT // 2, 0.5)


def test_speech_shorter_than_its_unit_leaves_no_gap_in_its_turn(bench: Bench) -> None:
    results = [speak("a", level(0.5, 12_000)), speak("b", level(0.5, 12_000), ends=True)]
    results += [listen(), speak("c", level(0.25, 12_000))]
    replay = replay_of(bench, results)
    heard(replay[:, 1], 0, UNIT, 0.5)
    heard(replay[:, 1], 3 * UNIT, 3 * UNIT + UNIT // 2, 0.25)


def test_a_turn_waits_until_the_one_before_is_over(bench: Bench) -> None:
    results = [speak("a", level(0.5, 60_000), ends=True), speak("b", level(0.25, 12_000))]
    replay = replay_of(bench, results)
    assert np.flatnonzero(replay[:, 1] > 0.4 * 32_767)[-1] == 2.5 * UNIT - 1
    assert len(replay) == 3 * UNIT
    inside = replay[int(2.5 * UNIT) + EDGE : 3 * UNIT - EDGE, 1].astype(int)
    assert np.abs(inside - 8_192).max() <= 1


def test_an_interrupted_turn_is_played_until_the_interruption(bench: Bench) -> None:
    results = [
        speak("a", level(0.5, 80_000)),
        listen(barge_in=True),
        speak("b", level(0.25, 24_000)),
    ]
    replay = replay_of(bench, results)
    assert len(replay) == 3 * UNIT
    track = replay[:, 1].astype(int)
    assert np.abs(track[EDGE:UNIT] - 16_384).max() <= 1
    assert not track[UNIT : 2 * UNIT - EDGE].any()
    assert np.abs(track[2 * UNIT + EDGE : 3 * UNIT - EDGE] - 8_192).max() <= 1


def test_the_logical_layout_gives_each_unit_its_longer_side(bench: Bench) -> None:
    results = [speak("a", level(0.5, 36_000)), speak("b", level(0.5, 12_000), ends=True), listen()]
    replay = replay_of(bench, results, logical=True)
    assert len(replay) == 3.5 * UNIT
    second = UNIT + UNIT // 2
    assert set(replay[:UNIT, 0]) == {user_level(0)} and not replay[UNIT:second, 0].any()
    assert set(replay[second : second + UNIT, 0]) == {user_level(1)}
    heard(replay[:, 1], 0, second + UNIT // 2, 0.5)
    assert recording_of(bench.folder("dx")).merged_replay_timing == "logical"


def test_a_turns_files_join_as_one_stream_to_the_sample(bench: Bench) -> None:
    rng = np.random.default_rng(3)
    noise = (rng.standard_normal(24_000 * 3) * 0.1).astype(np.float32)
    cuts = [0, 24_000, 24_017, 47_777, 72_000]
    pieces = [noise[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    replay = replay_of(bench, [listen(), *(speak("x", piece) for piece in pieces), listen()])
    rounded = np.rint(noise * 32_767).astype(np.float32) / 32_767
    expected = np.rint(soxr.resample(rounded, 24_000, 16_000) * 32_767).astype(int)
    assert np.abs(replay[UNIT : 4 * UNIT, 1] - expected).max() <= 1


def test_an_impulse_is_where_it_was_spoken(bench: Bench) -> None:
    # A smooth click centred on sample 9,000 of 24 kHz, that is 6,000 of 16 kHz.
    at = np.arange(24_000)
    click = (0.8 * np.exp(-(((at - 9_000) / 12.0) ** 2))).astype(np.float32)
    replay = replay_of(bench, [listen(), speak("x", click)])
    assert int(np.argmax(replay[:, 1])) == UNIT + 6_000


def test_what_16_khz_cannot_hold_is_filtered_out_not_folded(bench: Bench) -> None:
    at_s = np.arange(24_000) / 24_000
    high = (0.5 * np.sin(2 * np.pi * 11_000 * at_s)).astype(np.float32)
    replay = replay_of(bench, [speak("x", high)])
    middle = replay[EDGE : UNIT - EDGE, 1].astype(float) / 32_767
    assert np.sqrt(np.mean(middle**2)) < 1e-3  # below -60 dB; folded it would be at 5 kHz


def test_lost_sound_is_silence_as_long_as_a_unit(bench: Bench) -> None:
    recorder = record_duplex(bench, "dx", [listen(), listen(), listen()])
    end(recorder)
    folder = bench.folder("dx")
    (folder / "user_audio/001.wav").unlink()
    recording = recording_of(folder)
    assert isinstance(recording, DuplexRecording)
    build_replay(folder)
    replay = sides(folder)
    assert len(replay) == 3 * UNIT and not replay[UNIT : 2 * UNIT].any()
    assert set(replay[2 * UNIT :, 0]) == {user_level(2)}


def test_half_duplex_turns_stand_on_the_sessions_clock(bench: Bench) -> None:
    recorder = bench.turns("hdx", "half_duplex_audio")
    for index, request_s in enumerate((2.0, 6.0)):
        bench.time.seconds = request_s
        recorder.start_voice_turn(index, level_pcm(0.25, 8_000))
        bench.time.seconds += 0.5
        recorder.add_streaming_chunk("a", level_pcm(0.5, 12_000))
        recorder.add_streaming_chunk("b", level_pcm(0.5, 12_000))
        recorder.end_turn(TurnTiming(tokens=1))
    end(recorder)
    build_replay(bench.folder("hdx"))
    assert not (bench.folder("hdx") / names.REPLAY_VIDEO_FILE).exists()
    replay = sides(bench.folder("hdx"))
    for request in (2 * UNIT, 6 * UNIT):
        user = np.flatnonzero(replay[:, 0])
        assert request - 8_000 in user and request - 1 in user
        assert request - 8_001 not in user and request not in user
        track = np.append(replay[:, 1], np.zeros(EDGE, np.int16))[: request + 2 * UNIT]
        heard(track, request + 8_000, request + 24_000, 0.5)
    assert len(replay) == 6 * UNIT + 24_000


def test_an_interrupted_reply_is_played_until_the_interruption(bench: Bench) -> None:
    recorder = bench.turns("hdx", "half_duplex_audio")
    for index, request_s in enumerate((2.0, 6.0)):
        bench.time.seconds = request_s
        recorder.start_voice_turn(index, level_pcm(0.25, 8_000))
        bench.time.seconds += 0.5
        recorder.add_streaming_chunk("a", level_pcm(0.5, 240_000))  # faster than it is heard
        recorder.end_turn(TurnTiming(elapsed_ms=1_500.0), interrupted=index == 0)
    end(recorder)
    build_replay(bench.folder("hdx"))
    replay = sides(bench.folder("hdx"))
    heard(replay[: 6 * UNIT, 1], 2 * UNIT + 8_000, 3 * UNIT + 8_000, 0.5)
    heard(replay[4 * UNIT :, 1], 2 * UNIT + 8_000, 12 * UNIT + 8_000, 0.5)


def test_without_audio_or_with_too_much_there_is_no_replay(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = bench.turns("txt", "half_duplex_audio")
    recorder.start_turn(0, 1_000.0, TextInput(text="Hi"))
    end(recorder)
    build_replay(bench.folder("txt"))
    end(record_duplex(bench, "dx", [listen(), listen()]))
    monkeypatch.setattr(replay_module, "MAX_REPLAY_S", 1.9)
    build_replay(bench.folder("dx"))
    build_replay(bench.folder("none"))
    for name in ("txt", "dx"):
        assert recording_of(bench.folder(name)).merged_replay is None
        assert not list(bench.folder(name).glob("merged_replay*"))


def test_memory_does_not_grow_with_the_session(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    (folder / names.USER_AUDIO).mkdir(parents=True)
    sound = level(0.1, 16_000)
    (folder / "user_audio/000.wav").write_bytes(wav_header(16_000, 1, 32_000) + bytes(32_000))
    count = 1_200  # twenty minutes, 77 MB of replay
    chunks = tuple(Chunk(index=index, user_audio="user_audio/000.wav") for index in range(count))
    write_recording(folder, DuplexRecording(session_id="long", start_ts=START, chunks=chunks))
    assert sound.nbytes == 64_000
    build_replay(folder)  # once without counting, so that imports and caches are there
    tracemalloc.start()
    build_replay(folder)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (folder / names.REPLAY_SOUND_FILE).stat().st_size == 44 + count * 64_000
    assert peak_bytes < 8_000_000  # a tenth; most of it the timeline


def test_finalize_has_the_replay_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RecorderThreads(ReplayProcess()))
    recorder = bench.duplex("dx", "audio_duplex")
    recorder.record_input(0, level_pcm(0.1, UNIT))
    chat = bench.turns("chat", "chat")
    chat.start_turn(0, 0.0, TextInput(text="Hi"))
    chat.save_ai_audio_turn(0, encode_wav(level(0.1, 24_000), 24_000))
    chat.end_turn(text="Hello")
    end(recorder)
    end(chat)
    bench.threads.close()
    recording = read_recording(bench.folder("dx"))
    assert recording is not None and recording.merged_replay == "merged_replay.wav"
    assert len(sides(bench.folder("dx"))) == UNIT
    assert not (bench.folder("chat") / names.REPLAY_SOUND_FILE).exists()


def test_a_replay_that_fails_leaves_the_recording_ready(tmp_path: Path) -> None:
    class Broken(ReplayProcess):
        """Makes no replay."""

        def make(self, folder: Path) -> None:
            raise OSError("the disk is full")

    bench = make_bench(tmp_path, Broken())
    meta = record_duplex(bench, "dx", [listen()]).finalize().result(WAIT_S)
    bench.threads.close()
    assert meta is not None and meta.status == "ready"
    ReplayProcess().make(tmp_path / "none")  # a folder that is not there: nothing to make
    stopped = ReplayProcess()
    stopped.stop()
    stopped.make(bench.folder("dx"))
    assert not (bench.folder("dx") / names.REPLAY_SOUND_FILE).exists()
