"""The lock file that says a recording is still being written.

Its writer holds an `flock` on it. The kernel drops that when the process ends, however it ends,
and it counts for every process that sees the same file, in whatever container it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from core.files import SAFE_FLAGS, UNFINISHED_SUFFIX
from recording.names import LOCK_FILE


class RecordingLock:
    """Held by the process that writes a recording."""

    def __init__(self, folder: Path) -> None:
        """Take the lock of a new recording.

        Raises:
            OSError: The disk is full, or refuses.
        """
        self._path = folder / LOCK_FILE
        self._descriptor, unfinished = tempfile.mkstemp(UNFINISHED_SUFFIX, f".{LOCK_FILE}.", folder)
        try:
            # It gets its name only when it is held, so it is never visible unlocked.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            os.replace(unfinished, self._path)
        except OSError:
            os.close(self._descriptor)
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def release(self) -> None:
        """Remove the file and let go; called once."""
        remove_lock(self._path.parent)
        os.close(self._descriptor)


def remove_lock(folder: Path) -> None:
    """Remove a lock file that its process left behind; that there is none is fine."""
    with contextlib.suppress(OSError):
        (folder / LOCK_FILE).unlink()


def is_live(folder: Path) -> bool:
    """Tell whether some process is still writing a recording.

    A lock that cannot be asked, for instance for want of permission, counts as held.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | SAFE_FLAGS)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        # Shared, so that two that look at once do not take each other for the writer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
