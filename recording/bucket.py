"""Objects of one place in an object store, by name; blocks on the network.

What the store refuses is raised as `BucketError`, an OSError, like a disk's refusal.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.schemas.limits import MIB

if TYPE_CHECKING:
    from obstore.store import ObjectStore

INSTALL: Final = "recording.store needs the package obstore: pip install 'minicpmo-live[store]'"
BLOCK_BYTES: Final = MIB  # fetched at a time
PART_BYTES: Final = 5 * MIB  # of a large object on its way up; S3 takes none smaller
RETRY_S: Final = 5.0  # callers have a longer patience of their own


class BucketError(OSError):
    """The store is away, or refuses."""


def open_store(url: str) -> ObjectStore:
    """Return the object store at a URL; credentials come from the environment.

    Raises:
        ValueError: obstore is not installed, or the URL or the environment does not suit it.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url
    except ImportError as error:
        raise ValueError(INSTALL) from error
    try:
        if url.startswith("file:"):
            return LocalStore.from_url(url, mkdir=True, automatic_cleanup=True)
        retries: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=RETRY_S)}
        return from_url(url, retry_config=retries)  # Any: a type for type checkers only
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
    return str(error).partition("\n")[0]  # what follows is for the library's authors


@dataclass(frozen=True)
class ObjectFound:
    """One object in a list."""

    size_bytes: int
    changed_at: datetime


class Bucket:
    """Puts, fetches, lists and removes objects; any thread."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        """Use an object store.

        Args:
            store: As `open_store` returned it.
            url: Where it is.
        """
        self._store = store
        self.url = url

    def put(self, name: str, content: bytes | Path | Iterator[bytes]) -> None:
        """Write an object in place of an earlier one; a large file goes in parts, one at a time.

        Raises:
            BucketError: The store is away, or refuses.
            OSError: The file cannot be read.
        """
        import obstore

        with _refusals():
            obstore.put(self._store, name, content, chunk_size=PART_BYTES, max_concurrency=1)

    def read(self, name: str) -> bytes | None:
        """Return a small object; None if it is not there.

        Raises:
            BucketError: The store is away, or refuses.
        """
        import obstore
        from obstore.exceptions import NotFoundError

        with _refusals():
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except (NotFoundError, FileNotFoundError):
                return None

    def blocks(self, name: str, start: int, stop: int) -> Iterator[bytes]:
        """Yield bytes [start, stop) of an object, a block a request.

        Raises:
            BucketError: The store is away, or the object is gone.
        """
        import obstore

        for begin in range(start, stop, BLOCK_BYTES):
            end = min(begin + BLOCK_BYTES, stop)
            with _refusals():
                block = bytes(obstore.get_range(self._store, name, start=begin, end=end))
            yield block

    def objects(self, folder: str) -> dict[str, ObjectFound]:
        """Return what lies below a folder, by its name there.

        Raises:
            BucketError: The store is away, or refuses.
        """
        import obstore

        with _refusals():
            found = [one for page in obstore.list(self._store, f"{folder}/") for one in page]
        return {
            one["path"].removeprefix(f"{folder}/"): ObjectFound(one["size"], one["last_modified"])
            for one in found
        }

    def look(self, folder: str) -> tuple[list[str], set[str]]:
        """Return the names of the folders in a folder, and of the objects directly in it."""
        import obstore

        with _refusals():
            found = obstore.list_with_delimiter(self._store, f"{folder}/")
        folders = [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]
        return folders, {one["path"].rpartition("/")[2] for one in found["objects"]}

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, one after the other; one that is not there is fine."""
        import obstore
        from obstore.exceptions import NotFoundError

        for name in names:
            with _refusals(), contextlib.suppress(NotFoundError, FileNotFoundError):
                obstore.delete(self._store, name)
