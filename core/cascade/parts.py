"""Interfaces of the cascade's components; each can be replaced by another implementation.

The transcriber is a `core.transcription.Transcriber`, the same as for captions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from PIL import Image

from core.audio import FloatArray
from core.modes import Threads
from core.transcription import Transcriber
from core.vad import SileroVad


@dataclass(frozen=True)
class Line:
    """A message of a chat endpoint's conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Sampling:
    """Sampling options of one reply; a temperature of 0 is greedy, without a seed it is random."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


class LanguageModel(Protocol):
    """Continues a conversation.

    Attributes:
        is_small: it invents facts, so some questions get a predefined answer.
    """

    is_small: bool

    @property
    def name(self) -> str:
        """Display name."""
        ...

    def stream(self, lines: Sequence[Line], sampling: Sampling) -> AsyncGenerator[str, None]:
        """Yield the assistant's next message as it is generated; closing it ends the generation.

        If the last line is the assistant's, it is continued.

        Raises:
            GenerationFailedError: there is no answer; the text says why.
        """
        ...

    async def prefetch(self, lines: Sequence[Line]) -> None:
        """Cache the beginning of a prompt before its question is complete; never raises."""
        ...

    def close(self) -> None: ...


class Synthesizer(Protocol):
    """Text to speech."""

    @property
    def name(self) -> str:
        """Display name."""
        ...

    def speak(self, text: str) -> FloatArray:
        """Return a sentence as [T] float32 at 24 kHz, empty if nothing is pronounceable; blocks."""
        ...


class Vision(Protocol):
    """Answers questions about pictures."""

    async def describe(self, picture: Image.Image, question: str, threads: Threads) -> str | None:
        """Answer a question about an RGB picture, or return None if it cannot be answered."""
        ...


@dataclass(frozen=True)
class Parts:
    """Components shared by all conversations of a worker.

    Attributes:
        default_voice: the reference sample that pages send as the model's own voice.
        now: clock for the date in the prompt.
    """

    transcriber: Transcriber
    language_model: LanguageModel
    synthesizer: Synthesizer
    detector: SileroVad
    vision: Vision | None = None
    default_voice: FloatArray | None = None
    now: Callable[[], datetime] = datetime.now

    @property
    def names(self) -> tuple[str, str, str]:
        """Display names of transcriber, language model and synthesizer."""
        return "Whisper tiny", self.language_model.name, self.synthesizer.name
