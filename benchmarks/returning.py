"""Kills the gateway while people wait: `python -m benchmarks.returning`.

Those who wait use the Python client, which reconnects and keeps its queue position; others come
while the next gateway starts. Counted are positions that were lost, and pairs in the wrong order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from contextlib import AsyncExitStack, suppress
from itertools import combinations
from pathlib import Path
from typing import Annotated

import httpx
import typer
from websockets.asyncio.client import connect

from benchmarks.launched import HOST, NotReachedError, free_ports
from benchmarks.relay import EXIT_FAILED, Ports, gateway_command, prepared, running
from benchmarks.stand_in_worker import HEALTH
from gateway_modules.web.security import ADMIN_HEADER, TOKEN_FILE
from minicpmo_live.client import AsyncClient
from minicpmo_live.errors import LiveError

LIMIT_S = 60.0
POLL_S = 0.1
RESULT_BYTES = 1_000
CROWD = {"connections_per_client": 1_000, "waiting_per_client": 1_000}


async def wait_in_line(client: AsyncClient) -> None:
    """Hold a session and read its messages until it or the task ends."""
    with suppress(LiveError):
        async with client.duplex() as session:
            async for _ in session:
                continue


class Queue:
    """The queue of whichever gateway listens now."""

    def __init__(self, port: int, data: Path) -> None:
        """Ask with the token of the administrator."""
        token = (data / TOKEN_FILE).read_text(encoding="utf8").strip()
        url = f"http://{HOST}:{port}"
        self._http = httpx.AsyncClient(base_url=url, headers={ADMIN_HEADER: token}, trust_env=False)

    async def waiting(self) -> list[str]:
        """Return the sessions that wait, in order; nobody while no gateway is there."""
        with suppress(httpx.TransportError):
            answer = (await self._http.get("/api/queue")).raise_for_status()
            return [item["session_id"] for item in answer.json()["items"]]
        return []

    async def until(self, length: int) -> list[str]:
        """Return the queue once it has this length, or the longest that there was."""
        longest: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                while len(longest) < length:
                    await asyncio.sleep(POLL_S)
                    longest = max(longest, await self.waiting(), key=len)
        return longest


async def killed_once(folder: Path, ports: Ports, waiting: int, new: int) -> tuple[int, int]:
    """Kill one gateway; return how many positions were lost, and how many pairs are inverted."""
    command = gateway_command(folder, ports)
    config = folder / "config.json"
    sections = json.loads(config.read_text(encoding="utf8"))
    config.write_text(json.dumps({**sections, "limits": CROWD}), encoding="utf8")
    client = AsyncClient(f"http://{HOST}:{ports.gateway}")
    people: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        stack.callback(lambda: [person.cancel() for person in people])
        with running("the gateway", command, ports.gateway) as pid:
            queue = Queue(ports.gateway, folder / "data")
            for index in range(int(str(HEALTH["slots"]))):
                url = f"ws://{HOST}:{ports.gateway}/ws/duplex/adx_{index}"
                socket = await stack.enter_async_context(connect(url, proxy=None))
                await prepared(socket, is_queued=True)
            people += [asyncio.create_task(wait_in_line(client)) for _ in range(waiting)]
            before = await queue.until(waiting)
            if len(before) < waiting:
                raise NotReachedError(f"{len(before)} of {waiting} wait")
            os.kill(pid, signal.SIGKILL)
        with running("the next gateway", command, ports.gateway):
            people += [asyncio.create_task(wait_in_line(client)) for _ in range(new)]
            after = await queue.until(waiting + new)
            for person in people:
                person.cancel()
            await asyncio.wait(people)
    position = {session_id: index for index, session_id in enumerate(before)}
    ranks = [position.get(session_id, waiting) for session_id in after]
    lost = waiting - sum(rank < waiting for rank in ranks)
    return lost, sum(first > second for first, second in combinations(ranks, 2))


def main(
    waiting: Annotated[int, typer.Option(help="Clients that wait.", min=1)] = 60,
    new: Annotated[int, typer.Option(help="Clients that come afterwards.", min=0)] = 40,
    repeats: Annotated[int, typer.Option(help="Gateways that are killed.", min=1)] = 10,
) -> None:
    """Kill gateways, and print what became of their queues."""
    total = 0
    for index in range(repeats):
        first = free_ports(3)
        ports = Ports(first, first + 1, first + 2)
        with tempfile.TemporaryDirectory() as folder:
            stand_in = ["-m", "benchmarks.stand_in_worker", str(ports.worker), str(RESULT_BYTES)]
            with running("the worker", stand_in, ports.worker):
                found = killed_once(Path(folder), ports, waiting, new)
                lost, inverted = asyncio.run(found)
        total += lost + inverted
        typer.echo(f"{index + 1}: {lost} of {waiting} positions lost, {inverted} inversions")
    if total:
        raise SystemExit(EXIT_FAILED)


if __name__ == "__main__":
    typer.run(main)
