"""Runs the decoding of strangers' media files in processes of their own, limited and cancellable.

FFmpeg, libsndfile and Pillow read these files in C, so a damaged or hostile one may crash, take all
memory or never end. It does so in a process that serves one request alone, has limits of memory and
CPU time, yields to every other program, and is killed when its result is not wanted any more.
Nothing here loads a decoder.

A process takes half a second to start and load its libraries, so a worker keeps one spare that has
done so; then a picture takes some 15 ms more than in the program itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from core import errors
from core.errors import BadPayloadError

PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]
READER_MODULE: Final = "core.media_reader"
POLL_S: Final = 0.05  # ours: between two checks whether the result is still wanted
DONE: Final = b"\n"  # what follows it in the file is complete
HEAD_MAX_BYTES: Final = 1024 * 1024
LOGGED_BYTES: Final = 2_000
REFUSALS: Final = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, BadPayloadError)
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MediaLimits:
    """Limits of decoding. Ours.

    Attributes:
        at_once: processes at once; more requests wait for their turn.
        cpu_s: CPU time of one request.
        wait_s: for one request's result, its turn and the start of the process included.
    """

    at_once: int = 2
    cpu_s: int = 60
    wait_s: float = 50.0


def never() -> None:
    """Continue: the result is always wanted."""


class MediaProcesses:
    """Starts processes that decode, a few at once. Its methods block; any thread may call them.

    With `keeps_spare`, one process waits ready for the next request after the first.
    """

    def __init__(self, limits: MediaLimits | None = None, *, keeps_spare: bool = False) -> None:
        self._limits = limits or MediaLimits()
        self._keeps_spare = keeps_spare
        self._turns = threading.BoundedSemaphore(self._limits.at_once)
        self._lock = threading.Lock()
        self._spare: _Reader | None = None
        self._is_closed = False

    def run(
        self,
        task: str,
        head: object,
        blobs: Sequence[bytes],
        *,
        problem: type[BadPayloadError],
        check: Callable[[], None] = never,
    ) -> tuple[Any, list[bytes]]:
        """Run a task of `core.media_reader` in a process; return its reply, as JSON and as bytes.

        Args:
            task: Its name.
            head: Its arguments, as JSON.
            blobs: The files.
            problem: Raised if the process crashes or exceeds a limit.
            check: Called again and again; if it raises, the process is killed.

        Raises:
            BadPayloadError: The files cannot be used.
        """
        deadline_s = time.monotonic() + self._limits.wait_s

        def check_limits() -> None:
            check()
            if time.monotonic() > deadline_s:
                raise problem(f"It takes longer than {self._limits.wait_s:g} s to decode.")

        with self._turn(check_limits), self._reader() as reader:
            return reader.work({"task": task, "head": head}, blobs, problem, check_limits)

    def make_ready(self) -> None:
        with self._lock:
            if self._keeps_spare and self._spare is None and not self._is_closed:
                self._spare = _Reader(self._limits.cpu_s)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    @contextlib.contextmanager
    def _turn(self, check_limits: Callable[[], None]) -> Iterator[None]:
        while not self._turns.acquire(timeout=POLL_S):
            check_limits()
        try:
            yield
        finally:
            self._turns.release()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[_Reader]:
        """Use the spare or start a process; it is ended afterwards, and another spare started."""
        with self._lock:
            reader, self._spare = self._spare, None
        if reader is None or not reader.is_alive:
            reader = _Reader(self._limits.cpu_s)
        try:
            yield reader
        finally:
            reader.close()
            self.make_ready()


class _Reader:
    """One process for one request.

    Requests and replies are unnamed files, so that neither side waits for the other's pipe; a
    socket reports when they are complete, and its end that the other process is gone.
    """

    def __init__(self, cpu_s: int) -> None:
        self._cpu_s = cpu_s
        self._request, self._answer, self._complaints = (
            tempfile.TemporaryFile(),
            tempfile.TemporaryFile(),
            tempfile.TemporaryFile(),
        )
        self._line, theirs = socket.socketpair()
        self._line.settimeout(POLL_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", READER_MODULE, str(theirs.fileno()), str(cpu_s)],
                stdin=self._request,
                stdout=self._answer,
                stderr=self._complaints,
                pass_fds=(theirs.fileno(),),
                cwd=PROJECT_FOLDER,
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def work(
        self,
        head: object,
        blobs: Sequence[bytes],
        problem: type[BadPayloadError],
        check_limits: Callable[[], None],
    ) -> tuple[Any, list[bytes]]:
        """Send a request and return the reply; raises as `MediaProcesses.run`."""
        pack(self._request, head, blobs)
        self._request.seek(0)
        with contextlib.suppress(OSError):  # if it is gone, the next line finds out
            self._line.sendall(DONE)
        if not self._is_answered(check_limits):
            raise problem(self._failure())
        self._answer.seek(0)
        try:
            reply, made = unpack(self._answer)
            if "error" in reply:
                raise REFUSALS.get(reply["error"], problem)(reply["message"])
            return reply["head"], made
        except (ValueError, TypeError, KeyError) as error:
            raise problem("It could not be decoded.") from error

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for each in (self._line, self._request, self._answer, self._complaints):
            each.close()

    def _is_answered(self, check_limits: Callable[[], None]) -> bool:
        while True:
            try:
                return self._line.recv(len(DONE)) == DONE
            except TimeoutError:
                check_limits()
            except OSError:
                return False

    def _failure(self) -> str:
        """Log why the process ended; return the reason for the client."""
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return f"It takes more than {self._cpu_s} s of computing to decode."
        self._complaints.seek(0)
        reason = self._complaints.read()[-LOGGED_BYTES:].decode("utf-8", "replace")
        logger.warning("a media file ended its decoder (%d): %s", status, reason)
        return "It could not be decoded."


def pack(file: IO[bytes], head: object, blobs: Sequence[bytes]) -> None:
    """Write a request or a reply: one line of JSON, then the bytes."""
    line = json.dumps({"head": head, "sizes": [len(blob) for blob in blobs]})
    file.write(line.encode() + b"\n")
    for blob in blobs:
        file.write(blob)
    file.flush()


def unpack(file: IO[bytes]) -> tuple[Any, list[bytes]]:
    """Read what `pack` wrote; a ValueError if it is something else."""
    line = json.loads(file.readline(HEAD_MAX_BYTES))
    return line["head"], [file.read(int(size)) for size in line["sizes"]]
