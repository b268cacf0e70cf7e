"""Queue positions after the gateway is killed: `python -m benchmarks.returning`."""

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

from benchmarks.launched import HOST
from benchmarks.paced_client import prepared
from benchmarks.relay import Ports, gateway_command, running
from benchmarks.stand_in_worker import HEALTH
from benchmarks.summary import EXIT_FAILED
from core.files import TOKEN_FILE
from gateway_modules.web.security import ADMIN_HEADER
from minicpmo_live.client import AsyncClient
from minicpmo_live.errors import LiveError

LIMIT_S = 60.0
POLL_S = 0.1
RESULT_BYTES = 1_000
NO_LIMITS = {"connections_per_client": 1_000, "waiting_per_client": 1_000}


async def wait_in_queue(client: AsyncClient) -> None:
    with suppress(LiveError):
        async with client.duplex() as session:
            async for _ in session:
                continue


class Queue:
    """The queue of the current gateway, as seen by an administrator."""

    def __init__(self, port: int, data: Path) -> None:
        token = (data / TOKEN_FILE).read_text(encoding="utf8").strip()
        url = f"http://{HOST}:{port}"
        self._http = httpx.AsyncClient(base_url=url, headers={ADMIN_HEADER: token}, trust_env=False)

    async def waiting(self) -> list[str]:
        """Return the waiting sessions in order; none while no gateway is running."""
        with suppress(httpx.TransportError):
            answer = (await self._http.get("/api/queue")).raise_for_status()
            return [item["session_id"] for item in answer.json()["items"]]
        return []

    async def until(self, length: int) -> list[str]:
        """Return the queue once it has this length, or after `LIMIT_S` the longest seen."""
        longest: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                while len(longest) < length:
                    await asyncio.sleep(POLL_S)
                    longest = max(longest, await self.waiting(), key=len)
        return longest


async def kill_once(folder: Path, ports: Ports, waiting: int, new: int) -> tuple[int, int]:
    """Kill a gateway; return the numbers of lost positions and of inverted pairs."""
    command = gateway_command(folder, ports)
    config = folder / "config.json"
    sections = json.loads(config.read_text(encoding="utf8"))
    config.write_text(json.dumps({**sections, "limits": NO_LIMITS}), encoding="utf8")
    client = AsyncClient(f"http://{HOST}:{ports.gateway}")
    clients: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        stack.callback(lambda: [task.cancel() for task in clients])
        with running("the gateway", command, ports.gateway) as pid:
            queue = Queue(ports.gateway, folder / "data")
            for index in range(int(str(HEALTH["slots"]))):
                url = f"ws://{HOST}:{ports.gateway}/ws/duplex/adx_{index}"
                await stack.enter_async_context(prepared(url))
            clients += [asyncio.create_task(wait_in_queue(client)) for _ in range(waiting)]
            before = await queue.until(waiting)
            if len(before) < waiting:
                raise TimeoutError(f"{len(before)} of {waiting} wait")
            os.kill(pid, signal.SIGKILL)
        with running("the next gateway", command, ports.gateway):
            clients += [asyncio.create_task(wait_in_queue(client)) for _ in range(new)]
            after = await queue.until(waiting + new)
            for task in clients:
                task.cancel()
            await asyncio.wait(clients)
    position = {session_id: index for index, session_id in enumerate(before)}
    ranks = [position.get(session_id, waiting) for session_id in after]
    lost = waiting - sum(rank < waiting for rank in ranks)
    return lost, sum(first > second for first, second in combinations(ranks, 2))


def main(
    waiting: Annotated[int, typer.Option(help="Waiting clients.", min=1)] = 60,
    new: Annotated[int, typer.Option(help="Clients that arrive afterwards.", min=0)] = 40,
    repeats: Annotated[int, typer.Option(help="Gateways to kill.", min=1)] = 10,
) -> None:
    """Kill gateways and check the order of their queues."""
    total = 0
    for index in range(repeats):
        ports = Ports.free()
        with tempfile.TemporaryDirectory() as folder:
            stand_in = ["-m", "benchmarks.stand_in_worker", str(ports.worker), str(RESULT_BYTES)]
            with running("the worker", stand_in, ports.worker):
                found = kill_once(Path(folder), ports, waiting, new)
                lost, inverted = asyncio.run(found)
        total += lost + inverted
        typer.echo(f"{index + 1}: {lost} of {waiting} positions lost, {inverted} inversions")
    if total:
        raise SystemExit(EXIT_FAILED)


if __name__ == "__main__":
    typer.run(main)
