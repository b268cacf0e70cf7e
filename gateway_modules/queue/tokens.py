"""The tokens of a session: the secret that shows whose it is, the ticket that keeps its place.

A ticket is read by every gateway that has the same key, so that nothing of the queue is stored.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from core.files import ensure_token
from core.schemas.queue import SESSION_SECRET_BYTES
from gateway_modules.queue.worker_connection import utc_now

TICKET_LIFE_S: Final = 60  # without being confirmed; as long as a session waits for its client
KEY_BYTES: Final = 32
TICKET_FILE: Final = "ticket_secret"  # there as long as somebody may have a ticket
MARK_BYTES: Final = 16  # of the signature
MICROSECONDS: Final = 1_000_000


def new_session_secret() -> str:
    """Return the secret of a new session."""
    return secrets.token_hex(SESSION_SECRET_BYTES)


def is_same_secret(shown: str, secret: str) -> bool:
    """Compare a secret that somebody shows in constant time."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), secret.encode())


class ReturnTickets:
    """Signs places in the queue: `order.confirmed.signature`, all numbers decimal.

    Attributes:
        is_gathering: An earlier gateway may have left people waiting, who come back now.
        has_holders: This one does.
    """

    def __init__(
        self,
        key: bytes | None = None,
        clock: Callable[[], datetime] = utc_now,
        *,
        is_gathering: bool = False,
    ) -> None:
        """Have drawn no place yet.

        Args:
            key: Signs; None takes a random one, which no other gateway knows.
            clock: Returns the time with its zone.
            is_gathering: See the attribute.
        """
        self.is_gathering = is_gathering
        self.has_holders = False
        self._key = key or secrets.token_bytes(KEY_BYTES)
        self._clock = clock
        self._last = 0
        self._spent: OrderedDict[int, float] = OrderedDict()  # those of the last `TICKET_LIFE_S`

    def draw(self) -> int:
        """Return a place behind all others: microseconds since 1970, or a little more."""
        self._last = max(self._last + 1, int(self._clock().timestamp() * MICROSECONDS))
        return self._last

    def issue(self, order: int, session_id: str, kind: str) -> str:
        """Return a ticket for a place, confirmed now."""
        named = f"{order}.{int(self._clock().timestamp())}"
        return f"{named}.{self._mark(named, session_id, kind)}"

    def read(self, ticket: str, session_id: str, kind: str) -> int | None:
        """Return the place of a ticket; None if it is not of this session, too old or spent."""
        named, _, mark = ticket.rpartition(".")
        if not is_same_secret(mark, self._mark(named, session_id, kind)):
            return None
        order, confirmed_s = map(int, named.split("."))
        if self._clock().timestamp() - confirmed_s > TICKET_LIFE_S or order in self._spent:
            return None
        self._last = max(self._last, order)
        return order

    def spend(self, order: int) -> None:
        """Let nobody come back to a place: a worker was assigned."""
        now_s = self._clock().timestamp()
        self._spent[order] = now_s
        while now_s - next(iter(self._spent.values())) > TICKET_LIFE_S:
            self._spent.popitem(last=False)

    def _mark(self, named: str, session_id: str, kind: str) -> str:
        signed = f"{named}/{session_id}/{kind}".encode("utf-8", "surrogatepass")
        mark = hmac.digest(self._key, signed, "sha256")[:MARK_BYTES]
        return base64.urlsafe_b64encode(mark).decode().rstrip("=")


def opened_tickets(configured: SecretStr | None, data_dir: Path) -> ReturnTickets:
    """Return what signs places in the queue, as the gateway before did if its key is known.

    Never with another secret: whoever has a ticket could try out guesses of it.

    Raises:
        OSError: The key can be neither read nor written.
    """
    if configured is not None:
        return ReturnTickets(configured.get_secret_value().encode(), is_gathering=True)
    file = data_dir / TICKET_FILE
    is_gathering = file.exists()
    return ReturnTickets(ensure_token(file, KEY_BYTES).encode(), is_gathering=is_gathering)
