"""What administrators did: one entry each in a list that cannot grow for ever.

Holds who (an address without its last part, unless it is of a private network), when, what, and how
it ended; never a token, a file or a text of a conversation. Blocks on the disk.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

from pydantic import AwareDatetime, Field, ValidationError

from core.schemas.common import WireModel
from core.store import Store

ENTRIES_MAX: Final = 10_000  # the oldest of more are deleted; some 3 MB
BODY_READ_BYTES: Final = 1_024  # of a request; a longer one is a file, and not told
VALUE_MAX_CHARS: Final = 80
DETAILS_MAX_CHARS: Final = 300
PUBLIC_PREFIXES: Final = {4: 24, 6: 48}  # bits kept of an address somebody could be known by


class AuditEntry(WireModel):
    """One thing an administrator did."""

    time: AwareDatetime = Field(description="When, UTC.")
    address: str = Field("", description="From where; of a public address only its network.")
    action: str = Field(description="Method and route.")
    target: str = Field("", description="What it was done to.")
    details: str = Field("", description="What was asked for.")
    status: int = Field(description="HTTP status of the answer.")


class AuditList(WireModel):
    """Answer to `GET /api/admin/audit`."""

    entries: list[AuditEntry] = Field(description="Newest first.")


class AuditLog:
    """The newest `ENTRIES_MAX` entries; what is older is gone."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def append(self, entry: AuditEntry) -> None:
        """Raises OSError: The disk is full, or refuses."""
        with self._store.transaction() as state:
            state.execute("INSERT INTO audit (entry) VALUES (?)", (entry.model_dump_json(),))
            state.execute(
                "DELETE FROM audit WHERE number <= last_insert_rowid() - ?", (ENTRIES_MAX,)
            )

    def newest(self, limit: int) -> list[AuditEntry]:
        """Return entries, newest first; damaged ones are skipped."""
        entries: list[AuditEntry] = []
        sql = "SELECT entry FROM audit ORDER BY number DESC LIMIT ?"
        for (text,) in self._store.rows(sql, (limit,)):
            with suppress(ValidationError):
                entries.append(AuditEntry.model_validate_json(text))
        return entries


class BodyStart:
    """The beginning of a request's body, as much as an audit may tell."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_whole = True

    def saw(self, part: bytes) -> None:
        self._is_whole = self._is_whole and len(self._kept) + len(part) <= BODY_READ_BYTES
        self._kept = (self._kept + part)[:BODY_READ_BYTES] if self._is_whole else b""

    def details(self) -> str:
        """Return the plain values of a short JSON object, "" of anything else."""
        try:
            body = json.loads(self._kept) if self._kept else {}
        except (ValueError, RecursionError):
            return ""
        if not isinstance(body, Mapping):
            return ""
        plain = {key: value for key, value in body.items() if isinstance(value, str | int | float)}
        parts = [f"{key}={_short(value)}" for key, value in plain.items()]
        return ", ".join(parts)[:DETAILS_MAX_CHARS]


def shown_address(address: str) -> str:
    """Return an address as it may be kept: whole on a private network, else its network alone."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
        known = known.ipv4_mapped
    if known.is_loopback or known.is_private or known.is_link_local:
        return str(known)
    prefix = PUBLIC_PREFIXES[known.version]
    return str(ipaddress.ip_network(f"{known}/{prefix}", strict=False))


def entry_of(
    now: datetime, address: str, action: str, target: str, body: BodyStart, status: int
) -> AuditEntry:
    """Describe one request."""
    return AuditEntry(
        time=now,
        address=shown_address(address),
        action=action,
        target=_writable(target[:VALUE_MAX_CHARS]),
        details=_writable(body.details()),
        status=status,
    )


def _writable(text: str) -> str:
    """Return a text as UTF-8 can hold it: JSON may name half of a surrogate pair alone."""
    return text.encode("utf-8", "replace").decode()


def _short(value: str | float) -> str:
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"
