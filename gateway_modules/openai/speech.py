"""`POST /v1/audio/speech`: speaks a text verbatim; audio formats of OpenAI's interface.

The text is given as the reply: its tokens are fed instead of sampled, and the speech decoder speaks
them. Each file is encoded in its own process, so that the gateway loads no codec.
Source: OpenAI's API reference, "Create speech".
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import Field

from core.errors import BadRequestError, GenerationFailedError, OmniError
from core.media_process import PROJECT_FOLDER
from core.schemas import limits
from core.schemas.chat import ChatChunk, ChatDone, ChatSocketRequest
from core.schemas.common import GenerationConfig, Message, Role, TextContent, TTSConfig
from gateway_modules.openai.chat_request import AnswerFormat, SpokenWith
from gateway_modules.routes.chat import ReplyMessage
from gateway_modules.voices import AudioDecoder, VoiceLibrary
from gateway_modules.web.responses import ClosingResponse, openai_error
from recording.folder import MAX_WAV_BYTES, RIFF_HEAD_BYTES, WAV_HEADER_BYTES, wav_header

PCM16_MAX: Final = 32_767
# Container and codec, named as in libsndfile.
FILES: Final = {
    "wav": ("WAV", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "flac": ("FLAC", "PCM_16"),
    "opus": ("OGG", "OPUS"),
}


# Proxies must not buffer events.
UNBUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
EVENTS: Final = "text/event-stream"


def streamed(
    body: AsyncGenerator[str | bytes], source: AsyncGenerator[object], media_type: str = EVENTS
) -> ClosingResponse:
    """Return a response whose end ends the work at the worker; the body reads `source`."""
    closes = body.aclose, source.aclose
    return ClosingResponse(body, *closes, media_type=media_type, headers=UNBUFFERED)


# Any: JSON.
def server_event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def spoken(pieces: Sequence[bytes], answer_format: AnswerFormat, decoder: AudioDecoder) -> str:
    """Encode little-endian float32, mono, 24 kHz to Base64 of a file, or of raw "pcm16". Blocks."""
    samples = b"".join(pieces)
    is_raw = answer_format == "pcm16"
    content = pcm16(samples) if is_raw else decoder.encode(samples, *FILES[answer_format])
    return base64.b64encode(content).decode("ascii")


def pcm16(samples: bytes) -> bytes:
    """Convert little-endian float32 samples to 16 bits, 5 ms for a second of audio.

    The gateway does not import numpy, and pieces of a stream are too short for a process each.
    """
    count = len(samples) // limits.SAMPLE_BYTES
    values = struct.unpack(f"<{count}f", samples)
    integers = [round(max(-1.0, min(1.0, value)) * PCM16_MAX) for value in values]
    return struct.pack(f"<{count}h", *integers)


ENCODER_MODULE: Final = "core.sound_encoder"
READ_BYTES: Final = 64 * 1024
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


async def encoded(
    samples: AsyncIterator[bytes], file_format: str, speed: float = 1.0
) -> AsyncGenerator[bytes]:
    """Yield an encoded file in pieces; a slow reader slows `samples` down.

    `samples` is little-endian float32, mono, 24 kHz; `file_format` a key of
    `core.sound_encoder.CODINGS`; `speed` 2 halves the duration.
    """
    command = sys.executable, "-m", ENCODER_MODULE, file_format, str(speed)
    environment = os.environ | ONE_THREAD
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=PROJECT_FOLDER, env=environment
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
            await process.communicate()  # to the end of its output, so that the pipe is closed too


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


INPUT_MAX_CHARS: Final = limits.REPLY_START_MAX_CHARS  # a reply that is nothing else
TASK: Final = "Please read the text below."
PROMPT_MAX_TOKENS: Final = 16_384  # ours: four for each character of the longest text
SUBTYPES: Final = {"mp3": "mpeg", "opus": "ogg"}  # of media types; the others are the format
# A WAV file of unknown length has the greatest possible length in its header.
WAV_HEAD: Final = wav_header(
    limits.OUTPUT_SAMPLE_RATE_HZ, 1, MAX_WAV_BYTES - WAV_HEADER_BYTES + RIFF_HEAD_BYTES
)


class SpeechRequest(SpokenWith):
    model: str = Field(max_length=limits.ID_MAX_CHARS)
    input: str = Field(min_length=1, max_length=INPUT_MAX_CHARS)
    instructions: str = Field("", max_length=INPUT_MAX_CHARS)
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: float = Field(1.0, ge=0.25, le=4)
    stream_format: Literal["audio", "sse"] = "audio"

    @property
    def media_type(self) -> str:
        sound = self.response_format
        return EVENTS if self.stream_format == "sse" else f"audio/{SUBTYPES.get(sound, sound)}"


def worker_request(params: SpeechRequest, voices: VoiceLibrary) -> str:
    """Return the JSON of a `ChatSocketRequest`; blocks while a voice is decoded."""
    task = TextContent(text=params.instructions or TASK)
    request = ChatSocketRequest(
        messages=[Message(role=Role.USER, content=[task, TextContent(text=params.input)])],
        generation=GenerationConfig(max_new_tokens=1, max_inp_length=PROMPT_MAX_TOKENS),
        tts=TTSConfig(enabled=True, ref_audio_data=voices.audio_of(params.voice_name)),
        use_tts_template=True,
        reply_start=params.input,
    )
    return request.to_json()


def _usage(fed: int, said: int) -> dict[str, int]:
    return {"input_tokens": fed, "output_tokens": said, "total_tokens": fed + said}


@dataclass(eq=False)
class Speech:
    params: SpeechRequest
    messages: AsyncGenerator[ReplyMessage]
    first: bytes = b""
    usage: dict[str, int] = field(default_factory=lambda: _usage(0, 0))

    async def begin(self) -> None:
        """Wait for the first audio; an error before it is an HTTP status."""
        problem: OmniError = GenerationFailedError("The model generated no speech for this text.")
        async for message in self.messages:
            if isinstance(message, ChatChunk) and message.audio_data:
                self.first = message.audio_data
                return
            if isinstance(message, ChatDone) and not message.text:
                problem = BadRequestError("input: nothing in it can be spoken.")
        raise problem  # after the end of the messages, which gives the worker back

    async def body(self) -> AsyncGenerator[str | bytes]:
        async with aclosing(self._audio()) as audio:
            if self.params.stream_format == "audio":
                async for part in audio:
                    yield part
                return
            try:
                async for part in audio:
                    encoded_part = base64.b64encode(part).decode("ascii")
                    yield server_event({"type": "speech.audio.delta", "audio": encoded_part})
                yield server_event({"type": "speech.audio.done", "usage": self.usage})
            except OmniError as error:
                yield server_event(openai_error(error))

    async def _audio(self) -> AsyncGenerator[bytes]:
        kind, speed, samples = self.params.response_format, self.params.speed, self._samples()
        async with aclosing(samples):
            if kind == "wav":
                yield WAV_HEAD
                kind = "pcm"
            if kind == "pcm" and speed == 1:
                async for piece in samples:
                    yield pcm16(piece)
                return
            async with aclosing(encoded(samples, kind, speed)) as parts:
                async for part in parts:
                    yield part

    async def _samples(self) -> AsyncGenerator[bytes]:
        """Yield the worker's audio: little-endian float32, mono, 24 kHz."""
        async with aclosing(self.messages):
            yield self.first
            async for message in self.messages:
                if isinstance(message, ChatChunk) and message.audio_data:
                    yield message.audio_data
                elif isinstance(message, ChatDone):
                    self.usage = _usage(message.input_tokens, message.generated_tokens)
