"""A spoken reply, generated sentence by sentence and sent a second at a time."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

import numpy as np

from core.audio import FloatArray

WORD: Final = re.compile(r"[^ ]+ *| +")  # and the spaces after it


class Sentence:
    """The unsent rest of a sentence and of its audio, [T] float32 at 24 kHz."""

    def __init__(self, text: str, audio: FloatArray) -> None:
        self.words = WORD.findall(text)
        self.audio = audio

    def take(self, samples: int) -> tuple[str, FloatArray]:
        share = min(1.0, samples / max(1, len(self.audio)))
        count = len(self.words) if share == 1.0 else round(len(self.words) * share)
        taken, self.words = self.words[:count], self.words[count:]
        audio, self.audio = np.split(self.audio, [min(samples, len(self.audio))])
        return "".join(taken), audio


class SpokenReply:
    """A reply that is being generated and sent; `text` has been sent."""

    def __init__(self, sentences: AsyncGenerator[Sentence, None]) -> None:
        self._sentences = sentences
        self._next: asyncio.Task[Sentence] | None = None
        self._ready: deque[Sentence] = deque()
        self.is_complete = False
        self.text = ""

    @property
    def ready_samples(self) -> int:
        """Audio synthesized and not yet sent."""
        return sum(len(piece.audio) for piece in self._ready)

    def start(self) -> None:
        """Generate the next sentence, if none is being generated."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._sentences))

    async def wait(self, samples: int, until_s: float) -> None:
        """Wait for this much audio, for the end of the reply, or until a time of `time.monotonic`.

        Raises what the generation raises.
        """
        while not self.is_complete and self.ready_samples < samples:
            self.start()
            assert self._next is not None
            left_s = max(0.0, until_s - time.monotonic())
            done, _ = await asyncio.wait({self._next}, timeout=left_s)
            if not done:
                return
            task, self._next = self._next, None
            try:
                self._ready.append(task.result())
            except StopAsyncIteration:
                self.is_complete = True

    def take(self, samples: int) -> tuple[str, FloatArray]:
        texts, audios = [], [np.zeros(0, np.float32)]
        while self._ready and samples > 0:
            text, audio = self._ready[0].take(samples)
            samples -= len(audio)
            texts.append(text)
            audios.append(audio)
            if not len(self._ready[0].audio):
                texts.append("".join(self._ready.popleft().words))
        self.text += (text := "".join(texts))
        return text, np.concatenate(audios)

    async def close(self) -> None:
        task, self._next = self._next, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._sentences.aclose()
        self._ready.clear()

    def cancel(self) -> None:
        """Cancel the generation without waiting for its end; call it on the event loop."""
        if self._next is not None:
            self._next.cancel()
