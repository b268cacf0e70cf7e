"""How administrators are known: a token on disk, and the sessions of those who showed it."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

TOKEN_FILE: Final = "admin_token"
TOKEN_BYTES: Final = 16
TOKEN_MODE: Final = 0o600
SESSION_AGE_S: Final = 12 * 3_600  # a working day
SESSIONS_MAX: Final = 64  # administrators who are logged in at once


def ensure_admin_token(data_dir: Path) -> str:
    """Return the token kept in the data folder; see `ensure_token`."""
    return ensure_token(data_dir / TOKEN_FILE, TOKEN_BYTES)


def ensure_token(path: Path, size_bytes: int) -> str:
    """Return what a file keeps; without one, make it of so many random bytes.

    Raises:
        OSError: It can be neither read nor written, or the file is empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, TOKEN_MODE)
    except FileExistsError:
        return _read(path)
    token = secrets.token_urlsafe(size_bytes)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return token


def _read(path: Path) -> str:
    if path.stat().st_mode & ~TOKEN_MODE & 0o777:
        path.chmod(TOKEN_MODE)
    token = path.read_text(encoding="utf8").strip()
    if not token:
        raise OSError(f"{path} is empty: delete it, and the next start makes a new token.")
    return token


class AdminSessions:
    """The administrators who are logged in; forgotten when the gateway ends.

    Overflow: at most `SESSIONS_MAX`; one more ends the oldest.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start empty.

        Args:
            clock: Seconds of a clock that only goes forward.
        """
        self._clock = clock
        self._ends_s: OrderedDict[bytes, float] = OrderedDict()  # by the hash of the cookie

    def begin(self) -> str:
        """Return the cookie of a new session."""
        cookie = secrets.token_urlsafe(TOKEN_BYTES)
        self._ends_s[_hash(cookie)] = self._clock() + SESSION_AGE_S
        if len(self._ends_s) > SESSIONS_MAX:
            self._ends_s.popitem(last=False)
        return cookie

    def is_open(self, cookie: str) -> bool:
        """Whether a session of this cookie goes on."""
        end_s = self._ends_s.get(_hash(cookie))
        return end_s is not None and self._clock() < end_s

    def end(self, cookie: str) -> None:
        """End a session; harmless if there is none."""
        self._ends_s.pop(_hash(cookie), None)


def _hash(cookie: str) -> bytes:
    # Found by its hash: how long the search takes says nothing about the cookies there are.
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
