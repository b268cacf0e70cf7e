"""Where wire images and picture files become RGB; every size is checked before decoding."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from core.containers import MediaSource
from core.errors import PictureError, PictureMissingError, PictureTooLargeError
from core.schemas import limits

BITS_DROPPED: Final = 8  # from 16-bit grey to the 8 bits of RGB
DEEP_GREY_MODES: Final = ("I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class PictureLimits:
    """What a picture may be."""

    max_bytes: int
    max_side_px: int
    max_pixels: int
    formats: tuple[str, ...]  # Pillow's names


FRAME_LIMITS: Final = PictureLimits(
    max_bytes=limits.FRAME_MAX_BYTES,
    max_side_px=limits.FRAME_MAX_SIDE_PX,
    max_pixels=limits.FRAME_MAX_SIDE_PX**2,
    formats=("JPEG", "PNG", "WEBP"),
)
PICTURE_LIMITS: Final = PictureLimits(
    max_bytes=limits.PICTURE_MAX_BYTES,
    max_side_px=limits.PICTURE_MAX_SIDE_PX,
    max_pixels=limits.PICTURE_MAX_PIXELS,
    formats=("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"),
)


def decode_wire_picture(text: str, *, allowed: PictureLimits = PICTURE_LIMITS) -> Image.Image:
    """Turn a wire picture into pixels.

    Args:
        text: Base64 of an encoded picture.
        allowed: What the picture may be; `FRAME_LIMITS` for camera frames.

    Returns:
        RGB, upright; of an animation, the first picture.

    Raises:
        PictureTooLargeError: It has too many bytes or pixels.
        PictureError: It is not Base64, of another format, or damaged.
    """
    if len(text) > limits.base64_chars(allowed.max_bytes):
        raise _too_many_bytes(allowed)
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError("The picture is not valid Base64.") from error
    return _decode(content, allowed)


def read_picture(source: MediaSource, *, allowed: PictureLimits = PICTURE_LIMITS) -> Image.Image:
    """Decode a picture file; the result and the errors are those of `decode_wire_picture`.

    Args:
        source: Path of a file, or its content.
        allowed: What the picture may be.

    Raises:
        PictureMissingError: The path names no file, or it cannot be opened.
        PictureTooLargeError: It has too many bytes or pixels.
        PictureError: It is of another format, or damaged.
    """
    if isinstance(source, bytes):
        return _decode(source, allowed)
    path = Path(source)
    if not path.is_file():
        raise PictureMissingError(f"There is no picture file: {path.name!r} is not a file.")
    try:
        with path.open("rb") as file:
            content = file.read(allowed.max_bytes + 1)
    except OSError as error:
        raise PictureMissingError(f"The picture cannot be opened: {error.strerror}.") from error
    return _decode(content, allowed)


def _too_many_bytes(allowed: PictureLimits) -> PictureTooLargeError:
    return PictureTooLargeError(
        f"The picture is larger than {allowed.max_bytes // limits.MIB} MiB."
    )


def _decode(content: bytes, allowed: PictureLimits) -> Image.Image:
    if len(content) > allowed.max_bytes:
        raise _too_many_bytes(allowed)
    if not content:
        raise PictureError("The picture is empty.")
    try:
        with Image.open(BytesIO(content), formats=allowed.formats) as picture:
            _check_size(picture.size, allowed)
            picture.load()
            return _upright_rgb(picture)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureTooLargeError("The picture has too many pixels.") from error
    except UnidentifiedImageError as error:
        names = ", ".join(allowed.formats)
        raise PictureError(f"The picture is not one of {names}.") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise PictureError("The picture is damaged.") from error


def _check_size(size: tuple[int, int], allowed: PictureLimits) -> None:
    width_px, height_px = size
    if max(size) > allowed.max_side_px:
        raise PictureTooLargeError(
            f"The picture is {width_px} x {height_px}; "
            f"no side may be longer than {allowed.max_side_px} pixels."
        )
    if width_px * height_px > allowed.max_pixels:
        raise PictureTooLargeError(
            f"The picture is {width_px} x {height_px}; "
            f"it may have {allowed.max_pixels // 1_000_000} million pixels."
        )


def _upright_rgb(picture: Image.Image) -> Image.Image:
    """Turn as the camera was held, then to 8-bit RGB."""
    upright = ImageOps.exif_transpose(picture)
    if upright.mode in DEEP_GREY_MODES:
        # Pillow would clip 16-bit grey to white instead of scaling it.
        grey = (np.asarray(upright).astype(np.uint16) >> BITS_DROPPED).astype(np.uint8)
        upright = Image.fromarray(grey)
    return upright.convert("RGB")
