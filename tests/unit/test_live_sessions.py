"""Who is connected: counts, ids, and waiting for the last to leave."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.errors import OmniError, SessionInUseError, ShuttingDownError
from gateway_modules.relay.live_sessions import LiveSessions
from gateway_modules.relay.relay import Relay
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
