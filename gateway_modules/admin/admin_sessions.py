"""How administrators are known: a token on disk, and the sessions of those who showed it."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from core.files import ensure_token

TOKEN_FILE: Final = "admin_token"
TOKEN_BYTES: Final = 16
SESSION_AGE_S: Final = 12 * 3_600  # a working day
SESSIONS_MAX: Final = 64  # administrators who are logged in at once


def ensure_admin_token(data_dir: Path) -> str:
    """Return the token kept in the data folder; see `ensure_token`."""
    return ensure_token(data_dir / TOKEN_FILE, TOKEN_BYTES)


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
