"""The voice activity detector on real speech, and on everything that is none."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.audio import FloatArray, read_audio
from core.endpointing import EndpointOptions, SpeechDiscarded, SpeechStarted
from core.errors import ModelError
from core.vad import SileroVad, SpeechSegment, StreamingVAD, VadEvent
from settings.fields import install_command

RATE_HZ = 16_000
SPEECH_FILE = Path(__file__).parents[1] / "assets" / "two_sentences.ogg"
# Where the sentences are, from the way the file was made; see the README beside it.
SENTENCES_S = ((1.0, 2.98), (4.48, 7.01))
WINDOW_S = 0.064


@pytest.fixture(scope="module")
def detector() -> SileroVad:
    return SileroVad()


@pytest.fixture(scope="module")
def speech() -> FloatArray:
    """Return two sentences with silence around them [T]."""
    return read_audio(SPEECH_FILE)


def listen(samples: FloatArray, detector: SileroVad, chunk_samples: int = 8_000) -> list[VadEvent]:
    stream = StreamingVAD(detector=detector)
    events: list[VadEvent] = []
    for first in range(0, len(samples), chunk_samples):
        events += stream.process(samples[first : first + chunk_samples])
    return events


@pytest.fixture(scope="module")
def whole(detector: SileroVad, speech: FloatArray) -> list[VadEvent]:
    """What is found in chunks of half a second."""
    return listen(speech, detector)


def not_speech() -> dict[str, FloatArray]:
    """Return ten seconds each of sounds that are no speech."""
    rng, length = np.random.default_rng(0), 10 * RATE_HZ
    at_s = np.arange(length) / RATE_HZ
    spectrum = np.fft.rfft(rng.normal(size=length)) / np.maximum(np.arange(length // 2 + 1), 1)
    brown = np.fft.irfft(spectrum, length)
    clicks = np.where(rng.random(length) < 5e-4, 0.8, 0.0)
    sounds = {
        "silence": np.zeros(length),
        "quiet noise": rng.normal(0, 0.003, length),
        "noise": rng.normal(0, 0.1, length),
        "rumble": brown / np.abs(brown).max() / 2,
        "mains hum": 0.2 * np.sin(2 * np.pi * 50 * at_s) + 0.1 * np.sin(2 * np.pi * 150 * at_s),
        "tone": 0.3 * np.sin(2 * np.pi * 440 * at_s),
        "sweep": 0.3 * np.sin(2 * np.pi * (200 * at_s + 100 * at_s**2)),
        "clicks": clicks,
        "chords": sum(0.1 * np.sin(2 * np.pi * f_hz * at_s) for f_hz in (220, 277, 330, 440))
        * (np.sin(4 * np.pi * at_s) > 0),
    }
    return {name: np.asarray(sound, np.float32) for name, sound in sounds.items()}


def test_the_package_is_not_imported() -> None:
    code = (
        "import sys; from core.vad import SileroVad; SileroVad();"
        "print([name for name in ('silero_vad', 'torch') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_two_sentences_are_two_segments(detector: SileroVad, speech: FloatArray) -> None:
    events = listen(speech, detector)
    assert [type(event) for event in events] == [SpeechStarted, SpeechSegment] * 2
    for (start_s, stop_s), started, segment in zip(
        SENTENCES_S, events[::2], events[1::2], strict=True
    ):
        assert isinstance(segment, SpeechSegment)
        assert segment.start_samples == started.start_samples
        assert segment.start_samples / RATE_HZ == pytest.approx(start_s, abs=3 * WINDOW_S)
        end_s = (segment.start_samples + len(segment.samples)) / RATE_HZ
        assert end_s == pytest.approx(stop_s, abs=5 * WINDOW_S)
        np.testing.assert_array_equal(
            segment.samples, speech[segment.start_samples :][: len(segment.samples)]
        )
        assert segment.speech_samples / RATE_HZ > 1.5


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.03])
def test_speech_is_found_in_noise(detector: SileroVad, speech: FloatArray, noise: float) -> None:
    rng = np.random.default_rng(1)
    noisy = (speech + rng.normal(0, noise, len(speech))).astype(np.float32)
    segments = [event for event in listen(noisy, detector) if isinstance(event, SpeechSegment)]
    assert len(segments) == 2


@pytest.mark.parametrize("name", list(not_speech()))
def test_no_false_triggers(detector: SileroVad, name: str) -> None:
    assert listen(not_speech()[name], detector) == []


@pytest.mark.parametrize("language", ["en-us", "de", "fr", "it", "cmn"])
def test_spoken_by_a_machine(tmp_path: Path, detector: SileroVad, language: str) -> None:
    program = shutil.which("espeak-ng")
    if program is None:
        pytest.skip("espeak-ng is not installed")
    path = tmp_path / "said.wav"
    subprocess.run([program, "-v", language, "-w", path, "1 2 3 4 5 6 7"], check=True)
    said = read_audio(path)
    pause = np.zeros(RATE_HZ, np.float32)
    segments = [
        event
        for event in listen(np.concatenate([pause, said, pause]), detector)
        if isinstance(event, SpeechSegment)
    ]
    assert sum(len(segment.samples) for segment in segments) > 0.6 * len(said)


def test_the_state_goes_in_and_out(detector: SileroVad, speech: FloatArray) -> None:
    samples = speech[: len(speech) // 512 * 512]
    start = detector.initial_state()
    whole, after = detector.probabilities(samples, start)
    first, between = detector.probabilities(samples[: 512 * 50], start)
    second, end = detector.probabilities(samples[512 * 50 :], between)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    np.testing.assert_array_equal(end.recurrent, after.recurrent)
    np.testing.assert_array_equal(end.context, after.context)
    assert not start.recurrent.any()
    none, same = detector.probabilities(np.zeros(0, np.float32), between)
    assert none.size == 0
    np.testing.assert_array_equal(same.context, between.context)


def test_two_streams_do_not_disturb_each_other(detector: SileroVad, speech: FloatArray) -> None:
    alone = listen(speech, detector)
    one, other = (StreamingVAD(detector=detector) for _ in range(2))
    events: list[VadEvent] = []
    for first in range(0, len(speech), 8_000):
        events += one.process(speech[first : first + 8_000])
        other.process(np.flip(speech)[first : first + 8_000])
    assert_same(events, alone)


def assert_same(found: list[VadEvent], expected: list[VadEvent]) -> None:
    assert [type(event) for event in found] == [type(event) for event in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.start_samples == other.start_samples
        if isinstance(one, SpeechSegment) and isinstance(other, SpeechSegment):
            assert one.speech_samples == other.speech_samples
            np.testing.assert_array_equal(one.samples, other.samples)


@settings(max_examples=15)
@given(chunk_samples=st.integers(100, 40_000))
def test_any_chunking_gives_the_same_segments(
    detector: SileroVad, speech: FloatArray, whole: list[VadEvent], chunk_samples: int
) -> None:
    assert_same(listen(speech, detector, chunk_samples), whole)


def test_flush_ends_the_stream(detector: SileroVad, speech: FloatArray) -> None:
    stream = StreamingVAD(detector=detector)
    cut = int(2.5 * RATE_HZ)
    assert [type(event) for event in stream.process(speech[:cut])] == [SpeechStarted]
    assert stream.speech_samples > 0
    (segment,) = stream.flush()
    assert segment.start_samples + len(segment.samples) == cut
    assert len(segment.samples) / RATE_HZ == pytest.approx(1.5, abs=0.1)
    assert stream.speech_samples == 0
    assert stream.flush() == []
    assert_same(stream.process(speech), listen(speech, detector))


def test_reset_forgets_everything(detector: SileroVad, speech: FloatArray) -> None:
    stream = StreamingVAD(detector=detector)
    stream.process(speech[: 2 * RATE_HZ])
    stream.reset()
    assert stream.speech_samples == 0
    assert_same(stream.process(speech), listen(speech, detector))


def test_a_short_burst_is_discarded(detector: SileroVad, speech: FloatArray) -> None:
    stream = StreamingVAD(EndpointOptions(min_speech_duration_ms=4_000), detector)
    events = stream.process(speech)
    assert [type(event) for event in events] == [SpeechStarted, SpeechDiscarded] * 2


def test_little_is_kept_of_a_long_silence(detector: SileroVad) -> None:
    stream = StreamingVAD(detector=detector)
    for _ in range(20):
        stream.process(np.zeros(8_000, np.float32))
    assert stream._kept.nbytes < 10_000


def test_what_is_not_the_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for content in (b"", b"garbage"):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="cannot be loaded"):
            SileroVad(path)
    with pytest.raises(ModelError):
        SileroVad(tmp_path / "none.onnx")


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.vad.MODEL_PACKAGE", "no_such_package")
    with pytest.raises(ModelError, match=re.escape(install_command("worker"))):
        SileroVad()


def test_the_window_must_fit_the_model(detector: SileroVad) -> None:
    with pytest.raises(ValueError, match="512"):
        StreamingVAD(EndpointOptions(window_samples=1_000), detector)
