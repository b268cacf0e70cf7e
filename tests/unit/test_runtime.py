"""The end of a session on a worker whose engine has ended."""

from __future__ import annotations

import asyncio

from core.schemas.queue import RequestType
from core.serving.fake_backend import FakeBackend
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionThreads
from core.serving.slots import Owner


def test_a_session_ends_in_order_without_an_engine() -> None:
    async def scenario() -> None:
        runtime = WorkerRuntime(FakeBackend, 1)
        await runtime.load()
        lease = await runtime.slots.take(Owner("s", RequestType.AUDIO_DUPLEX))
        view = runtime.backend.open_duplex(SessionThreads(runtime.threads, None))
        runtime.threads.failures = 1  # the device has to be checked
        runtime.engine.close()
        await runtime.end([view], lease)
        assert runtime.slots.is_free
        assert runtime.progress.error is None, "the device is not what has failed"
        runtime.close()

    asyncio.run(scenario())
