"""The recordings of a worker: ids, recorders, and open recordings of streaming conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from core.errors import RecordingStoppedError
from core.schemas.queue import RequestType
from core.serving.slots import Owner
from recording.bucket import Uploader
from recording.listing import ListedRecording, list_folders
from recording.names import (
    SEALED_FILE,
    generate_recording_id,
    generate_session_id,
    recording_folders,
)
from recording.recorder import RecorderOptions, RecorderThreads, SessionRecorder
from recording.records import EndLine, EndReason
from recording.recovery import recover_all
from session_recorder import TurnBasedSessionRecorder

OPEN_MAX: Final = 64  # ours: recordings that are open between turns
OPEN_LIMIT_S: Final = 300.0  # ours: after that the next turn begins another recording
PREFIXES: Final = {RequestType.STREAMING: "stm", RequestType.CHAT: "chat"}
"""Prefixes of recording ids without a session id. Source: docs/specification/service.md#5.1."""

# Any: a snapshot of settings as plain JSON values, whose names belong to the protocol.
Snapshot = Mapping[str, Any]
RecorderT = TypeVar("RecorderT", bound=SessionRecorder)


@dataclass(eq=False)
class OpenRecording:
    """A session's recording; that of a streaming conversation stays open between its sockets."""

    recording_id: str
    kind: RequestType
    key: tuple[str, str]  # the session's id and the secret of its owner
    # Called on the event loop when it had to stop; set by the present socket.
    on_stopped: Callable[[RecordingStoppedError], None] = lambda problem: None
    recorder: TurnBasedSessionRecorder | None = None  # None until there is something to record
    # When and why the last socket with a turn closed; the wait for another one is not recorded.
    end: EndLine | EndReason = EndReason.STOPPED
    expiry: asyncio.TimerHandle | None = None
    turns: Iterator[int] = field(default_factory=count)  # numbers of its next turns


@dataclass(eq=False)
class Recordings:
    """Makes recorders; one object per worker.

    Overflow: at most `OPEN_MAX` streaming recordings are open between sockets; the least recently
    used is ended first, and each after `OPEN_LIMIT_S`.
    """

    data_dir: Path
    worker_id: str
    threads: RecorderThreads
    min_free_gb: float = field(default=0.0, kw_only=True)
    uploader: Uploader | None = field(default=None, kw_only=True)
    _open: dict[tuple[str, str], OpenRecording] = field(default_factory=dict, init=False)

    def open(
        self,
        recorder: Callable[[str, RequestType, str, Snapshot, Path, RecorderOptions], RecorderT],
        recording: OpenRecording,
        snapshot: Snapshot,
    ) -> RecorderT:
        loop, (_, secret) = asyncio.get_running_loop(), recording.key

        def report(error: RecordingStoppedError) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: recording.on_stopped(error))

        options = RecorderOptions(
            self.threads, report, min_free_gb=self.min_free_gb, owner_secret=secret or None
        )
        name, kind = recording.recording_id, recording.kind
        return recorder(name, kind, self.worker_id, snapshot, self.data_dir, options)

    def resume(self, owner: Owner) -> OpenRecording:
        """Return a session's recording: a new one, or that of a streaming session's last turn.

        A session with the same id and another secret belongs to another client, and begins one.
        """
        key = (owner.session_id, owner.secret)
        found = self._open.pop(key, None) if owner.kind is RequestType.STREAMING else None
        if found is None:
            return OpenRecording(_new_id(owner), owner.kind, key)
        if found.expiry is not None:
            found.expiry.cancel()
        if found.recorder is not None and not found.recorder.is_recording:  # since that turn's end
            found.recorder.finalize(found.end)
            return OpenRecording(_new_id(owner), owner.kind, key)
        return found

    def suspend(self, recording: OpenRecording, end_reason: EndReason | None) -> None:
        """Keep a streaming recording open for a while after its socket has closed.

        `end_reason` is None if the socket had no turn; the recording then ends as it did before.
        """
        recording.on_stopped = lambda problem: None
        if recording.recorder is None:
            return
        if not recording.recorder.is_recording:
            recording.recorder.finalize(end_reason or recording.end)
            return
        if end_reason is not None:
            recording.end = recording.recorder.note_end(end_reason)
            recording.recorder.checkpoint()
        loop = asyncio.get_running_loop()
        recording.expiry = loop.call_later(OPEN_LIMIT_S, self._end, recording.key)
        self._open[recording.key] = recording
        if len(self._open) > OPEN_MAX:
            self._end(next(iter(self._open)))

    def recover(self) -> list[str]:
        """Recover the recordings of killed processes, then start uploading in any case; blocks."""
        try:
            return recover_all(self.data_dir)
        finally:
            if self.uploader is not None:
                self.uploader.start()

    def unsealed(self) -> list[ListedRecording]:
        """Return the recordings that no object store has; blocks."""
        folders = recording_folders(self.data_dir)
        return list_folders(each for each in folders if not (each / SEALED_FILE).is_file())

    def close(self) -> None:
        """End every recording and wait until all data are written; blocks."""
        for key in list(self._open):
            self._end(key)
        self.threads.close()
        if self.uploader is not None:
            self.uploader.close()

    def _end(self, key: tuple[str, str]) -> None:
        recording = self._open.pop(key, None)
        if recording is None:
            return
        if recording.expiry is not None:
            recording.expiry.cancel()
        if recording.recorder is not None:
            recording.recorder.finalize(recording.end)


def _new_id(owner: Owner) -> str:
    if owner.kind in PREFIXES:
        return generate_session_id(PREFIXES[owner.kind])
    return generate_recording_id(owner.session_id, datetime.now(UTC))
