"""How long the sounds in a message may be, where that is configured below what the wire allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from core.errors import AudioTooLongError
from core.schemas.common import AudioContent, WireModel
from core.schemas.limits import CHAT_AUDIO_MAX_S, CHUNK_MAX_S, REFERENCE_MAX_S, audio_chars

CHUNKS: Final = frozenset({"audio", "audio_base64"})
VOICES: Final = frozenset({"ref_audio_base64", "tts_ref_audio_base64", "ref_audio_data"})


@dataclass(frozen=True)
class SoundLimits:
    """Longest sounds, s.

    Attributes:
        chunk_s: of a chunk of a live call.
        voice_s: of a voice sample.
        item_s: of an item of a message.
    """

    chunk_s: float = CHUNK_MAX_S
    voice_s: float = REFERENCE_MAX_S
    item_s: float = CHAT_AUDIO_MAX_S

    def check(self, message: WireModel) -> None:
        """Refuse a message with a sound that is too long.

        Raises:
            AudioTooLongError: The text names the field and its limit.
        """
        if self == SoundLimits():
            return  # the message would not have been understood
        for name, text, limit_s in self._sounds(message):
            if len(text) > audio_chars(limit_s):
                raise AudioTooLongError(f"{name}: the audio is longer than {limit_s:g} s.")

    def _sounds(self, part: object) -> Iterator[tuple[str, str, float]]:
        """Yield every sound in a part of a message: its field, the Base64, and its limit."""
        if isinstance(part, AudioContent):
            yield "data", part.data, self.item_s
        elif isinstance(part, list):
            for each in part:
                yield from self._sounds(each)
        elif isinstance(part, WireModel):
            for name, value in part:
                if not isinstance(value, str):
                    yield from self._sounds(value)
                elif name in VOICES:
                    yield name, value, self.voice_s
                elif name in CHUNKS:
                    yield name, value, self.chunk_s
