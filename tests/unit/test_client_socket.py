"""A client's socket at the gateway: one that does not read is let go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.websockets import WebSocket

from core.sockets import ClientGoneError
from gateway_modules.web.client_socket import SEND_LIMIT_S, ClientSocket, Pace
from gateway_modules.web.limits import Budget
from tests.fakes.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_client_that_does_not_read_is_closed_with_try_later() -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(event: Any) -> None:
        sent.append(event)
        if event["type"] == "websocket.send":
            await asyncio.Event().wait()  # the buffers are full

    websocket = WebSocket({"type": "websocket", "headers": []}, receive=receive, send=send)
    await websocket.accept()
    lease = Budget(1_000, 1_000).lease("")
    wire = ClientSocket(websocket, (1_000, 1_000), Pace(), lease, grace_s=0.0)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(ClientGoneError, match="does not read"):
        await wire.send("{}")
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(SEND_LIMIT_S)
    assert sent[-1] == {
        "type": "websocket.close",
        "code": 1013,
        "reason": "the client does not read",
    }
    with pytest.raises(ClientGoneError):
        await wire.send("{}")


@pytest.mark.parametrize(("code", "may_resume"), [(1000, False), (1006, True)])
@in_virtual_time
async def test_why_a_client_has_left_is_known_even_if_a_send_fails_first(
    code: int, may_resume: bool
) -> None:
    arrived = asyncio.Queue[dict[str, Any]]()
    arrived.put_nowait({"type": "websocket.connect"})

    async def send(event: Any) -> None:
        if event["type"] == "websocket.send":
            raise OSError("closed")

    websocket = WebSocket({"type": "websocket", "headers": []}, receive=arrived.get, send=send)
    await websocket.accept()
    lease = Budget(1_000, 1_000).lease("")
    wire = ClientSocket(websocket, (1_000, 1_000), Pace(), lease, grace_s=60.0)
    arrived.put_nowait({"type": "websocket.receive", "text": "{}"})
    arrived.put_nowait({"type": "websocket.disconnect", "code": code})
    with pytest.raises(ClientGoneError):
        await wire.send("{}")
    assert await wire.receive() == "{}"
    with pytest.raises(ClientGoneError):
        await wire.receive()
    assert wire.socket.may_resume is may_resume
