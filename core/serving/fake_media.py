"""What the fake model reads, sees and says: words, nothing of a picture, a second of a tone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final

import numpy as np

from core.audio import FloatArray
from core.schemas.common import Message, TextContent
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.transcription import (
    DEFAULT_OPTIONS,
    Passage,
    TranscriberKind,
    Transcript,
    TranscriptionOptions,
    duration_s,
)

TONE_HZ: Final = 440.0
TONE_PEAK: Final = 0.2
TONE_S: Final = 1.0  # as long as a duplex unit


class FakeTranscriber:
    """Writes down how long somebody spoke."""

    kind: ClassVar[TranscriberKind] = "whisper"

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        length_s = duration_s(samples)
        text = f"I speak for {length_s:.1f} s."
        passage = Passage(0.0, length_s, text)
        return Transcript(text, options.language or "en", length_s, (passage,))

    def close(self) -> None:
        """Nothing runs."""


@dataclass(frozen=True)
class FakeSeenPicture:
    """A picture that was pretended to be encoded: one slice of so many tokens."""

    TOKENS: ClassVar[int] = 64

    max_slices: int


@cache
def tone() -> FloatArray:
    """Return the sound of one piece, [T] at 24 kHz."""
    times_s = np.arange(int(TONE_S * OUTPUT_SAMPLE_RATE_HZ)) / OUTPUT_SAMPLE_RATE_HZ
    return (TONE_PEAK * np.sin(2 * np.pi * TONE_HZ * times_s)).astype(np.float32)


def line_of(message: Message) -> str:
    """Return a message as one line; of what is no text, its kind."""
    content = message.content
    items = [TextContent(text=content)] if isinstance(content, str) else content
    words = [item.text if isinstance(item, TextContent) else item.type for item in items]
    return f"{message.role.value}: {' '.join(words)}"


def count_words(text: str) -> int:
    """Return how many tokens a text has: its words."""
    return len(text.split())
