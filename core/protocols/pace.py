"""How fast a client may send sound, by the samples it sends and the time that passes. Pure."""

from __future__ import annotations

from typing import Final

from core.errors import RateLimitedError
from core.protocols.events import MS_PER_S
from core.protocols.unit_results import audio_samples
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ

FASTEST: Final = 1.5  # times real time, in the long run. Ours.
# Ours: how far sound may be ahead. A peer that does not answer is given up after 40 s, so no client
# has more to send at once when its network comes back.
AHEAD_MAX_S: Final = 40.0


class SoundPace:
    """How far the sound of one client is ahead of the clock."""

    def __init__(self) -> None:
        """Begin with nothing sent."""
        self._ahead_s = 0.0
        self._at_s = 0.0

    def take(
        self, audio_base64: str, now_s: float, shortest_ms: int = 0
    ) -> RateLimitedError | None:
        """Count a chunk that came.

        Args:
            audio_base64: Its sound.
            now_s: When it came.
            shortest_ms: A shorter chunk counts as so long.

        Returns:
            What to tell a client that is too fast.
        """
        sound_s = audio_samples(audio_base64) / INPUT_SAMPLE_RATE_HZ
        left_s = max(0.0, self._ahead_s - FASTEST * (now_s - self._at_s))
        self._ahead_s = left_s + max(sound_s, shortest_ms / MS_PER_S)
        self._at_s = now_s
        if self._ahead_s <= AHEAD_MAX_S:
            return None
        return RateLimitedError(
            f"audio_chunk: sound comes faster than {FASTEST:g} times real time "
            f"and is more than {AHEAD_MAX_S:g} s ahead."
        )
