"""Child process of `core.media_process`: decodes or encodes the media files of one request.

Run as `python -m core.media_reader SOCKET_FD CPU_S`; the request is a file on standard input, the
reply is written to standard output.
"""

from __future__ import annotations

import io
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import soundfile
from pydantic import TypeAdapter

from core.audio import check_audible, encode_wav, read_audio
from core.errors import OmniError
from core.media import FACTS, MediaContent, read_media, to_bytes
from core.media_process import DONE, pack, unpack
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, MIB, OUTPUT_SAMPLE_RATE_HZ

MEMORY_LIMIT_BYTES: Final = 4 * 1024 * MIB  # ours: of address space; the libraries alone take 1 GiB
ANSWER_LIMIT_BYTES: Final = 1024 * MIB  # ours: more than `limits.MEDIA_MAX_PIXELS` allows
YIELDING: Final = 10  # niceness: conversations have priority

CONTENT: TypeAdapter[list[MediaContent]] = TypeAdapter(list[MediaContent])


# Any: each task's own arguments and results, as JSON.
def media(head: Any, blobs: Sequence[bytes]) -> tuple[Any, list[bytes]]:
    """Decode pictures and videos: their fields without the data, and the data as Base64."""
    given = [{**fields, "data": data.decode()} for fields, data in zip(head, blobs, strict=True)]
    facts, made = to_bytes(read_media(CONTENT.validate_python(given)))
    return FACTS.dump_python(facts, mode="json"), made


def sound(head: Any, blobs: Sequence[bytes]) -> tuple[Any, list[bytes]]:
    """Decode an audio file to 16 kHz, mono, as float32 samples or as a 16-bit WAV file."""
    samples = read_audio(blobs[0], max_duration_s=head["max_duration_s"])
    check_audible(samples)
    if head["as_wav"]:
        return None, [encode_wav(samples, INPUT_SAMPLE_RATE_HZ)]
    return None, [samples.astype("<f4", copy=False).tobytes()]


def speech(head: Any, blobs: Sequence[bytes]) -> tuple[Any, list[bytes]]:
    """Encode float32 samples, mono, 24 kHz, as a file of the container and codec in `head`."""
    file = io.BytesIO()
    samples = np.frombuffer(b"".join(blobs), dtype="<f4")
    soundfile.write(file, samples, OUTPUT_SAMPLE_RATE_HZ, head["codec"], format=head["container"])
    return None, [file.getvalue()]


TASKS: Final[dict[str, Callable[[Any, Sequence[bytes]], tuple[Any, list[bytes]]]]] = {
    "media": media,
    "sound": sound,
    "speech": speech,
}


def main(line_fd: int, cpu_s: int) -> None:
    """Wait for the request on standard input, and carry it out.

    Args:
        line_fd: A socket, on which a byte reports that the request or the reply is complete.
        cpu_s: Limit of CPU time.
    """
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
