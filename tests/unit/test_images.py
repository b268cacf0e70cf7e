"""Pictures: every accepted format upright in RGB, everything else refused before it is decoded."""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from core.errors import OmniError, PictureError, PictureTooLargeError
from core.images import (
    FRAME_LIMITS,
    KEPT_PIXELS,
    PICTURE_LIMITS,
    TURNS,
    decode_wire_picture,
    decode_wire_pictures,
    read_picture,
)
from MiniCPMO45.configuration_minicpmo import SliceConfig
from MiniCPMO45.processing.pictures import slice_image

ORIENTATION_TAG = 0x0112
TURNED_RIGHT = 6  # the camera was held so that the picture must be turned by 90° to the right
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
SCAN = b"\xff\xda"  # the marker of a JPEG's scan


def picture(mode: str = "RGB", size: tuple[int, int] = (64, 48)) -> Image.Image:
    image = Image.new("RGB", size, "black")
    image.paste((255, 0, 0), (0, 0, size[0] // 2, size[1] // 2))
    return image.convert(mode)


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def bomb(width_px: int, height_px: int) -> bytes:
    """Return a PNG of a few bytes that claims a size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def wire(*contents: bytes) -> list[str]:
    """Return files as Base64."""
    return [base64.b64encode(content).decode() for content in contents]


def is_red(image: Image.Image, at: tuple[int, int]) -> bool:
    """Say whether a pixel is red, as far as a lossy format keeps it."""
    red, green, blue = np.asarray(image)[at[1], at[0]]
    return bool(red > 200 and green < 60 and blue < 60)


@pytest.mark.parametrize("kind", FORMATS)
def test_formats(kind: str, tmp_path: Path) -> None:
    content = file_of(picture(), kind)
    path = tmp_path / "picture"
    path.write_bytes(content)
    for source in (content, path, str(path)):
        image = read_picture(source)
        assert (image.mode, image.size) == ("RGB", (64, 48))
        assert is_red(image, (8, 8))
        assert not is_red(image, (56, 40))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_wire_pictures(kind: str) -> None:
    text = base64.b64encode(file_of(picture(), kind)).decode()
    assert decode_wire_picture(text, allowed=FRAME_LIMITS).size == (64, 48)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "CMYK"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    kind = "TIFF" if mode == "CMYK" else "PNG"
    assert read_picture(file_of(picture(mode), kind)).mode == "RGB"


def test_16_bit_grey_is_scaled() -> None:
    grey = Image.fromarray(np.full((4, 4), 0x8000, np.uint16))
    assert np.asarray(read_picture(file_of(grey, "PNG")))[0, 0].tolist() == [0x80, 0x80, 0x80]


@pytest.mark.parametrize(
    "pair", ["RGBA PNG", "RGBA WEBP", "RGBA TIFF", "RGBA GIF", "LA PNG", "P PNG"]
)
def test_what_is_transparent_is_white(pair: str) -> None:
    mode, kind = pair.split()
    hidden = Image.new("RGBA", (64, 48), (255, 0, 0, 0))
    hidden.paste((0, 0, 0, 255), (0, 0, 32, 48))
    shown = np.asarray(read_picture(file_of(hidden.convert(mode), kind)))
    assert shown[8, 8].tolist() == pytest.approx([0, 0, 0], abs=4)
    assert shown[8, 56].tolist() == pytest.approx([255, 255, 255], abs=4)


def test_one_colour_that_is_transparent_is_white() -> None:
    content = file_of(picture(), "PNG", transparency=(255, 0, 0))
    assert np.asarray(read_picture(content))[8, 8].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_of_32_bits_range_from_black_to_white(kind: type) -> None:
    numbers: np.ndarray = np.array([[-1_000, 0, 1_000], [99_000, 49_000, 99_000]]).astype(kind)
    made = np.asarray(read_picture(file_of(Image.fromarray(numbers), "TIFF")))
    assert made[..., 0].tolist() == [[0, 2, 5], [255, 127, 255]]


def test_numbers_that_are_not_finite_are_left_out_of_the_range() -> None:
    numbers: np.ndarray = np.array([[0, 0.5, 1], [np.nan, np.inf, -np.inf]], np.float32)
    made = np.asarray(read_picture(file_of(Image.fromarray(numbers), "TIFF")))
    assert made[..., 0].tolist() == [[0, 127, 255], [0, 255, 0]]
    with pytest.raises(PictureError, match="no finite numbers"):
        read_picture(file_of(Image.fromarray(numbers[1:] * np.inf), "TIFF"))


def test_the_way_the_camera_was_held() -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = TURNED_RIGHT
    image = read_picture(file_of(picture(), "JPEG", exif=exif, quality=95))
    assert image.size == (48, 64)
    assert is_red(image, (40, 8))
    assert not is_red(image, (8, 8))


def test_the_first_picture_of_an_animation() -> None:
    others = [Image.new("RGB", (64, 48), "blue")] * 3
    for kind in ("GIF", "WEBP", "PNG"):
        content = file_of(picture(), kind, save_all=True, append_images=others)
        assert is_red(read_picture(content), (8, 8))


def test_frames_are_jpeg_png_or_webp() -> None:
    with pytest.raises(PictureError, match="not one of JPEG, PNG, WEBP"):
        read_picture(file_of(picture(), "BMP"), allowed=FRAME_LIMITS)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_sides_pixels_and_bytes_are_limited() -> None:
    with pytest.raises(PictureTooLargeError, match="4096"):
        read_picture(bomb(4_097, 10), allowed=FRAME_LIMITS)
    with pytest.raises(PictureTooLargeError, match="million pixels"):
        read_picture(bomb(12_000, 12_000))
    with pytest.raises(PictureTooLargeError):
        read_picture(bomb(60_000, 60_000))
    with pytest.raises(PictureTooLargeError, match="4 MiB"):
        decode_wire_picture("A" * (6 * 1024 * 1024), allowed=FRAME_LIMITS)
    with pytest.raises(PictureTooLargeError, match="20 MiB"):
        read_picture(bytes(PICTURE_LIMITS.max_bytes + 1))


@pytest.mark.parametrize("size", [(4_096, 3), (1, 1_025)])
def test_a_picture_too_thin_for_the_model_is_refused(size: tuple[int, int]) -> None:
    [thin] = wire(file_of(Image.new("L", size), "PNG"))
    for allowed in (FRAME_LIMITS, PICTURE_LIMITS):
        with pytest.raises(PictureError, match="1024 times"):
            decode_wire_picture(thin, allowed=allowed)
    [fits] = wire(file_of(Image.new("L", (1_024, 1)), "PNG"))
    slice_image(decode_wire_picture(fits, allowed=FRAME_LIMITS), 9, SliceConfig())


def test_the_sizes_of_all_pictures_are_added_up_before_one_is_decoded() -> None:
    [large] = wire(bomb(8_000, 8_000))  # damaged, which only decoding would tell
    with pytest.raises(PictureTooLargeError, match="256 million pixels in all; 192 million"):
        decode_wire_pictures([large] * 4)
    with pytest.raises(PictureError, match="damaged"):
        decode_wire_pictures([large] * 3)
    with pytest.raises(PictureTooLargeError, match="65 pictures; 64"):
        decode_wire_pictures(wire(file_of(picture(), "PNG")) * 65)


def test_large_pictures_are_kept_as_large_as_the_model_can_use() -> None:
    large, small = file_of(Image.new("L", (8_000, 4_000)), "PNG"), file_of(picture(), "PNG")
    kept = decode_wire_pictures(wire(large, small))
    assert kept[0].width == pytest.approx(2 * kept[0].height, abs=2)
    assert 0.99 * KEPT_PIXELS < kept[0].width * kept[0].height <= KEPT_PIXELS
    assert np.array_equal(np.asarray(kept[1]), np.asarray(picture()))


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", bytes(1_000), file_of(picture(), "PNG")[:60], file_of(picture(), "JPEG")[:300]],
)
def test_what_is_no_picture_gets_one_clear_sentence(content: bytes) -> None:
    with pytest.raises(PictureError) as caught:
        read_picture(content)
    assert str(caught.value).endswith(".")
    assert caught.value.code.value == "bad_frame"


def test_bad_base64_is_a_picture_error() -> None:
    for text in ("data:image/png;base64,AAAA", "ÄÄ", "A"):
        with pytest.raises(PictureError, match="Base64"):
            decode_wire_picture(text)


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(PictureError, match="There is no picture file"):
            read_picture(path)


def exif_of(*entries: tuple[int, int, bytes]) -> bytes:
    """Return an EXIF block of entries with one value each: tag, type, at most eight bytes."""
    rest_at = 8 + 2 + 12 * len(entries) + 4  # after the header, the count, the entries, their end
    made, rest = struct.pack("<2sHIH", b"II", 42, 8, len(entries)), b""
    for tag, kind, value in entries:
        if len(value) > 4:
            value, rest = struct.pack("<I", rest_at + len(rest)), rest + value
        made += struct.pack("<HHI", tag, kind, 1) + value.ljust(4, b"\0")
    return b"Exif\0\0" + made + bytes(4) + rest


SHORT, RATIONAL, SIGNED_SHORT, ASCII = 3, 5, 8, 2
TURNED = (ORIENTATION_TAG, SHORT, struct.pack("<H", TURNED_RIGHT))


@pytest.mark.parametrize(
    "entry",
    [
        (0x0128, RATIONAL, struct.pack("<II", 72, 1)),  # ResolutionUnit
        (0x0100, RATIONAL, struct.pack("<II", 64, 1)),  # ImageWidth
        (0x011A, ASCII, b"72"),  # XResolution
        (0x0103, SIGNED_SHORT, struct.pack("<h", -1)),  # Compression
    ],
)
def test_exif_entries_of_unusual_types_are_no_damage(entry: tuple[int, int, bytes]) -> None:
    content = file_of(picture(), "JPEG", exif=exif_of(TURNED, entry), quality=95)
    image = read_picture(content, allowed=FRAME_LIMITS)
    assert image.size == (48, 64)
    assert is_red(image, (40, 8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_turned_once(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    content = file_of(picture(), kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    image = read_picture(content)
    assert np.array_equal(np.asarray(image), np.asarray(expected))
    for made in (image, image.resize((32, 32)), Image.open(io.BytesIO(file_of(image, kind)))):
        assert made.getexif().get(ORIENTATION_TAG) not in TURNS, "it would be turned again"


def test_a_picture_whose_exif_cannot_be_read_stays_as_it_is() -> None:
    for key in ("exif", "xmp"):  # as a text, where Pillow expects bytes
        text = PngInfo()
        text.add_text(key, "tiff:Orientation=6")
        assert read_picture(file_of(picture(), "PNG", pnginfo=text)).size == (64, 48)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_pictures_or_one_of_our_errors(kind: str) -> None:
    rng = random.Random(kind)
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = TURNED_RIGHT
    options = {} if kind in ("GIF", "BMP") else {"exif": exif}
    content = file_of(picture(), kind, **options)
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 5)):
            damaged[rng.randrange(min(len(damaged), 400))] = rng.randrange(256)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        try:
            assert read_picture(bytes(damaged)).mode == "RGB"
        except OmniError as error:
            assert error.message


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    def repeated(content: bytes, scans: int) -> bytes:
        last = content.rindex(SCAN)
        return content[:last] + content[last:-2] * scans + content[-2:]

    photo = file_of(picture(), "JPEG", progressive=True)
    assert photo.count(SCAN) > 1
    kept = photo + SCAN * 200  # as in a film that a telephone appends
    tagged = file_of(picture(), "JPEG", comment=SCAN * 200)
    for content in (photo, kept, tagged, repeated(photo, 20)):
        assert is_red(read_picture(content, allowed=FRAME_LIMITS), (8, 8))
    for content in (repeated(photo, 101), repeated(file_of(picture(), "JPEG"), 101)):
        with pytest.raises(PictureError, match="more than 100 scans"):
            read_picture(content, allowed=FRAME_LIMITS)


@pytest.mark.parametrize(
    ("kind", "at", "part"),
    [
        ("PNG", 33, bytes(4) + b"noTe" + struct.pack(">I", zlib.crc32(b"noTe"))),
        ("JPEG", 2, b"\xff\xef\0\2"),
        ("JPEG", 20, b"\0"),  # between two segments
    ],
)
def test_a_frame_of_very_many_parts_is_refused(kind: str, at: int, part: bytes) -> None:
    content = file_of(picture(), kind)
    some, many = (content[:at] + part * count + content[at:] for count in (1_000, 20_000))
    assert is_red(read_picture(some, allowed=FRAME_LIMITS), (8, 8))
    with pytest.raises(PictureError, match="too many parts"):
        read_picture(many, allowed=FRAME_LIMITS)
    assert is_red(read_picture(many), (8, 8))  # decoded in a process with limits of its own
