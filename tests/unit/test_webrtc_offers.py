"""Offers that pass the first checks and cannot be answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from aiortc import RTCPeerConnection

from core.errors import BadRequestError, QueueFullError
from settings.webrtc import WebRtcSettings
from webrtc.call import LABEL, Call
from webrtc.dialect import Live
from webrtc.playout import Playout

SETUP = "a=setup:actpass\r\n"
NO_SOCKET: Any = None  # not used before the call runs


@asynccontextmanager
async def offered() -> AsyncIterator[tuple[Call, str]]:
    """Yield a call that has no answer yet, and a valid offer."""
    client, call = RTCPeerConnection(), Call(NO_SOCKET, Live(), Playout(1_000), WebRtcSettings())
    client.addTransceiver("audio")
    client.createDataChannel(LABEL)
    try:
        yield call, (await client.createOffer()).sdp
    finally:
        await asyncio.gather(client.close(), call._peer.close())


@pytest.mark.parametrize("given", ["", SETUP + "a=fmtp:77 x\r\n"])
def test_an_offer_that_aiortc_fails_to_read_is_refused(given: str) -> None:
    async def answer() -> None:
        async with offered() as (call, sdp):
            assert SETUP in sdp
            with pytest.raises(BadRequestError, match="^sdp: invalid"):
                await call.answer(sdp.replace(SETUP, given))

    asyncio.run(answer())


def test_a_call_for_which_no_udp_port_is_free_is_refused() -> None:
    async def answer() -> None:
        loop = asyncio.get_running_loop()
        in_use = patch.object(loop, "create_datagram_endpoint", side_effect=OSError("in use"))
        async with offered() as (call, sdp):
            with in_use, pytest.raises(QueueFullError, match="UDP port"):
                await call.answer(sdp)

    asyncio.run(answer())


def test_no_other_machine_is_asked_before_a_call_is_answered() -> None:
    async def answer() -> None:
        async with offered() as (call, sdp):
            with patch("socket.gethostbyname", side_effect=OSError("no network")) as resolve:
                await call.answer(sdp)
            assert not resolve.called

    asyncio.run(answer())
