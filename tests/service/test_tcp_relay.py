"""The slow network of the page benchmarks: nothing is lost, changed or overtaken."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from benchmarks.launched import HOST, free_ports
from benchmarks.relay import running

JITTER_S = 0.02
MESSAGES = 40
BIG = "x" * 200_000


async def echo(socket: ServerConnection) -> None:
    async for text in socket:
        await socket.send(text)
        await socket.send(text)


def plain(connection: ServerConnection, request: Request) -> Response | None:
    return connection.respond(200, "plain") if request.path == "/plain" else None


@pytest.mark.parametrize("jitter_s", [0.0, JITTER_S])
def test_messages_come_late_whole_and_in_order(jitter_s: float) -> None:
    async def run() -> tuple[list[str], float]:
        relay = free_ports(1)
        async with serve(echo, HOST, 0, process_request=plain, max_size=None) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            command = ["-m", "benchmarks.tcp_relay", str(relay), str(port), str(jitter_s)]
            with running("the relay", command, relay):
                url = f"http://{HOST}:{relay}/plain"
                async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
                    assert (await client.get(url)).text == "plain"
                began_s = time.monotonic()
                async with connect(
                    f"ws://{HOST}:{relay}/", max_size=None, open_timeout=None, proxy=None
                ) as socket:
                    for number in range(MESSAGES):
                        await socket.send(json.dumps(number))
                    await socket.send(BIG)
                    texts = [str(await socket.recv()) for _ in range(2 * MESSAGES + 2)]
                return texts, time.monotonic() - began_s

    texts, took_s = asyncio.run(run())
    sent = [json.dumps(number) for number in range(MESSAGES)]
    assert texts == [text for text in [*sent, BIG] for _ in range(2)]
    assert took_s > jitter_s / 2
