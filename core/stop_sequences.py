"""Truncates streamed text before the first stop sequence. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text through, holding back an end that may begin a stop sequence."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self.has_stopped = False  # a sequence was found; later text is dropped
        self._sequences = tuple(sequences)
        self._kept = ""

    def feed(self, text: str) -> str:
        """Return the text that cannot belong to a sequence."""
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
        """Return the text held back, at the end of the stream."""
        kept, self._kept = self._kept, ""
        return kept


def overlap(text: str, sequence: str) -> int:
    """Return the length of the longest end of a text that begins a sequence."""
    longest = min(len(text), len(sequence) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(sequence[:n])), 0)
