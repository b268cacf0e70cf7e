"""The slow network of the page benchmarks: nothing is lost, changed or overtaken."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from benchmarks.jitter_relay import HOST, JitterRelay

JITTER_S = 0.02
MESSAGES = 40
BIG = "x" * 200_000


async def echo(socket: ServerConnection) -> None:
    async for text in socket:
        await socket.send(text)
        await socket.send(text)


def plain(connection: ServerConnection, request: Request) -> Response | None:
    return connection.respond(200, "plain") if request.path == "/plain" else None


def test_messages_come_late_whole_and_in_order() -> None:
    heard: list[str] = []

    async def run() -> tuple[list[str], float]:
        async with serve(echo, HOST, 0, process_request=plain, max_size=None) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            with JitterRelay(port, JITTER_S, heard.append) as relay:
                url = f"http://{HOST}:{relay.port}/plain"
                with ThreadPoolExecutor(1) as pool:
                    get = asyncio.get_running_loop().run_in_executor
                    answer = await get(pool, lambda: httpx.get(url, trust_env=False, timeout=None))
                assert answer.text == "plain"
                began_s = time.monotonic()
                async with connect(
                    f"ws://{HOST}:{relay.port}/", max_size=None, open_timeout=None, proxy=None
                ) as socket:
                    for number in range(MESSAGES):
                        await socket.send(json.dumps(number))
                    await socket.send(BIG)
                    texts = [str(await socket.recv()) for _ in range(2 * MESSAGES + 2)]
                return texts, time.monotonic() - began_s

    texts, took_s = asyncio.run(run())
    sent = [json.dumps(number) for number in range(MESSAGES)]
    assert texts == [text for text in [*sent, BIG] for _ in range(2)]
    assert heard[:MESSAGES] == sent
    assert took_s > JITTER_S / 2
