"""Sound files into wire audio without decoding anything here: that is done in another process.

Blocks: an event loop calls these in a thread. At most `DECODERS` files are decoded at once; more
wait for their turn.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog
from pydantic import BaseModel, ValidationError

from core.errors import AudioError, AudioTooLongError, NotAudioError
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, REFERENCE_MAX_S, SAMPLE_BYTES

PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]
READER_MODULE: Final = "gateway_modules.sound_reader"
REFUSED_EXIT: Final = 3  # the reader's exit status for a file that is no good
DECODERS: Final = 2  # ours
DECODE_LIMIT_S: Final = 30.0  # ours: of one file, the start of the process included
LOGGED_CHARS: Final = 2_000
MS_PER_S: Final = 1_000


class SoundForm(StrEnum):
    """What a decoded file becomes."""

    F32 = "f32"  # little-endian float32, as the wire carries it
    WAV = "wav"  # a 16-bit WAV file


class Refusal(BaseModel):
    """Why the reader refuses a file."""

    message: str
    http_status: int = HTTPStatus.BAD_REQUEST


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
    """Runs the reader, a few at once."""

    def __init__(self, decoders: int = DECODERS) -> None:
        """Start nothing yet.

        Args:
            decoders: How many may run at once.
        """
        self._turns = threading.BoundedSemaphore(decoders)

    def read(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> Sound:
        """Decode a sound file of any kind.

        Args:
            content: The file.
            max_duration_s: Longest sound accepted, s.

        Raises:
            AudioError: It is no sound, silent, damaged or too long.
        """
        return Sound(self._run(content, SoundForm.F32, max_duration_s))

    def to_wav(self, content: bytes, max_duration_s: float = REFERENCE_MAX_S) -> bytes:
        """Turn a sound file of any kind into a 16-bit WAV file; see `read`."""
        return self._run(content, SoundForm.WAV, max_duration_s)

    def _run(self, content: bytes, form: SoundForm, max_duration_s: float) -> bytes:
        command = [sys.executable, "-m", READER_MODULE, form.value, str(max_duration_s)]
        with self._turns:
            try:
                done = subprocess.run(
                    command,
                    input=content,
                    capture_output=True,
                    cwd=PROJECT_FOLDER,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                    timeout=DECODE_LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise AudioError("The audio takes too long to decode.") from None
        if done.returncode == 0:
            return done.stdout
        raise _refused(done.returncode, done.stderr)


def _refused(status: int, told: bytes) -> AudioError:
    """Turn what the reader says into the error it met."""
    if status == REFUSED_EXIT:
        try:
            refusal = Refusal.model_validate_json(told.splitlines()[-1])
        except (ValidationError, IndexError):
            return NotAudioError()
        if refusal.http_status == AudioTooLongError.http_status:
            return AudioTooLongError(refusal.message)
        return AudioError(refusal.message)
    # A crash of a decoder is the file's fault as far as anybody can tell.
    reason = told[-LOGGED_CHARS:].decode("utf-8", "replace")
    structlog.get_logger("sounds").warning("sound reader failed", status=status, reason=reason)
    return NotAudioError("The audio could not be decoded.")
