"""The cascade's components, each of which another implementation can replace."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from PIL import Image

from core.audio import FloatArray
from core.cascade.language import ChatEndpoint
from core.modes import ChatMode, Threads
from core.schemas.chat import ChatRequest
from core.schemas.common import GenerationConfig, ImageContent, Message, Role, TextContent
from core.transcription import Transcriber
from core.vad import SileroVad

# Questions that nano was trained on. Source: docs/nano.md, "What to say".
QUESTIONS: Final = (
    (re.compile(r"\bcolou?rs?\b"), "What color is it?"),
    (re.compile(r"\bshapes?\b"), "What shape is it?"),
    (re.compile(r"\b(numbers?|digits?)\b"), "What number is it?"),
    (re.compile(r"\b(how many|count)\b"), "How many do you see?"),
)
ANY_QUESTION: Final = "What do you see?"
ANSWER_TOKENS: Final = 24

Describe = Callable[[Image.Image, str, Threads], Awaitable[str | None]]
"""Answers a question about an RGB picture, or returns None if it cannot be answered."""


class Synthesizer(Protocol):
    @property
    def name(self) -> str: ...

    def speak(self, text: str) -> FloatArray:
        """Return a sentence as [T] float32 at 24 kHz, empty if nothing is pronounceable; blocks."""
        ...


@dataclass(frozen=True)
class Parts:
    """Components shared by all conversations of a worker."""

    transcriber: Transcriber
    language_model: ChatEndpoint
    synthesizer: Synthesizer
    detector: SileroVad
    describe: Describe | None = None
    default_voice: FloatArray | None = None  # which pages send as the model's own voice
    now: Callable[[], datetime] = datetime.now  # for the date in the prompt

    @property
    def names(self) -> tuple[str, str, str]:
        """Display names of transcriber, language model and synthesizer."""
        return "Whisper tiny", self.language_model.name, self.synthesizer.name


async def describe(
    open_chat: Callable[[Threads], ChatMode], picture: Image.Image, question: str, threads: Threads
) -> str | None:
    """Ask nano about an RGB picture."""
    asked = question.lower()
    known = next((ours for kind, ours in QUESTIONS if kind.search(asked)), ANY_QUESTION)

    def encode() -> str:
        picture.save(buffer := io.BytesIO(), "JPEG", quality=92)
        return base64.b64encode(buffer.getvalue()).decode()

    content = [ImageContent(data=await threads.run(encode)), TextContent(text=known)]
    request = ChatRequest(
        messages=[Message(role=Role.USER, content=content)],
        generation=GenerationConfig(max_new_tokens=ANSWER_TOKENS, do_sample=False),
    )
    return (await open_chat(threads).respond(request)).text.strip() or None
