"""Speech in the formats that OpenAI's interface names: whole answers, and files while they come.

Files are made in a process of their own for each: the gateway loads no codec.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from array import array
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import MappingProxyType
from typing import Final

from core.errors import GenerationFailedError
from core.media_process import PROJECT_FOLDER
from gateway_modules.openai.chat_request import AnswerFormat
from gateway_modules.voices.ref_audio_registry import SoundDecoder

PCM16_MAX: Final = 32_767
# Container and codec as libsndfile calls them.
FILES: Final = MappingProxyType(
    {
        "wav": ("WAV", "PCM_16"),
        "mp3": ("MP3", "MPEG_LAYER_III"),
        "flac": ("FLAC", "PCM_16"),
        "opus": ("OGG", "OPUS"),
    }
)


def spoken(pieces: Sequence[bytes], answer_format: AnswerFormat, decoder: SoundDecoder) -> str:
    """Return a spoken answer as Base64; blocks while it is encoded.

    Args:
        pieces: Little-endian float32 samples, mono, 24 kHz, in order.
        answer_format: "pcm16" is no file: little-endian 16-bit samples at 24 kHz.
        decoder: Encodes files in another process.
    """
    samples = b"".join(pieces)
    if answer_format == "pcm16":
        content = pcm16(samples)
    else:
        content = decoder.encode(samples, *FILES[answer_format])
    return base64.b64encode(content).decode("ascii")


def pcm16(samples: bytes) -> bytes:
    """Turn little-endian float32 samples into 16-bit ones, 5 ms for a second of sound.

    The gateway does without numpy, and a stream's pieces are too short to start a process for each.
    """
    floats = array("f", samples)
    if sys.byteorder == "big":
        floats.byteswap()
    words = array("h", [round(max(-1.0, min(1.0, value)) * PCM16_MAX) for value in floats])
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


ENCODER_MODULE: Final = "core.sound_encoder"
READ_BYTES: Final = 64 * 1024
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


async def encoded(
    samples: AsyncIterator[bytes], file_format: str, speed: float = 1.0
) -> AsyncGenerator[bytes]:
    """Yield an encoded file in pieces; a slow reader slows `samples` down.

    Args:
        samples: Little-endian float32, mono, 24 kHz.
        file_format: A key of `core.sound_encoder.CODINGS`.
        speed: 2 halves the duration.

    Raises:
        OmniError: What `samples` raises, or the process has failed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        ENCODER_MODULE,
        file_format,
        str(speed),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        cwd=PROJECT_FOLDER,
        env=os.environ | ONE_THREAD,
    )
    feeding = asyncio.create_task(_feed(process, samples))
    try:
        assert process.stdout is not None
        while part := await process.stdout.read(READ_BYTES):
            yield part
        await feeding
        if await process.wait() != 0:
            raise GenerationFailedError("The speech could not be encoded.")
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _feed(process: Process, samples: AsyncIterator[bytes]) -> None:
    assert process.stdin is not None
    try:
        async for piece in samples:
            process.stdin.write(piece)
            await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return  # the process has ended; its status says why
    finally:
        process.stdin.close()
