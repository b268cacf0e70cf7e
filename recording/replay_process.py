"""Makes merged replays in a process of their own, so that they take nothing from a session."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

logger: Final = logging.getLogger(__name__)

# Above the limit of the video itself, so that the child ends by its own rules first.
PROCESS_LIMIT_S: Final = 300.0
KEPT_MESSAGE_CHARS: Final = 2_000
PROJECT_FOLDER: Final = Path(__file__).resolve().parents[1]


class ReplayProcess:
    """Runs `python -m recording.replay FOLDER`, one at a time, at low priority."""

    def __init__(self) -> None:
        """Start nothing yet."""
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
        """Give up the replay being made, if any, and make no more."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                self._child.terminate()
