"""What `POST /transcribe` of a worker answers: the passages of a recording, a line of JSON each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from starlette.responses import StreamingResponse

from core.audio import from_pcm
from core.errors import AudioError, NotAvailableError, OmniError
from core.schemas.limits import CHAT_AUDIO_MAX_S, INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.worker import TranscriptPassage, TranscriptProblem
from core.serving.runtime import WorkerRuntime
from core.serving.transcribers import passages_of
from core.transcription import Passage, TranscriptionOptions

SOUND_MAX_BYTES: Final = round(CHAT_AUDIO_MAX_S * INPUT_SAMPLE_RATE_HZ) * SAMPLE_BYTES

Found = tuple[str, Passage]


async def written_down(
    runtime: WorkerRuntime, sound: bytes, options: TranscriptionOptions
) -> StreamingResponse:
    """Write down a recording; an error before the first passage is an HTTP status.

    Args:
        runtime: Has the transcriber.
        sound: Little-endian float32 samples, mono, 16 kHz.
        options: How to listen.

    Raises:
        OmniError: Nothing here transcribes, or it failed.
    """
    if runtime.transcriber is None:
        raise NotAvailableError()
    if not sound or len(sound) % SAMPLE_BYTES:
        raise AudioError(f"The sound has {len(sound)} bytes; each sample has {SAMPLE_BYTES}.")
    samples = from_pcm(sound)
    found = passages_of(runtime.transcriber, runtime.detector, samples, options)
    lines = _lines(await anext(found, None), found)
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _lines(first: Found | None, found: AsyncGenerator[Found]) -> AsyncIterator[str]:
    try:
        async with aclosing(found):
            while first is not None:
                language, passage = first
                line = TranscriptPassage(
                    start_s=passage.start_s,
                    end_s=passage.end_s,
                    text=passage.text,
                    language=language,
                )
                yield line.to_json() + "\n"
                first = await anext(found, None)
    except OmniError as error:
        yield TranscriptProblem(problem=error.message).to_json() + "\n"
