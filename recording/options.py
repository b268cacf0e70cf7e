"""What a recorder works with: its options, the settings it keeps, and its count of failures."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from core.errors import RecordingStoppedError
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from recording.jobs import RecorderThreads
from recording.records import Settings

# Source: docs/specification/service.md#2.5.7.
DIAGNOSTIC_MAX_BYTES: Final = 16 * 1024
DIAGNOSTICS_PER_S: Final = 2
DIAGNOSTICS_MAX_BYTES: Final = 1024 * 1024
MEDIA_SUFFIXES: Final = ("_base64", "_data")
MEDIA_NAMES: Final = frozenset({"audio", "data", "frame", "frame_base64_list"})
BASE64_CHARS: Final = 4  # carry three bytes
BASE64_BYTES: Final = 3


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
    on_warning: Callable[[RecordingStoppedError], None] | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    problem: str | None = None
    files_left_out: int = 0

    def note(self, text: str) -> bool:
        """Keep the first problem; True if this is it."""
        with self.lock:
            is_first, self.problem = self.problem is None, self.problem or text
        return is_first

    def stopped(self, text: str) -> None:
        """Notify the session, the first time only."""
        if self.note(text) and self.on_warning is not None:
            self.on_warning(RecordingStoppedError(text))


@dataclass
class DiagnosticsLimit:
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


def without_media(config: Mapping[str, Any]) -> Settings:
    """Replace each sound or picture in settings, at any depth, by what identifies it.

    That is `{"sha256": …, "duration_s": …}` for Base64 text; the duration is that of float32 at
    16 kHz, which all sound in settings is.
    """
    return {key: _kept(key, value) for key, value in config.items()}


def _kept(key: str, value: Any) -> Any:
    # Any: plain JSON values of whatever settings there are.
    if isinstance(value, str):
        is_media = key in MEDIA_NAMES or key.endswith(MEDIA_SUFFIXES)
        return _described(value) if is_media and value else value
    if isinstance(value, Mapping):
        return without_media(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_kept(key, item) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    return value


def _described(text: str) -> Settings:
    size_bytes = len(text) * BASE64_BYTES // BASE64_CHARS - text[-2:].count("=")
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "duration_s": round(size_bytes / SAMPLE_BYTES / INPUT_SAMPLE_RATE_HZ, 1),
    }
