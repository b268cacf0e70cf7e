"""The parts of a cascade and what each of them offers; any can be replaced by another of its kind.

The transcriber is a `core.transcription.Transcriber`, as captions use it.
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
    """What one party said, as a chat endpoint reads it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Sampling:
    """How a reply is drawn.

    Attributes:
        max_tokens: most tokens of the reply.
        temperature: 0 takes the likeliest token.
        top_p: probability mass kept.
        seed: makes the draws repeatable; None takes a fresh one.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


class Language(Protocol):
    """Continues a conversation in words.

    Attributes:
        is_small: it invents what it does not know, so that some answers are given for it.
    """

    is_small: bool

    @property
    def name(self) -> str:
        """What it is called, for people."""
        ...

    def stream(self, lines: Sequence[Line], sampling: Sampling) -> AsyncGenerator[str, None]:
        """Yield the next line of the assistant as its words are drawn.

        A last line of the assistant's own is continued. Closing the generator ends the drawing.

        Raises:
            GenerationFailedError: there is no answer; the text says why.
        """
        ...

    async def prefetch(self, lines: Sequence[Line]) -> None:
        """Read the beginning of a prompt ahead of its question; a failure changes nothing."""
        ...

    def close(self) -> None: ...


class Synthesizer(Protocol):
    """Synthesizes speech."""

    @property
    def name(self) -> str:
        """What it is called, for people."""
        ...

    def speak(self, text: str) -> FloatArray:
        """Return a sentence as [T] float32 at 24 kHz, empty if none of it can be said; blocks."""
        ...


class Vision(Protocol):
    """Describes pictures."""

    async def describe(self, picture: Image.Image, question: str, threads: Threads) -> str | None:
        """Answer a question about an RGB picture; None if the picture does not answer it."""
        ...


@dataclass(frozen=True)
class Parts:
    """What the conversations of one worker share.

    Attributes:
        transcriber: of what the user says.
        language: answers.
        synthesizer: of the replies.
        detector: says where there is speech.
        vision: describes pictures; None without one.
        default_voice: the sample that pages send along as the model's own voice.
        now: the time, for the prompt.
    """

    transcriber: Transcriber
    language: Language
    synthesizer: Synthesizer
    detector: SileroVad
    vision: Vision | None = None
    default_voice: FloatArray | None = None
    now: Callable[[], datetime] = datetime.now

    @property
    def names(self) -> tuple[str, str, str]:
        """Transcriber, language model and synthesizer, for people."""
        return "Whisper tiny", self.language.name, self.synthesizer.name
