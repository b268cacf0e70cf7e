"""Threads and bounded queues that write recordings, and the process that makes replays.

No call of a session waits for the disk. Pending bytes are bounded over all sessions of the process;
what exceeds the bound is refused, and the recorder notes it in the recording.
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
from typing import Final

from core.errors import OmniError, RecordingStoppedError
from core.schemas.limits import MIB

logger: Final = logging.getLogger(__name__)

WRITER_THREADS: Final = 4  # source: docs/specification/service.md#5.6
BACKLOG_BYTES: Final = 256 * MIB  # some twenty minutes of one duplex session
RESERVE_BYTES: Final = 16 * MIB  # of the backlog, for the timeline, which must not be lost
MAX_FINALIZATIONS: Final = 256
MAX_REPLAYS: Final = 64
# Above the child's own limit for the video.
PROCESS_LIMIT_S: Final = 300.0
KEPT_MESSAGE_CHARS: Final = 2_000
PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]


class ReplayProcess:
    """Runs `python -m recording.replay FOLDER`, one at a time, at low priority."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def make(self, folder: Path) -> None:
        """Make the replay of a recording; blocks until the child exits. Failures are logged."""
        with self._lock:
            if self._is_stopped:
                return
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "recording.replay", str(folder.resolve())],
                cwd=PROJECT_FOLDER,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
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
        """Cancel the current replay and make no more."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.terminate()


class RecorderThreads:
    """The recorders' threads in a process: four write, one finalizes, one makes replays.

    Finalizing waits for writing and never runs on a writing thread, which avoids deadlocks.

    Overflow: of the bytes that wait to be written, the last `reserve_bytes` are for vital jobs, and
    no job is taken beyond `backlog_bytes`; beyond `MAX_FINALIZATIONS` pending ones a recording is
    left for recovery at the next start; beyond `MAX_REPLAYS` pending ones a replay is not made.
    """

    def __init__(
        self,
        replays: ReplayProcess | None = None,
        *,
        backlog_bytes: int = BACKLOG_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self._replays = replays
        self._lock = threading.Lock()
        self._free_bytes, self._reserve_bytes = backlog_bytes, reserve_bytes
        self._writers = ThreadPoolExecutor(WRITER_THREADS, "recording-write")
        self._finalizer = ThreadPoolExecutor(1, "recording-finalize")
        self._merger = ThreadPoolExecutor(1, "recording-replay")
        self._finalizer_room = threading.BoundedSemaphore(MAX_FINALIZATIONS)
        self._merger_room = threading.BoundedSemaphore(MAX_REPLAYS)

    def take(self, size_bytes: int, *, is_vital: bool) -> bool:
        """Reserve bytes of the backlog for a job; False if it is full."""
        with self._lock:
            is_taken = size_bytes <= self._free_bytes - (0 if is_vital else self._reserve_bytes)
            self._free_bytes -= size_bytes if is_taken else 0
        return is_taken

    def release(self, size_bytes: int) -> None:
        with self._lock:
            self._free_bytes += size_bytes

    def write(self, work: Callable[[], None]) -> bool:
        """Run a job of `RecordingJobs` on a writing thread; False once closed."""
        try:
            self._writers.submit(work)
        except RuntimeError:
            return False
        return True

    def finalize(self, work: Callable[[], None]) -> Future[None] | None:
        """Finalize a recording on a thread of its own; None if too many wait, or once closed."""
        return _submit(self._finalizer, self._finalizer_room, work)

    def replay(self, folder: Path) -> Future[None] | None:
        """Make a replay; None if too many wait, the threads are closed, or none are made."""
        if self._replays is None:
            return None
        return _submit(self._merger, self._merger_room, partial(self._replays.make, folder))

    def close(self) -> None:
        """Finish pending finalizations, then end the threads; blocks.

        Unfinished replays are cancelled; recordings are complete without them.
        """
        self._finalizer.shutdown()
        if self._replays is not None:
            self._replays.stop()
        self._merger.shutdown(cancel_futures=True)
        self._writers.shutdown()


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


class RecordingJobs:
    """Write jobs of one recording, which run one after the other on the process's threads.

    Overflow: a job that exceeds the process's backlog is refused. Once stopped, nothing more is
    written and every job is refused.
    """

    def __init__(self, threads: RecorderThreads, on_failure: Callable[[OSError], None]) -> None:
        """`on_failure` is called after a disk error, on a writing thread; it calls `stop`."""
        self._threads = threads
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._queue: deque[tuple[Callable[[], None], int]] = deque()  # the first one is running
        self.is_stopped = False

    def submit(self, work: Callable[[], None], size_bytes: int, *, is_vital: bool = False) -> bool:
        """Queue a job; False if it was refused.

        `work` may raise OSError, or one of our errors for unusable input. A vital job may use the
        backlog's reserve.
        """
        with self._changed:
            if self.is_stopped or not self._threads.take(size_bytes, is_vital=is_vital):
                return False
            self._queue.append((work, size_bytes))
            is_first = len(self._queue) == 1
        if is_first and not self._threads.write(self._run_next):
            self.stop()  # so that nothing is written on the caller's thread
            self._run_next()
        return True

    def stop(self) -> bool:
        """Write nothing more, and drop pending jobs; False if it was stopped before."""
        with self._changed:
            was_stopped, self.is_stopped = self.is_stopped, True
        return not was_stopped

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait for all jobs; False after the time-out. Never on a writing thread."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, timeout_s)

    def _run_next(self) -> None:
        """Run the first job, then yield the thread to other recordings."""
        while True:
            work, size_bytes = self._queue[0]
            try:
                self._attempt(work)
            except Exception:
                logger.exception("a part of the recording could not be written")
            self._threads.release(size_bytes)
            with self._changed:
                self._queue.popleft()
                self._changed.notify_all()
                if not self._queue:
                    return
            if self._threads.write(self._run_next):
                return

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            if not self.is_stopped:
                work()
        except OSError as error:
            self._on_failure(error)
        except OmniError as error:
            logger.info("omitted from the recording: %s", error)


@dataclass(frozen=True)
class Clock:
    monotonic_s: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = partial(datetime.now, UTC)


@dataclass(frozen=True)
class RecorderOptions:
    """Options of a recorder.

    Attributes:
        on_warning: Called at most once, when the recording stops early, usually on a writing
            thread: use `call_soon_threadsafe`.
        min_free_gb: The recording stops when less of the disk is free, GB; 0: never.
        owner_secret: Entitles its holder to comment on, replace and delete the recording.
    """

    threads: RecorderThreads
    on_warning: Callable[[RecordingStoppedError], None] | None = None
    clock: Clock = field(default_factory=Clock)
    min_free_gb: float = 0.0
    owner_secret: str | None = None
