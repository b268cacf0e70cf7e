"""The inbox keeps the order, applies backpressure, and releases waiting callers when closed."""

from __future__ import annotations

import asyncio

import pytest

from core.protocols.events import Disconnected
from core.serving.wire import Inbox
from tests.fakes.clock import settle
from tests.system.loops import in_loop


def numbered(number: int) -> Disconnected:
    return Disconnected(str(number))


async def read(inbox: Inbox) -> int:
    event = await inbox.get()
    assert isinstance(event, Disconnected)
    return int(event.reason)


@in_loop
async def test_waiting_callers_add_in_order() -> None:
    inbox = Inbox(max_events=2, max_bytes=100)
    senders = [asyncio.create_task(inbox.put(numbered(number))) for number in range(6)]
    await settle()
    assert [sender.done() for sender in senders] == [True, True, False, False, False, False]
    assert len(inbox) == 2
    assert [await read(inbox) for _ in range(6)] == list(range(6))
    await asyncio.gather(*senders)


@in_loop
async def test_post_never_waits_and_keeps_the_order() -> None:
    inbox = Inbox(max_events=1, max_bytes=100)
    await inbox.put(numbered(0))
    late = asyncio.create_task(inbox.put(numbered(2)))
    await settle()
    inbox.post(numbered(1))
    assert [await read(inbox) for _ in range(3)] == [0, 1, 2]
    inbox.post(numbered(3))
    assert (await inbox.get()).at_s == pytest.approx(asyncio.get_running_loop().time(), abs=1)
    await late


@in_loop
async def test_bytes_are_limited_but_a_single_large_message_fits() -> None:
    inbox = Inbox(max_events=9, max_bytes=100)
    await inbox.put(numbered(0), 1_000)
    small = asyncio.create_task(inbox.put(numbered(1), 1))
    await settle()
    assert not small.done()
    assert await read(inbox) == 0
    await small
    await inbox.put(numbered(2), 99)
    assert len(inbox) == 2


@in_loop
async def test_a_closed_inbox_drops_events_without_waiting() -> None:
    inbox = Inbox(max_events=1, max_bytes=100)
    await inbox.put(numbered(0))
    waiting = asyncio.create_task(inbox.put(numbered(1)))
    await settle()
    inbox.close()
    await waiting
    await inbox.put(numbered(2))
    inbox.post(numbered(3))
    assert len(inbox) == 1


@in_loop
async def test_a_cancelled_caller_leaves_no_event() -> None:
    inbox = Inbox(max_events=1, max_bytes=100)
    await inbox.put(numbered(0))
    first = asyncio.create_task(inbox.put(numbered(1)))
    second = asyncio.create_task(inbox.put(numbered(2)))
    await settle()
    first.cancel()
    await settle()
    assert [await read(inbox), await read(inbox)] == [0, 2]
    await second
