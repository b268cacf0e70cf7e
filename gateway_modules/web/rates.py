"""Limits of one client: how often it may ask, and how much of its data is held."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from core.errors import RateLimitedError

ADDRESSES_MAX: Final = 10_000  # addresses remembered at once
# What one customer of a provider has at least. Source: RFC 6177, section 2.
CLIENT_PREFIX_BITS: Final = 64
LEASE_MARK: Final = "bytes that arrive"  # key in a socket's scope: its lease


def network_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or an IPv6 network."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv4Address):
        return address
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.ip_network((known, CLIENT_PREFIX_BITS), strict=False))


class TokenBucket:
    """`capacity` at once, `refill_per_s` in the long run."""

    def __init__(self, capacity: float, refill_per_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._refill_per_s = refill_per_s
        self._clock = clock
        self._level = capacity
        self._at_s = clock()

    def take(self, amount: float = 1.0) -> bool:
        self._refill()
        if self._level < amount:
            return False
        self._level -= amount
        return True

    def borrow_s(self, amount: float) -> float:
        """Take tokens that may not be there; return how long to wait until they are, s."""
        self._refill()
        self._level -= amount
        return max(0.0, -self._level / self._refill_per_s)

    @property
    def level(self) -> float:
        self._refill()
        return self._level

    def _refill(self) -> None:
        now_s = self._clock()
        self._level = min(self._capacity, self._level + (now_s - self._at_s) * self._refill_per_s)
        self._at_s = now_s


class AddressBuckets:
    """One bucket for each client, as `network_of` distinguishes them.

    At most `ADDRESSES_MAX` are kept; one more makes the one not seen for longest start anew.
    """

    def __init__(self, capacity: float, refill_per_s: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._refill_per_s = refill_per_s
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def take(self, address: str) -> bool:
        return self._bucket(network_of(address)).take()

    def is_empty(self, address: str) -> bool:
        bucket = self._buckets.get(network_of(address))
        return bucket is not None and bucket.level < 1

    def _bucket(self, address: str) -> TokenBucket:
        bucket = self._buckets.pop(address, None)
        if bucket is None:
            bucket = TokenBucket(self._capacity, self._refill_per_s, self._clock)
        self._buckets[address] = bucket
        if len(self._buckets) > ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return bucket


class ByteBudget:
    """Bytes held for clients. More is refused; nothing that is held is dropped."""

    def __init__(self, total_bytes: int, per_client_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._per_client_bytes = per_client_bytes
        self._held_bytes = 0
        self._by_client: Counter[str] = Counter()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def lease(self, client: str) -> ByteLease:
        """Return the lease of one request or socket; client "" is exempt from its own limit."""
        return ByteLease(self, client)

    def take(self, client: str, size_bytes: int) -> None:
        """Raises RateLimitedError if that would be too much."""
        is_full = self._held_bytes + size_bytes > self._total_bytes
        if is_full or (client and self._by_client[client] + size_bytes > self._per_client_bytes):
            raise RateLimitedError("The server holds as much of what was sent as it may.")
        self._held_bytes += size_bytes
        self._by_client[client] += size_bytes

    def give_back(self, client: str, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._by_client[client] -= size_bytes
        if not self._by_client[client]:
            del self._by_client[client]


class ByteLease:
    """Bytes held by one request or socket; its owner releases it."""

    def __init__(self, budget: ByteBudget, client: str) -> None:
        self._budget = budget
        self._client = client
        self._held_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Raises RateLimitedError if that would be too much."""
        self._budget.take(self._client, size_bytes)
        self._held_bytes += size_bytes

    def release(self) -> None:
        self._budget.give_back(self._client, self._held_bytes)
        self._held_bytes = 0
