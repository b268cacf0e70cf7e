"""Address of a server, and its sessions; nothing connects before `async with`."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final, Unpack
from urllib.parse import urlsplit, urlunsplit

from minicpmo_live.errors import LiveError
from minicpmo_live.events import DuplexPrepare, Generate, HalfDuplexPrepare, Prefill
from minicpmo_live.link import Address
from minicpmo_live.sessions import AsyncChat, AsyncDuplex, AsyncHalfDuplex

DEFAULT_URL: Final = "http://localhost:8006"
SOCKET_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
ID_BYTES: Final = 8


class ChatSettings(Prefill, Generate, total=False):
    """Settings of a chat."""


class AsyncClient:
    """A server."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        cafile: str | PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Store the address of a gateway; raises `LiveError` if it is invalid.

        ws: and wss: mean http: and https:. `cafile` is a certificate to trust, PEM; the server's
        own is data/certs/cert.pem. `headers` are sent with each handshake.
        """
        try:
            parts = urlsplit(url)
            scheme = SOCKET_SCHEMES[parts.scheme]
            is_address = bool(parts.hostname) and parts.port != 0  # a ValueError for no number
        except (ValueError, KeyError):
            is_address = False
        if not is_address:
            raise LiveError(f"url: {url!r} is not an address like {DEFAULT_URL}")
        self._base = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._tls = ssl.create_default_context(cafile=cafile) if scheme == "wss" else None
        self._headers = headers

    def duplex(
        self, *, with_pictures: bool = False, **settings: Unpack[DuplexPrepare]
    ) -> AsyncDuplex:
        """Return a full-duplex call with fields of `prepare`: docs/protocol/duplex.md.

        `with_pictures` selects the queue and the wait estimate. Raises `LiveError` for a setting
        that is unknown, as the methods below.
        """
        address = self._address("duplex", "omni" if with_pictures else "adx")
        return AsyncDuplex(address, _checked(settings, DuplexPrepare))

    def half_duplex(self, **settings: Unpack[HalfDuplexPrepare]) -> AsyncHalfDuplex:
        """Return a half-duplex call with fields of `prepare`: docs/protocol/half_duplex.md."""
        address = self._address("half_duplex", "hdx")
        return AsyncHalfDuplex(address, _checked(settings, HalfDuplexPrepare))

    def chat(self, **settings: Unpack[ChatSettings]) -> AsyncChat:
        """Return a chat with fields of `prefill` and `generate`: docs/protocol/streaming.md."""
        return AsyncChat(self._address("streaming", "chat"), _checked(settings, ChatSettings))

    def _address(self, socket: str, prefix: str) -> Address:
        name = f"{prefix}_{secrets.token_hex(ID_BYTES)}"
        return Address(f"{self._base}/ws/{socket}/{name}", self._tls, self._headers)


# Any: JSON, and a typed dictionary's class.
def _checked(settings: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    known = kind.__annotations__.keys() - {"type", "messages", "session_id", "session_secret"}
    if unknown := settings.keys() - known:
        raise LiveError(f"unknown setting: {', '.join(sorted(unknown))}")
    return dict(settings)
