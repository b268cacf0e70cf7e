"""A desk and its doors on real servers, with fake workers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from config import Settings
from core.schemas.worker import WORKER_SECRET_HEADER
from gateway import create_app
from gateway_modules.queue.desk_client import DeskClient
from gateway_modules.service import Gateway, Role
from tests.fakes.fake_worker import Raw
from tests.fakes.gateway_stage import (
    ANSWER_LIMIT_S,
    CONNECTIONS,
    HOST,
    HURRY,
    Connections,
    Stage,
    settings_for,
    until,
)
from tests.service.callers import Caller

SECRET = "a secret of desk and doors"
SECURITY = {"worker_secret": SECRET}


class Program(Stage):
    """A desk or a door on a server; stopped by its `Deployment`."""

    def __init__(self, settings: Settings, role: Role, addresses: list[str]) -> None:
        super().__init__(settings, 0, replace(HURRY, patience_s=60.0))
        self.role = role
        self.addresses = addresses

    async def serve(self, port: int = 0) -> None:
        app = create_app(self.settings, self.addresses, self.timing, role=self.role)
        gateway: Gateway = app.state.gateway
        self._gateway = gateway
        drain = functools.partial(gateway.drain, 0.0)
        self.port = await self._serve(app, gateway.connections, drain, port=port)
        self._http = self.http_client(self.admin_headers)

    @property
    def desk(self) -> DeskClient:
        pool = self.gateway.relay_pool
        assert isinstance(pool, DeskClient)
        return pool

    async def kill(self) -> None:
        server, _ = self._servers[0]
        for listener in server.servers:
            listener.close()
        for relay in self.gateway.live.all():
            if relay._link is not None and relay._link.socket is not None:
                relay._link.socket.transport.abort()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        for task in list(server.server_state.tasks):
            task.cancel()
        if self.role is Role.DOOR and self.desk._task is not None:
            self.desk._task.cancel()
        await until(lambda: not server.server_state.tasks)


class Deployment:
    """A desk, its doors and the workers."""

    def __init__(self, settings: Settings, workers: int, real_workers: Sequence[str] = ()) -> None:
        self.settings = settings
        self.worker_stage = Stage(settings, workers, HURRY)
        self.workers = self.worker_stage.workers
        self.addresses = [*real_workers]
        self.programs: list[Program] = []
        self.doors: list[Program] = []
        self.desk = Program(settings, Role.DESK, [])

    async def start(self, doors: int) -> None:
        """Start everything, and wait until all are connected."""
        anybody = Connections(CONNECTIONS, CONNECTIONS, lambda peer: "")
        for worker in self.workers:
            port = await self.worker_stage._serve(worker.app, anybody)
            self.addresses.append(f"{HOST}:{port}")
        await self.start_desk()
        for _ in range(doors):
            await self.start_door()

    async def start_desk(self, port: int = 0) -> None:
        """Start a desk in place of the previous one."""
        self.desk = Program(self.settings, Role.DESK, self.addresses)
        await self.desk.serve(port)
        self.programs.append(self.desk)
        self.desk.http.headers[WORKER_SECRET_HEADER] = SECRET

    async def start_door(self) -> Program:
        service = self.settings.service.model_copy(update={"desk": f"{HOST}:{self.desk.port}"})
        door = Program(self.settings.model_copy(update={"service": service}), Role.DOOR, [])
        await door.serve()
        self.programs.append(door)
        self.doors.append(door)
        known = len(self.addresses)
        await until(lambda: door.desk.ready_count == known, "the door does not connect")
        return door

    async def kill_desk(self) -> None:
        """Kill the desk, and wait until the doors have noticed."""
        await self.desk.kill()
        await until(lambda: not any(door.desk.is_connected for door in self.doors))

    async def restart_desk(self) -> None:
        """Start a desk on the same port, and wait for the doors."""
        await self.start_desk(self.desk.port)
        await until(lambda: all(door.desk.is_connected for door in self.doors))

    def queued(self) -> list[str | None]:
        """Return the sessions in the desk's queue, in order."""
        return [item.session_id for item in self.desk.gateway.pool.get_queue_status().items]

    def served(self) -> list[str]:
        return [session for worker in self.workers for session in worker.sockets]

    async def open_session(self, door: int, session_id: str, path: str = "/ws/duplex") -> Caller:
        caller = Caller(self.doors[door], f"{path}/{session_id}", session_id)
        await caller.dial("")
        await caller.hear("queue_done")
        await caller.say("prepare")
        await caller.hear("prepared")
        return caller

    async def dial(self, door: int, session_id: str, query: str = "") -> Caller:
        caller = Caller(self.doors[door], f"/ws/duplex/{session_id}", session_id)
        await caller.dial(query)
        return caller

    async def enqueue(self, door: int, session_id: str) -> Caller:
        caller = await self.dial(door, session_id)
        await caller.hear("queued")
        return caller

    async def stop(self) -> None:
        for program in reversed(self.programs):
            await program.stop()
        for server, task in self.worker_stage._servers:
            server.stopping.set()
            await task

    def anonymous(self, program: Program) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=f"http://{HOST}:{program.port}",
            trust_env=False,
            verify=False,
            timeout=ANSWER_LIMIT_S,
        )


Test = Callable[[Deployment], Coroutine[Any, Any, None]]


async def units(caller: Caller, count: int = 1) -> list[Raw]:
    """Send audio and return the results."""
    results = []
    for _ in range(count):
        await caller.say("audio_chunk", audio_base64="AAAA")
        results.append(await caller.hear("result"))
    return results


async def play(deployment: Deployment, doors: int, test: Test) -> None:
    """Run a test and check that no task is left."""
    before = asyncio.all_tasks()
    try:
        await deployment.start(doors)
        await test(deployment)
    finally:
        await deployment.stop()
    left = asyncio.all_tasks() - before
    assert not left, f"tasks are left: {left}"


def with_deployment(
    *, workers: int = 1, doors: int = 2, **sections: Mapping[str, object]
) -> Callable[[Test], Callable[[Path], None]]:
    """Decorate an async test to run with a deployment; see `play`."""

    def decorate(test: Test) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            settings = settings_for(tmp_path, security=SECURITY, **sections)
            asyncio.run(play(Deployment(settings, workers), doors, test))

        run.__name__ = test.__name__
        return run

    return decorate
