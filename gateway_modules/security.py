"""Who is asking: addresses behind proxies, pages of other sites, administrators.

Decides from headers and addresses alone; never reads a body, never answers.
"""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import Scope

from config import SecuritySettings
from core.errors import (
    ForbiddenError,
    OriginRefusedError,
    RateLimitedError,
    UnauthorizedError,
)
from gateway_modules.rates import AddressBuckets, network_of

ADMIN_HEADER: Final = "X-Admin-Token"
ADMIN_COOKIE: Final = "admin_token"
COOKIE_PURPOSE: Final = b"cookie of an administrator"  # so that the token itself is not in it
FORWARDED_HEADERS: Final = ("x-forwarded-for", "forwarded", "x-real-ip")
DEFAULT_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}
ANY_ORIGIN: Final = "*"
LOCAL_NAMES: Final = frozenset({"localhost"})

ADMIN_MARK: Final = "an administrator asked"  # key in a request's scope

TRIES_PER_MINUTE: Final = 10  # ours: wrong tokens of one address
SECONDS_PER_MINUTE: Final = 60


class Doorkeeper:
    """Tells visitors apart by the rules of the configuration."""

    def __init__(
        self, settings: SecuritySettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the rules.

        Args:
            settings: Token, origins and proxies.
            clock: Seconds of a clock that only goes forward.
        """
        token = settings.admin_token
        self._token = token.get_secret_value().encode() if token else b""
        self._cookie = hmac.digest(self._token, COOKIE_PURPOSE, "sha256").hex() if token else ""
        self._is_admin_open = settings.insecure_admin
        self._origins = frozenset(_origin_key(origin) for origin in settings.allowed_origins)
        networks = settings.trusted_proxies
        self._proxies = [ipaddress.ip_network(network, strict=False) for network in networks]
        self._wrong_tokens = AddressBuckets(
            TRIES_PER_MINUTE, TRIES_PER_MINUTE / SECONDS_PER_MINUTE, clock
        )

    @property
    def needs_token(self) -> bool:
        """Administrators have to show a token."""
        return bool(self._token)

    @property
    def cookie(self) -> str:
        """What the cookie of somebody who showed the token holds."""
        return self._cookie

    def client_address(self, connection: HTTPConnection) -> str:
        """Return who asks: the peer, or what a trusted proxy says of it; "" if not known."""
        peer = connection.client.host if connection.client else ""
        if not self._is_proxy(peer):
            return peer
        told = ",".join(connection.headers.getlist("x-forwarded-for")).split(",")
        for hop in reversed([address.strip() for address in told]):
            if _address(hop) is None:
                break
            peer = hop
            if not self._is_proxy(hop):
                break
        return peer

    def limited_peer(self, peer: str) -> str:
        """Return the client that a peer's connections count for; "" if it may speak for many."""
        return "" if self._is_proxy(peer) or is_loopback(peer) else network_of(peer)

    def limited_client(self, connection: HTTPConnection) -> str:
        """Return the client whom limits count a request for; "" for a program of this machine.

        A proxy of this machine speaks for others even where it is not configured: believing its
        headers here can only limit, since this machine itself has no limits of its own.
        """
        address = self.client_address(connection)
        if is_loopback(address):
            raw = ",".join(connection.headers.getlist("x-forwarded-for"))
            address = raw.rpartition(",")[2].strip() or connection.headers.get("x-real-ip", "")
        return "" if is_loopback(address) else network_of(address)

    def is_this_machine(self, connection: HTTPConnection) -> bool:
        """Whether somebody at this machine asks, by this machine's own name.

        A proxy of this machine that is not configured speaks for others, and a page that had its
        own name pointed at this machine is not ours: neither counts.
        """
        peer = connection.client.host if connection.client else ""
        is_forwarded = any(name in connection.headers for name in FORWARDED_HEADERS)
        if is_forwarded and not self._is_proxy(peer):
            return False
        host, _ = _split_host(connection.headers.get("host", ""))
        return is_loopback(self.client_address(connection)) and (
            host in LOCAL_NAMES or is_loopback(host)
        )

    def check_origin(self, connection: HTTPConnection) -> None:
        """Let pass what no browser sent, what our own pages sent, and what is allowed.

        Raises:
            OriginRefusedError: A page of another site sent it.
        """
        origin = connection.headers.get("origin")
        if origin is None or ANY_ORIGIN in self._origins or _origin_key(origin) in self._origins:
            return
        peer = connection.client.host if connection.client else ""
        hosts = [connection.headers.get("host", "")]
        if self._is_proxy(peer):
            hosts += connection.headers.getlist("x-forwarded-host")
        page = urlsplit(origin)
        # The scheme is left out: a proxy that ends TLS talks plain HTTP to us.
        page_host = _split_host(page.netloc, DEFAULT_PORTS.get(page.scheme))
        scheme_port = DEFAULT_PORTS.get(page.scheme)
        if page.netloc and page_host in [_split_host(host, scheme_port) for host in hosts]:
            return
        raise OriginRefusedError()

    def check_admin(self, connection: HTTPConnection) -> None:
        """Let administrators pass.

        Raises:
            UnauthorizedError: The token is missing or wrong.
            ForbiddenError: There is no token, and somebody else than this machine asks.
            RateLimitedError: This address has tried too many wrong tokens.
        """
        if not self._token:
            if not (self._is_admin_open or self.is_this_machine(connection)):
                raise ForbiddenError()
            return
        shown = connection.headers.get(ADMIN_HEADER) or connection.cookies.get(ADMIN_COOKIE)
        self.check_token(shown, self.client_address(connection))

    def check_token(self, shown: str | None, address: str) -> None:
        """Compare a token with the configured one, in constant time.

        Args:
            shown: The token or the cookie's value, if anything.
            address: By whom.

        Raises:
            UnauthorizedError: It is missing or wrong, or no token is configured.
            RateLimitedError: This address has tried too many wrong ones.
        """
        if not shown or not self._token:
            raise UnauthorizedError()
        if self._wrong_tokens.is_empty(address):
            raise RateLimitedError("Too many wrong tokens. Please try again in a minute.")
        told = shown.encode("utf-8", "surrogatepass")
        is_token = hmac.compare_digest(told, self._token)
        is_cookie = hmac.compare_digest(told, self._cookie.encode())
        if not (is_token or is_cookie):
            self._wrong_tokens.take(address)
            raise UnauthorizedError()

    def _is_proxy(self, peer: str) -> bool:
        address = _address(peer)
        return address is not None and any(address in network for network in self._proxies)


def mark_admin(scope: Scope) -> None:
    """Note that a request was let in as an administrator's."""
    scope[ADMIN_MARK] = True


def is_of_admin(scope: Scope) -> bool:
    """Whether a request was let in as an administrator's."""
    return ADMIN_MARK in scope


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine that no other can reach."""
    address = _address(host)
    return address is not None and address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _split_host(netloc: str, default_port: int | None = None) -> tuple[str, int | None]:
    """Split "host:port" as headers carry it; what cannot be read matches nothing real."""
    try:
        parts = urlsplit(f"//{netloc}")
        return (parts.hostname or "").rstrip("."), parts.port or default_port
    except ValueError:
        return "", None


def _origin_key(origin: str) -> str:
    """Return the one spelling of an origin that others are compared by."""
    if origin == ANY_ORIGIN:
        return origin
    page = urlsplit(origin.strip().rstrip("/"))
    host, port = _split_host(page.netloc, DEFAULT_PORTS.get(page.scheme.lower()))
    return f"{page.scheme.lower()}://{host}:{port}"
