"""What a recorder is given to work with, and what it counts of what went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from core.errors import RecordingStoppedError
from recording.jobs import RecorderThreads

# Source: docs/specification/service.md#2.5.7.
DIAGNOSTIC_MAX_BYTES: Final = 16 * 1024
DIAGNOSTICS_PER_S: Final = 2
DIAGNOSTICS_MAX_BYTES: Final = 1024 * 1024


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """Where a recorder takes the time from."""

    monotonic_s: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _utc_now


@dataclass(frozen=True)
class RecorderOptions:
    """What a recorder works with.

    Attributes:
        threads: What writes; the recorders of a process share one. Without it a recorder has its
            own until it ends.
        on_warning: Called at most once, when the recording stops early, usually on a writing
            thread: hand over to a loop with `call_soon_threadsafe`.
        clock: Where the time comes from.
        min_free_gb: With less of the disk free the recording stops, GB; 0: never.
        owner_secret: With it the recording's owner may comment, replace and delete it.
    """

    threads: RecorderThreads | None = None
    on_warning: Callable[[RecordingStoppedError], None] | None = None
    clock: Clock = field(default_factory=Clock)
    min_free_gb: float = 0.0
    owner_secret: str | None = None


@dataclass
class Trouble:
    """What went wrong so far."""

    on_warning: Callable[[RecordingStoppedError], None] | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    problem: str | None = None
    files_left_out: int = 0

    def note(self, text: str) -> bool:
        """Remember the first thing that went wrong; True if this is it."""
        with self.lock:
            is_first, self.problem = self.problem is None, self.problem or text
        return is_first

    def stopped(self, text: str) -> None:
        """Tell the session, the first time only."""
        if self.note(text) and self.on_warning is not None:
            self.on_warning(RecordingStoppedError(text))


@dataclass
class DiagnosticsLimit:
    """Size of a client's diagnostics so far."""

    total_bytes: int = 0
    second: int = -1
    in_second: int = 0

    def admit(self, size_bytes: int, elapsed_s: float) -> bool:
        """Count one more if it is within the limits."""
        if int(elapsed_s) != self.second:
            self.second, self.in_second = int(elapsed_s), 0
        is_small = size_bytes <= DIAGNOSTIC_MAX_BYTES
        if not is_small or self.in_second >= DIAGNOSTICS_PER_S:
            return False
        if self.total_bytes + size_bytes > DIAGNOSTICS_MAX_BYTES:
            return False
        self.total_bytes += size_bytes
        self.in_second += 1
        return True
