"""Where a server is, and what can be begun there; nothing is connected before `async with`."""

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
    """Settings of a chat's questions and of their answers."""


class AsyncClient:
    """A server."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        cafile: str | PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Remember the address; nothing is connected.

        Args:
            url: Of the gateway; ws: and wss: are http: and https:.
            cafile: Certificate to trust, PEM; a server's own is data/certs/cert.pem.
            headers: Sent with each handshake.

        Raises:
            LiveError: The address is none.
        """
        parts = urlsplit(url)
        scheme = SOCKET_SCHEMES.get(parts.scheme)
        if scheme is None or not parts.netloc:
            raise LiveError(f"url: {url!r} is no address such as {DEFAULT_URL}")
        self._base = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._tls = ssl.create_default_context(cafile=cafile) if scheme == "wss" else None
        self._headers = headers

    def duplex(
        self, *, with_pictures: bool = False, **settings: Unpack[DuplexPrepare]
    ) -> AsyncDuplex:
        """Return a call in which both may speak at once.

        Args:
            with_pictures: Pictures will be shown; chooses the queue and the wait that is estimated.
            settings: Fields of `prepare`: docs/protocol/duplex.md.

        Raises:
            LiveError: There is no such setting.
        """
        prefix = "omni" if with_pictures else "adx"
        given = _checked(settings, DuplexPrepare)
        return AsyncDuplex(self._address("duplex", prefix), given)

    def half_duplex(self, **settings: Unpack[HalfDuplexPrepare]) -> AsyncHalfDuplex:
        """Return a call by turns.

        Args:
            settings: Fields of `prepare`: docs/protocol/half_duplex.md.

        Raises:
            LiveError: There is no such setting.
        """
        given = _checked(settings, HalfDuplexPrepare)
        return AsyncHalfDuplex(self._address("half_duplex", "hdx"), given)

    def chat(self, **settings: Unpack[ChatSettings]) -> AsyncChat:
        """Return a chat.

        Args:
            settings: Fields of `prefill` and `generate`: docs/protocol/streaming.md.

        Raises:
            LiveError: There is no such setting.
        """
        given = _checked(settings, ChatSettings)
        return AsyncChat(self._address("streaming", "chat"), given)

    def _address(self, socket: str, prefix: str) -> Address:
        name = f"{prefix}_{secrets.token_hex(ID_BYTES)}"
        return Address(f"{self._base}/ws/{socket}/{name}", self._tls, self._headers)


# Any: JSON, and a typed dictionary's class.
def _checked(settings: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    known = kind.__annotations__.keys() - {"type", "messages", "session_id", "session_secret"}
    if unknown := settings.keys() - known:
        raise LiveError(f"no such setting: {', '.join(sorted(unknown))}")
    return dict(settings)
