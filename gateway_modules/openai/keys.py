"""API keys: who may use the routes below /v1."""

from __future__ import annotations

import hmac

from fastapi import Depends
from starlette.requests import HTTPConnection

from core.errors import UnauthorizedError
from gateway_modules.service import gateway_of

BEARER = "bearer "
SUBPROTOCOL_KEY = "openai-insecure-api-key."


def check_key(connection: HTTPConnection) -> None:
    """Let a request with a configured key pass, and every request where none is configured.

    Raises:
        UnauthorizedError: The key is missing or wrong.
    """
    keys = gateway_of(connection).settings.security.api_keys
    shown = shown_key(connection).encode("utf-8", "surrogatepass")
    known = [hmac.compare_digest(shown, key.get_secret_value().encode()) for key in keys]
    if keys and not any(known):
        raise UnauthorizedError("Incorrect API key provided.")


def shown_key(connection: HTTPConnection) -> str:
    """Return the key of the Authorization header, or of Azure's `api-key`; "" without one.

    A page cannot set headers of a WebSocket: it names its key among the subprotocols.
    """
    told = connection.headers.get("authorization", "")
    if told.lower().startswith(BEARER):
        return told[len(BEARER) :].strip()
    offered = connection.scope.get("subprotocols", ())
    keys = [name[len(SUBPROTOCOL_KEY) :] for name in offered if name.startswith(SUBPROTOCOL_KEY)]
    return connection.headers.get("api-key", keys[0] if keys else "")


NeedsKey = Depends(check_key)
"""Marks a router whose routes take an API key."""
