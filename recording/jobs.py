"""The threads that write recordings, their queue and limits, and the process for replays.

Nothing a session calls here waits for a disk. What is waiting is bounded in bytes over all sessions
of the process; what does not fit is refused, and the recorder says so in the recording.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from core.errors import OmniError, RecordingStoppedError
from core.schemas.limits import MIB

logger: Final = logging.getLogger(__name__)

WRITER_THREADS: Final = 4  # source: docs/specification/service.md#5.6
BACKLOG_BYTES: Final = 256 * MIB  # some twenty minutes of one duplex session
RESERVE_BYTES: Final = 16 * MIB  # of it for lines of the timeline, which must not be lost
MAX_FINALIZATIONS: Final = 256
MAX_REPLAYS: Final = 64
# Above the limit of the video itself, so that the child ends by its own rules first.
PROCESS_LIMIT_S: Final = 300.0
KEPT_MESSAGE_CHARS: Final = 2_000
PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]


class Backlog:
    """Bytes that wait to be written, in the whole process."""

    def __init__(
        self, limit_bytes: int = BACKLOG_BYTES, reserve_bytes: int = RESERVE_BYTES
    ) -> None:
        """Only vital jobs may use the last `reserve_bytes`."""
        self._lock = threading.Lock()
        self._limit_bytes = limit_bytes
        self._reserve_bytes = min(reserve_bytes, limit_bytes)
        self._used_bytes = 0

    def take(self, size_bytes: int, *, is_vital: bool) -> bool:
        """Reserve bytes for a job; False if there is no room."""
        limit = self._limit_bytes - (0 if is_vital else self._reserve_bytes)
        with self._lock:
            if self._used_bytes + size_bytes > limit:
                return False
            self._used_bytes += size_bytes
            return True

    def release(self, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes -= size_bytes


class ReplayMaker(Protocol):
    def make(self, folder: Path) -> None:
        """Build it; blocks until it is there or cannot be made."""

    def stop(self) -> None:
        """Cancel the one being made, if any, and make no more."""


class RecorderThreads:
    """Four threads that write, one that ends recordings, one that makes replays.

    One object serves all recorders of a process. Ending waits for writing and never runs on a
    writing thread, so the two cannot wait for each other.

    Overflow: beyond `MAX_FINALIZATIONS` waiting ends a recording is left to be recovered at the
    next start; beyond `MAX_REPLAYS` waiting replays one is not made.
    """

    def __init__(
        self,
        replays: ReplayMaker | None = None,
        *,
        backlog: Backlog | None = None,
    ) -> None:
        self.replays = replays
        self.backlog = backlog or Backlog()
        self._writers = ThreadPoolExecutor(WRITER_THREADS, "recording-write")
        self._finalizer = ThreadPoolExecutor(1, "recording-finalize")
        self._merger = ThreadPoolExecutor(1, "recording-replay")
        self._endings = threading.BoundedSemaphore(MAX_FINALIZATIONS)
        self._replays = threading.BoundedSemaphore(MAX_REPLAYS)

    def write(self, work: Callable[[], None]) -> bool:
        """Run a job of `RecordingJobs` on a writing thread; False once closed."""
        try:
            self._writers.submit(work)
        except RuntimeError:
            return False
        return True

    def finalize(self, work: Callable[[], None]) -> Future[None] | None:
        """Run an ending on its own thread; None if too many wait or the threads are closed."""
        return _submit(self._finalizer, self._endings, work)

    def replay(self, work: Callable[[], None]) -> Future[None] | None:
        """Run the making of a replay; None if too many wait or the threads are closed."""
        return _submit(self._merger, self._replays, work)

    def close(self, *, wait: bool = True) -> None:
        """End all recordings that are finishing, then the threads; blocks if `wait`.

        Replays not finished are cancelled; the recordings are complete without them.
        """
        self._finalizer.shutdown(wait=wait)
        if self.replays is not None:
            self.replays.stop()
        self._merger.shutdown(wait=False, cancel_futures=True)
        self._merger.shutdown(wait=wait)
        self._writers.shutdown(wait=wait)


def _submit(
    executor: ThreadPoolExecutor, room: threading.BoundedSemaphore, work: Callable[[], None]
) -> Future[None] | None:
    if not room.acquire(blocking=False):
        return None
    try:
        future = executor.submit(work)
    except RuntimeError:
        room.release()
        return None
    future.add_done_callback(lambda _: room.release())
    return future


@dataclass(frozen=True)
class _Job:
    work: Callable[[], None]
    size_bytes: int
    in_order: bool


class RecordingJobs:
    """The writing of one recording: jobs begin in their order, and run side by side but for those
    that ask to be done before the next one begins.

    Overflow: a job for which the process's backlog has no room is refused. After the first error of
    the disk nothing more is written and everything is refused.
    """

    def __init__(self, threads: RecorderThreads, on_failure: Callable[[OSError], None]) -> None:
        """`on_failure` is called once, on a writing thread."""
        self._threads = threads
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()  # the first one begins
        self._unfinished = 0
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def submit(
        self,
        work: Callable[[], None],
        size_bytes: int,
        *,
        in_order: bool = False,
        is_vital: bool = False,
    ) -> bool:
        """Queue a job; False if it was refused.

        `work` may raise OSError, or one of our errors for input it cannot use. A job in order is
        done before the next one begins. A vital job may use the reserve of the backlog.
        """
        with self._changed:
            if self._is_stopped or not self._threads.backlog.take(size_bytes, is_vital=is_vital):
                return False
            self._unfinished += 1
            self._queue.append(_Job(work, size_bytes, in_order))
            is_first = len(self._queue) == 1
        if is_first and not self._threads.write(self._begin_jobs):
            self.stop()  # so that the caller's thread writes nothing
            self._begin_jobs()
        return True

    def stop(self) -> None:
        """Write nothing more; waiting jobs are dropped."""
        with self._changed:
            self._is_stopped = True

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every job is done; False if that takes too long. Never on a writing thread."""
        with self._changed:
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout_s)

    def _begin_jobs(self) -> None:
        """Begin one job after the other; between two of them other recordings have their turn."""
        while True:
            job = self._queue[0]
            if job.in_order or not self._threads.write(partial(self._run, job)):
                self._run(job)
            with self._changed:
                self._queue.popleft()
                if not self._queue:
                    return
            if self._threads.write(self._begin_jobs):
                return

    def _run(self, job: _Job) -> None:
        self._attempt(job.work)
        self._threads.backlog.release(job.size_bytes)
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()

    def _attempt(self, work: Callable[[], None]) -> None:
        if self._is_stopped:
            return
        try:
            work()
        except OSError as error:
            self._fail(error)
        except OmniError as error:
            logger.info("left out of the recording: %s", error)
        except Exception:
            logger.exception("a part of the recording could not be written")

    def _fail(self, error: OSError) -> None:
        with self._changed:
            was_stopped, self._is_stopped = self._is_stopped, True
        if was_stopped:
            return
        try:
            self._on_failure(error)
        except Exception:
            logger.exception("the recording stopped and its client could not be notified")


class ReplayProcess:
    """Runs `python -m recording.replay FOLDER`, one at a time, at low priority."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def make(self, folder: Path) -> None:
        """Build the replay of a recording; blocks until the child ends. Failures are logged."""
        with self._lock:
            if self._is_stopped:
                return
            self._child = subprocess.Popen(
                [sys.executable, "-m", "recording.replay", str(folder.resolve())],
                cwd=PROJECT_FOLDER,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            child = self._child
        try:
            _, message = child.communicate(timeout=PROCESS_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            _, message = child.communicate()
        with self._lock:
            self._child = None
        if child.returncode != 0:
            tail = message[-KEPT_MESSAGE_CHARS:]
            logger.warning("no replay of %s (%d): %s", folder.name, child.returncode, tail)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.terminate()


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    monotonic_s: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _utc_now


@dataclass(frozen=True)
class RecorderOptions:
    """What a recorder works with.

    Attributes:
        threads: What writes; without it a recorder has its own until it ends.
        on_warning: Called at most once, when the recording stops early, usually on a writing
            thread: pass it to a loop with `call_soon_threadsafe`.
        min_free_gb: With less of the disk free the recording stops, GB; 0: never.
        owner_secret: With it the recording's owner may comment, replace and delete it.
    """

    threads: RecorderThreads | None = None
    on_warning: Callable[[RecordingStoppedError], None] | None = None
    clock: Clock = field(default_factory=Clock)
    min_free_gb: float = 0.0
    owner_secret: str | None = None


@dataclass
class Problem:
    on_warning: Callable[[RecordingStoppedError], None] | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    problem: str | None = None
    files_left_out: int = 0

    def note(self, text: str) -> bool:
        with self.lock:
            is_first, self.problem = self.problem is None, self.problem or text
        return is_first

    def stopped(self, text: str) -> None:
        if self.note(text) and self.on_warning is not None:
            self.on_warning(RecordingStoppedError(text))
