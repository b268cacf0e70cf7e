"""Segments of the user's speech, and barge-in, with a scripted voice detector."""

from __future__ import annotations

import numpy as np

from core.endpointing import SpeechStarted
from core.protocols.events import Segment, SpeechEvent
from core.schemas import duplex, half_duplex
from core.serving.detection import BargeInDetector, TurnDetector
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad, VadState

LOUD = 0.5  # samples of this size are speech to the scripted detector
SECOND = 16_000


class Loudness(SileroVad):
    """A detector that classifies loud windows as speech."""

    def __init__(self) -> None:
        """Load nothing."""

    def probabilities(self, samples: np.ndarray, state: VadState) -> tuple[np.ndarray, VadState]:
        windows = samples.reshape(-1, MODEL_WINDOW_SAMPLES)
        return (np.abs(windows).max(axis=1) >= LOUD).astype(np.float32), state


def sound(*pieces_ms: int) -> np.ndarray:
    """Return alternating silence and speech, ms each, silence first."""
    parts = [
        np.full(16 * length, LOUD if index % 2 else 0.0, np.float32)
        for index, length in enumerate(pieces_ms)
    ]
    return np.concatenate(parts)


def test_a_turn_has_a_start_an_end_and_its_audio() -> None:
    config = half_duplex.VadConfig(min_silence_duration_ms=200, speech_pad_ms=0)
    listener = TurnDetector(config, Loudness())
    found = listener.detect(sound(128, 640, 640))
    assert isinstance(found[0], SpeechStarted) and isinstance(found[1], Segment)
    samples = np.frombuffer(found[1].pcm, dtype="<f4")
    assert abs(len(samples) - 16 * 640) <= 1_024 and (samples == LOUD).mean() > 0.9


def test_audio_after_a_reset_starts_a_new_stream() -> None:
    listener = TurnDetector(half_duplex.VadConfig(), Loudness())
    assert listener.detect(sound(0, 1_000)[SECOND:]) == ()
    assert listener.detect(sound(0, 1_000))
    listener.reset()
    assert listener.detect(sound(640)) == ()


def begun(listener: BargeInDetector, *pieces_ms: int) -> int:
    found = listener.detect(sound(*pieces_ms))
    return sum(isinstance(event, SpeechStarted) for event in found)


def test_speech_that_is_long_enough_is_reported_once() -> None:
    listener = BargeInDetector(duplex.BargeInConfig(), Loudness())
    assert begun(listener, 1_024) == 0
    assert begun(listener, 512, 512) == 1
    assert begun(listener, 0, 1_024) == 0, "it is still the same utterance"
    assert begun(listener, 1_024) == 0
    assert begun(listener, 0, 1_024) == 1, "another one"


def test_short_bursts_are_no_barge_in() -> None:
    listener = BargeInDetector(duplex.BargeInConfig(min_speech_duration_ms=256), Loudness())
    assert begun(listener, 128, 128, 640) == 0
    assert begun(listener, 128, 384, 512) == 1, "a whole utterance inside one chunk"


def test_speech_across_chunks_is_reported_when_long_enough() -> None:
    listener = BargeInDetector(duplex.BargeInConfig(min_speech_duration_ms=512), Loudness())
    assert begun(listener, 768, 256) == 0
    assert begun(listener, 0, 512) == 1


def test_a_burst_is_suspected_then_confirmed_or_discarded() -> None:
    def kinds(*pieces: tuple[int, bool]) -> list[str]:
        listener = BargeInDetector(duplex.BargeInConfig(), Loudness())
        found: list[SpeechEvent] = []
        for length_ms, is_loud in pieces:
            for _ in range(length_ms // 32):  # as from a microphone
                found += listener.detect(sound(0, 32) if is_loud else sound(32))
        return [type(event).__name__ for event in found]

    assert kinds((64, False), (32, True)) == ["SpeechSuspected"]
    assert kinds((96, True), (512, False)) == ["SpeechSuspected", "SpeechDiscarded"]
    assert kinds((128, True)) == ["SpeechSuspected", "SpeechStarted"]
    assert kinds((64, True), (64, False), (64, True)) == ["SpeechSuspected", "SpeechStarted"]
