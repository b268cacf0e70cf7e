"""Decodes wire pictures and picture files to RGB; every size is checked before decoding.

A worker decodes the pictures of requests in separate processes (`core/media_process.py`), but the
frames of live calls in its own threads: a JPEG of 1280x720 takes 15 ms there and 30 to 50 ms in a
process started in advance (measured on two busy cores), and a process for every frame would cost
each call a core.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from core.audio import MediaSource, decode_base64, opened
from core.errors import PictureError, PictureTooLargeError
from core.schemas import limits

MILLION: Final = 1_000_000
BITS_DROPPED: Final = 8  # from 16-bit grey to the 8 bits of RGB
# A JPEG's markers but for those within a scan's data. Source: ITU-T T.81, table B.1.
JPEG_MARKER: Final = re.compile(rb"\xff([\xc0-\xcf\xd8-\xfe])")
JPEG_SCAN, JPEG_END = b"\xda", b"\xd9"
JPEG_LENGTH_BYTES: Final = 2  # of a segment; they are part of it
# Ours: encoders write some ten. Each is decoded over the whole picture and may have 16 bytes, so
# that a frame's 4 MiB would take minutes.
JPEG_SCANS_MAX: Final = 100
# What Pillow raises for damaged files.
DAMAGED: Final = (OSError, ValueError, SyntaxError, EOFError, TypeError, struct.error)
# How a picture becomes upright, by its EXIF orientation. Source: Exif 2.3, section 4.6.4.
TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
DEEP_GREY_MODES: Final = ("I;16", "I;16B", "I;16L", "I;16N")
MEASURED_MODES: Final = ("I", "F")  # numbers of 32 bits, of any range
WHITE: Final = 255
TILE_SIDE_PX: Final = 448  # of the vision encoder
PATCH_SIDE_PX: Final = 14  # of the vision encoder
RATIO_MAX: Final = (TILE_SIDE_PX // PATCH_SIDE_PX) ** 2  # of the sides: a tile has whole patches
# A decoded picture is shrunk to so many pixels: twice each side of the largest tiling, so that the
# model's own resizing determines its input.
KEPT_PIXELS: Final = 4 * limits.MAX_SLICES * TILE_SIDE_PX**2
SHORT_PIXELS: Final = 1920 * 1080  # decoded and sliced in some milliseconds


@dataclass(frozen=True)
class PictureLimits:
    max_bytes: int
    max_side_px: int
    max_pixels: int
    formats: tuple[str, ...]  # Pillow's names
    max_reads: int = sys.maxsize  # of the file by Pillow: a few for each of its parts


FRAME_LIMITS: Final = PictureLimits(
    max_bytes=limits.FRAME_MAX_BYTES,
    max_side_px=limits.FRAME_MAX_SIDE_PX,
    max_pixels=limits.FRAME_MAX_SIDE_PX**2,
    formats=("JPEG", "PNG", "WEBP"),
    max_reads=20_000,  # ours: 4 MiB in parts of 1 KiB; each takes the interpreter microseconds
)
PICTURE_LIMITS: Final = PictureLimits(
    max_bytes=limits.PICTURE_MAX_BYTES,
    max_side_px=limits.PICTURE_MAX_SIDE_PX,
    max_pixels=limits.PICTURE_MAX_PIXELS,
    formats=("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"),
)


class _PictureFile(BytesIO):
    def __init__(self, content: bytes, max_reads: int) -> None:
        super().__init__(content)
        self._left = max_reads

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise PictureError("The picture's file has too many parts.")
        return super().read(size)


def decode_wire_picture(text: str, *, allowed: PictureLimits = PICTURE_LIMITS) -> Image.Image:
    """Decode the Base64 of a picture to RGB, upright; of an animation, the first picture.

    Raises `PictureTooLargeError`, or `PictureError` for anything else that is no such picture.
    """
    return _decode(_from_base64(text, allowed), allowed)


def decode_wire_pictures(texts: Sequence[str]) -> list[Image.Image]:
    """Decode all pictures of one request to RGB, upright, of at most `KEPT_PIXELS` each.

    The sizes of all are read from their headers and added up before the first is decoded, and each
    is shrunk as soon as it is decoded, so that memory holds one large picture at a time. Raises as
    `decode_wire_picture`, also if all together have too many pixels.
    """
    if len(texts) > limits.PICTURES_MAX:
        raise PictureTooLargeError(
            f"The request has {len(texts)} pictures; {limits.PICTURES_MAX} are allowed."
        )
    contents = [_from_base64(text, PICTURE_LIMITS) for text in texts]
    pixels = 0
    for content in contents:
        with _opened(content, PICTURE_LIMITS) as picture:
            pixels += picture.width * picture.height
    if pixels > limits.PICTURES_MAX_PIXELS:
        raise PictureTooLargeError(
            f"The pictures of the request have {pixels // MILLION} million pixels in all; "
            f"{limits.PICTURES_MAX_PIXELS // MILLION} million are allowed."
        )
    return [_shrunk(_decode(content, PICTURE_LIMITS)) for content in contents]


def read_picture(source: MediaSource, *, allowed: PictureLimits = PICTURE_LIMITS) -> Image.Image:
    """Decode a picture file or its content; else as `decode_wire_picture`."""
    with opened(source, "picture", PictureError) as file:
        content = file.read(allowed.max_bytes + 1)
    return _decode(content, allowed)


def _too_many_bytes(allowed: PictureLimits) -> PictureTooLargeError:
    whole_mib, rest = divmod(allowed.max_bytes, limits.MIB)
    size = f"{allowed.max_bytes} bytes" if rest else f"{whole_mib} MiB"
    return PictureTooLargeError(f"The picture is larger than {size}.")


def _from_base64(text: str, allowed: PictureLimits) -> bytes:
    if len(text) > limits.base64_chars(allowed.max_bytes):
        raise _too_many_bytes(allowed)
    return decode_base64(text, "picture", PictureError)


def _decode(content: bytes, allowed: PictureLimits) -> Image.Image:
    """Decode to RGB, upright, without metadata."""
    with _opened(content, allowed) as picture:
        picture.load()
        made = _to_rgb(_upright(picture))
    made.info.clear()  # the orientation in it no longer holds
    return made


def _upright(picture: Image.Image) -> Image.Image:
    """Turn by the EXIF orientation; a picture whose EXIF cannot be read stays as it is.

    Pillow's `exif_transpose` also writes the EXIF anew, which fails for entries of unusual types.
    """
    turn = None
    with suppress(*DAMAGED):
        turn = TURNS.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
    return picture if turn is None else picture.transpose(turn)


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode in DEEP_GREY_MODES:
        # Pillow would clip 16-bit grey to white instead of scaling it.
        grey = (np.asarray(picture).astype(np.uint16) >> BITS_DROPPED).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if picture.mode in MEASURED_MODES:
        return Image.fromarray(_stretched(np.asarray(picture, np.float32))).convert("RGB")
    if picture.has_transparency_data:
        # As viewers show it; `convert("RGB")` alone would show the colours that are hidden.
        shown = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown).convert("RGB")
    return picture if picture.mode == "RGB" else picture.convert("RGB")  # without a copy


def _stretched(values: np.ndarray) -> np.ndarray:
    """Return grey [H, W] of 8 bits: the lowest number is black, the highest white."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        raise PictureError("The picture holds no finite numbers.")
    low, high = float(finite.min()), float(finite.max())
    above = np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low
    made: np.ndarray = (above * (WHITE / ((high - low) or 1.0))).astype(np.uint8)
    return made


def _shrunk(picture: Image.Image) -> Image.Image:
    scale = math.sqrt(KEPT_PIXELS / (picture.width * picture.height))
    if scale >= 1:
        return picture
    size = (max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))
    return picture.resize(size, Image.Resampling.BICUBIC)


@contextmanager
def _opened(content: bytes, allowed: PictureLimits) -> Iterator[Image.Image]:
    """Read a picture's header and check its size; every failure becomes a `PictureError`."""
    if len(content) > allowed.max_bytes:
        raise _too_many_bytes(allowed)
    if not content:
        raise PictureError("The picture is empty.")
    try:
        file = _PictureFile(content, allowed.max_reads)
        with Image.open(file, formats=allowed.formats) as picture:
            size = f"The picture is {picture.width} x {picture.height}"
            if max(picture.size) > allowed.max_side_px:
                raise PictureTooLargeError(
                    f"{size}; no side may be longer than {allowed.max_side_px} pixels."
                )
            if picture.width * picture.height > allowed.max_pixels:
                millions = allowed.max_pixels // MILLION
                raise PictureTooLargeError(f"{size}; it may have {millions} million pixels.")
            if max(picture.size) > RATIO_MAX * min(picture.size):
                raise PictureError(
                    f"{size}; one side may be at most {RATIO_MAX} times as long as the other."
                )
            if picture.format in ("JPEG", "MPO") and _jpeg_scans(content) > JPEG_SCANS_MAX:
                raise PictureError(f"The picture has more than {JPEG_SCANS_MAX} scans.")
            yield picture
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureTooLargeError("The picture has too many pixels.") from error
    except UnidentifiedImageError as error:
        names = ", ".join(allowed.formats)
        raise PictureError(f"The picture is not one of {names}.") from error
    except DAMAGED as error:
        raise PictureError("The picture is damaged.") from error


def _jpeg_scans(content: bytes) -> int:
    """Count the scans, up to one too many or the end: telephones append films to pictures."""
    scans, at = 0, JPEG_LENGTH_BYTES  # behind the marker of the beginning
    while scans <= JPEG_SCANS_MAX and (found := JPEG_MARKER.search(content, at)):
        if found[1] == JPEG_END:
            break
        scans += found[1] == JPEG_SCAN
        at = found.end()
        at += int.from_bytes(content[at : at + JPEG_LENGTH_BYTES])
    return scans
