"""Sealed recordings in an object store: what a seal says, and all that is done with one.

`sessions/ID/…` holds the files under their own names; `seal.json`, written last, makes the
recording exist. What is added later (comment, upload) lies beside it, the last writer wins.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, Field, ValidationError

from recording.bucket import Bucket
from recording.listing import ListedRecording
from recording.names import COMMENT_FILE, OWNER_FILE, SESSIONS_FOLDER, UPLOAD_STEM
from recording.records import Meta, Record

SEAL_FILE: Final = "seal.json"
DELETING_FILE: Final = ".deleting"  # says that a recording without a seal is half deleted
SEAL_VERSION: Final = 1
HASH_BYTES: Final = 1024 * 1024  # of a file, hashed at a time


class SealedFile(Record):
    """One file."""

    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class Seal(Record):
    """`seal.json`: what a complete recording consists of."""

    version: int = SEAL_VERSION
    sealed_at: AwareDatetime
    worker: str = ""
    files: tuple[SealedFile, ...]
    meta: Meta

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(one.size_bytes for one in self.files)

    def listed(self, recording_id: str, beside: set[str]) -> ListedRecording:
        """Return what a list shows; `beside` names the objects directly in its folder."""
        return ListedRecording(
            id=recording_id,
            app_type=self.meta.app_type,
            title=self.meta.title,
            created_at=self.meta.created_at,
            duration_s=self.meta.duration_s,
            bytes=self.size_bytes,
            has_comment=COMMENT_FILE in beside,
            has_upload=any(name.startswith(f"{UPLOAD_STEM}.") for name in beside),
            status=self.meta.status,
            problem=self.meta.problem,
        )


class SealError(OSError):
    """What lies in the store is not what was put there."""


def place(recording_id: str, name: str = "") -> str:
    """Return the name of a recording's object, or of its folder."""
    return f"{SESSIONS_FOLDER}/{recording_id}" + (f"/{name}" if name else "")


def read_seal(bucket: Bucket, recording_id: str) -> Seal | None:
    """Return a recording's seal; None if it has none, and so does not exist.

    Raises:
        BucketError: The store is away, or refuses.
    """
    content = bucket.read(place(recording_id, SEAL_FILE))
    try:
        return None if content is None else Seal.model_validate_json(content)
    except ValidationError:  # of a later version
        return None


def is_whole(bucket: Bucket, recording_id: str, seal: Seal) -> bool:
    """Whether the store lists every file with its size.

    Raises:
        BucketError: The store is away, or refuses.
    """
    found = bucket.objects(place(recording_id))
    sizes = {name: one.size_bytes for name, one in found.items()}
    return all(sizes.get(one.name) == one.size_bytes for one in seal.files)


def delete_sealed(bucket: Bucket, recording_id: str) -> None:
    """Delete a recording: from the first moment on it does not exist, whenever this is cut short.

    Raises:
        BucketError: The store is away, or refuses; `finish_deleting` goes on.
    """
    bucket.put(place(recording_id, DELETING_FILE), b"")
    bucket.remove([place(recording_id, SEAL_FILE)])
    finish_deleting(bucket, recording_id)


def finish_deleting(bucket: Bucket, recording_id: str) -> None:
    """Delete what is left of a recording without a seal.

    Raises:
        BucketError: The store is away, or refuses.
    """
    names = bucket.objects(place(recording_id)).keys() - {DELETING_FILE}
    bucket.remove([place(recording_id, name) for name in [*names, DELETING_FILE]])


def is_hidden(name: str) -> bool:
    """Whether a file is not for readers."""
    return any(part.startswith(".") for part in name.split("/"))


def is_beside(name: str) -> bool:
    """Whether a file is added to a recording from outside, and no part of its seal."""
    return name == COMMENT_FILE or name.startswith(f"{UPLOAD_STEM}.")


def names_in(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of what a recorder wrote, with its owner's hash, and of what was added."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    names = [path.relative_to(folder).as_posix() for path in paths]
    names = [name for name in names if name == OWNER_FILE or not is_hidden(name)]
    added = [name for name in names if is_beside(name)]
    return [name for name in names if name not in added], added


def hash_file(path: Path) -> str:
    """Return a file's SHA-256.

    Raises:
        OSError: It cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()
