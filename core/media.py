"""Decodes the pictures and videos of one request, after checking all their sizes.

Run as `python -m core.media SOCKET_FD CPU_S`, it is the child process of `core.media_process`,
which decodes or encodes the files of one request: the request is a file on standard input, the
reply is written to standard output.
"""

from __future__ import annotations

import io
import math
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import soundfile
from PIL import Image
from pydantic import BaseModel, TypeAdapter

from core.audio import check_audible, decode_base64, encode_wav, read_audio, to_pcm
from core.errors import OmniError, PictureError, PictureTooLargeError
from core.images import decode_wire_pictures
from core.media_process import DONE, pack, unpack
from core.schemas.common import ImageContent, VideoContent
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, MEDIA_MAX_PIXELS, MIB, OUTPUT_SAMPLE_RATE_HZ
from core.video import DEFAULT_MAX_FRAMES, DEFAULT_MAX_SIDE_PX, VideoClip, read_video

MediaContent = ImageContent | VideoContent
Media = Image.Image | VideoClip
MediaReader = Callable[[Sequence[MediaContent]], list[Media]]
"""Decodes the pictures and videos of one request; raises as `read_media`."""

MEMORY_LIMIT_BYTES: Final = 4 * 1024 * MIB  # ours: of address space; the libraries alone take 1 GiB
ANSWER_LIMIT_BYTES: Final = 1024 * MIB  # ours: more than `limits.MEDIA_MAX_PIXELS` allows
YIELDING: Final = 5  # niceness: conversations have priority, but a busy machine decodes in time


class MediaFacts(BaseModel):
    """Width and height of a picture, or of each frame of a video, which also has times."""

    sizes: list[tuple[int, int]]
    times_s: list[float] | None = None
    duration_s: float = 0.0


FACTS: TypeAdapter[list[MediaFacts]] = TypeAdapter(list[MediaFacts])
CONTENT: TypeAdapter[list[MediaContent]] = TypeAdapter(list[MediaContent])


def read_media(items: Sequence[MediaContent]) -> list[Media]:
    """Decode the pictures and videos of one request, in order.

    Raises `PictureTooLargeError`, also for all together, `PictureError`, or for the sound of a
    video `AudioError`.
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
            seen.times_s, seen.duration_s = list(each.times_s), each.duration_s
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
    # Each second is one picture, followed by a composite of the other pictures of that second.
    # With more pictures per second they are smaller, so that any clip takes the same memory.
    return read_video(
        decode_base64(item.data, "video", PictureError),
        fps=float(item.stack_frames),
        max_frames=DEFAULT_MAX_FRAMES * item.stack_frames,
        max_side_px=DEFAULT_MAX_SIDE_PX // math.ceil(math.sqrt(item.stack_frames)),
    )


def _frames(media: Media) -> Sequence[Image.Image]:
    return [media] if isinstance(media, Image.Image) else media.frames


# Any: each task's own arguments and results, as JSON.
def _media(head: Any, blobs: Sequence[bytes]) -> tuple[Any, list[bytes]]:
    """Decode pictures and videos: their fields without the data, and the data as Base64."""
    given = [{**fields, "data": data.decode()} for fields, data in zip(head, blobs, strict=True)]
    facts, made = to_bytes(read_media(CONTENT.validate_python(given)))
    return FACTS.dump_python(facts, mode="json"), made


def _sound(head: Any, blobs: Sequence[bytes]) -> tuple[Any, list[bytes]]:
    """Decode an audio file to 16 kHz, mono, as float32 samples or as a 16-bit WAV file."""
    samples = read_audio(blobs[0], max_duration_s=head["max_duration_s"])
    check_audible(samples)
    if head["as_wav"]:
        return None, [encode_wav(samples, INPUT_SAMPLE_RATE_HZ)]
    return None, [to_pcm(samples)]


def _speech(head: Any, blobs: Sequence[bytes]) -> tuple[Any, list[bytes]]:
    """Encode float32 samples, mono, 24 kHz, as a file of the container and codec in `head`."""
    file = io.BytesIO()
    samples = np.frombuffer(b"".join(blobs), dtype="<f4")
    soundfile.write(file, samples, OUTPUT_SAMPLE_RATE_HZ, head["codec"], format=head["container"])
    return None, [file.getvalue()]


TASKS: Final[dict[str, Callable[[Any, Sequence[bytes]], tuple[Any, list[bytes]]]]] = {
    "media": _media,
    "sound": _sound,
    "speech": _speech,
}


def main(line_fd: int, cpu_s: int) -> None:
    """Carry out the request; a byte on the socket reports that it, or the reply, is complete."""
    os.nice(YIELDING)
    # The soft limit sends a signal that tells the reason; the hard limit kills the process.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (ANSWER_LIMIT_BYTES, ANSWER_LIMIT_BYTES))
    if sys.platform == "linux":  # macOS does not enforce it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    with socket.socket(fileno=line_fd) as line:
        if line.recv(len(DONE)) != DONE:
            return  # the parent has ended
        request, blobs = unpack(sys.stdin.buffer)
        made: list[bytes] = []
        try:
            head, made = TASKS[request["task"]](request["head"], blobs)
            reply = {"head": head}
        except OmniError as error:
            reply = {"error": type(error).__name__, "message": error.message}
        except MemoryError:
            reply = {"error": "", "message": "It takes too much memory to decode."}
        pack(sys.stdout.buffer, reply, made)
        line.sendall(DONE)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
