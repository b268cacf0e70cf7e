"""An object store: its sealed recordings, and their upload from a worker's disk.

`sessions/ID/…` holds the files under their own names; a recording exists once `seal.json`, written
last, is there. Files added later (comment, upload) are not sealed; the last writer wins. Errors of
the store are raised as `BucketError`, an OSError. Blocks on network and disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from core.files import locked, replacing
from core.schemas.limits import MIB
from core.sums import file_sha256
from recording.folder import is_live, names_in, read_meta
from recording.listing import delete_recording
from recording.names import OWNER_FILE, SEALED_FILE, SESSIONS_FOLDER, media_type, recording_folders
from recording.records import Meta, Seal, SealedFile
from recording.recovery import recover_all
from recording.store import file_in
from settings.fields import install_command
from settings.recording import RecordingSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

logger: Final = logging.getLogger(__name__)

INSTALL: Final = f"recording.store needs the package obstore: {install_command('store')}"
BLOCK_BYTES: Final = MIB  # fetched at a time
PART_BYTES: Final = 5 * MIB  # of a large object on its way up; S3 takes none smaller
RETRY_S: Final = 5.0  # below the callers' own time limits
# A player requests further ranges from the same signed URL.
SIGNED_URL_AGE: Final = timedelta(hours=1)
SEAL_FILE: Final = "seal.json"
DELETING_FILE: Final = ".deleting"  # marks a recording whose deletion is unfinished


class BucketError(OSError):
    """The store is unreachable, or refuses a request."""


def open_store(url: str) -> ObjectStore:
    """Open a store with credentials from the environment; ValueError if that fails."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ImportError as error:
        raise ValueError(INSTALL) from error
    try:
        if url.startswith("file:"):
            return LocalStore.from_url(url, mkdir=True, automatic_cleanup=True)
        retries: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=RETRY_S)}
        return from_url(url, retry_config=retries)  # Any: the type exists for type checkers only
    except (BaseError, OSError, ValueError) as error:
        raise ValueError(f"recording.store: {_first_line(error)}") from error


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise BucketError(errno.EIO, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # the rest is for the library's authors


@dataclass(frozen=True)
class ObjectFound:
    size_bytes: int
    changed_at: datetime

    @property
    def mark(self) -> str:
        return f"{self.changed_at.timestamp()}-{self.size_bytes:x}"


class Bucket:
    """The recordings of a store; thread-safe."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self.url = url

    def put(self, recording_id: str, name: str, content: bytes | Path | Iterator[bytes]) -> None:
        """Write or replace a file; large ones are uploaded in parts, sequentially."""
        from obstore.store import LocalStore

        has_types = not isinstance(self._store, LocalStore)
        with _refusals():
            self._store.put(
                object_name(recording_id, name),
                content,
                attributes={"Content-Type": media_type(name)} if has_types else None,
                chunk_size=PART_BYTES,
                max_concurrency=1,
            )

    def signed_url(self, recording_id: str, name: str) -> str:
        """Return a public URL of a file, valid for `SIGNED_URL_AGE`."""
        import obstore
        from obstore.store import AzureStore, GCSStore, S3Store

        assert isinstance(self._store, S3Store | GCSStore | AzureStore), "checked by the settings"
        with _refusals():
            return obstore.sign(self._store, "GET", object_name(recording_id, name), SIGNED_URL_AGE)

    def read(self, recording_id: str, name: str) -> bytes | None:
        with _refusals(), contextlib.suppress(FileNotFoundError):
            return bytes(self._store.get(object_name(recording_id, name)).bytes())
        return None

    def blocks(
        self, recording_id: str, name: str, start: int, stop: int
    ) -> Generator[bytes, None, None]:
        path = object_name(recording_id, name)
        for begin in range(start, stop, BLOCK_BYTES):
            with _refusals():
                end = min(begin + BLOCK_BYTES, stop)
                block = bytes(self._store.get_range(path, start=begin, end=end))
            yield block

    def files(self, recording_id: str) -> dict[str, ObjectFound]:
        folder = object_name(recording_id)
        with _refusals():
            found = [one for page in self._store.list(folder) for one in page]
        return {
            one["path"].removeprefix(folder): ObjectFound(one["size"], one["last_modified"])
            for one in found
        }

    def list_folder(self, recording_id: str = "") -> tuple[list[str], set[str]]:
        """List a recording's folder, or that of all recordings: subfolders and files."""
        with _refusals():
            found = self._store.list_with_delimiter(object_name(recording_id))
        folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        return folders, {one["path"].rpartition("/")[2] for one in found["objects"]}

    def remove(self, recording_id: str, names: Iterable[str]) -> None:
        for name in names:
            with _refusals(), contextlib.suppress(FileNotFoundError):
                self._store.delete(object_name(recording_id, name))

    def seal(self, recording_id: str) -> Seal | None:
        with contextlib.suppress(ValidationError):  # of a later version
            return Seal.model_validate_json(self.read(recording_id, SEAL_FILE) or b"")
        return None

    def has_all(self, recording_id: str, seal: Seal) -> bool:
        sizes = {name: one.size_bytes for name, one in self.files(recording_id).items()}
        return all(sizes.get(one.name) == one.size_bytes for one in seal.files)

    def delete(self, recording_id: str) -> None:
        """Delete a recording, first its seal; after an error `finish_deleting` continues."""
        self.put(recording_id, DELETING_FILE, b"")
        self.remove(recording_id, [SEAL_FILE])
        self.finish_deleting(recording_id)

    def finish_deleting(self, recording_id: str) -> None:
        names = self.files(recording_id).keys() - {DELETING_FILE}
        self.remove(recording_id, [*names, DELETING_FILE])


def object_name(recording_id: str, name: str = "") -> str:
    """Return the path of a file; without a name, of a recording's folder; without both, of all."""
    return f"{SESSIONS_FOLDER}/{recording_id}/{name}" if recording_id else f"{SESSIONS_FOLDER}/"


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
    """Uploads complete recordings, and removes their folders later; recovers unfinished ones.

    Works in threads of lowest priority from the state on disk, so an unreachable store costs disk
    space only. Every step is idempotent.
    """

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
        # Of running recordings: when they were last uploaded, and the marks of their files.
        self._checkpoints: dict[str, tuple[float, dict[str, str]]] = {}
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
                with locked(root / UPLOADER_LOCK, waits=False):
                    self._scan_repeatedly()
                    return
            except BlockingIOError:
                pass  # another process has the lock
            except Exception:  # the next round must come in any case
                logger.exception("recordings are not uploaded")

    def _scan_repeatedly(self) -> None:
        """Scan until stopped, less often while the store fails."""
        failures, recovered_s = 0, self._clock()  # the worker has just recovered what it found
        while True:
            if self._clock() - recovered_s >= HOUR_S:  # a full disk may have room again
                recovered_s = self._clock()
                recover_all(self._data_dir)
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
            if name not in self._bucket.files(recording_id):
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
            with contextlib.suppress(OSError):
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
            at_s, marks = self._checkpoints.setdefault(folder.name, (self._clock(), {}))
            if self._clock() - at_s < self._settings.checkpoint_upload_s:
                continue
            self._checkpoints[folder.name] = self._clock(), marks
            for name in names_in(folder)[0]:
                found = file_in(folder, name, hidden=(OWNER_FILE,))
                if found is not None and marks.get(name) != found.mark:
                    with contextlib.suppress(FileNotFoundError):
                        self._bucket.put(folder.name, name, found.blocks(0, found.size_bytes))
                        marks[name] = found.mark
            if not folder.is_dir():  # it has ended and was deleted meanwhile
                self._bucket.delete(folder.name)


def _is_away(failed: list[OSError]) -> bool:
    """Whether the store itself failed, so that further attempts are pointless."""
    return any(isinstance(error, BucketError) for error in failed)


def _sealed_in(folder: Path) -> str | None:
    with contextlib.suppress(OSError):
        return (folder / SEALED_FILE).read_text(encoding="utf8")
    return None
