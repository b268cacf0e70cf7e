"""Picture questions answered by nano: colour, shape, digit and number of objects."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from typing import Final

from PIL import Image

from core.modes import ChatMode, Threads
from core.schemas.chat import ChatRequest
from core.schemas.common import (
    GenerationConfig,
    ImageContent,
    Message,
    Role,
    TextContent,
)

# Questions that nano was trained on. Source: docs/nano.md, "What to say".
QUESTIONS: Final = (
    (re.compile(r"\bcolou?rs?\b"), "What color is it?"),
    (re.compile(r"\bshapes?\b"), "What shape is it?"),
    (re.compile(r"\b(numbers?|digits?)\b"), "What number is it?"),
    (re.compile(r"\b(how many|count)\b"), "How many do you see?"),
)
ANY_QUESTION: Final = "What do you see?"
ANSWER_TOKENS: Final = 24
HEDGE: Final = (
    "a very small vision model that knows only plain shapes, colors, digits and counts takes it "
    'for this, and may be wrong: "{seen}" If that does not fit, say that you cannot make it out.'
)


async def describe(
    open_chat: Callable[[Threads], ChatMode], picture: Image.Image, question: str, threads: Threads
) -> str | None:
    """Ask nano about an RGB picture."""
    asked = question.lower()
    known = next((ours for kind, ours in QUESTIONS if kind.search(asked)), ANY_QUESTION)

    def encode() -> str:
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=92)
        return base64.b64encode(buffer.getvalue()).decode()

    content = [ImageContent(data=await threads.run(encode)), TextContent(text=known)]
    request = ChatRequest(
        messages=[Message(role=Role.USER, content=content)],
        generation=GenerationConfig(max_new_tokens=ANSWER_TOKENS, do_sample=False),
    )
    found = await open_chat(threads).respond(request)
    return HEDGE.format(seen=found.text.strip()) if found.text.strip() else None
