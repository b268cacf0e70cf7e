"""A door's pool while its desk cannot be reached, and its requests to the desk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.types import Message

from config import Settings
from core.errors import NoWorkerError
from core.metrics import GatewayMetrics
from gateway_modules.queue.desk_client import AWAY_LIMIT_S, DeskClient
from gateway_modules.queue.desk_link import DeskHttp
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.web.security import AccessPolicy
from tests.fakes.doors import SECURITY
from tests.fakes.gateway_stage import settings_for
from tests.fakes.pools import new_ticket
from tests.fakes.virtual_time import in_virtual_time


def never_connect() -> NoReturn:
    raise OSError("the desk never answers")


def door_settings(folder: Path) -> Settings:
    return settings_for(folder, security=SECURITY, service={"desk": "d:1"})


@in_virtual_time
async def test_no_request_waits_longer_than_the_limit_for_its_desk(tmp_path: Path) -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    pool = DeskClient(door_settings(tmp_path), WorkerClient(), metrics, lambda command: None)
    pool._connect = never_connect  # type: ignore[assignment]
    await pool.start()
    for _ in range(2):
        returned = pool.enqueue(new_ticket("chat", order=1))  # its worker was lost
        with pytest.raises(NoWorkerError):
            async with asyncio.timeout(AWAY_LIMIT_S + 1):
                await returned.wait()
    await pool.stop()


class Watched(httpx.AsyncByteStream):
    """The body of a desk's answer."""

    is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"much"

    async def aclose(self) -> None:
        self.is_closed = True


def test_an_answer_whose_client_has_left_gives_its_connection_back(tmp_path: Path) -> None:
    async def left() -> Message:
        return {"type": "http.disconnect"}

    async def nowhere(_: Message) -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        settings, body = door_settings(tmp_path), Watched()
        desk = DeskHttp(settings, AccessPolicy(settings.security, ""))
        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=body))
        desk._http = httpx.AsyncClient(transport=transport)
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/status",
            "raw_path": b"/status",
            "query_string": b"",
            "headers": [],
            "asgi": {"spec_version": "2.3"},
        }
        answer = await desk.answer(Request(scope, left))
        await answer(scope, left, nowhere)
        assert body.is_closed
        await desk.close()

    asyncio.run(test())
