"""Keeps what clients measure beside the recording of their session, within limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from config import LimitSettings
from core.errors import InvalidSessionIdError
from core.files import append
from gateway_modules.web.rates import TokenBucket
from recording.names import DIAGNOSTICS_FILE, recording_folder


class DiagnosticsFile:
    """One session's measurements; those beyond the limits are dropped and counted."""

    def __init__(self, data_dir: Path, limits: LimitSettings) -> None:
        """Wait for the recording to have a name; what comes before that is dropped.

        Args:
            data_dir: The data folder.
            limits: Sizes and rate.
        """
        clock = asyncio.get_running_loop().time
        per_s = limits.diagnostics_per_s
        self.dropped = 0
        self._data_dir = data_dir
        self._limits = limits
        self._left_bytes = limits.diagnostic_session_bytes
        self._rate = TokenBucket(max(per_s, 1.0), per_s, clock) if per_s > 0 else None
        self._path: Path | None = None

    def begin(self, recording_session_id: str) -> None:
        """Say which recording it belongs to."""
        try:
            self._path = recording_folder(self._data_dir, recording_session_id) / DIAGNOSTICS_FILE
        except InvalidSessionIdError:
            self._path = None

    async def keep(self, message: str) -> bool:
        """Write one `client_diagnostic`, or drop it; return which."""
        line = message.replace("\n", " ").replace("\r", " ").encode() + b"\n"
        path = self._path
        is_small = len(line) <= min(self._limits.diagnostic_bytes, self._left_bytes)
        if path is None or not is_small or self._rate is None or not self._rate.take():
            self.dropped += 1
            return False
        self._left_bytes -= len(line)
        try:
            await asyncio.to_thread(append, path, line)
        except OSError as error:  # no recording, or no room: the talk is worth more
            structlog.get_logger("diagnostics").warning("dropped", reason=str(error))
            self._path = None
            return False
        return True
