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
from recording.listing import LISTED_FIELDS, ListedRecording
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
    """Object operations of a store; thread-safe."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        import obstore  # optional
        from obstore.exceptions import NotFoundError

        self._library = obstore
        self._missing = (NotFoundError, FileNotFoundError)
        self._store = store
        self.url = url

    def put(self, name: str, content: bytes | Path | Iterator[bytes]) -> None:
        """Write or replace an object; large ones are uploaded in parts, sequentially."""
        from obstore.store import LocalStore

        has_types = not isinstance(self._store, LocalStore)
        with _refusals():
            self._library.put(
                self._store,
                name,
                content,
                attributes={"Content-Type": media_type(name)} if has_types else None,
                chunk_size=PART_BYTES,
                max_concurrency=1,
            )

    def signed_url(self, name: str) -> str:
        """Return a public URL of an object, valid for `SIGNED_URL_AGE`."""
        from obstore.store import AzureStore, GCSStore, S3Store

        assert isinstance(self._store, S3Store | GCSStore | AzureStore), "checked by the settings"
        with _refusals():
            return self._library.sign(self._store, "GET", name, SIGNED_URL_AGE)

    def read(self, name: str) -> bytes | None:
        with _refusals(), contextlib.suppress(*self._missing):
            return bytes(self._library.get(self._store, name).bytes())
        return None

    def blocks(self, name: str, start: int, stop: int) -> Generator[bytes, None, None]:
        for begin in range(start, stop, BLOCK_BYTES):
            end = min(begin + BLOCK_BYTES, stop)
            with _refusals():
                block = bytes(self._library.get_range(self._store, name, start=begin, end=end))
            yield block

    def objects(self, folder: str) -> dict[str, ObjectFound]:
        with _refusals():
            found = [one for page in self._library.list(self._store, f"{folder}/") for one in page]
        return {
            one["path"].removeprefix(f"{folder}/"): ObjectFound(one["size"], one["last_modified"])
            for one in found
        }

    def list_folder(self, folder: str) -> tuple[list[str], set[str]]:
        with _refusals():
            found = self._library.list_with_delimiter(self._store, f"{folder}/")
        folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        return folders, {one["path"].rpartition("/")[2] for one in found["objects"]}

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with _refusals(), contextlib.suppress(*self._missing):
                self._library.delete(self._store, name)


SEAL_FILE: Final = "seal.json"
DELETING_FILE: Final = ".deleting"  # marks a recording whose deletion is unfinished
SEAL_VERSION: Final = 1


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

    def listed(self, recording_id: str, names: set[str]) -> ListedRecording:
        """Return the list's entry; `names` are the objects in the recording's folder."""
        return ListedRecording(
            id=recording_id,
            bytes=sum(one.size_bytes for one in self.files),
            has_comment=COMMENT_FILE in names,
            has_upload=any(name.startswith(f"{UPLOAD_STEM}.") for name in names),
            **self.meta.model_dump(include=LISTED_FIELDS),
        )


class SealError(OSError):
    """Objects in the store differ from what was uploaded."""


def object_name(recording_id: str, name: str = "") -> str:
    return f"{SESSIONS_FOLDER}/{recording_id}" + (f"/{name}" if name else "")


def read_seal(bucket: Bucket, recording_id: str) -> Seal | None:
    content = bucket.read(object_name(recording_id, SEAL_FILE))
    with contextlib.suppress(ValidationError):  # of a later version
        return Seal.model_validate_json(content or b"")
    return None


def is_whole(bucket: Bucket, recording_id: str, seal: Seal) -> bool:
    found = bucket.objects(object_name(recording_id))
    sizes = {name: one.size_bytes for name, one in found.items()}
    return all(sizes.get(one.name) == one.size_bytes for one in seal.files)


def delete_sealed(bucket: Bucket, recording_id: str) -> None:
    """Delete a recording, first its seal; after an error `finish_deleting` continues."""
    bucket.put(object_name(recording_id, DELETING_FILE), b"")
    bucket.remove([object_name(recording_id, SEAL_FILE)])
    finish_deleting(bucket, recording_id)


def finish_deleting(bucket: Bucket, recording_id: str) -> None:
    names = bucket.objects(object_name(recording_id)).keys() - {DELETING_FILE}
    bucket.remove([object_name(recording_id, name) for name in [*names, DELETING_FILE]])


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
