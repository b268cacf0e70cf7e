"""What was said, as text: the request, the transcript, and what every transcriber offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from core.audio import FloatArray
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ

TranscriberKind = Literal["whisper", "model"]


@dataclass(frozen=True)
class TranscriptionOptions:
    """How to listen.

    Attributes:
        language: ISO 639-1 code of what is spoken; None leaves it to the transcriber.
        prompt: words that came before, or spellings to prefer.
        temperature: of sampling; 0 takes the likeliest words.
    """

    language: str | None = None
    prompt: str = ""
    temperature: float = 0.0


@dataclass(frozen=True)
class Passage:
    """A part of a transcript, with its place in the sound."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """What was said.

    Attributes:
        text: all of it; empty when nothing was said.
        language: ISO 639-1 code; empty when the transcriber does not know it.
        duration_s: of the sound.
        passages: the text in parts, oldest first.
    """

    text: str
    language: str
    duration_s: float
    passages: tuple[Passage, ...]


DEFAULT_OPTIONS = TranscriptionOptions()


class Transcriber(Protocol):
    """Writes down what is said. May be asked from any task; each answer takes its turn.

    Attributes:
        kind: what stands behind it; Whisper works beside the conversations, the model does not.
    """

    kind: ClassVar[TranscriberKind]

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """Write down a piece of sound.

        Cancelling the caller gives up its place; work under way ends by itself.

        Args:
            samples: [T] float32 mono at 16 kHz.
            options: How to listen.

        Raises:
            TranscriberBusyError: Too much sound waits already.
            TranscriptionFailedError: It could not be written down.
        """
        ...

    def close(self) -> None:
        """End what runs for it; further requests fail."""
        ...


def duration_s(samples: FloatArray) -> float:
    """Return the length of sound at 16 kHz."""
    return len(samples) / INPUT_SAMPLE_RATE_HZ
