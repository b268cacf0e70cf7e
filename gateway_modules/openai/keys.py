"""API keys: who may use the routes below /v1."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from fastapi import Depends
from starlette.requests import HTTPConnection

from core.errors import UnauthorizedError
from gateway_modules.openai.remembered import Json
from gateway_modules.service import gateway_of

BEARER = "bearer "
SUBPROTOCOL_KEY = "openai-insecure-api-key."


@dataclass(frozen=True)
class Grant:
    """What a key lets its owner do.

    Attributes:
        session: what the sessions of a client secret begin with; None with an API key.
    """

    session: Json | None = None


def check_key(connection: HTTPConnection) -> Grant:
    """Accept an API key or an unexpired client secret, and anything where no key is configured."""
    gateway, key = gateway_of(connection), shown_key(connection)
    session = gateway.client_secrets.find(key)
    if session is not None:
        return Grant(session)
    keys, shown = gateway.settings.security.api_keys, key.encode("utf-8", "surrogatepass")
    known = [hmac.compare_digest(shown, one.get_secret_value().encode()) for one in keys]
    if keys and not any(known):
        raise UnauthorizedError("Incorrect API key provided.")
    return Grant()


def check_api_key(connection: HTTPConnection) -> None:
    """Do as `check_key`, but refuse client secrets."""
    if check_key(connection).session is not None:
        raise UnauthorizedError("A client secret cannot make another; an API key is needed.")


def shown_key(connection: HTTPConnection) -> str:
    """Return the key of the Authorization header, or of Azure's `api-key`; "" without one.

    A page cannot set headers of a WebSocket: it names its key among the subprotocols.
    """
    header = connection.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    offered = connection.scope.get("subprotocols", ())
    keys = [name[len(SUBPROTOCOL_KEY) :] for name in offered if name.startswith(SUBPROTOCOL_KEY)]
    return connection.headers.get("api-key", keys[0] if keys else "")


NeedsKey = Depends(check_key)
"""Marks a router whose routes take an API key or a client secret."""

NeedsApiKey = Depends(check_api_key)
"""Marks a route that takes an API key only."""
