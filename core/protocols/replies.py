"""A reply that is being made, and what two of the protocols say about it. Pure."""

from __future__ import annotations

from core.schemas.limits import SAMPLE_BYTES
from core.schemas.streaming import Chunk, StreamingChunk


class Reply:
    """The pieces of one reply as they pass: their text, number, and when they will have sounded."""

    def __init__(self, playback_end_s: float = 0.0) -> None:
        self._texts: list[str] = []
        self._next_index = 0
        self._is_final_sent = False
        self._playback_end_s = playback_end_s

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def playback_end_s(self) -> float:
        """When a client that plays each piece on arrival will have played all; 0 without sound."""
        return self._playback_end_s

    def add(self, piece: StreamingChunk, at_s: float) -> Chunk:
        self._texts.append(piece.text_delta or "")
        self._next_index = piece.chunk_index + 1
        self._is_final_sent = piece.is_final
        duration_s = len(piece.audio_data or b"") / SAMPLE_BYTES / piece.audio_sample_rate
        if duration_s > 0:
            self._playback_end_s = max(self._playback_end_s, at_s) + duration_s
        return Chunk.model_validate(dict(piece))

    def last_chunk(self) -> list[Chunk]:
        """Return the empty final piece unless one was sent already."""
        if self._is_final_sent:
            return []
        self._is_final_sent = True
        return [Chunk(chunk_index=self._next_index, is_final=True)]
