"""What spoken answers said, for later requests that name an answer by its id."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEPT_S: Final = 3_600  # as OpenAI's server keeps them
KEPT_MAX: Final = 1_000  # ours: the oldest of more is forgotten; 4 MB at most


class Transcripts:
    """Texts by the id of their sound. An id is random, so it cannot be guessed."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Start with none.

        Args:
            clock: Unix seconds.
        """
        self._clock = clock
        self._kept: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def keep(self, audio_id: str, text: str) -> int:
        """Keep a text; return until when, in Unix seconds."""
        expires_s = int(self._clock()) + KEPT_S
        self._kept[audio_id] = expires_s, text
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return expires_s

    def find(self, audio_id: str) -> str | None:
        """Return a text, None if it is not kept any more."""
        expires_s, text = self._kept.get(audio_id, (0, ""))
        return text if expires_s > self._clock() else None
