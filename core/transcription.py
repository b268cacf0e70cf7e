"""Transcription: the interface of transcribers, and Whisper on the CPU in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal, Protocol

from core.audio import FloatArray, to_pcm
from core.errors import TranscriptionFailedError
from core.media_process import PROJECT_FOLDER, pack, unpack
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ

PROGRAM: Final = "core.whisper_program"
LOWEST_PRIORITY: Final = 19
MODEL_FILE: Final = "model.bin"  # of a checkpoint in CTranslate2's format
# Ours: a second of audio takes less than a second on a busy core; a process beyond this hangs.
START_LIMIT_S: Final = 120.0
LIMIT_PER_AUDIO_S: Final = 10.0

TranscriberKind = Literal["whisper", "model"]


@dataclass(frozen=True)
class TranscriptionOptions:
    language: str | None = None  # ISO 639-1 code; None detects it
    prompt: str = ""  # preceding text, or preferred spellings
    temperature: float = 0.0  # 0 is greedy


@dataclass(frozen=True)
class Passage:
    """A part of a transcript with its time in the audio."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """A transcript, its passages oldest first; text and language are empty where unknown."""

    text: str
    language: str
    passages: tuple[Passage, ...]


DEFAULT_OPTIONS = TranscriptionOptions()


class Transcriber(Protocol):
    """Transcribes speech for any task, one request at a time."""

    kind: ClassVar[TranscriberKind]  # "whisper" runs concurrently with conversations

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """Transcribe [T] float32 samples, mono, 16 kHz.

        Cancelling the caller cancels a waiting request; a running one completes. Raises
        `TranscriberBusyError` or `TranscriptionFailedError`.
        """
        ...

    def close(self) -> None:
        """End its processes; later requests fail."""
        ...


def duration_s(samples: FloatArray) -> float:
    return len(samples) / INPUT_SAMPLE_RATE_HZ


class WhisperProcess:
    """One process with one model; methods block, and only one thread transcribes.

    It starts with the first request, and again after a crash or a timeout. `niceness` should be 0
    if a conversation waits for the transcript.
    """

    def __init__(
        self,
        folder: Path,
        program: tuple[str, ...] = (sys.executable, "-m", PROGRAM),
        *,
        niceness: int = LOWEST_PRIORITY,
    ) -> None:
        self._command = [*program, str(folder), str(niceness)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        """Transcribe [T] float32 samples at 16 kHz, or raise `TranscriptionFailedError`."""
        limit_s = START_LIMIT_S + LIMIT_PER_AUDIO_S * duration_s(samples)
        process = self._running()
        watch = threading.Timer(limit_s, process.kill)
        watch.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            pack(process.stdin, asdict(options), [to_pcm(samples)])
            answer, _ = unpack(process.stdout)
            passages = tuple(Passage(**passage) for passage in answer["passages"])
            return Transcript(answer["text"], answer["language"], passages)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._end(process)
            raise TranscriptionFailedError() from error
        finally:
            watch.cancel()

    def close(self) -> None:
        """End the process; a running request fails."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            self._end(process)

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise TranscriptionFailedError("The server is shutting down.")
            if self._process is None or self._process.poll() is not None:
                try:
                    self._process = subprocess.Popen(
                        self._command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        cwd=PROJECT_FOLDER,
                        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                    )
                except OSError as error:  # no memory, or too many processes or files
                    raise TranscriptionFailedError() from error
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(OSError), process:  # closes its pipes; unwritten data has no reader
            process.kill()
