"""Access control: addresses behind proxies, origins, administrators, client secrets.

Decides from headers and addresses alone; never reads a body or sends a response.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import math
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel
from starlette.requests import HTTPConnection

from core.addresses import LOCAL_NAME, address_of, is_loopback
from core.errors import BadRequestError, OriginRefusedError, RateLimitedError, UnauthorizedError
from core.schemas.queue import SESSION_SECRET_BYTES
from core.schemas.realtime_session import SessionPatch
from gateway_modules.web.limits import AddressBuckets, network_of
from settings.sections import SecuritySettings

ADMIN_HEADER: Final = "X-Admin-Token"
ADMIN_COOKIE: Final = "admin_session"
HOST_PREFIX: Final = "__Host-"  # bound to this host and to TLS. Source: RFC 6265bis, 4.1.3.2
DEFAULT_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}
ANY: Final = "*"

ADMIN_MARK: Final = "authenticated as administrator"  # key in a request's scope

TRIES_PER_MINUTE: Final = 10  # wrong tokens per address
SECONDS_PER_MINUTE: Final = 60
# Fields of responses that identify a conversation or a ticket, or are derived from what was said.
MASKED_FIELDS: Final = frozenset(
    {"session_id", "current_session_id", "ticket_id", "cached_hash", "messages_hash"}
)
# Fields of responses that may contain local paths.
HIDDEN_FIELDS: Final = frozenset({"error", "last_error", "problem"})
MASK_CHARS: Final = 8
KEY_BYTES: Final = 16

Answer = TypeVar("Answer", bound=BaseModel)
COOKIE_BYTES: Final = 16
SESSION_AGE_S: Final = 12 * 3_600  # a working day
SESSIONS_MAX: Final = 64  # concurrent admin sessions
SECRET_PREFIX: Final = "ek_"
SECRET_BYTES: Final = 24
SECRETS_MAX: Final = 1_000  # more are refused until one expires
SECRET_SESSION_MAX_CHARS: Final = 64 * 1024  # of a session as JSON


def new_session_secret() -> str:
    return secrets.token_hex(SESSION_SECRET_BYTES)


def is_same_secret(shown: str, secret: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), secret.encode())


def hash_of(secret: str) -> str:
    """Identify a secret without revealing it; a lookup's duration depends on the hash alone."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class AccessPolicy:
    def __init__(
        self,
        settings: SecuritySettings,
        admin_token: str,
        host_names: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host_names` are further names of this server: those of its certificate."""
        self._token = admin_token
        self.needs_token = not settings.insecure_admin or settings.admin_token is not None
        self._origins = frozenset(map(origin_key, settings.allowed_origins)) - {""}
        names = {LOCAL_NAME, *host_names, *settings.allowed_hosts}
        self._hosts = frozenset(name.lower().rstrip(".") for name in names)
        networks = settings.trusted_proxies
        self._proxies = [ipaddress.ip_network(network, strict=False) for network in networks]
        self._wrong_tokens = AddressBuckets(
            TRIES_PER_MINUTE, TRIES_PER_MINUTE / SECONDS_PER_MINUTE, clock
        )
        self.sessions = AdminSessions(clock)

    def client_address(self, connection: HTTPConnection) -> str:
        """Return the address of the peer or that a trusted proxy reports; "" if unknown."""
        peer = _peer(connection)
        forwarded = connection.headers.getlist("x-forwarded-for")
        if not forwarded or not self._is_proxy(peer):
            return peer
        for hop in reversed([address.strip() for address in ",".join(forwarded).split(",")]):
            if address_of(hop) is None:
                return ""  # never the proxy's own address, which has more rights
            peer = hop
            if not self._is_proxy(hop):
                break
        return peer

    def limited_peer(self, peer: str) -> str:
        """Return the client whose quota a peer's connections use; "" for proxies and loopback."""
        return "" if self._is_proxy(peer) or is_loopback(peer) else network_of(peer)

    def limited_client(self, connection: HTTPConnection) -> str:
        """Return the client whose quota a request uses; "" for this machine, which has none.

        The headers of a local proxy are used even if it is not configured as trusted: here
        they can only impose limits.
        """
        address = self.client_address(connection)
        if is_loopback(address):
            raw = ",".join(connection.headers.getlist("x-forwarded-for"))
            address = raw.rpartition(",")[2].strip() or connection.headers.get("x-real-ip", "")
        return "" if is_loopback(address) else network_of(address)

    def is_secure(self, connection: HTTPConnection) -> bool:
        scheme = str(connection.scope["scheme"])
        forwarded = connection.headers.get("x-forwarded-proto")
        if forwarded and self._is_proxy(_peer(connection)):
            scheme = forwarded.rpartition(",")[2].strip().lower()
        return scheme in ("https", "wss")

    def check_host(self, connection: HTTPConnection) -> None:
        host, _ = _split_host(connection.headers.get("host", ""))
        parent = f"*.{host.partition('.')[2]}"
        if address_of(host) is not None or self._hosts & {ANY, host, parent}:
            return
        raise OriginRefusedError(
            "This server does not serve the requested host name. "
            "If it should, add the name to security.allowed_hosts."
        )

    def check_origin(self, connection: HTTPConnection) -> None:
        origin = connection.headers.get("origin")
        if origin is None or self._origins & {ANY, origin_key(origin)}:
            return
        hosts = [connection.headers.get("host", "")]
        if self._is_proxy(_peer(connection)):
            hosts += connection.headers.getlist("x-forwarded-host")
        # Schemes are not compared: a proxy that terminates TLS sends plain HTTP.
        scheme, page_host = _split_origin(origin)
        port = DEFAULT_PORTS.get(scheme)
        if page_host[0] and page_host in [_split_host(host, port) for host in hosts]:
            return
        raise OriginRefusedError()

    def check_admin(self, connection: HTTPConnection) -> None:
        if self.needs_token and not self.sessions.is_open(self.admin_cookie(connection)):
            self.check_token(connection.headers.get(ADMIN_HEADER), self.client_address(connection))

    def is_admin(self, connection: HTTPConnection) -> bool:
        try:
            self.check_admin(connection)
        except UnauthorizedError:
            return False
        return True

    def check_token(self, shown: str | None, address: str) -> None:
        """Raises UnauthorizedError, or RateLimitedError after too many wrong tokens of an address.

        The right token is always accepted, so that a client of the same address cannot lock out
        an administrator.
        """
        if not shown:
            raise UnauthorizedError()
        if is_same_secret(shown, self._token):
            return
        if not self._wrong_tokens.take(address):
            raise RateLimitedError("Too many wrong tokens. Please try again in a minute.")
        raise UnauthorizedError()

    def cookie_name(self, connection: HTTPConnection) -> str:
        return HOST_PREFIX + ADMIN_COOKIE if self.is_secure(connection) else ADMIN_COOKIE

    def admin_cookie(self, connection: HTTPConnection) -> str:
        return connection.cookies.get(self.cookie_name(connection), "")

    def _is_proxy(self, peer: str) -> bool:
        address = address_of(peer)
        return address is not None and any(address in network for network in self._proxies)


def origin_key(origin: str) -> str:
    if origin == ANY:
        return origin
    scheme, (host, port) = _split_origin(origin.strip().rstrip("/"))
    return f"{scheme}://{host}:{port}" if host else ""


def _peer(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


def _split_host(netloc: str, default_port: int | None = None) -> tuple[str, int | None]:
    """Split a header's "host:port"; ("", None) if it cannot be parsed."""
    try:
        parts = urlsplit(f"//{netloc}")
        return (parts.hostname or "").rstrip("."), parts.port or default_port
    except ValueError:
        return "", None


def _split_origin(origin: str) -> tuple[str, tuple[str, int | None]]:
    try:
        page = urlsplit(origin)
    except ValueError:
        return "", ("", None)
    scheme = page.scheme.lower()
    return scheme, _split_host(page.netloc, DEFAULT_PORTS.get(scheme))


class Masks:
    """Replaces ids by masks that stay the same while the gateway runs."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)

    def mask(self, name: str) -> str:
        digest = hmac.digest(self._key, name.encode("utf-8", "surrogatepass"), "sha256")
        return f"…{digest.hex()[:MASK_CHARS]}"

    def masked(self, answer: Answer, own: Collection[str] = ()) -> Answer:
        """Mask ids, except the caller's own, and hide errors in a response and its parts."""
        fields = dict(answer)
        if fields.get("session_id") in own:
            return answer
        changes = {name: self._shown(name, value, own) for name, value in fields.items()}
        return answer.model_copy(update=changes)

    def _shown(self, name: str, value: object, own: Collection[str]) -> object:
        if name in HIDDEN_FIELDS:
            return None
        if isinstance(value, BaseModel):
            return self.masked(value, own)
        if isinstance(value, list):
            return [self._shown(name, one, own) for one in value]
        is_secret = name in MASKED_FIELDS and isinstance(value, str) and value != ""
        return self.mask(str(value)) if is_secret and value not in own else value


@dataclass
class AdminSessions:
    """Admin sessions; with more than `SESSIONS_MAX` the oldest is ended."""

    clock: Callable[[], float]
    ends_s: dict[str, float] = field(default_factory=dict)  # by the hash of the cookie

    def begin(self) -> str:
        cookie = secrets.token_urlsafe(COOKIE_BYTES)
        self.ends_s[hash_of(cookie)] = self.clock() + SESSION_AGE_S
        if len(self.ends_s) > SESSIONS_MAX:
            del self.ends_s[next(iter(self.ends_s))]
        return cookie

    def is_open(self, cookie: str) -> bool:
        return self.clock() < self.ends_s.get(hash_of(cookie), -math.inf)

    def end(self, cookie: str) -> None:
        self.ends_s.pop(hash_of(cookie), None)


@dataclass(frozen=True)
class ClientSecret:
    """A short-lived key in place of an API key; `expires_at` in Unix seconds."""

    value: str
    expires_at: int


@dataclass
class ClientSecrets:
    """Unexpired secrets by their hash, with the settings of their sessions, in memory.

    Source: OpenAI's API reference, "Create client secret".
    """

    clock: Callable[[], float] = time.time
    # Expiry, session as JSON, and client.
    kept: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    def make(self, settings: SessionPatch, seconds: int, client: str) -> ClientSecret:
        """Make one for a client, which may have half of all; "" is not limited."""
        text = settings.model_dump_json(exclude_unset=True)
        if len(text) > SECRET_SESSION_MAX_CHARS:
            raise BadRequestError(
                f"session: longer than {SECRET_SESSION_MAX_CHARS} characters of JSON."
            )
        now_s = self.clock()
        self.kept = {key: kept for key, kept in self.kept.items() if kept[0] > now_s}
        own = sum(kept[2] == client for kept in self.kept.values())
        if len(self.kept) >= SECRETS_MAX or (client and own >= SECRETS_MAX // 2):
            raise RateLimitedError(f"There are {SECRETS_MAX} client secrets; wait for one to end.")
        made = ClientSecret(SECRET_PREFIX + secrets.token_hex(SECRET_BYTES), int(now_s) + seconds)
        self.kept[hash_of(made.value)] = made.expires_at, text, client
        return made

    # Any: a JSON object.
    def find(self, value: str) -> dict[str, Any] | None:
        expires_at, text, _ = self.kept.get(hash_of(value), (0, "", ""))
        return dict(json.loads(text)) if expires_at > self.clock() else None
