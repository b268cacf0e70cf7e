"""Short recordings are encoded alone, and once more where the transcript repeats itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faster_whisper import WhisperModel

from core.whisper_program import FRAMES_PER_S, SHORT_S, ShortWhisper, repeats, transcribed

OPTIONS = {"language": None, "prompt": "", "temperature": 0.0}
RATE_HZ = 16_000


class Scripted(ShortWhisper):
    """Transcribes what is given, one text for each attempt, and keeps how it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.attempts: list[tuple[bool, int | None]] = []
        self.languages: list[str | None] = []
        self.model = SimpleNamespace(is_multilingual=False)
        self.feature_extractor = SimpleNamespace(sampling_rate=RATE_HZ)

    def transcribe(self, *args: Any, **options: Any) -> Any:
        self.attempts.append((self.is_short, options["max_new_tokens"]))
        self.languages.append(options["language"])
        passage = SimpleNamespace(start=0.0, end=1.0, text=self.texts.pop(0))
        return iter([passage]), SimpleNamespace(language="en")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is the capital of France?", False),
        ("Stop. Stop.", False),
        ("Stop... Stop... Stop...", True),
        ("Why is the sky blue? Why is the Sky Blue?", True),
        ("How do I make a good cup of tea? How do I make", True),
        ("", False),
    ],
)
def test_loops_are_found(text: str, expected: bool) -> None:
    assert repeats(text) is expected


@pytest.mark.parametrize(
    ("length_s", "texts", "windows"),
    [
        (2.0, ["Stop."], [True]),
        (2.0, ["Stop stop stop.", "Stop."], [True, False]),
        (SHORT_S + 1, ["Stop stop stop."], [False]),
    ],
)
def test_a_loop_is_transcribed_again_with_the_whole_window(
    length_s: float, texts: list[str], windows: list[bool]
) -> None:
    model = Scripted(*texts)
    found = transcribed(model, np.zeros(int(length_s * RATE_HZ), np.float32), OPTIONS)
    assert found["text"] == texts[-1]
    assert [is_short for is_short, _ in model.attempts] == windows
    assert all((most is None) is not is_short for is_short, most in model.attempts)


@pytest.mark.parametrize("is_multilingual", [True, False])
@pytest.mark.parametrize(
    ("wanted", "given"),
    [(None, None), ("de", "de"), ("de-DE", "de"), ("EN", "en"), ("German", None), ("xx", None)],
)
def test_a_language_that_whisper_does_not_know_is_detected(
    wanted: str | None, given: str | None, is_multilingual: bool
) -> None:
    model = Scripted("Hallo.")
    model.model.is_multilingual = is_multilingual
    transcribed(model, np.zeros(RATE_HZ, np.float32), {**OPTIONS, "language": wanted})
    expected = given if is_multilingual or given == "en" else None
    assert model.languages == [expected]


@pytest.mark.parametrize(("is_short", "frames"), [(True, 600), (False, 3_000)])
def test_only_the_filled_part_of_a_short_window_is_encoded(
    is_short: bool, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        WhisperModel, "encode", lambda self, features: encoded.append(features.shape)
    )
    features = np.zeros((80, 3_000), np.float32)
    features[:, : 2 * FRAMES_PER_S] = 1
    model = Scripted()
    model.is_short = is_short
    model.encode(features)
    assert encoded == [(80, frames)]
