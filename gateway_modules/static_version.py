"""Addresses of the pages' files that change with their content, so that browsers keep the files.

One version for the whole folder: a module's relative imports then stay within its version.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.types import Scope

STATIC_PREFIX: Final = "/static/"
DIGEST_CHARS: Final = 12
VERSIONED: Final = re.compile(rf"/static/v-(?P<digest>[0-9a-f]{{{DIGEST_CHARS}}})/")
IMMUTABLE: Final = "public, max-age=31536000, immutable"  # a year. Source: RFC 8246
IMMUTABLE_MARK: Final = "a file under an immutable address"  # key in a request's scope


@dataclass(frozen=True)
class StaticVersion:
    """The version of the files.

    Attributes:
        digest: Of all files; "" leaves the addresses as they are.
    """

    digest: str = ""

    @classmethod
    def of(cls, folder: Path, salt: str) -> StaticVersion:
        """Return the version of a folder. Blocks on the disk.

        Args:
            folder: Every file below it counts.
            salt: What else changes what browsers get.
        """
        whole = hashlib.sha256(salt.encode())
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            whole.update(str(path.relative_to(folder)).encode() + b"\0")
            whole.update(hashlib.sha256(path.read_bytes()).digest())
        return cls(whole.hexdigest()[:DIGEST_CHARS])

    def in_page(self, page: bytes) -> bytes:
        """Return a page whose files have this version's addresses."""
        if not self.digest:
            return page
        ours = f'"{STATIC_PREFIX}v-{self.digest}/'.encode()
        return page.replace(f'"{STATIC_PREFIX}'.encode(), ours)

    def resolved(self, scope: Scope) -> Scope:
        """Return a request with the plain address of its file, marked if it is of this version.

        An address of another version gives the file as it is now: a page that was loaded before
        the server was updated still finds its modules.
        """
        found = VERSIONED.match(scope["path"])
        if found is None:
            return scope
        plain = {**scope, "path": STATIC_PREFIX + scope["path"][found.end() :]}
        is_read = scope["method"] in ("GET", "HEAD")
        plain[IMMUTABLE_MARK] = is_read and found["digest"] == self.digest
        return plain


def is_immutable(scope: Scope) -> bool:
    """Whether a request is for a file under an immutable address."""
    return bool(scope.get(IMMUTABLE_MARK, False))
