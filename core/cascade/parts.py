"""The cascade's components; each can be replaced by another implementation.

The transcriber is a `core.transcription.Transcriber`, the same as for captions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from PIL import Image

from core.audio import FloatArray
from core.cascade.language import ChatEndpoint
from core.modes import Threads
from core.transcription import Transcriber
from core.vad import SileroVad

Describe = Callable[[Image.Image, str, Threads], Awaitable[str | None]]
"""Answers a question about an RGB picture, or returns None if it cannot be answered."""


class Synthesizer(Protocol):
    """Text to speech."""

    @property
    def name(self) -> str:
        """Display name."""
        ...

    def speak(self, text: str) -> FloatArray:
        """Return a sentence as [T] float32 at 24 kHz, empty if nothing is pronounceable; blocks."""
        ...


@dataclass(frozen=True)
class Parts:
    """Components shared by all conversations of a worker.

    Attributes:
        default_voice: the reference sample that pages send as the model's own voice.
        now: clock for the date in the prompt.
    """

    transcriber: Transcriber
    language_model: ChatEndpoint
    synthesizer: Synthesizer
    detector: SileroVad
    describe: Describe | None = None
    default_voice: FloatArray | None = None
    now: Callable[[], datetime] = datetime.now

    @property
    def names(self) -> tuple[str, str, str]:
        """Display names of transcriber, language model and synthesizer."""
        return "Whisper tiny", self.language_model.name, self.synthesizer.name
