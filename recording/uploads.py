"""Upload of complete recordings to an object store, and removal of their folders later.

Works in threads of lowest priority from the state on disk, so an unreachable store costs disk space
only. Every step is idempotent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from core.files import locked, replacing
from core.sums import file_sha256
from recording.bucket import SEAL_FILE, Bucket, BucketError, Seal, SealedFile, names_in
from recording.folder import is_live, read_meta
from recording.listing import delete_recording
from recording.names import OWNER_FILE, SEALED_FILE, SESSIONS_FOLDER, recording_folders
from recording.records import Meta
from recording.store import file_in
from settings.recording import RecordingSettings

logger: Final = logging.getLogger(__name__)

TRANSFERS: Final = 2
LOWEST_PRIORITY: Final = 19  # of a thread; source: setpriority(2)
SCAN_PERIOD_S: Final = 5.0  # between two scans of the folders
BACKOFF_MAX_S: Final = 60.0  # after failures: from 1 s, doubling
CLOSE_S: Final = 5.0  # for a transfer to end at shutdown; it is repeated otherwise
HOUR_S: Final = 3_600.0
UPLOADER_LOCK: Final = ".uploader"  # one uploader per data folder


@dataclass(frozen=True)
class Unsealed:
    """Complete recordings not uploaded yet; `age_s` is the time since the oldest ended."""

    count: int = 0
    size_bytes: int = 0
    age_s: float = 0.0


class Uploader:
    def __init__(
        self,
        bucket: Bucket,
        data_dir: Path,
        settings: RecordingSettings,
        worker: str = "",
        *,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`wait` sleeps for the given seconds, or returns True to stop; `clock` is Unix time, s."""
        self._bucket = bucket
        self._data_dir = data_dir
        self._settings, self._worker = settings, worker
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="recording-upload", daemon=True)
        self._checkpoints: dict[str, _Checkpoint] = {}  # of running recordings
        self._unsealed: dict[Path, Meta] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop; a transfer that does not end soon is abandoned and repeated later."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        root = self._data_dir / SESSIONS_FOLDER
        pause_s = 0.0
        while not self._wait(pause_s):
            pause_s = SCAN_PERIOD_S
            try:
                root.mkdir(parents=True, exist_ok=True)
                with suppress(BlockingIOError), locked(root / UPLOADER_LOCK, waits=False):
                    self._scan_repeatedly()
                    return
            except Exception:  # the next round must come in any case
                logger.exception("recordings are not uploaded")

    def _scan_repeatedly(self) -> None:
        """Scan until stopped, less often while the store fails."""
        failures = 0
        while True:
            failures = 0 if self.scan() else failures + 1
            pause_s = min(2.0 ** (failures - 1), BACKOFF_MAX_S) if failures else SCAN_PERIOD_S
            if self._wait(pause_s):
                return

    def scan(self) -> bool:
        unsealed, sealed, running = dict[Path, Meta](), list[Path](), list[Path]()
        for folder in recording_folders(self._data_dir):
            if _sealed_in(folder) == self._bucket.url:
                sealed.append(folder)
            elif is_live(folder):
                running.append(folder)
            elif (meta := read_meta(folder)) is not None and meta.is_over:
                unsealed[folder] = meta
        self._unsealed = unsealed
        waiting = deque(unsealed.items())
        failed: list[OSError] = []
        threads = [
            threading.Thread(target=self._transfer, args=(waiting, failed), daemon=True)
            for _ in range(min(TRANSFERS, len(waiting)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not _is_away(failed):
            self._attempt(failed, lambda: self._tidy(sealed))
        if not _is_away(failed) and self._settings.checkpoint_upload_s:
            self._attempt(failed, lambda: self._keep_checkpoints(running))
        return not failed

    @property
    def unsealed(self) -> Unsealed:
        metas = list(self._unsealed.values())
        ends = [(meta.ended_at or meta.created_at).timestamp() for meta in metas]
        size_bytes = sum(meta.size_bytes or 0 for meta in metas)
        age_s = max(0.0, self._clock() - min(ends)) if ends else 0.0
        return Unsealed(len(ends), size_bytes, age_s)

    def _transfer(self, waiting: deque[tuple[Path, Meta]], failed: list[OSError]) -> None:
        while not _is_away(failed) and not self._stopping.is_set():
            try:
                folder, meta = waiting.popleft()
            except IndexError:
                return
            if self._attempt(failed, partial(self._seal, folder, meta)):
                del self._unsealed[folder]

    def _attempt(self, failed: list[OSError], work: Callable[[], None]) -> bool:
        try:
            work()
            return True
        except OSError as error:
            logger.warning("the store of recordings: %s", error)
            failed.append(error)
            return False

    def _seal(self, folder: Path, meta: Meta) -> None:
        try:
            self._upload(folder, meta)
        except OSError:
            if folder.is_dir():
                raise
            self._bucket.delete(folder.name)

    def _upload(self, folder: Path, meta: Meta) -> None:
        recording_id, files = folder.name, []
        names, added = names_in(folder)
        for name in names:
            if self._stopping.is_set():
                return
            path = folder / name
            size_bytes = path.stat().st_size
            files.append(SealedFile(name=name, size_bytes=size_bytes, sha256=file_sha256(path)))
            self._bucket.put(recording_id, name, path)
        for name in added:  # by a gateway without a store; newer objects are retained
            if self._bucket.read(recording_id, name) is None:
                self._bucket.put(recording_id, name, folder / name)
        sealed_at = datetime.fromtimestamp(self._clock(), UTC)
        seal = Seal(sealed_at=sealed_at, worker=self._worker, files=tuple(files), meta=meta)
        if not self._bucket.has_all(recording_id, seal):
            raise OSError(f"{recording_id} is not complete in the store")
        self._bucket.put(recording_id, SEAL_FILE, seal.to_json().encode())
        with replacing(folder / SEALED_FILE) as mark:  # fails if the folder was deleted
            mark.write_text(self._bucket.url, encoding="utf8")
            os.utime(mark, (self._clock(),) * 2)

    def _tidy(self, sealed: list[Path]) -> None:
        """Remove folders after `keep_local_h` if the store is still complete."""
        for folder in sealed:
            mark = folder / SEALED_FILE
            age_s = float("-inf")
            with suppress(OSError):
                age_s = self._clock() - mark.stat().st_mtime
            if self._stopping.is_set() or age_s < self._settings.keep_local_h * HOUR_S:
                continue
            seal = self._bucket.seal(folder.name)
            if seal is not None and not self._bucket.has_all(folder.name, seal):
                logger.error("recording %s is incomplete in the store: sealed anew", folder.name)
                mark.unlink(missing_ok=True)
            else:  # complete, or deleted in the store
                delete_recording(folder)

    def _keep_checkpoints(self, running: list[Path]) -> None:
        """Upload the changed files of running recordings whose interval has passed."""
        names = {folder.name for folder in running}
        self._checkpoints = {n: kept for n, kept in self._checkpoints.items() if n in names}
        for folder in running:
            kept = self._checkpoints.setdefault(folder.name, _Checkpoint(self._clock()))
            if self._clock() - kept.at_s < self._settings.checkpoint_upload_s:
                continue
            kept.at_s = self._clock()
            for name in names_in(folder)[0]:
                found = file_in(folder, name, hidden=(OWNER_FILE,))
                if found is not None and kept.versions.get(name) != found.mark:
                    with suppress(FileNotFoundError):
                        content = found.blocks(0, found.size_bytes)
                        self._bucket.put(folder.name, name, content)
                        kept.versions[name] = found.mark


@dataclass
class _Checkpoint:
    """Uploaded versions of a running recording's files: their marks by name."""

    at_s: float
    versions: dict[str, str] = field(default_factory=dict)


def _is_away(failed: list[OSError]) -> bool:
    """Whether the store itself failed, so that further attempts are pointless."""
    return any(isinstance(error, BucketError) for error in failed)


def _sealed_in(folder: Path) -> str | None:
    with suppress(OSError):
        return (folder / SEALED_FILE).read_text(encoding="utf8")
    return None


def is_sealed(folder: Path) -> bool:
    return (folder / SEALED_FILE).is_file()
