"""The end of sessions on a worker that ends, or whose engine has ended."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import ShuttingDownError
from core.schemas.chat import ChatRequest
from core.schemas.common import Message, Role
from core.schemas.queue import RequestType
from core.serving.fake_backend import FakeBackend, FakeTimes
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionThreads
from core.serving.slots import Owner
from core.serving.turn_handlers import ChatHandler
from tests.system.loops import in_loop


@in_loop
async def test_a_session_ends_in_order_without_an_engine() -> None:
    runtime = WorkerRuntime(FakeBackend, 1)
    await runtime.load()
    owner = Owner("s", RequestType.AUDIO_DUPLEX)
    await runtime.slots.take(owner)
    view = runtime.backend.open_duplex(SessionThreads(runtime.threads, None))
    runtime.threads.failures = 1  # the device has to be checked
    runtime.engine.close()
    await runtime.end([view], owner)
    assert not runtime.slots.owners
    assert runtime.progress.error is None, "the device is not what has failed"
    runtime.close()


@in_loop
async def test_a_chat_that_a_shutdown_cuts_off_says_so() -> None:
    runtime = WorkerRuntime(lambda: FakeBackend(FakeTimes(prefill_ms=60_000)), 1)
    await runtime.load()
    handler = ChatHandler(runtime, Owner("s", RequestType.CHAT))
    request = ChatRequest(messages=[Message(role=Role.USER, content="Hi")])
    answer = asyncio.create_task(handler.respond(request))
    await asyncio.sleep(0.01)
    handler.cancel()
    with pytest.raises(ShuttingDownError):
        await answer
    await handler.release()
    assert not runtime.slots.owners
    runtime.close()
