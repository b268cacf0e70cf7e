"""Turn-based chat with a worker: every field, and the cache from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from core.schemas import streaming
from core.schemas.queue import SESSION_SECRET_HEADER
from core.serving.fake_backend import FakeBackend
from tests.service.worker_checks import TIMES, USER, check_fields, one_turn, recording
from tests.service.workers import Client, RunningWorker, running_worker, settings_for
from tests.system.loops import in_loop

STREAMING: TypeAdapter[Any] = TypeAdapter(streaming.WorkerServerMessage)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    settings = settings_for(tmp_path_factory.mktemp("data"))
    with running_worker(settings, lambda: FakeBackend(TIMES)) as running:
        yield running


MINE, THEIRS = "1" * 32, "2" * 32


@in_loop
async def test_streaming_reports_a_cache_miss(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("streaming") as talk:
        missed = await talk.ask("prefill", messages=[USER], expect_hash="0" * 64)
        assert missed == {"type": "cache_miss"}
        fed = await talk.ask("prefill", messages=[USER], clear_kv_cache=True)
        assert fed["type"] == "prefill_done"
        await talk.say("generate", max_new_tokens=2)
        done = (await talk.hear_until("done"))[-1]
        assert done["token_stats"]["generated_tokens"] == 2
        check_fields(STREAMING, talk.heard)
    await client.idle()


@in_loop
async def test_a_streaming_socket_feeds_in_parts_and_continues(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("streaming") as talk:
        system = {"role": "system", "content": "You are nice."}
        await talk.say("prefill", messages=[system], is_last_chunk=False, clear_kv_cache=True)
        await talk.say("prefill", messages=[USER])
        one, two = await talk.hear(), await talk.hear()
        assert two["cached_tokens"] == one["input_tokens"]
        await talk.say("generate")
        first = (await talk.hear_until("done"))[-1]
        assert first["token_stats"]["input_tokens"] == one["input_tokens"] + two["input_tokens"]
        again = await talk.ask("prefill", messages=[USER])
        assert again["cached_tokens"] == first["token_stats"]["total_tokens"]
        await talk.say("generate")
        second = (await talk.hear_until("done"))[-1]
        assert second["recording_session_id"] == first["recording_session_id"]
    kept = await recording(worker, first["recording_session_id"])
    assert [turn["turn_index"] for turn in kept["turns"]] == [0, 1]


@in_loop
async def test_only_its_owner_continues_the_recording_of_a_chat(worker: RunningWorker) -> None:
    async def recorded(session_id: str, secret: str) -> str:
        client = Client(worker.port, {SESSION_SECRET_HEADER: secret})
        heard = await one_turn(client, session_id, [USER], clear_kv_cache=True)
        name: str = heard["done"]["recording_session_id"]
        return name

    mine = await recorded("stream_again", MINE)
    assert await recorded("stream_again", MINE) == mine
    for stranger in (await recorded("stream_again", THEIRS), await recorded("other", MINE)):
        assert stranger != mine
    assert await recorded("stream_again", MINE) == mine


@in_loop
async def test_the_cache_is_cleared_on_request_unless_a_session_is_served(
    worker: RunningWorker,
) -> None:
    client = Client(worker.port)
    await one_turn(client, "to_clear", [USER], clear_kv_cache=True)
    assert (await client.get("/cache_info"))["kv_cache_length"] > 0
    async with client.talk("duplex") as talk:
        await talk.prepared()
        refused = await client.post("/clear_cache")
        assert refused.status_code == 409 and not refused.json()["success"]
    await client.idle()
    assert (await client.post("/clear_cache")).json()["success"]
    assert (await client.get("/cache_info"))["cached_hash"] is None
