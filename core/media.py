"""Decodes the pictures and videos of one request, after checking all their sizes.

Also serializes decoded media as numbers and bytes, to pass them between processes.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from PIL import Image
from pydantic import BaseModel, TypeAdapter

from core.errors import PictureTooLargeError, VideoError
from core.images import decode_wire_pictures
from core.schemas.common import ImageContent, VideoContent
from core.schemas.limits import MEDIA_MAX_PIXELS
from core.video import DEFAULT_MAX_FRAMES, DEFAULT_MAX_SIDE_PX, VideoClip, read_video

MediaContent = ImageContent | VideoContent
Media = Image.Image | VideoClip
MediaReader = Callable[[Sequence[MediaContent]], list[Media]]
"""Decodes the pictures and videos of one request; raises as `read_media`."""


class MediaFacts(BaseModel):
    """Width and height of a picture, or of each frame of a video, which also has times."""

    sizes: list[tuple[int, int]]
    times_s: list[float] | None = None
    duration_s: float = 0.0


FACTS: TypeAdapter[list[MediaFacts]] = TypeAdapter(list[MediaFacts])


def read_media(items: Sequence[MediaContent]) -> list[Media]:
    """Decode the pictures and videos of one request, in order.

    Raises:
        PictureTooLargeError: One of them, or all together, have too many bytes or pixels.
        PictureError: One of them cannot be decoded.
        AudioError: The sound of a video cannot be decoded.
    """
    pictures = iter(
        decode_wire_pictures([item.data for item in items if isinstance(item, ImageContent)])
    )
    made: list[Media] = []
    for item in items:
        made.append(_clip(item) if isinstance(item, VideoContent) else next(pictures))
        frames = [frame for each in made for frame in _frames(each)]
        if sum(frame.width * frame.height for frame in frames) > MEDIA_MAX_PIXELS:
            raise PictureTooLargeError(
                "The pictures and videos of the request have more than "
                f"{MEDIA_MAX_PIXELS // 1_000_000} million pixels in all."
            )
    return made


def to_bytes(media: Sequence[Media]) -> tuple[list[MediaFacts], list[bytes]]:
    """Serialize decoded media as facts and bytes: pixels, and the audio after a video's frames."""
    facts: list[MediaFacts] = []
    blobs: list[bytes] = []
    for each in media:
        blobs += [frame.tobytes() for frame in _frames(each)]
        seen = MediaFacts(sizes=[frame.size for frame in _frames(each)])
        if isinstance(each, VideoClip):
            blobs.append(each.audio.tobytes())
            known = {"times_s": list(each.times_s), "duration_s": each.duration_s}
            seen = seen.model_copy(update=known)
        facts.append(seen)
    return facts, blobs


def from_bytes(facts: Sequence[MediaFacts], blobs: Iterable[bytes]) -> list[Media]:
    """Invert `to_bytes`; raises `ValueError` if the bytes do not fit the facts."""
    left = iter(blobs)
    media: list[Media] = []
    for each in facts:
        frames = [Image.frombytes("RGB", size, next(left)) for size in each.sizes]
        if each.times_s is None:
            media += frames
        else:
            audio = np.frombuffer(next(left), np.float32)
            media.append(VideoClip(tuple(frames), tuple(each.times_s), audio, each.duration_s))
    return media


def _clip(item: VideoContent) -> VideoClip:
    try:
        film = base64.b64decode(item.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise VideoError("The video is not valid Base64.") from error
    # Each second is one picture, followed by a composite of the other pictures of that second.
    # With more pictures per second they are smaller, so that any clip takes the same memory.
    return read_video(
        film,
        fps=float(item.stack_frames),
        max_frames=DEFAULT_MAX_FRAMES * item.stack_frames,
        max_side_px=DEFAULT_MAX_SIDE_PX // math.ceil(math.sqrt(item.stack_frames)),
    )


def _frames(media: Media) -> Sequence[Image.Image]:
    return [media] if isinstance(media, Image.Image) else media.frames
