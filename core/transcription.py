"""Transcription: options, transcript, and the interface of transcribers."""

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
        language: ISO 639-1 code; None detects it.
        prompt: preceding text, or preferred spellings.
        temperature: of sampling; 0 is greedy.
    """

    language: str | None = None
    prompt: str = ""
    temperature: float = 0.0


@dataclass(frozen=True)
class Passage:
    """A part of a transcript with its time in the audio."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """A transcript, its passages oldest first; text and language are empty where unknown."""

    text: str
    language: str
    passages: tuple[Passage, ...]


DEFAULT_OPTIONS = TranscriptionOptions()


class Transcriber(Protocol):
    """Transcribes speech for any task, one request at a time.

    Attributes:
        kind: "whisper" runs concurrently with conversations, "model" does not.
    """

    kind: ClassVar[TranscriberKind]

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """Transcribe [T] float32 samples, mono, 16 kHz.

        Cancelling the caller cancels a waiting request; a running one completes.

        Raises:
            TranscriberBusyError: Too much audio is waiting.
            TranscriptionFailedError: It could not be transcribed.
        """
        ...

    def close(self) -> None:
        """End its processes; later requests fail."""
        ...


def duration_s(samples: FloatArray) -> float:
    return len(samples) / INPUT_SAMPLE_RATE_HZ
