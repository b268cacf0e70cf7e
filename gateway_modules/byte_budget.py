"""Pure: how many bytes of clients the gateway holds at once, in all and of each client."""

from __future__ import annotations

from collections import Counter
from typing import Final

from core.errors import RateLimitedError

LEASE_MARK: Final = "bytes that arrive"  # key in a socket's scope: its lease


class ByteBudget:
    """What may be held. Who asks for more is refused; nothing that is held is dropped."""

    def __init__(self, total_bytes: int, per_client_bytes: int) -> None:
        """Start with nothing held.

        Args:
            total_bytes: Of all clients.
            per_client_bytes: Of one client.
        """
        self._total_bytes = total_bytes
        self._per_client_bytes = per_client_bytes
        self._held_bytes = 0
        self._by_client: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return self._held_bytes

    def lease(self, client: str) -> ByteLease:
        """Return what one request or socket of a client holds, nothing so far; "" is exempt."""
        return ByteLease(self, client)

    def take(self, client: str, size_bytes: int) -> None:
        """Hold more.

        Raises:
            RateLimitedError: That would be too much.
        """
        is_full = self._held_bytes + size_bytes > self._total_bytes
        if is_full or (client and self._by_client[client] + size_bytes > self._per_client_bytes):
            raise RateLimitedError("The server holds as much of what was sent as it may.")
        self._held_bytes += size_bytes
        self._by_client[client] += size_bytes

    def give_back(self, client: str, size_bytes: int) -> None:
        """Hold less."""
        self._held_bytes -= size_bytes
        self._by_client[client] -= size_bytes
        if not self._by_client[client]:
            del self._by_client[client]


class ByteLease:
    """What one request or socket holds. Its owner releases it at the end."""

    def __init__(self, budget: ByteBudget, client: str) -> None:
        """Hold nothing yet; made by `ByteBudget.lease`."""
        self._budget = budget
        self._client = client
        self._held_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Hold more.

        Raises:
            RateLimitedError: That would be too much.
        """
        self._budget.take(self._client, size_bytes)
        self._held_bytes += size_bytes

    def release(self) -> None:
        """Hold nothing any more."""
        self._budget.give_back(self._client, self._held_bytes)
        self._held_bytes = 0
