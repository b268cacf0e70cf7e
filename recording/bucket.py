"""An object store and its sealed recordings. Blocks on the network.

`sessions/ID/…` holds the files under their own names; a recording exists once `seal.json`, written
last, is there. Files added later (comment, upload) are not sealed; the last writer wins. Errors of
the store are raised as `BucketError`, an OSError.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import AwareDatetime, Field, ValidationError

from core.schemas.limits import MIB
from recording.names import COMMENT_FILE, OWNER_FILE, SESSIONS_FOLDER, UPLOAD_STEM, media_type
from recording.records import Meta, Record

if TYPE_CHECKING:
    from obstore.store import ObjectStore

INSTALL: Final = "recording.store needs the package obstore: pip install 'minicpmo-live[store]'"
BLOCK_BYTES: Final = MIB  # fetched at a time
PART_BYTES: Final = 5 * MIB  # of a large object on its way up; S3 takes none smaller
RETRY_S: Final = 5.0  # below the callers' own time limits
# A player requests further ranges from the same signed URL.
SIGNED_URL_AGE: Final = timedelta(hours=1)
SEAL_FILE: Final = "seal.json"
DELETING_FILE: Final = ".deleting"  # marks a recording whose deletion is unfinished
SEAL_VERSION: Final = 1


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


class SealedFile(Record):
    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class Seal(Record):
    """`seal.json`: the files and metadata of a complete recording."""

    version: int = SEAL_VERSION
    sealed_at: AwareDatetime
    worker: str = ""
    files: tuple[SealedFile, ...]
    meta: Meta


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
        """Return the names of the folders and of the files in a recording's folder.

        Without an id, the folders are those of the recordings.
        """
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


def is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def is_added(name: str) -> bool:
    """Whether a file may be added to a recording later, and is not sealed."""
    return name == COMMENT_FILE or name.startswith(f"{UPLOAD_STEM}.")


def names_in(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the recorder's files, owner's hash included, and of added files."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    names = [path.relative_to(folder).as_posix() for path in paths]
    names = [name for name in names if name == OWNER_FILE or not is_hidden(name)]
    added = [name for name in names if is_added(name)]
    return [name for name in names if name not in added], added
