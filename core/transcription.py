"""What was said, as text: the request, the transcript, and what every transcriber offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from core.audio import FloatArray
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ

TranscriberKind = Literal["whisper", "model"]


@dataclass(frozen=True)
class TranscriptionOptions:
    """Options of one transcription.

    Attributes:
        language: ISO 639-1 code of what is spoken; None leaves it to the transcriber.
        prompt: preceding text, or spellings to prefer.
        temperature: of sampling; 0 takes the likeliest tokens.
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
    """A transcript, its passages oldest first; text and language are empty where unknown."""

    text: str
    language: str
    duration_s: float
    passages: tuple[Passage, ...]


DEFAULT_OPTIONS = TranscriptionOptions()


class Transcriber(Protocol):
    """Transcribes speech. Any task may call it; requests are served in turn.

    Attributes:
        kind: Whisper works beside the conversations, the model does not.
    """

    kind: ClassVar[TranscriberKind]

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """Transcribe [T] float32 samples, mono, 16 kHz.

        Cancelling the caller cancels a request that waits; work under way ends by itself.

        Raises:
            TranscriberBusyError: Too much audio waits already.
            TranscriptionFailedError: It could not be transcribed.
        """
        ...

    def close(self) -> None:
        """End its processes; further requests fail."""
        ...


def duration_s(samples: FloatArray) -> float:
    return len(samples) / INPUT_SAMPLE_RATE_HZ
