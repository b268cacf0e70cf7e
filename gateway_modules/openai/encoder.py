"""Sound into files while it comes, in a process of its own for each: the gateway loads no codec."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from core.errors import GenerationFailedError
from core.media_process import PROJECT_FOLDER

ENCODER_MODULE: Final = "core.sound_encoder"
READ_BYTES: Final = 64 * 1024
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


async def encoded(
    samples: AsyncIterator[bytes], file_format: str, speed: float = 1.0
) -> AsyncGenerator[bytes]:
    """Yield a file piece by piece. What nobody reads holds the samples up.

    Args:
        samples: little-endian float32, mono, 24 kHz.
        file_format: a key of `core.sound_encoder.CODINGS`.
        speed: 2 halves the time in which the same is said.

    Raises:
        OmniError: what the samples' maker raises, or the process has failed.
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
