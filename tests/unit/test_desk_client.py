"""The pool of a door while its desk cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from core.errors import NoWorkerError
from gateway_modules.queue.desk_client import AWAY_LIMIT_S, DeskClient
from gateway_modules.queue.desk_link import RETRY_S, DeskLink, FromDoor
from gateway_modules.queue.worker_client import WorkerClient
from tests.fakes.virtual_time import in_virtual_time


class NoLink:
    """A link whose desk never answers."""

    is_open = False

    def send(self, message: FromDoor) -> None:
        """Discard it, as a link does that is not open."""

    async def run(self, begin: object, handle: object, lose: Callable[[], None]) -> None:
        while True:
            lose()
            await asyncio.sleep(RETRY_S)


@in_virtual_time
async def test_no_request_waits_longer_than_the_limit_for_its_desk() -> None:
    pool = DeskClient(cast(DeskLink, NoLink()), WorkerClient(), lambda session_id, event: None)
    await pool.start()
    for _ in range(2):
        returned = pool.enqueue("chat", order=1)  # its worker was lost
        with pytest.raises(NoWorkerError):
            async with asyncio.timeout(AWAY_LIMIT_S + 1):
                await returned.wait()
    await pool.stop()
