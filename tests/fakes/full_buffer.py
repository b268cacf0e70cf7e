"""A client's connection whose peer has vanished: what is written stays in the buffer."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

Kind = TypeVar("Kind", bound=ClientConnection)


class _FullTransport(asyncio.Transport):
    """To a peer that has vanished: what is written stays in the buffer."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._is_closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: object) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Wait for the buffer to be sent, which never happens."""
        self._is_closing = True

    def abort(self) -> None:
        self.close()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


# Any: the options of the library's class.
def with_a_full_buffer(kind: type[Kind], **options: Any) -> Kind:
    """Return an open connection; its keepalive has not begun."""
    client, server = ClientProtocol(parse_uri("ws://peer")), ServerProtocol()
    client.send_request(client.connect())
    server.receive_data(b"".join(client.data_to_send()))
    (request,) = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    client.receive_data(b"".join(server.data_to_send()))
    assert client.state is OPEN
    connection = kind(client, **options)
    connection.connection_made(_FullTransport(connection))
    connection.pause_writing()
    return connection
