"""Transcribers of a worker: Whisper in its own process, or the model by its transcription prompt.

Both take one request at a time, with a bounded queue that refuses what does not fit.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar, Final, TypeVar

import numpy as np

from core import errors
from core.audio import FloatArray, encode_wire_audio, from_pcm, to_pcm
from core.endpointing import EndpointOptions
from core.errors import OmniError
from core.media_process import PROJECT_FOLDER, pack, unpack
from core.modes import Backend, ChatMode, Threads
from core.schemas.chat import ChatRequest
from core.schemas.common import AudioContent, GenerationConfig, Message, Role, TextContent
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.worker import ModelKind, TranscriptPassage
from core.serving.fake_backend import FakeBackend, FakeTranscriber
from core.transcription import (
    DEFAULT_OPTIONS,
    MODEL_FILE,
    Transcriber,
    TranscriberKind,
    Transcript,
    TranscriptionOptions,
    duration_s,
)
from core.vad import SileroVad, SpeechSegment, StreamingVAD
from settings.sections import TranscribesBy

T = TypeVar("T")


LIVE_LIMIT_S: Final = 120.0  # ours: a later caption is useless

PROGRAM: Final = "core.whisper_program"
LOWEST_PRIORITY: Final = 19
# Ours: a second of audio takes less than a second on a busy core; a process beyond this hangs.
START_LIMIT_S: Final = 120.0
LIMIT_PER_AUDIO_S: Final = 10.0
SHUTTING_DOWN: Final = "The server is shutting down."

# Ours: with a longer queue, captions would be minutes late.
WAITING_MAX: Final = 16
WAITING_MAX_S: Final = 900.0
# Published with MiniCPM-o for speech recognition; the prompt precedes the audio.
TRANSCRIPTION_PROMPT: Final = (
    "Please listen to the audio snippet carefully and transcribe the content.\n"
)
TOKENS_PER_S: Final = 8  # ours: twice the rate of a fast speaker
FEWEST_TOKENS: Final = 32
# Ours: longer speech is transcribed in parts, so that neither its audio nor its text exceeds what
# one request may have (`CHAT_AUDIO_MAX_S`, `max_new_tokens`).
PART_S: Final = 480.0
# Segmentation of recordings; Whisper's window is 30 s.
FILE_OPTIONS: Final = EndpointOptions(
    threshold=0.5, min_silence_duration_ms=500, speech_pad_ms=200, max_speech_duration_s=28.0
)


class LoopThreads(Threads):
    """Runs a view's blocking work on the event loop's threads, outside of any session."""

    async def run(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        return await asyncio.to_thread(work)


class Waiting:
    """Queue limits of one transcriber; the running request counts, too."""

    def __init__(self) -> None:
        self._lengths_s: list[float] = []  # of the requests' audio

    @contextmanager
    def place(self, samples: FloatArray) -> Iterator[None]:
        """Count a request for the block; raises `TranscriberBusyError` if the queue is full."""
        waiting, length_s = self._lengths_s, duration_s(samples)
        if len(waiting) >= WAITING_MAX or (waiting and sum(waiting) + length_s > WAITING_MAX_S):
            raise errors.TranscriberBusyError()
        waiting.append(length_s)
        try:
            yield
        finally:
            waiting.remove(length_s)


class WhisperTranscriber:
    """Whisper on the CPU, in one process, concurrent with the conversations.

    The process starts with the first request, and again after a crash or a timeout.
    """

    kind: ClassVar[TranscriberKind] = "whisper"

    def __init__(
        self,
        folder: Path,
        program: tuple[str, ...] = (sys.executable, "-m", PROGRAM),
        *,
        niceness: int = LOWEST_PRIORITY,
    ) -> None:
        """`niceness` should be 0 if a conversation waits for the transcript."""
        self._command = [*program, str(folder), str(niceness)]
        self._waiting = Waiting()
        self._thread = ThreadPoolExecutor(1, "transcribe")
        self._lock = threading.Lock()  # a closed transcriber starts no process
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """See `Transcriber`; requests of cancelled callers are skipped."""
        with self._waiting.place(samples):
            try:
                job = self._thread.submit(self._answer, samples, options)
            except RuntimeError as error:  # closed
                raise errors.TranscriptionFailedError(SHUTTING_DOWN) from error
            return await asyncio.wrap_future(job)

    def close(self) -> None:
        """End the process; a running request fails."""
        with self._lock:
            self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end_process()

    # --- on the thread ---

    def _answer(self, samples: FloatArray, options: TranscriptionOptions) -> Transcript:
        try:
            process = self._running()
            limit_s = START_LIMIT_S + LIMIT_PER_AUDIO_S * duration_s(samples)
            watch = threading.Timer(limit_s, process.kill)
            watch.start()
            try:
                assert process.stdin is not None and process.stdout is not None
                pack(process.stdin, asdict(options), [to_pcm(samples)])
                answer, _ = unpack(process.stdout)
            finally:
                watch.cancel()
            passages = tuple(TranscriptPassage(**passage) for passage in answer["passages"])
            return Transcript(answer["text"], answer["language"], passages)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._end_process()
            raise errors.TranscriptionFailedError() from error

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process, started if it does not run; an OSError if that is impossible."""
        with self._lock:
            if self._is_closed:
                raise errors.TranscriptionFailedError(SHUTTING_DOWN)
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=PROJECT_FOLDER,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                )
            return self._process

    def _end_process(self) -> None:
        if (process := self._process) is not None:
            with suppress(OSError), process:  # closes its pipes; unwritten data has no reader
                process.kill()


class ModelTranscriber(Transcriber):
    """The model with its transcription prompt, in a separate session."""

    kind: ClassVar[TranscriberKind] = "model"

    def __init__(self, open_view: Callable[[], ChatMode]) -> None:
        self._open_view = open_view
        self._waiting = Waiting()
        self._turn = asyncio.Lock()

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """See `Transcriber`; the model neither takes nor detects a language."""
        passages: list[TranscriptPassage] = []
        end_s = 0.0
        with self._waiting.place(samples):
            for part in np.array_split(samples, math.ceil(duration_s(samples) / PART_S) or 1):
                begin_s, length_s = end_s, duration_s(part)
                end_s += length_s
                async with self._turn:
                    sound = await asyncio.to_thread(encode_wire_audio, part)
                    reply = await self._open_view().respond(_question(sound, length_s, options))
                if text := reply.text.strip():
                    passages.append(TranscriptPassage(start_s=begin_s, end_s=end_s, text=text))
        text = " ".join(passage.text for passage in passages)
        return Transcript(text, options.language or "", tuple(passages))


async def passages_of(
    transcriber: Transcriber,
    detector: SileroVad,
    samples: FloatArray,
    options: TranscriptionOptions = DEFAULT_OPTIONS,
) -> AsyncGenerator[TranscriptPassage]:
    """Transcribe a long recording, [T] float32 at 16 kHz, one segment of speech at a time.

    Other requests are served between segments, so that a long recording delays no caption. Yields
    each passage with its language and its times in the recording.
    """
    stream = StreamingVAD(FILE_OPTIONS, detector)
    events = await asyncio.to_thread(lambda: [*stream.process(samples), *stream.flush()])
    for segment in (event for event in events if isinstance(event, SpeechSegment)):
        found = await transcriber.transcribe(segment.samples, options)
        begin_s = segment.start_samples / INPUT_SAMPLE_RATE_HZ
        length_s = duration_s(segment.samples)  # Whisper's times may exceed it
        for passage in found.passages:
            yield TranscriptPassage(
                start_s=begin_s + min(passage.start_s, length_s),
                end_s=begin_s + min(passage.end_s, length_s),
                text=passage.text,
                language=found.language,
            )


async def transcribe_or_error(
    transcriber: Transcriber | None,
    pcm: bytes,
    failed: Callable[[], None],
    options: TranscriptionOptions = DEFAULT_OPTIONS,
    limit_s: float = LIVE_LIMIT_S,
) -> tuple[Transcript, OmniError | None]:
    """Transcribe one segment of a live conversation; raises nothing.

    `pcm` is little-endian float32, mono, 16 kHz. Without a transcriber, after `limit_s`, or if it
    fails, the transcript is empty and the error says why. `failed` is called while an unexpected
    failure is handled, to log and count it.
    """
    problem: OmniError
    try:
        if transcriber is None:
            raise errors.NotAvailableError("This server has no transcriber (transcription.by).")
        async with asyncio.timeout(limit_s):
            return await transcriber.transcribe(from_pcm(pcm), options), None
    except TimeoutError:
        problem = errors.TranscriptionFailedError("The transcription took too long.")
    except OmniError as error:
        problem = error
    except Exception:  # the model may fail in any way
        failed()
        problem = errors.TranscriptionFailedError()
    return Transcript("", "", ()), problem


def transcriber_beside(backend: Backend, by: TranscribesBy, folder: Path) -> Transcriber | None:
    """Return the transcriber of a worker whose backend is loaded, or None.

    Raises `ModelError` if Whisper is configured and its files are not in `folder`.
    """
    if isinstance(backend, FakeBackend):
        return None if by == "none" else FakeTranscriber()
    is_there = (folder / MODEL_FILE).is_file()
    if by == "whisper" and not is_there:
        raise errors.ModelError(
            f'transcription.by is "whisper", and {folder} has no {MODEL_FILE}. '
            "Make it: python -m core.whisper_assets FOLDER"
        )
    if is_there and by in ("whisper", "auto"):
        return WhisperTranscriber(folder)
    if by == "model" or (by == "auto" and backend.facts().kind is ModelKind.FULL):
        return ModelTranscriber(lambda: backend.open_chat(LoopThreads()))
    return None


def _question(sound: str, length_s: float, options: TranscriptionOptions) -> ChatRequest:
    prompt = TRANSCRIPTION_PROMPT + (f"{options.prompt}\n" if options.prompt else "")
    message = Message(role=Role.USER, content=[TextContent(text=prompt), AudioContent(data=sound)])
    generation = GenerationConfig(
        max_new_tokens=FEWEST_TOKENS + int(TOKENS_PER_S * length_s),
        do_sample=options.temperature > 0,
        temperature=options.temperature or GenerationConfig().temperature,
    )
    return ChatRequest(messages=[message], generation=generation)
