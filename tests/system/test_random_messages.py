"""Random messages through the gateway: a session ends as the protocol says, and frees its worker.

`HYPOTHESIS_PROFILE=nightly` makes a hundred times as many as a usual run.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from websockets.exceptions import ConnectionClosed

from benchmarks.launched import wait_until
from core.errors import CloseCode
from tests.fakes.random_messages import KINDS, MESSAGES, ROUNDS, check_words, messages
from tests.system.client import Client
from tests.system.loops import in_loop, new_id
from tests.system.quiet import WORKERS
from tests.system.running import LIMIT_S, RunningSystem

AT_ONCE = 2 * WORKERS  # so that half of the sessions wait
EXPIRED = "was not prepared in time"  # after a minute; nobody here stays so long


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_no_message_breaks_a_session_behind_the_gateway(
    crowd: RunningSystem, kind: str
) -> None:
    pids = [crowd.pid(f"worker_{index}") for index in range(WORKERS)]
    expired = [crowd.log(name).count(EXPIRED) for name in crowd.names]
    for start in range(0, ROUNDS, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, ROUNDS))
        await asyncio.gather(*(talk_at_random(crowd, kind, number) for number in numbers))

    def is_idle() -> bool:
        status = crowd.get("/status")
        return not status["queue_length"] and status["idle_workers"] == WORKERS

    await asyncio.to_thread(wait_until, "all workers are idle", is_idle, LIMIT_S)
    assert expired == [crowd.log(name).count(EXPIRED) for name in crowd.names]
    assert pids == [crowd.pid(f"worker_{index}") for index in range(WORKERS)]


async def talk_at_random(system: RunningSystem, kind: str, number: int) -> None:
    """Say something; then leave with or without a goodbye."""
    random = Random(number)
    path = f"/ws/{kind}" if kind == "chat" else f"/ws/{kind}/{new_id('rnd')}"
    is_resumable = random.random() < 0.5
    query = "?resumable=1" if is_resumable else ""
    async with Client.connected(system.ws(path + query)) as client:
        words = messages(kind, random)
        try:
            for _ in range(random.randrange(1, MESSAGES + 1)):
                await client.say_text(next(words))
                await asyncio.sleep(0.01 * random.randrange(4))
        except ConnectionClosed:
            pass
        if not is_resumable and random.random() < 0.5:
            client.vanish()
    try:
        check_words(KINDS[kind], client.messages)
        code = client.close_code
        assert code in (None, 1006, *CloseCode) and code != CloseCode.INTERNAL, code
    except AssertionError as error:
        error.add_note(f"session {number}")
        raise
