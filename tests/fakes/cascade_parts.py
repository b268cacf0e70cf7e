"""Scripted parts of a cascade: transcripts and answers are given beforehand."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np

from core.audio import FloatArray
from core.cascade.language import ChatEndpoint, Line, Sampling
from core.cascade.parts import Parts
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.transcription import DEFAULT_OPTIONS, TranscriberKind, Transcript, TranscriptionOptions
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad, VadState

BEGAN = datetime(2026, 5, 4, 9, 7, tzinfo=UTC)
WORD_S = 0.4  # how long the scripted voice speaks a word
VOICE_LEVEL = 0.01  # samples above it are speech to the scripted detector


class ScriptedTranscriber:
    """Returns given texts, one for each request; then nothing."""

    kind: ClassVar[TranscriberKind] = "whisper"

    def __init__(self, *texts: str) -> None:
        self.texts = deque(texts)
        self.is_closed = False

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        text = self.texts.popleft() if self.texts else ""
        return Transcript(text, "en", ())

    def close(self) -> None:
        self.is_closed = True


class ScriptedLanguageModel(ChatEndpoint):
    """Answers with given texts, word by word, and keeps what it was asked."""

    def __init__(self, answers: Sequence[str] = (), *, is_small: bool = True) -> None:
        super().__init__("http://nowhere", "script")
        self.answers = deque(answers)
        self.asked: list[list[Line]] = []
        self.samplings: list[Sampling] = []
        self.prefetched: list[list[Line]] = []
        self.ended = 0  # streams that are over or closed
        self.is_small = is_small
        self.is_closed = False

    async def stream(self, lines: Sequence[Line], sampling: Sampling) -> AsyncGenerator[str, None]:
        self.asked.append(list(lines))
        self.samplings.append(sampling)
        try:
            words = self.answers.popleft().split(" ")
            for number, word in enumerate(words[: sampling.max_tokens]):
                yield word if number == 0 else f" {word}"
        finally:
            self.ended += 1

    async def prefetch(self, lines: Sequence[Line]) -> None:
        self.prefetched.append(list(lines))

    def close(self) -> None:
        self.is_closed = True


class ScriptedSynthesizer:
    """Speaks each word as long as every other."""

    name = "tone"

    def speak(self, text: str) -> FloatArray:
        length = int(len(text.split()) * WORD_S * OUTPUT_SAMPLE_RATE_HZ)
        return np.full(length, 0.1, np.float32)


class ScriptedDetector(SileroVad):
    """Takes what is loud for speech."""

    def __init__(self) -> None:
        """Load nothing."""

    def probabilities(self, samples: FloatArray, state: VadState) -> tuple[FloatArray, VadState]:
        windows = np.abs(samples).reshape(-1, MODEL_WINDOW_SAMPLES).max(axis=1, initial=0)
        return (windows > VOICE_LEVEL).astype(np.float32), state


def scripted(*answers: str, heard: Sequence[str] = (), **more: Any) -> Parts:
    """Return parts that transcribe and answer what is given, in order."""
    return Parts(
        ScriptedTranscriber(*heard),
        ScriptedLanguageModel(answers),
        ScriptedSynthesizer(),
        ScriptedDetector(),
        now=lambda: BEGAN,
        **more,
    )
