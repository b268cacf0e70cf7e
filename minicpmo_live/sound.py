"""Audio of the wire format: Base64 of little-endian float32 samples, mono."""

from __future__ import annotations

import base64
import sys
import wave
from array import array
from os import PathLike
from typing import Any, Final, Protocol, cast

from minicpmo_live.errors import SoundError

INPUT_RATE_HZ: Final = 16_000  # to the server
OUTPUT_RATE_HZ: Final = 24_000  # from the server
PCM16_SCALE: Final = 32_768
IS_LITTLE_ENDIAN: Final = sys.byteorder == "little"


class Buffer(Protocol):
    """Argument of `memoryview`. Source: PEP 688."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Only for type checkers before Python 3.12."""


class Array(Protocol):
    """A numpy array, whose type has `__buffer__` only from Python 3.12 on."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Any: numpy's own."""


Sound = Buffer | Array
"""float32 or 16-bit samples, mono, 16 kHz; plain bytes are 16-bit."""


class HasSound:
    """A message with audio."""

    __slots__ = ()
    audio_data: str | None

    @property
    def samples(self) -> memoryview:
        """The audio: float32, mono, 24 kHz; `numpy.asarray` accepts it without a copy."""
        samples = array("f", base64.b64decode(self.audio_data or ""))
        if not IS_LITTLE_ENDIAN:
            samples.byteswap()
        return memoryview(samples)


def float_samples(sound: Sound) -> array[float]:
    """Return samples as float32; a SoundError for other types."""
    try:
        view = memoryview(cast(Buffer, sound))
    except TypeError as error:
        raise SoundError("audio must be samples; read_wav reads those of a file") from error
    if view.ndim != 1 or not view.contiguous:
        raise SoundError("audio must be one contiguous row of mono samples")
    if view.format in ("B", "b", "c"):
        if len(view) % 2:
            raise SoundError("16-bit audio has an even number of bytes")
        view = view.cast("B").cast("h")
    match view.format:
        case "f" | "<f":
            return array("f", view.tobytes())
        case "h" | "<h":
            # A view of format "<h", such as that of ctypes, cannot be iterated over.
            return array("f", [sample / PCM16_SCALE for sample in array("h", view.tobytes())])
    raise SoundError(f"audio must be float32 or 16-bit, not of format {view.format!r}")


def to_base64(samples: array[float]) -> str:
    """Return float32 samples in the wire format."""
    if not IS_LITTLE_ENDIAN:
        samples = samples[:]
        samples.byteswap()
    return base64.b64encode(samples).decode()


def read_wav(path: str | PathLike[str]) -> array[float]:
    """Read a 16-bit, mono, 16 kHz WAV file; a SoundError for another kind."""
    needed = f"the server needs 16 bit, mono, {INPUT_RATE_HZ} Hz"
    try:
        with wave.open(str(path), "rb") as file:
            kind = (file.getsampwidth(), file.getnchannels(), file.getframerate())
            pcm = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise SoundError(f"{path}: {str(error) or 'it ends too early'}; {needed}") from error
    if kind != (2, 1, INPUT_RATE_HZ):
        given = f"{8 * kind[0]} bit, {kind[1]} channels and {kind[2]} Hz"
        raise SoundError(f"{path} has {given}; {needed}")
    return float_samples(pcm)
