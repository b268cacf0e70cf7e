"""Turn-based conversations find their worker's cache again, and do without it when it is lost."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from typing import Any

import httpx

from benchmarks.launched import wait_until
from core.schemas.worker import WORKER_SECRET_HEADER
from tests.system.client import Message, StreamingClient
from tests.system.loops import in_loop, new_id
from tests.system.running import LIMIT_S, RunningSystem

CONVERSATIONS = 3  # fewer than workers
TURNS = 2
SHORT = {"max_new_tokens": 1, "generate_audio": False}


class Conversation:
    """What was said so far, as a page keeps it."""

    def __init__(self, client: StreamingClient, topic: str) -> None:
        self.client = client
        self.history: list[Message] = [{"role": "system", "content": topic}]

    async def turn(self, question: str) -> Message:
        """Ask, and return what the prefill cost and who served it."""
        self.history.append({"role": "user", "content": question})
        done = await self.client.turn(self.history, **SHORT)
        self.history.append({"role": "assistant", "content": done["text"]})
        found: dict[str, Any] = {
            **self.client.all_of("prefill_done")[-1],
            "worker_id": self.client.all_of("queue_done")[-1]["worker_id"],
            "text": done["text"],
        }
        return found


@in_loop
async def test_interleaved_conversations_each_come_back_to_their_cache(
    crowd: RunningSystem,
) -> None:
    async with AsyncExitStack() as stack:
        talks = []
        for index in range(CONVERSATIONS):
            url = crowd.ws(f"/ws/streaming/{new_id('stream')}")
            client = await stack.enter_async_context(StreamingClient.connected(url))
            talks.append(Conversation(client, f"Topic {new_id(str(index))}"))
        first = [await talk.turn("Hello.") for talk in talks]
        assert not any(turn["cache_hit"] for turn in first)
        assert len({turn["worker_id"] for turn in first}) == CONVERSATIONS
        for _ in range(TURNS):
            for talk, began in zip(talks, first, strict=True):
                turn = await talk.turn("And then?")
                assert turn["cache_hit"] is True and turn["message_count"] == 1
                assert turn["worker_id"] == began["worker_id"]


@in_loop
async def test_a_cache_the_worker_has_lost_is_made_good_without_the_client_noticing(
    crowd: RunningSystem,
) -> None:
    async with StreamingClient.connected(crowd.ws(f"/ws/streaming/{new_id('s')}")) as client:
        talk = Conversation(client, f"Topic {new_id('lost')}")
        began = await talk.turn("Hello.")
        index = int(began["worker_id"].removeprefix("worker_"))
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=None) as http:
            url, secret = f"{crowd.worker_url(index)}/clear_cache", crowd.worker_secret(index)
            assert (await http.post(url)).status_code == 401
            cleared = await http.post(url, headers={WORKER_SECRET_HEADER: secret})
        assert cleared.json()["success"] is True
        turn = await talk.turn("And then?")
        assert turn["worker_id"] == began["worker_id"]
        assert turn["cache_hit"] is False and turn["message_count"] == 4
        assert (await talk.turn("Good."))["cache_hit"] is True
    assert "error" not in client.kinds and "cache_miss" not in client.kinds


@in_loop
async def test_a_conversation_outlives_its_worker(crowd: RunningSystem) -> None:
    async with StreamingClient.connected(crowd.ws(f"/ws/streaming/{new_id('s')}")) as client:
        talk = Conversation(client, f"Topic {new_id('killed')}")
        began = await talk.turn("Hello.")
        os.kill(crowd.pid(began["worker_id"]), signal.SIGKILL)
        turn = await talk.turn("And then?")
        assert turn["cache_hit"] is False and turn["message_count"] == 4
        assert (await talk.turn("Good."))["cache_hit"] is True
    wait_until("the worker is back", lambda: crowd.is_idle, LIMIT_S)
