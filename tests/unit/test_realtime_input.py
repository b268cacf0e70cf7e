"""Onset of a Realtime client's speech while the model is audible, and false alarms."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from benchmarks.interruption import read_speech
from core.audio import FloatArray
from core.protocols.effects import ScoreSpeech
from core.protocols.realtime_input import (
    LEVELS_PER_WINDOW,
    MIN_BARGE_IN_MS,
    SpeechOpened,
    SpeechSegmenter,
)
from core.schemas.realtime_session import AudioFormat, ServerVad
from core.serving.detection import WindowDetector
from core.vad import SileroVad
from tests.fakes.realtime_scene import RealtimeScene, pcm

RATE_HZ = 24_000
RULES = ServerVad(type="server_vad")
QUIET, LOUD = 1e-6, 1e-2


def opened_ms(*windows: tuple[float, float], room: float = QUIET) -> int | None:
    """When a segment opens, in windows of given probability and power after half a second."""
    finder = SpeechSegmenter()
    for _ in range(16):
        finder.process(0.0, RULES, [room] * LEVELS_PER_WINDOW, is_audible=True)
    for number, (probability, level) in enumerate(windows):
        levels = [level] * LEVELS_PER_WINDOW
        for count in range(1, LEVELS_PER_WINDOW):
            if finder.process_partial(levels[:count], RULES):
                return number * 32 + count * 4
        if finder.process(probability, RULES, levels, is_audible=True):
            return (number + 1) * 32
    return None


def test_a_soft_onset_counts_once_the_detector_is_sure() -> None:
    said = [(0.1, LOUD), (0.9, LOUD), *[(0.99, LOUD)] * 4]
    assert opened_ms(*said) == MIN_BARGE_IN_MS + 4, "the first level may be half silent"
    assert opened_ms(*said, room=LOUD) == 32 + MIN_BARGE_IN_MS, "the room is as loud"
    unsure = [(0.1, LOUD), (0.9, LOUD), *[(0.9, LOUD)] * 4]
    assert opened_ms(*unsure) == 32 + MIN_BARGE_IN_MS


def test_a_shorter_burst_opens_no_segment() -> None:
    burst = [(0.1, LOUD), (0.9, LOUD), (0.99, LOUD), (0.99, LOUD)]
    assert opened_ms(*burst, (0.1, QUIET), (0.0, QUIET)) is None
    assert opened_ms(*[(0.1, LOUD)] * 4, (0.99, LOUD), (0.1, LOUD)) is None


def stream_opened_ms(samples: FloatArray, piece_ms: int) -> float | None:
    """When a segment opens in audio that arrives in pieces."""
    finder, listener = SpeechSegmenter(), WindowDetector(SileroVad())
    pcm = (samples * 32_767).astype("<i2").tobytes()
    size = piece_ms * RATE_HZ // 1_000 * 2
    for start in range(0, len(pcm), size):
        heard = listener.detect(ScoreSpeech(pcm[start : start + size], AudioFormat()))
        levels = heard.levels
        for probability in heard.probabilities:
            of_window, levels = levels[:LEVELS_PER_WINDOW], levels[LEVELS_PER_WINDOW:]
            found = finder.process(probability, RULES, of_window, is_audible=True)
            if isinstance(found, SpeechOpened):
                return (start + size) / 2 / RATE_HZ * 1_000
        if finder.process_partial(levels, RULES):
            return (start + size) / 2 / RATE_HZ * 1_000
    return None


def room(duration_s: float) -> FloatArray:
    noise = np.random.default_rng(1).standard_normal(round(duration_s * RATE_HZ))
    return (noise * 1e-3).astype(np.float32)


@pytest.mark.parametrize("phase_ms", [0, 5, 13, 21, 30])
def test_speech_is_detected_within_150_ms(phase_ms: int) -> None:
    sound = room(1.5)
    onset = round((0.5 + phase_ms / 1_000) * RATE_HZ)
    sound[onset:] += read_speech()[: len(sound) - onset]
    found = stream_opened_ms(sound, 20)
    assert found is not None
    assert MIN_BARGE_IN_MS < found - onset / RATE_HZ * 1_000 <= 150


@pytest.mark.parametrize("length_ms", [60, 90, 110])
def test_a_cough_opens_no_segment(length_ms: int) -> None:
    sound, length = room(1.5), length_ms * RATE_HZ // 1_000
    burst = np.random.default_rng(2).standard_normal(length) * np.hanning(length)
    muffled = np.convolve(burst, np.hanning(24), mode="same")
    sound[RATE_HZ // 2 :][:length] += (0.5 * muffled / np.abs(muffled).max()).astype(np.float32)
    assert stream_opened_ms(sound, 20) is None


def test_cancelling_a_response_outside_the_conversation_does_not_end_the_playback() -> None:
    """While the model is audible, speech counts after 128 ms instead of 96."""
    scene = RealtimeScene(replies=[[("Hello", 2_000)]])
    scene.respond()
    (created,) = scene.say("response.create", response={"conversation": "none"})
    scene.say("response.cancel", response_id=created["response"]["id"])
    assert scene.hear(100, speech=True) == []
    assert scene.types(scene.hear(100, speech=True)) == ["input_audio_buffer.speech_started"]


def test_positions_of_speech_count_audio_that_a_change_of_format_drops() -> None:
    scene = RealtimeScene()
    second = base64.b64encode(pcm(960, speech=False)).decode()
    scene.say("input_audio_buffer.append", audio=second)  # in detection
    scene.say("input_audio_buffer.append", audio=second)  # waits for it
    for kind in ("audio/pcmu", "audio/pcm"):
        audio = {"input": {"format": {"type": kind}}}
        scene.say("session.update", session={"audio": audio})
    (started,) = scene.hear(320, speech=True)
    assert started["audio_start_ms"] == 2 * 960 - RULES.prefix_padding_ms
