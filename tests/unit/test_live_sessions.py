"""Who is connected: counts, ids, and waiting for the last to leave; what doors are told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from core.errors import OmniError, SessionInUseError, ShuttingDownError
from core.metrics import GatewayMetrics
from core.schemas.worker import WorkerStatus
from gateway_modules.queue import desk_link as wire
from gateway_modules.relay.live_sessions import REPORT_S, Door, Doors, LiveSessions
from gateway_modules.relay.relay import Relay
from tests.fakes.pools import make_pool, set_status, workers_of
from tests.fakes.virtual_time import in_virtual_time


@dataclass
class Somebody:
    """As much of a relay as is asked for here."""

    session_id: str
    told: list[OmniError] = field(default_factory=list)

    @property
    def request(self) -> Any:
        return SimpleNamespace(session_id=self.session_id)

    def fail(self, error: OmniError) -> None:
        self.told.append(error)


def somebody(session_id: str) -> Relay:
    return cast(Relay, Somebody(session_id))


@in_virtual_time
async def test_an_id_in_use_is_awaited_and_then_refused() -> None:
    live = LiveSessions(grace_s=1.0)
    first, second = somebody("s"), somebody("s")
    async with live.entered(first):
        assert live.get("s") is first
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(SessionInUseError):
            async with live.entered(second):
                pass
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(1.0)
        waiting = asyncio.create_task(enter_and_leave(live, second))
        await asyncio.sleep(0.5)
    await waiting
    assert live.all() == []


async def enter_and_leave(live: LiveSessions, relay: Relay) -> None:
    async with live.entered(relay):
        assert live.get("s") is relay
        await asyncio.sleep(0.2)


@in_virtual_time
async def test_an_error_ends_all_relays_and_the_last_one_is_awaited() -> None:
    live = LiveSessions()
    await live.wait_until_empty(1.0)
    relay = Somebody("s")
    leaving = asyncio.create_task(enter_and_leave(live, cast(Relay, relay)))
    await asyncio.sleep(0)
    for each in live.all():
        each.fail(ShuttingDownError())
    assert [error.code for error in relay.told] == ["shutting_down"]
    await live.wait_until_empty(0.1)
    assert live.get("s") is not None
    await live.wait_until_empty(1.0)
    assert live.get("s") is None
    await leaving


@dataclass
class DoorSocket:
    """The desk's end of a door's connection."""

    received: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    sent: list[wire.FromDesk] = field(default_factory=list)

    async def receive_text(self) -> str:
        return await self.received.get()

    async def send_text(self, text: str) -> None:
        self.sent += wire.FROM_DESK.validate_json(text)

    def say(self, message: wire.FromDoor) -> None:
        self.received.put_nowait(wire.FROM_DOOR.dump_json([message]).decode())

    @property
    def statuses(self) -> list[WorkerStatus]:
        """Return those of the first worker, as the door was sent them."""
        named = [one.workers[0] for one in self.sent if isinstance(one, wire.Workers)]
        return [one.health.worker_status for one in named]


@in_virtual_time
async def test_a_door_learns_that_a_worker_it_lost_serves_again() -> None:
    pool, socket = make_pool(), DoorSocket()
    [worker] = workers_of(pool)
    doors = Doors(pool, GatewayMetrics(CollectorRegistry()), lambda: None)
    serving = asyncio.create_task(Door(doors, cast(Any, socket)).serve())
    await asyncio.sleep(REPORT_S / 2)
    assert socket.statuses == [WorkerStatus.IDLE]
    socket.say(wire.Unreachable(worker=worker.place.netloc))
    await asyncio.sleep(0.01)
    assert worker.status is WorkerStatus.OFFLINE
    set_status(worker, WorkerStatus.IDLE)  # it answers the desk before the next report
    await asyncio.sleep(2 * REPORT_S)
    assert socket.statuses == [WorkerStatus.IDLE] * 2
    serving.cancel()
    await asyncio.wait([serving])


@in_virtual_time
async def test_a_door_is_told_that_a_restarted_desk_knows_no_worker_yet() -> None:
    pool, socket = make_pool(0), DoorSocket()
    doors = Doors(pool, GatewayMetrics(CollectorRegistry()), lambda: None)
    serving = asyncio.create_task(Door(doors, cast(Any, socket)).serve())
    await asyncio.sleep(REPORT_S)
    assert wire.Workers(workers=[]) in socket.sent
    serving.cancel()
    await asyncio.wait([serving])
