"""Turn-based chat with a worker: every field, and the cache from turn to turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from core.schemas import streaming
from core.schemas.queue import SESSION_SECRET_HEADER
from core.schemas.worker import CacheStatus
from core.serving.fake_backend import FakeBackend
from tests.service.worker_checks import TIMES, USER, check_fields, one_turn, recording, total
from tests.service.workers import Client, RunningWorker, running_worker, settings_for, sound_of

STREAMING: TypeAdapter[Any] = TypeAdapter(streaming.WorkerServerMessage)
REPLY_MARKS = 2  # tokens the fake puts around a reply


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    settings = settings_for(tmp_path_factory.mktemp("data"))
    with running_worker(settings, lambda: FakeBackend(TIMES)) as running:
        yield running


MINE, THEIRS = "1" * 32, "2" * 32


def test_streaming(worker: RunningWorker) -> None:
    async def scenario() -> None:
        client = Client(worker.port)
        async with client.talk("streaming") as talk:
            await talk.say("prefill", messages=[USER], clear_kv_cache=True)
            fed = await talk.hear()
            assert fed["type"] == "prefill_done"
            assert fed["cached_tokens"] == 0 and fed["input_tokens"] > 0
            assert fed["message_count"] == 1 and fed["prompt_length"] > 0
            assert (await client.health())["worker_status"] == "busy_streaming"
            await talk.say("generate")
            *chunks, done = await talk.hear_until("done")
            assert [chunk["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
            assert [chunk["is_final"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
            assert chunks[-1]["text_delta"] is None and chunks[-1]["audio_data"] is None
            assert all(len(sound_of(chunk["audio_data"])) == 24_000 for chunk in chunks[:-1])
            text = "".join(chunk["text_delta"] or "" for chunk in chunks)
            assert done["text"] == text and not done["stopped"]
            assert done["session_id"] == talk.session_id
            stats = done["token_stats"]
            assert stats["generated_tokens"] == len(chunks) - 1
            assert (
                stats["total_tokens"]
                == stats["input_tokens"] + stats["generated_tokens"] + REPLY_MARKS
            )
            await client.idle()
            await talk.say("close")
            assert await talk.hear_all() == []
            assert talk.close_code == 1000
            check_fields(STREAMING, talk.heard)
        await client.idle()
        kept = await recording(worker, done["recording_session_id"])
        [turn] = kept["turns"]
        assert turn["input"]["text"] == USER["content"] and turn["output"]["text"] == text

    asyncio.run(scenario())


def test_streaming_goes_on_where_the_cache_ends(worker: RunningWorker) -> None:
    """A second socket presents the hash of what the first one's turn left."""

    async def scenario() -> None:
        client, history = Client(worker.port), [USER]
        first = await one_turn(client, "keep_a", history, clear_kv_cache=True)
        kept = CacheStatus.model_validate(await client.get("/cache_info"))
        assert kept.cached_hash and kept.kv_cache_length == total(first)
        more = {"role": "user", "content": "And then?"}
        hit = await one_turn(client, "keep_a", [more], expect_hash=kept.cached_hash)
        assert hit["prefill"]["cached_tokens"] == total(first) and hit["prefill"]["cache_hit"]
        history += [{"role": "assistant", "content": first["done"]["text"]}, more]
        full = await one_turn(client, "keep_b", history, clear_kv_cache=True)
        assert full["prefill"]["cached_tokens"] == 0
        assert full["done"]["text"] == hit["done"]["text"] != first["done"]["text"]
        assert total(full) == total(hit)

    asyncio.run(scenario())


def test_streaming_says_when_it_lost_the_history(worker: RunningWorker) -> None:
    async def scenario() -> None:
        client = Client(worker.port)
        async with client.talk("streaming") as talk:
            await talk.say("prefill", messages=[USER], expect_hash="0" * 64)
            assert await talk.hear() == {"type": "cache_miss"}
            await talk.say("prefill", messages=[USER], clear_kv_cache=True)
            assert (await talk.hear())["type"] == "prefill_done"
            await talk.say("generate", max_new_tokens=2)
            done = (await talk.hear_until("done"))[-1]
            assert done["token_stats"]["generated_tokens"] == 2
            check_fields(STREAMING, talk.heard)
        await client.idle()

    asyncio.run(scenario())


def test_one_streaming_socket_may_feed_in_pieces_and_go_on(worker: RunningWorker) -> None:
    async def scenario() -> None:
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
            await talk.say("prefill", messages=[USER])
            again = await talk.hear()
            assert again["cached_tokens"] == first["token_stats"]["total_tokens"]
            await talk.say("generate")
            second = (await talk.hear_until("done"))[-1]
            assert second["recording_session_id"] == first["recording_session_id"]
        kept = await recording(worker, first["recording_session_id"])
        assert [turn["turn_index"] for turn in kept["turns"]] == [0, 1]

    asyncio.run(scenario())


def test_only_its_owner_goes_on_with_the_recording_of_a_chat(worker: RunningWorker) -> None:
    async def recorded(session_id: str, secret: str) -> str:
        client = Client(worker.port, {SESSION_SECRET_HEADER: secret})
        heard = await one_turn(client, session_id, [USER], clear_kv_cache=True)
        name: str = heard["done"]["recording_session_id"]
        return name

    async def scenario() -> None:
        mine = await recorded("stream_again", MINE)
        assert await recorded("stream_again", MINE) == mine
        for stranger in (await recorded("stream_again", THEIRS), await recorded("other", MINE)):
            assert stranger != mine
        assert await recorded("stream_again", MINE) == mine

    asyncio.run(scenario())


def test_the_cache_is_cleared_on_request_unless_somebody_is_served(worker: RunningWorker) -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())
