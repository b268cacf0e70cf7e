"""Access to recordings in an object store; unsealed ones are read from their workers."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from http import HTTPStatus
from typing import BinaryIO, Final
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from core.errors import NotFoundError, SessionInUseError, WorkerUnreachableError
from core.schemas.worker import WORKER_SECRET_HEADER
from core.store import Store
from core.worker_tls import SNI
from recording import names
from recording.bucket import BLOCK_BYTES, DELETING_FILE, Bucket, BucketError
from recording.listing import (
    LISTED_FIELDS,
    CleanupReport,
    ListedRecording,
    RecordingPage,
    cleanup_listed,
)
from recording.records import Seal
from recording.store import FilesListed, FolderStore, StoredFile

logger: Final = logging.getLogger(__name__)

LIST_AGE_S: Final = 2.0  # of the workers' cached lists: pages load many files of one recording
MISS_AGE_S: Final = 0.25  # the same, for a recording missing from them
ANSWER_S: Final = 5.0
CONCURRENT_CALLS: Final = 16  # to workers
DELETED: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND})


_Held = tuple[str, ListedRecording]
"""A recording, and its URL at the worker that holds it."""


class RunningRecordings:
    """The unsealed recordings on the workers' disks, unreachable ones excepted; thread-safe."""

    def __init__(
        self,
        workers: Callable[[], list[str]],
        *,
        secret: str | None = None,
        tls: ssl.SSLContext | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers` returns the "host:port" of each; `tls` None: plain HTTP."""
        self._workers = workers
        self._scheme = "https" if tls else "http"
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[float, dict[str, _Held]] = (float("-inf"), {})
        self._http = httpx.Client(
            headers={WORKER_SECRET_HEADER: secret} if secret else {},
            timeout=ANSWER_S,
            transport=transport,
            trust_env=False,  # no proxy between our own processes
            verify=tls or False,  # without TLS there is no certificate
        )

    def listed(self) -> list[ListedRecording]:
        """Return the unsealed recordings, at most `LIST_AGE_S` old."""
        return [listed for _, listed in self._known().values()]

    def find(self, recording_id: str) -> ListedRecording | None:
        held = self._holding(recording_id)
        return None if held is None else held[1]

    def read(self, recording_id: str, name: str) -> bytes | None:
        held = self._holding(recording_id)
        if held is None:
            return None
        answer = self._call("GET", f"{held[0]}/files/{name}")
        return answer.content if answer.status_code == HTTPStatus.OK else None

    def files(self, recording_id: str) -> list[StoredFile]:
        held = self._holding(recording_id)
        if held is None:
            return []
        url, _ = held
        try:
            sizes = FilesListed.model_validate_json(self._call("GET", url).content).sizes
        except ValidationError:
            return []
        return [
            StoredFile(name, size, f"{size:x}", partial(self._blocks, f"{url}/files/{name}"))
            for name, size in sizes.items()
        ]

    def delete(self, recording_id: str) -> None:
        """Delete a recording from every worker's disk.

        WorkerUnreachableError if the one that has it does not answer, or fails; SessionInUseError
        while it is still being written.
        """
        held = self._holding(recording_id)
        answers = self._ask_all("DELETE", f"/recordings/{recording_id}")
        if any(answer.status_code == HTTPStatus.CONFLICT for answer in answers.values()):
            raise SessionInUseError("This recording is still being written.")
        if held is not None:
            answer = answers.get(held[0])
            if answer is None or answer.status_code not in DELETED:
                raise WorkerUnreachableError(
                    "The worker that has this recording cannot be reached, or cannot delete it."
                )
        with self._lock:
            self._held = (float("-inf"), {})

    def close(self) -> None:
        self._http.close()

    def _holding(self, recording_id: str) -> _Held | None:
        held = self._held[1].get(recording_id)
        if held is not None and self._lock.locked():
            return held  # another thread is updating: an unresponsive worker blocks only that one
        found = self._known().get(recording_id)
        return found or self._known(MISS_AGE_S).get(recording_id)  # it may be new

    def _known(self, age_s: float = LIST_AGE_S) -> Mapping[str, _Held]:
        with self._lock:
            at_s, held = self._held
            if self._clock() - at_s < age_s:
                return held
            found = self._ask_all("GET", "/recordings")
            held = {one.id: (f"{url}/{one.id}", one) for url in found for one in _page(found[url])}
            self._held = (self._clock(), held)
            return held

    def _ask_all(self, method: str, path: str) -> dict[str, httpx.Response]:
        """Return the answers of those workers that can be reached, by the URLs asked."""
        urls = [f"{self._scheme}://{netloc}{path}" for netloc in self._workers()]

        def ask(url: str) -> httpx.Response | None:
            with suppress(BucketError):
                return self._call(method, url)
            return None

        with ThreadPoolExecutor(CONCURRENT_CALLS, "recording-ask") as callers:
            answers = zip(urls, callers.map(ask, urls), strict=True)
            return {url: answer for url, answer in answers if answer is not None}

    def _blocks(self, url: str, start: int, stop: int) -> Generator[bytes, None, None]:
        if start >= stop:
            return
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        try:
            with self._http.stream("GET", url, headers=headers, extensions=SNI) as answer:
                if answer.status_code == HTTPStatus.NOT_FOUND:
                    raise FileNotFoundError(url)
                if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                    raise BucketError(f"a worker's recording: HTTP {answer.status_code}")
                left = stop - start
                for block in answer.iter_bytes(BLOCK_BYTES):
                    yield block[:left]
                    left -= len(block)
        except httpx.HTTPError as error:
            raise BucketError(f"a worker's recording: {error!r}") from error

    def _call(self, method: str, url: str) -> httpx.Response:
        try:
            return self._http.request(method, url, extensions=SNI)
        except httpx.HTTPError as error:
            raise BucketError(f"a worker's recording: {error!r}") from error


def _page(answer: httpx.Response) -> tuple[ListedRecording, ...]:
    if answer.status_code != HTTPStatus.OK:
        return ()
    try:
        return RecordingPage.model_validate_json(answer.content).recordings
    except ValidationError as error:
        logger.warning("a worker's list of recordings is invalid: %s", error)
        return ()


SEALS_CACHED: Final = 1_000  # least recently used first out
CONCURRENT_READS: Final = 8  # of a list: two requests per recording that is not cached
SEALED_NS: Final = 1  # marks sealed recordings in the cached list


class ObjectStore:
    """The recordings of an object store, see `FolderStore`; seals are immutable and cached."""

    def __init__(
        self, bucket: Bucket, running: RunningRecordings, state: Store, *, is_direct: bool = False
    ) -> None:
        """`state` caches the list; ValueError if `is_direct` and URLs cannot be signed."""
        self._bucket = bucket
        self._running = running
        self._state = state
        self._read_seal = lru_cache(SEALS_CACHED)(self._sealed_by)
        self.media_origin = ""
        if is_direct:
            try:
                url = urlsplit(bucket.signed_url("any", "file"))
            except BucketError as error:
                reason = f"recording.direct: URLs cannot be signed: {error.strerror}"
                raise ValueError(reason) from error
            self.media_origin = f"{url.scheme}://{url.netloc}"

    def check(self, recording_id: str) -> None:
        names.check_recording_id(recording_id)
        self._check(recording_id, self._seal)

    def is_running(self, recording_id: str) -> bool:
        if self._seal(recording_id) is not None:
            return False
        found = self._running.find(recording_id)
        return found is not None and found.is_running

    def read(self, recording_id: str, name: str) -> bytes | None:
        if names.is_added(name) or self._seal(recording_id) is not None:
            return self._bucket.read(recording_id, name)
        return self._running.read(recording_id, name)

    def file(self, recording_id: str, name: str) -> StoredFile | None:
        if names.is_hidden(name):
            return None
        find = self._added_files if names.is_added(name) else self._recorded_files
        return next((one for one in find(recording_id) if one.name == name), None)

    def files(self, recording_id: str) -> list[StoredFile]:
        found = [*self._recorded_files(recording_id), *self._added_files(recording_id)]
        by_name = {one.name: one for one in found}
        return [by_name[name] for name in sorted(by_name)]

    def write(self, recording_id: str, name: str, content: bytes) -> None:
        if content:
            self._add(recording_id, name, content)
        else:
            self._bucket.remove(recording_id, [name])
        self._update_list([recording_id])

    def keep(self, recording_id: str, name: str, file: BinaryIO, *, replaces: set[str]) -> None:
        self._add(recording_id, name, iter(partial(file.read, BLOCK_BYTES), b""))
        self._bucket.remove(recording_id, sorted(replaces - {name}))
        self._update_list([recording_id])

    def delete(self, recording_id: str) -> None:
        self._running.delete(recording_id)
        self._update_list([recording_id])  # first: half deleted recordings are not listed
        try:
            self._bucket.delete(recording_id)  # also without a seal: files may be uploaded earlier
        finally:
            self._read_seal.cache_clear()

    def listed(self) -> list[ListedRecording]:
        running = self._running.listed()  # first: meanwhile they may be sealed
        sealed = self._sealed()
        known = {one.id for one in sealed}
        return sealed + [one for one in running if one.id not in known]

    def clean(self, days: float, gigabytes: float, *, dry_run: bool = False) -> CleanupReport:
        if not dry_run:
            self._finish_deleting(days)
        return cleanup_listed(
            self.listed, self.delete, self._state, days, gigabytes, dry_run=dry_run
        )

    def close(self) -> None:
        self._running.close()

    def _check(self, recording_id: str, find_seal: Callable[[str], Seal | None]) -> None:
        # Twice in the store: meanwhile it may be sealed, and its worker no longer lists it.
        lookups = (find_seal, self._running.find, find_seal)
        if all(find(recording_id) is None for find in lookups):
            raise NotFoundError("There is no such recording.")

    def _add(self, recording_id: str, name: str, content: bytes | Iterator[bytes]) -> None:
        """Add a file, unless the recording is deleted meanwhile, by any process."""
        self._bucket.put(recording_id, name, content)
        try:
            self._check(recording_id, self._bucket.seal)  # none that is only cached
        except NotFoundError:
            self._bucket.remove(recording_id, [name])
            raise

    def _finish_deleting(self, days: float) -> None:
        """Finish interrupted deletions; delete what stayed unsealed for the retention time."""
        sealed = {one.id for one in self._sealed()}
        oldest = datetime.now(UTC) - timedelta(days=days) if days > 0 else None
        for recording_id in self._ids():
            if recording_id in sealed:
                continue
            found = self._bucket.files(recording_id)
            newest = max((one.changed_at for one in found.values()), default=None)
            is_old = oldest is not None and newest is not None and newest < oldest
            if DELETING_FILE in found or (is_old and self._running.find(recording_id) is None):
                self._bucket.finish_deleting(recording_id)

    def _seal(self, recording_id: str) -> Seal | None:
        with suppress(NotFoundError):
            return self._read_seal(recording_id)
        return None

    def _sealed_by(self, recording_id: str) -> Seal:
        seal = self._bucket.seal(recording_id)
        if seal is None:
            raise NotFoundError()  # which is not cached: it may be sealed later
        return seal

    def _recorded_files(self, recording_id: str) -> list[StoredFile]:
        seal = self._seal(recording_id)
        if seal is None:
            return self._running.files(recording_id)
        return [
            self._stored(recording_id, one.name, one.size_bytes, one.sha256)
            for one in seal.files
            if not names.is_hidden(one.name)
        ]

    def _added_files(self, recording_id: str) -> list[StoredFile]:
        return [
            self._stored(recording_id, name, one.size_bytes, one.mark)
            for name, one in self._bucket.files(recording_id).items()
            if names.is_added(name)
        ]

    def _stored(self, recording_id: str, name: str, size_bytes: int, mark: str) -> StoredFile:
        blocks = partial(self._bucket.blocks, recording_id, name)
        sign = partial(self._bucket.signed_url, recording_id, name)
        return StoredFile(name, size_bytes, mark, blocks, sign if self.media_origin else None)

    def _ids(self) -> list[str]:
        return list(filter(names.RECORDING_ID_PATTERN.fullmatch, self._bucket.list_folder()[0]))

    def _sealed(self) -> list[ListedRecording]:
        sql = "SELECT id, listed FROM recordings WHERE changed_ns = ?"
        before = dict(self._state.rows(sql, (SEALED_NS,)))
        with ThreadPoolExecutor(CONCURRENT_READS, "recording-list") as readers:
            ids = self._ids()
            found = dict(zip(ids, readers.map(partial(self._listed_row, before), ids), strict=True))
        listed = {name: one for name, one in found.items() if one is not None}
        fresh = {name: one.to_json() for name, one in listed.items()}
        rows = [(id_, SEALED_NS, row) for id_, row in fresh.items() if before.get(id_) != row]
        self._update_list(before.keys() - listed.keys(), rows)
        return list(listed.values())

    def _listed_row(self, before: dict[str, str], recording_id: str) -> ListedRecording | None:
        with suppress(ValidationError):
            return ListedRecording.model_validate_json(before.get(recording_id, ""))
        seal = self._bucket.seal(recording_id)
        if seal is None:
            return None
        _, files = self._bucket.list_folder(recording_id)
        return ListedRecording(
            id=recording_id,
            bytes=sum(one.size_bytes for one in seal.files),
            has_comment=names.COMMENT_FILE in files,
            has_upload=any(name.startswith(f"{names.UPLOAD_STEM}.") for name in files),
            **seal.meta.model_dump(include=LISTED_FIELDS),
        )

    def _update_list(self, gone: Collection[str], rows: Sequence[tuple[object, ...]] = ()) -> None:
        """Remove and add rows of the cached list: id, mark, JSON. Errors are ignored."""
        if gone or rows:
            with suppress(OSError), self._state.transaction() as state:
                state.executemany("DELETE FROM recordings WHERE id = ?", ((one,) for one in gone))
                state.executemany("REPLACE INTO recordings VALUES (?, ?, ?)", rows)


RecordingStore = FolderStore | ObjectStore
