"""Whose recording it is: the hash of a secret that only the session's client received.

The file is hidden, so it is neither served nor part of a download. Blocks on the disk.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from core.files import write_file
from recording.names import OWNER_FILE


def write_owner(folder: Path, secret: str) -> None:
    """Keep the hash of the owner's secret.

    Raises:
        OSError: The disk is full, or refuses.
    """
    write_file(folder / OWNER_FILE, _hash(secret))


def is_owner(folder: Path, secret: str) -> bool:
    """Whether this is the secret the recording was made with; False if it has no owner."""
    try:
        kept = (folder / OWNER_FILE).read_bytes()
    except OSError:
        return False
    return hmac.compare_digest(kept, _hash(secret))


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest().encode()
