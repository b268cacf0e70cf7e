"""Sound as the wire has it: Base64 of little-endian float32 samples, mono."""

from __future__ import annotations

import base64
import sys
import wave
from array import array
from os import PathLike
from typing import Any, Final, Protocol, cast

from minicpmo_live.errors import SoundError

INPUT_RATE_HZ: Final = 16_000  # of what the server hears
OUTPUT_RATE_HZ: Final = 24_000  # of what it says
PCM16_SCALE: Final = 32_768
IS_LITTLE_ENDIAN: Final = sys.byteorder == "little"


class Buffer(Protocol):
    """What `memoryview` takes. Source: PEP 688."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Before Python 3.12 only type checkers see it."""


class Array(Protocol):
    """An array of numpy, whose types have `__buffer__` from Python 3.12 on only."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Any: numpy's own."""


Sound = Buffer | Array
"""float32 or 16-bit samples, mono, 16 kHz; plain bytes are 16-bit."""


class HasSound:
    """A message with sound in it."""

    __slots__ = ()
    audio_data: str | None

    @property
    def samples(self) -> memoryview:
        """The sound: float32, mono, 24 kHz; `numpy.asarray` takes it without a copy."""
        samples = array("f", base64.b64decode(self.audio_data or ""))
        if not IS_LITTLE_ENDIAN:
            samples.byteswap()
        return memoryview(samples)


def float_samples(sound: Sound) -> array[float]:
    """Return samples as float32; a SoundError for other types."""
    view = memoryview(cast(Buffer, sound))
    if view.ndim != 1 or not view.contiguous:
        raise SoundError("sound is one row of samples, mono, without gaps")
    if view.format in ("B", "b", "c"):
        if len(view) % 2:
            raise SoundError("16-bit sound has an even number of bytes")
        view = view.cast("B").cast("h")
    match view.format:
        case "f" | "<f":
            return array("f", view.tobytes())
        case "h" | "<h":
            return array("f", [sample / PCM16_SCALE for sample in view])
    raise SoundError(f"sound is float32 or 16-bit, not of format {view.format!r}")


def to_base64(samples: array[float]) -> str:
    """Return float32 samples as the wire has them."""
    if not IS_LITTLE_ENDIAN:
        samples = samples[:]
        samples.byteswap()
    return base64.b64encode(samples).decode()


def read_wav(path: str | PathLike[str]) -> array[float]:
    """Read a 16-bit, mono, 16 kHz WAV file; a SoundError for another kind."""
    with wave.open(str(path), "rb") as file:
        kind = (file.getsampwidth(), file.getnchannels(), file.getframerate())
        if kind != (2, 1, INPUT_RATE_HZ):
            raise SoundError(
                f"{path} has {8 * kind[0]} bit, {kind[1]} channels and {kind[2]} Hz; "
                f"the server hears 16 bit, mono, {INPUT_RATE_HZ} Hz"
            )
        return float_samples(file.readframes(file.getnframes()))
