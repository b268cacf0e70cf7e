"""Recordings in an object store: sealed ones are read there, the others from their workers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from core.errors import NotFoundError
from core.store import Store
from recording.bucket import (
    DELETING_FILE,
    Bucket,
    BucketError,
    ObjectFound,
    Seal,
    delete_sealed,
    finish_deleting,
    is_beside,
    is_hidden,
    place,
    read_seal,
)
from recording.cleanup import CleanupReport, cleanup_listed
from recording.folder import check_room
from recording.listing import ListedRecording
from recording.names import RECORDING_ID_PATTERN, SESSIONS_FOLDER, check_recording_id
from recording.running import RunningRecordings
from recording.store import StoredFile

SEALS_KEPT: Final = 1_000  # in memory; those used longest ago are read again
LOOKS_AT_ONCE: Final = 8  # a list that was never read asks the store twice a recording
SEALED_NS: Final = 1  # a sealed recording's time of change in the list that is kept


class ObjectStore:
    """A `RecordingStore`. Seals do not change, so they are cached."""

    def __init__(
        self,
        bucket: Bucket,
        running: RunningRecordings,
        data_dir: Path,
        state: Store,
        *,
        is_direct: bool = False,
    ) -> None:
        """Use a store.

        Args:
            bucket: Where sealed recordings are.
            running: The others.
            data_dir: Where files on their way in are kept.
            state: Keeps the list.
            is_direct: Clients fetch files from the store by signed URLs.

        Raises:
            ValueError: The store's credentials cannot sign.
        """
        self._bucket = bucket
        self._running = running
        self._data_dir = data_dir
        self._state = state
        self._seals: OrderedDict[str, Seal] = OrderedDict()
        self.media_origin = _signing_origin(bucket) if is_direct else ""

    def check(self, recording_id: str) -> None:
        check_recording_id(recording_id)
        if self._seal(recording_id) is None and self._running.look(recording_id) is None:
            raise NotFoundError("There is no such recording.")

    def is_running(self, recording_id: str) -> bool:
        if self._seal(recording_id) is not None:
            return False
        found = self._running.look(recording_id)
        return found is not None and found.is_running

    def read(self, recording_id: str, name: str) -> bytes | None:
        if is_beside(name) or self._seal(recording_id) is not None:
            return self._bucket.read(place(recording_id, name))
        return self._running.read(recording_id, name)

    def file(self, recording_id: str, name: str) -> StoredFile | None:
        seal = self._seal(recording_id)
        if is_hidden(name):
            return None
        if seal is None and not is_beside(name):
            return self._running.file(recording_id, name)
        for known in seal.files if seal is not None else ():
            if known.name == name:
                return self._stored(recording_id, name, known.size_bytes, known.sha256)
        if not is_beside(name):
            return None
        found = self._bucket.objects(place(recording_id)).get(name)
        return None if found is None else self._beside(recording_id, name, found)

    def files(self, recording_id: str) -> list[StoredFile]:
        seal = self._seal(recording_id)
        if seal is None:
            return self._running.files(recording_id)
        sealed = [
            self._stored(recording_id, one.name, one.size_bytes, one.sha256)
            for one in seal.files
            if not is_hidden(one.name)
        ]
        beside = [
            self._beside(recording_id, name, found)
            for name, found in self._bucket.objects(place(recording_id)).items()
            if is_beside(name)
        ]
        return sorted(sealed + beside, key=lambda one: one.name)

    def write(self, recording_id: str, name: str, content: bytes) -> None:
        if content:
            self._bucket.put(place(recording_id, name), content)
        else:
            self._bucket.remove([place(recording_id, name)])
        self._forget_listed(recording_id)

    def part(self, recording_id: str, min_free_gb: float) -> Path:
        folder = self._data_dir / "uploads"
        folder.mkdir(parents=True, exist_ok=True)
        check_room(folder, min_free_gb)
        return folder / f"{recording_id}.part"

    def keep(self, recording_id: str, part: Path, name: str, *, replaces: set[str]) -> None:
        self._bucket.put(place(recording_id, name), part)
        self._bucket.remove([place(recording_id, other) for other in sorted(replaces - {name})])
        part.unlink(missing_ok=True)
        self._forget_listed(recording_id)

    def append_diagnostic(self, recording_id: str, line: bytes) -> None:
        self._running.append_diagnostic(recording_id, line)

    def delete(self, recording_id: str) -> None:
        self._running.delete(recording_id)
        is_sealed = self._seal(recording_id) is not None  # perhaps only just now
        self._seals.pop(recording_id, None)
        self._forget_listed(recording_id)  # first: what is half deleted must not be listed
        if is_sealed:
            delete_sealed(self._bucket, recording_id)

    def listed(self) -> list[ListedRecording]:
        sealed = self._sealed()
        known = {one.id for one in sealed}
        return sealed + [one for one in self._running.listed() if one.id not in known]

    def clean(self, days: float, gigabytes: float, *, dry_run: bool = False) -> CleanupReport:
        if not dry_run:
            self._finish_deleting(days)
        return cleanup_listed(self, self._state, days, gigabytes, dry_run=dry_run)

    def close(self) -> None:
        self._running.close()

    def _finish_deleting(self, days: float) -> None:
        """Finish half-deleted recordings, and delete those unsealed for the retention time."""
        sealed = {one.id for one in self._sealed()}
        oldest = datetime.now(UTC) - timedelta(days=days) if days > 0 else None
        for recording_id in self._ids():
            if recording_id in sealed:
                continue
            found = self._bucket.objects(place(recording_id))
            newest = max((one.changed_at for one in found.values()), default=None)
            is_old = oldest is not None and newest is not None and newest < oldest
            if DELETING_FILE in found or (is_old and self._running.look(recording_id) is None):
                finish_deleting(self._bucket, recording_id)

    def _seal(self, recording_id: str) -> Seal | None:
        seal = self._seals.pop(recording_id, None) or read_seal(self._bucket, recording_id)
        if seal is not None:
            self._seals[recording_id] = seal
            if len(self._seals) > SEALS_KEPT:
                with suppress(KeyError):  # another thread was faster
                    self._seals.popitem(last=False)
        return seal

    def _stored(self, recording_id: str, name: str, size_bytes: int, mark: str) -> StoredFile:
        def blocks(start: int, stop: int) -> Iterator[bytes]:
            return self._bucket.blocks(place(recording_id, name), start, stop)

        sign = partial(self._bucket.signed_url, place(recording_id, name))
        return StoredFile(name, size_bytes, mark, blocks, sign if self.media_origin else None)

    def _beside(self, recording_id: str, name: str, found: ObjectFound) -> StoredFile:
        mark = f"{found.changed_at.timestamp()}-{found.size_bytes:x}"
        return self._stored(recording_id, name, found.size_bytes, mark)

    def _ids(self) -> list[str]:
        names, _ = self._bucket.look(SESSIONS_FOLDER)
        return [name for name in names if RECORDING_ID_PATTERN.fullmatch(name)]

    def _sealed(self) -> list[ListedRecording]:
        sql = "SELECT id, listed FROM recordings WHERE changed_ns = ?"
        before = dict(self._state.rows(sql, (SEALED_NS,)))
        with ThreadPoolExecutor(LOOKS_AT_ONCE, "recording-list") as looks:
            ids = self._ids()
            found = dict(zip(ids, looks.map(partial(self._look, before), ids), strict=True))
        listed = {name: one for name, one in found.items() if one is not None}
        gone = before.keys() - listed.keys()
        fresh = {name: one.to_json() for name, one in listed.items()}
        fresh = {name: text for name, text in fresh.items() if before.get(name) != text}
        if gone or fresh:
            with suppress(OSError), self._state.transaction() as state:
                state.executemany("DELETE FROM recordings WHERE id = ?", ((one,) for one in gone))
                rows = ((name, SEALED_NS, text) for name, text in fresh.items())
                state.executemany("REPLACE INTO recordings VALUES (?, ?, ?)", rows)
        return list(listed.values())

    def _look(self, before: dict[str, str], recording_id: str) -> ListedRecording | None:
        if recording_id in before:
            with suppress(ValidationError):  # of another version
                return ListedRecording.model_validate_json(before[recording_id])
        seal = read_seal(self._bucket, recording_id)
        if seal is None:
            return None
        return seal.listed(recording_id, self._bucket.look(place(recording_id))[1])

    def _forget_listed(self, recording_id: str) -> None:
        with suppress(OSError), self._state.transaction() as state:
            state.execute("DELETE FROM recordings WHERE id = ?", (recording_id,))


def _signing_origin(bucket: Bucket) -> str:
    try:
        url = urlsplit(bucket.signed_url(SESSIONS_FOLDER))
    except BucketError as error:
        raise ValueError(f"recording.direct: URLs cannot be signed: {error.strerror}") from error
    return f"{url.scheme}://{url.netloc}"
