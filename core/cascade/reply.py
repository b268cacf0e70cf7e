"""A spoken reply on its way out: made sentence by sentence, sent second by second."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

import numpy as np

from core.audio import FloatArray

WORD: Final = re.compile(r"[^ ]+ *| +")  # with the blanks behind it


class Sentence:
    """What is left to send of a sentence and of its sound, [T] float32 at 24 kHz."""

    def __init__(self, text: str, sound: FloatArray) -> None:
        self.words = WORD.findall(text)
        self.sound = sound

    def take(self, samples: int) -> tuple[str, FloatArray]:
        share = min(1.0, samples / max(1, len(self.sound)))
        count = len(self.words) if share == 1.0 else round(len(self.words) * share)
        taken, self.words = self.words[:count], self.words[count:]
        sound, self.sound = np.split(self.sound, [min(samples, len(self.sound))])
        return "".join(taken), sound


class SpokenReply:
    """A reply that is being generated and sent."""

    def __init__(self, sentences: AsyncGenerator[Sentence, None]) -> None:
        self._sentences = sentences
        self._next: asyncio.Task[Sentence] | None = None
        self._ready: deque[Sentence] = deque()
        self.is_made = False
        self.text = ""  # sent

    @property
    def ready_samples(self) -> int:
        """Audio that is synthesized and not sent."""
        return sum(len(piece.sound) for piece in self._ready)

    def start(self) -> None:
        """Generate the next sentence, if none is being generated."""
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._sentences))

    async def wait(self, samples: int, until_s: float) -> None:
        """Wait for so much audio, the end of the reply, or until a time of `time.monotonic`.

        Raises:
            OmniError: the reply could not be generated.
        """
        while not self.is_made and self.ready_samples < samples:
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
                self.is_made = True

    def take(self, samples: int) -> tuple[str, FloatArray]:
        texts, sounds = [], [np.zeros(0, np.float32)]
        while self._ready and samples > 0:
            text, sound = self._ready[0].take(samples)
            samples -= len(sound)
            texts.append(text)
            sounds.append(sound)
            if not len(self._ready[0].sound):
                texts.append("".join(self._ready.popleft().words))
        self.text += (text := "".join(texts))
        return text, np.concatenate(sounds)

    async def close(self) -> None:
        task, self._next = self._next, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._sentences.aclose()
        self._ready.clear()

    def cancel(self) -> None:
        """Cancel what is being generated without waiting for it; on the event loop."""
        if self._next is not None:
            self._next.cancel()
