"""Sound files into wire audio and back; the coding is done in another process.

Blocks: an event loop calls these through `VoiceLibrary.run`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from core.errors import AudioError, NotAudioError
from core.media_process import MediaLimits, MediaProcesses
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, REFERENCE_MAX_S, SAMPLE_BYTES

DECODING: Final = MediaLimits(at_once=2, cpu_s=20, wait_s=30.0)
MS_PER_S: Final = 1_000


@dataclass(frozen=True)
class Sound:
    """Mono sound at 16 kHz.

    Attributes:
        samples: float32 little-endian in -1..1.
    """

    samples: bytes

    @property
    def count(self) -> int:
        """How many samples."""
        return len(self.samples) // SAMPLE_BYTES

    @property
    def duration_ms(self) -> int:
        """Length, ms."""
        return round(self.count * MS_PER_S / INPUT_SAMPLE_RATE_HZ)

    def to_base64(self) -> str:
        """Return it as the wire carries it."""
        return base64.b64encode(self.samples).decode("ascii")


class SoundDecoder:
    """Decodes and encodes sound files in processes of their own."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._processes = MediaProcesses(DECODING)

    def read(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> Sound:
        """Decode a sound file.

        Args:
            content: The file.
            max_duration_s: Longest sound accepted, s.

        Raises:
            AudioError: It is no sound, silent, damaged or too long.
        """
        return Sound(self._run(content, max_duration_s, as_wav=False))

    def to_wav(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> bytes:
        """Turn a sound file into a 16-bit WAV file; see `read`."""
        return self._run(content, max_duration_s, as_wav=True)

    def encode(self, samples: bytes, container: str, codec: str) -> bytes:
        """Turn what the model says into a file.

        Args:
            samples: Little-endian float32, mono, 24 kHz.
            container: libsndfile's name of the kind of file, such as "FLAC".
            codec: libsndfile's name of the coding in it, such as "PCM_16".

        Raises:
            AudioError: It could not be encoded.
        """
        head = {"container": container, "codec": codec}
        _, [made] = self._processes.run("speech", head, [samples], problem=AudioError)
        return made

    def _run(self, content: bytes, max_duration_s: float, *, as_wav: bool) -> bytes:
        head = {"max_duration_s": max_duration_s, "as_wav": as_wav}
        _, [made] = self._processes.run("sound", head, [content], problem=NotAudioError)
        return made
