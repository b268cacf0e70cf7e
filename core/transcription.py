"""Transcription: transcripts, and the interface of transcribers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol

from core.audio import FloatArray
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.worker import TranscriptPassage

MODEL_FILE: Final = "model.bin"  # of a checkpoint in CTranslate2's format
TranscriberKind = Literal["whisper", "model"]


@dataclass(frozen=True)
class TranscriptionOptions:
    language: str | None = None  # ISO 639-1 code; None detects it
    prompt: str = ""  # preceding text, or preferred spellings
    temperature: float = 0.0  # 0 is greedy


@dataclass(frozen=True)
class Transcript:
    """A transcript, its passages oldest first; text and language are empty where unknown."""

    text: str
    language: str
    passages: tuple[TranscriptPassage, ...]


DEFAULT_OPTIONS = TranscriptionOptions()


class Transcriber(Protocol):
    """Transcribes speech for any task, one request at a time."""

    kind: ClassVar[TranscriberKind]  # "whisper" runs concurrently with conversations

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """Transcribe [T] float32 samples, mono, 16 kHz.

        Cancelling the caller cancels a waiting request; a running one completes. Raises
        `TranscriberBusyError` or `TranscriptionFailedError`.
        """

    def close(self) -> None:
        """End its processes, if it has any; later requests fail."""
        return


def duration_s(samples: FloatArray) -> float:
    return len(samples) / INPUT_SAMPLE_RATE_HZ
