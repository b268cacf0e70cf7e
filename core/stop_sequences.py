"""Pure: truncates a streamed text before the first stop sequence."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Forwards text, and holds back an end that may become a stop sequence.

    Attributes:
        has_stopped: a sequence was found; all further text is dropped.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self.has_stopped = False
        self._sequences = tuple(sequences)
        self._kept = ""

    def feed(self, text: str) -> str:
        """Return the text that cannot be part of a stop sequence."""
        if self.has_stopped:
            return ""
        text = self._kept + text
        found = [at for sequence in self._sequences if (at := text.find(sequence)) >= 0]
        if found:
            self.has_stopped, self._kept = True, ""
            return text[: min(found)]
        kept = max((overlap(text, sequence) for sequence in self._sequences), default=0)
        self._kept = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the text held back; nothing may follow."""
        kept, self._kept = self._kept, ""
        return kept


def overlap(text: str, sequence: str) -> int:
    """Return the length of the longest end of a text that is a beginning of a sequence."""
    longest = min(len(text), len(sequence) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(sequence[:n])), 0)
