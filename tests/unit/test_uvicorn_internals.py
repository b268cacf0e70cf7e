"""What the gateway overrides and reads of uvicorn and websockets beyond what they document.

A release that changes any of it fails here by name, before it fails in some other test or on a
server. Everything else that we use of them is documented.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from gateway_modules.web.server import GatewayHttpProtocol, GatewayServer
from gateway_modules.web.socket_server import GatewaySocketProtocol

SUBCLASSES: Final = MappingProxyType[type, type](
    {
        GatewaySocketProtocol: WebSocketsSansIOProtocol,
        GatewayHttpProtocol: H11Protocol,
        GatewayServer: uvicorn.Server,
    }
)
SOCKET_NAMES: Final = tuple(
    "close_sent conn disconnected handshake_complete handshake_initiated loop writable".split()
)
HTTP_NAMES: Final = ("conn", "cycle", "flow", "loop", "tasks", "transport")
SERVER_NAMES: Final = ("_captured_signals", "force_exit", "should_exit")
CALLED: Final = (
    (WebSocketsSansIOProtocol, "handle_parser_exception", ["self"]),
    (H11Protocol, "send_400_response", ["self", "msg"]),
)


class Unlimited(asyncio.Transport):
    """A transport that holds nothing back."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take no limits."""


async def no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serves nothing."""


def overrides() -> Iterator[tuple[type, str]]:
    """Every public method, and the constructor, that a subclass of ours defines."""
    for ours in SUBCLASSES:
        for name, value in vars(ours).items():
            if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
                yield ours, name


def parameters(kind: type, name: str) -> list[str]:
    """The names of a method's parameters; none if there is no such method."""
    method = getattr(kind, name, None)
    return list(inspect.signature(method).parameters) if method is not None else []


@pytest.mark.parametrize(("ours", "name"), list(overrides()))
def test_every_overridden_uvicorn_method_exists(ours: type, name: str) -> None:
    theirs = SUBCLASSES[ours]
    if (ours, name) == (GatewayServer, "__init__"):
        assert parameters(theirs, name) == ["self", "config"]
        return
    place = f"{ours.__name__}.{name} overrides nothing like it in uvicorn {uvicorn.__version__}"
    assert parameters(theirs, name) == parameters(ours, name), place


@pytest.mark.parametrize(("theirs", "name", "expected"), CALLED)
def test_the_uvicorn_methods_we_call_exist(theirs: type, name: str, expected: list[str]) -> None:
    assert parameters(theirs, name) == expected, f"uvicorn {uvicorn.__version__} has changed it"


def test_the_uvicorn_attributes_we_read_exist() -> None:
    async def make() -> dict[str, set[str]]:
        config = uvicorn.Config(no_app, log_config=None)
        config.load()
        socket = WebSocketsSansIOProtocol(config, ServerState(), {})
        http = H11Protocol(config, ServerState(), {})
        made = {"socket": socket, "http": http, "server": uvicorn.Server(config)}
        return {name: set(vars(one)) for name, one in made.items()}

    there = asyncio.run(make())
    missing = {
        "socket": set(SOCKET_NAMES) - there["socket"],
        "http": set(HTTP_NAMES) - there["http"],
        "server": set(SERVER_NAMES) - there["server"],
    }
    assert missing == {"socket": set(), "http": set(), "server": set()}, uvicorn.__version__


def test_the_websockets_internals_we_use_exist() -> None:
    assert parameters(ClientConnection, "process_event") == ["self", "event"]
    assert parameters(ClientConnection, "send_data") == ["self"]
    assert parameters(ClientProtocol, "send_text") == ["self", "data", "fin"]

    async def make() -> ClientConnection:
        connection = ClientConnection(ClientProtocol(parse_uri("ws://localhost/")))
        connection.connection_made(Unlimited())
        return connection

    connection = asyncio.run(make())
    assert connection.paused is False and connection.send_in_progress is None
    assert len(connection.recv_messages.frames) == 0
