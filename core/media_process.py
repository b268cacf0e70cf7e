"""Decodes untrusted media files in child processes with resource limits. Imports no decoder.

FFmpeg, libsndfile and Pillow are C code, so a damaged or hostile file may crash them, exhaust the
memory or never end. Each child serves one request with limits of memory and CPU time, at low
priority, and is killed when the request is cancelled. A start takes half a second, so a worker
keeps a spare child; then a picture takes some 15 ms more than in the worker itself.
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
from pathlib import Path
from typing import IO, Any, Final

from core import errors
from core.errors import BadPayloadError

PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]
READER_MODULE: Final = "core.media"
POLL_S: Final = 0.05  # ours: between two checks for cancellation
DONE: Final = b"\n"  # the file is complete
HEAD_MAX_BYTES: Final = 1024 * 1024
LOGGED_BYTES: Final = 2_000
REFUSALS: Final = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, BadPayloadError)
}

logger = logging.getLogger(__name__)


class MediaProcesses:
    """Runs requests in child processes. Its methods block, and may be called by any thread."""

    def __init__(
        self, *, at_once: int = 2, cpu_s: int = 60, wait_s: float = 50.0, keeps_spare: bool = False
    ) -> None:
        """Start nothing yet. The limits are ours; `wait_s` includes the wait for a process.

        With `keeps_spare` one started process waits for the next request.
        """
        self._cpu_s, self._wait_s, self._keeps_spare = cpu_s, wait_s, keeps_spare
        self._turns = threading.BoundedSemaphore(at_once)
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
        check: Callable[[], object] = lambda: None,
    ) -> tuple[Any, list[bytes]]:
        """Run a task of `core.media` with arguments and files; return its reply and files.

        Raises a `BadPayloadError` if the files cannot be used, and `problem` if the process crashes
        or exceeds a limit. `check` is polled; if it raises, the process is killed.
        """
        deadline_s = time.monotonic() + self._wait_s

        def check_limits() -> None:
            check()
            if time.monotonic() > deadline_s:
                raise problem(f"It takes longer than {self._wait_s:g} s to decode.")

        while not self._turns.acquire(timeout=POLL_S):
            check_limits()
        try:
            with self._reader() as reader:
                return reader.work({"task": task, "head": head}, blobs, problem, check_limits)
        finally:
            self._turns.release()

    def make_ready(self) -> None:
        """Start the spare process if it is missing; a failure is only logged."""
        with self._lock:
            if self._keeps_spare and self._spare is None and not self._is_closed:
                try:
                    self._spare = _Reader(self._cpu_s)
                except OSError as error:  # too many files or processes, or no memory
                    logger.warning("no process could be started in advance: %s", error)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[_Reader]:
        """Use the spare or start a process; end it afterwards, and start another spare."""
        with self._lock:
            reader, self._spare = self._spare, None
        if reader is None or not reader.is_alive:
            reader = _Reader(self._cpu_s)
        try:
            yield reader
        finally:
            reader.close()
            self.make_ready()


class _Reader:
    """One process for one request.

    Requests and replies are unnamed files, so that no pipe can block; a socket reports that they
    are complete, and its closing that the other process has ended.
    """

    def __init__(self, cpu_s: int) -> None:
        self._cpu_s = cpu_s
        self._request, self._answer = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._complaints = tempfile.TemporaryFile()
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
        pack(self._request, head, blobs)
        self._request.seek(0)
        with contextlib.suppress(OSError):  # `_is_answered` notices that the process has ended
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
        """Log why the process ended, and return the reason for the client."""
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
    """Read what `pack` wrote; raises `ValueError` for anything else."""
    line = json.loads(file.readline(HEAD_MAX_BYTES))
    return line["head"], [file.read(int(size)) for size in line["sizes"]]
