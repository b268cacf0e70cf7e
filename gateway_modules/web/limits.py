"""Limits on clients: open connections, request rates, bytes in flight, uploads.

Connections are limited for the whole server, since each takes a file descriptor.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import math
import resource
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

import structlog

from core.addresses import address_of, is_loopback
from core.errors import RateLimitedError, SessionInUseError

# For logs, recordings, workers, libraries and health checks.
DESCRIPTORS_RESERVED: Final = 256
# Health checks at the same time beyond the limit of connections; each takes a few milliseconds.
HEALTH_CHECKS_MAX: Final = 64
# A connection may need a second descriptor, for a worker or a file.
DESCRIPTORS_EACH: Final = 2
DESCRIPTORS_WANTED: Final = 65_536
# A browser opens up to six connections for files besides its socket.
CONNECTIONS_PER_SOCKET: Final = 8
READ_BYTES: Final = 4 * 1024  # bounds the parsing for one client per turn of the loop

REFUSALS_PERIOD_S: Final = 1.0

Result = TypeVar("Result")


async def happens(event: asyncio.Event, limit_s: float) -> bool:
    """Wait for an event; return whether it came in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()


async def first_of(*works: Awaitable[Result]) -> Result:
    """Run works beside each other until one ends; return its result, or raise its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class RefusalLog:
    """Warnings, at most one a second: a flood must not fill the disk."""

    clock: Callable[[], float] = time.monotonic
    next_s: float = -math.inf
    unwritten: int = 0

    def warn(self, event: str, **fields: object) -> None:
        now_s = self.clock()
        if now_s < self.next_s:
            self.unwritten += 1
            return
        structlog.get_logger("refused").warning(event, more=self.unwritten, **fields)
        self.next_s, self.unwritten = now_s + REFUSALS_PERIOD_S, 0


def subtract(counts: Counter[str], client: str, amount: int = 1) -> None:
    """Lower a client's count; a count of zero takes no memory."""
    counts[client] -= amount
    if not counts[client]:
        del counts[client]


Peer = tuple[str, int]  # its address and port, which identify an open connection


class Connections:
    """Beyond `limit` the connection idle longest is closed, or, if none is, the new one refused.

    One of this machine is then let in for a health check only, without which the launcher would
    restart the gateway. Beyond `HEALTH_CHECKS_MAX` the oldest of these gives way: a proxy of this
    machine may open them too.
    """

    def __init__(self, limit: int, per_client: int, client_of: Callable[[str], str]) -> None:
        """`client_of` maps a peer's address to the client whose quota it uses; "" for none."""
        self.limit = limit
        self.refusals = RefusalLog()
        self._per_client = per_client
        self._client_of = client_of
        self._open: dict[Peer, tuple[str, asyncio.Transport]] = {}
        self._by_client: Counter[str] = Counter()
        self._idle: OrderedDict[Peer, None] = OrderedDict()
        self._checks: OrderedDict[Peer, asyncio.Transport] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, transport: asyncio.Transport) -> Peer | None:
        peer = peer_of(transport)
        client = self._client_of(peer[0])
        if client and self._by_client[client] >= self._per_client:
            return None
        if len(self._open) >= self.limit:
            if not self._idle:
                return self._admit_check(peer, transport) if is_local(transport) else None
            longest = next(iter(self._idle))
            _, idle = self._open[longest]
            self.leave(longest)
            idle.abort()
        self._open[peer] = client, transport
        self._by_client[client] += 1
        self._idle[peer] = None
        return peer

    def _admit_check(self, peer: Peer, transport: asyncio.Transport) -> Peer:
        if len(self._checks) >= HEALTH_CHECKS_MAX:
            _, oldest = self._checks.popitem(last=False)
            oldest.abort()
        self._checks[peer] = transport
        return peer

    def is_check(self, peer: Peer) -> bool:
        """Whether a connection was let in for a health check only."""
        return peer in self._checks

    def leave(self, peer: Peer) -> None:
        self._checks.pop(peer, None)
        self._idle.pop(peer, None)
        if peer in self._open:
            client, _ = self._open.pop(peer)
            subtract(self._by_client, client)

    def note(self, peer: Peer, *, is_idle: bool) -> None:
        if not is_idle:
            self._idle.pop(peer, None)
        elif peer in self._open:
            self._idle.setdefault(peer)


class BoundedReads(asyncio.BufferedProtocol, asyncio.Protocol):
    """A protocol that reads at most `read_bytes` per turn of the event loop."""

    _read: bytearray

    @property
    def read_bytes(self) -> int:
        return READ_BYTES

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer of the next read; idle connections hold none.

        A view, because TLS fills it slice by slice and slicing a bytearray copies.
        """
        self._read = bytearray(self.read_bytes)
        return memoryview(self._read)

    def buffer_updated(self, nbytes: int) -> None:
        block = bytes(memoryview(self._read)[:nbytes])
        del self._read
        self.data_received(block)

    def eof_received(self) -> None:
        """Close when the client has closed its side."""


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    peer = transport.get_extra_info("peername")
    return (str(peer[0]), int(peer[1])) if peer else ("", 0)


def is_local(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer is this machine, over loopback or the server's own address."""
    address, own = peer_of(transport)[0], transport.get_extra_info("sockname")
    return is_loopback(address) or (bool(own) and address == own[0])


def connection_limit(max_sockets: int) -> int:
    """Raise the limit of open files; return the number of connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    allowed = (wanted if soft == resource.RLIM_INFINITY else soft) - DESCRIPTORS_RESERVED
    return max(1, min(2 * max_sockets, allowed // DESCRIPTORS_EACH))


ADDRESSES_MAX: Final = 10_000  # buckets in memory
# Smallest allocation to a provider's customer. Source: RFC 6177, section 2.
CLIENT_PREFIX_BITS: Final = 64
LEASE_MARK: Final = "byte lease"  # key in a socket's scope
# Of each lease of a socket, which has two: for what arrives and for what is not yet forwarded. It
# holds the longest chunk of a call in Base64 and the read that goes beyond its end.
SOCKET_BYTES: Final = 256 * 1024
NO_BUFFER: Final = "The server cannot buffer more data now; try again later."
NO_SOCKET: Final = (
    "The server has reached its limit of connections.",
    "There are too many connections from your address.",
)


def network_of(address: str) -> str:
    """Return the address or network that counts as one client: IPv4 /32 or IPv6 /64."""
    known = address_of(address)
    if isinstance(known, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((known, CLIENT_PREFIX_BITS), strict=False))
    return address if known is None else str(known)


class TokenBucket:
    """Token bucket: bursts up to `capacity`, `refill_per_s` sustained."""

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
        self._refill()
        self._level -= amount
        return max(0.0, -self._level / self._refill_per_s)

    def _refill(self) -> None:
        now_s = self._clock()
        self._level = min(self._capacity, self._level + (now_s - self._at_s) * self._refill_per_s)
        self._at_s = now_s


class AddressBuckets:
    """One bucket per client; beyond `ADDRESSES_MAX` the least recently used is dropped."""

    def __init__(self, capacity: float, refill_per_s: float, clock: Callable[[], float]) -> None:
        @functools.lru_cache(ADDRESSES_MAX)
        def bucket_of(_client: str) -> TokenBucket:
            return TokenBucket(capacity, refill_per_s, clock)

        self._bucket_of = bucket_of

    def take(self, address: str) -> bool:
        return self._bucket_of(network_of(address)).take()


@dataclass
class Budget:
    """What clients hold, in bytes or sockets; more is refused, nothing held is dropped.

    Client "" is limited by the total only.
    """

    total: int
    per_client: int
    refusals: tuple[str, str] = (NO_BUFFER, NO_BUFFER)  # of too much in total, for one client
    held: int = 0
    by_client: Counter[str] = field(default_factory=Counter)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    def lease(self, client: str, reserved: int = 0) -> Lease:
        return Lease(self, client, reserved)

    def give_back(self, client: str, amount: int) -> None:
        self.held -= amount
        subtract(self.by_client, client, amount)
        self._released.set()

    async def wait_until_free(self) -> None:
        while self.held:
            self._released.clear()
            await self._released.wait()


@dataclass
class Lease:
    """What one request or socket holds, released at the end of its block or by its owner."""

    budget: Budget
    client: str
    reserved: int = 0  # not refused, whatever others hold
    held: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def add(self, amount: int) -> None:
        budget, client = self.budget, self.client
        if self.held + amount > self.reserved:
            if budget.held + amount > budget.total:
                raise RateLimitedError(budget.refusals[0])
            if client and budget.by_client[client] + amount > budget.per_client:
                raise RateLimitedError(budget.refusals[1])
        budget.held += amount
        self.held += amount
        budget.by_client[client] += amount

    def give_back(self, amount: int) -> None:
        amount = min(amount, self.held)
        self.budget.give_back(self.client, amount)
        self.held -= amount

    def release(self) -> None:
        self.give_back(self.held)


UPLOADS_AT_ONCE: Final = 8  # of the largest size, which all uploads together may have
UPLOADS_EACH: Final = 4  # the same, of one client
UPLOADS_BUSY: Final = "Too many files are being uploaded at the moment; try again later."
UPLOADS_MAX: Final = 10  # to one recording, since the gateway started
UPLOADED_TO_MAX: Final = 10_000  # recordings, and clients, whose uploads are counted
DAY_S: Final = 86_400.0


def upload_budget(*largest_bytes: int) -> Budget:
    """Return the budget of all uploads; `largest_bytes` are the limits of single ones."""
    most = max(largest_bytes)
    return Budget(UPLOADS_AT_ONCE * most, UPLOADS_EACH * most, (UPLOADS_BUSY, UPLOADS_BUSY))


TRANSCRIPTIONS_EACH: Final = 2  # of one client; conversations may share the transcriber
TRANSCRIPTIONS_MAX: Final = 1_000  # of all; the transcribers' own queues are far shorter
TRANSCRIPTIONS_BUSY: Final = "Too many of your files are being transcribed; try again later."


def transcription_budget() -> Budget:
    refusals = (TRANSCRIPTIONS_BUSY, TRANSCRIPTIONS_BUSY)
    return Budget(TRANSCRIPTIONS_MAX, TRANSCRIPTIONS_EACH, refusals)


class UploadCounts:
    """Limits uploads: one at a time to a recording and `UPLOADS_MAX` in all; bytes of a client.

    Without the latter, one client could fill the storage, so that others' recordings are deleted.
    Overflow: beyond `UPLOADED_TO_MAX` recordings or clients the least recent count is dropped.
    """

    def __init__(self, client_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """`client_bytes` is the most of a client within a day."""
        self._client_bytes, self._now_s = client_bytes, now_s
        self._counts: dict[str, int] = {}  # by recording, latest last
        self._days: dict[str, tuple[float, int]] = {}  # begin and bytes by client, latest last
        self._running: set[str] = set()

    @contextmanager
    def counted(self, recording_id: str, client: str, size_bytes: int) -> Iterator[None]:
        """Count an upload if the block succeeds, and its size in any case."""
        if recording_id in self._running:
            raise SessionInUseError("Another file is being uploaded to this recording.")
        if self._counts.get(recording_id, 0) >= UPLOADS_MAX:
            raise RateLimitedError(f"A recording takes at most {UPLOADS_MAX} uploads.")
        self._count_bytes(client, size_bytes)
        self._running.add(recording_id)
        try:
            yield
            self._counts[recording_id] = self._counts.pop(recording_id, 0) + 1
            if len(self._counts) > UPLOADED_TO_MAX:
                del self._counts[next(iter(self._counts))]
        finally:
            self._running.remove(recording_id)

    def _count_bytes(self, client: str, size_bytes: int) -> None:
        if not client:
            return
        began_s, counted_bytes = self._days.get(client, (self._now_s(), 0))
        if self._now_s() - began_s >= DAY_S:
            began_s, counted_bytes = self._now_s(), 0
        if counted_bytes + size_bytes > self._client_bytes:
            raise RateLimitedError(f"A client uploads at most {self._client_bytes} bytes a day.")
        self._days.pop(client, None)
        self._days[client] = began_s, counted_bytes + size_bytes
        if len(self._days) > UPLOADED_TO_MAX:
            del self._days[next(iter(self._days))]
