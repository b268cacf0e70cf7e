"""A worker's duplex sessions and turns with every field, and its cache from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from core.schemas import duplex, streaming
from core.schemas.queue import SESSION_SECRET_HEADER
from core.schemas.worker import WorkerHealth
from core.serving.fake_backend import SPEAK_UNITS, FakeBackend
from tests.service.worker_checks import TIMES, USER, check_fields, one_turn, recording
from tests.service.workers import (
    Client,
    Message,
    RunningWorker,
    Talk,
    running_worker,
    settings_for,
    spoken,
)
from tests.system.loops import in_loop

DUPLEX: TypeAdapter[Any] = TypeAdapter(duplex.ServerMessage)
STREAMING: TypeAdapter[Any] = TypeAdapter(streaming.WorkerServerMessage)
MINE, THEIRS = "1" * 32, "2" * 32


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    settings = settings_for(tmp_path_factory.mktemp("data"))
    with running_worker(settings, lambda: FakeBackend(TIMES)) as running:
        yield running


@in_loop
async def test_duplex_with_audio_only(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("duplex", variant="audio") as talk:
        prepared = await talk.prepared(
            prefix_system_prompt="Be kind.", config={"force_listen_count": 2}
        )
        assert prepared["prompt_tokens"] > 0 and prepared["chunk_ms"] == 1_000
        assert prepared["pause_timeout"] == 60 and prepared["max_kv_tokens"] == 8_192
        assert (await client.health())["worker_status"] == "duplex_active"
        results = [await unit(talk, index) for index in range(2 + SPEAK_UNITS + 1)]
        assert [each["is_listen"] for each in results] == [True] * 2 + [False] * 3 + [True]
        for each in results:
            assert bool(each["text"]) == bool(each["audio_data"]) == (not each["is_listen"])
            assert each["cost_all_ms"] >= each["cost_llm_ms"] + each["cost_tts_ms"]
            assert each["wall_clock_ms"] > 0 and each["server_send_ts"] > 1_600_000_000
        assert [each["current_time"] for each in results] == [
            1_000 * (index + 1) for index in range(len(results))
        ]
        assert [each["step"] for each in results] == list(range(len(results)))
        assert [each["turn_id"] for each in results] == [0] * 5 + [1]
        assert [each["end_of_turn"] for each in results].index(True) == 4
        lengths = [each["kv_cache_length"] for each in results]
        assert lengths == sorted(set(lengths))
        assert await talk.ask("pause", timeout=50) == {"type": "paused", "timeout": 50.0}
        assert (await client.health())["worker_status"] == "duplex_paused"
        assert await talk.ask("resume") == {"type": "resumed"}
        assert await talk.ask("interrupt") == {"type": "interrupted"}
        [stopped] = await talk.stop()
        assert stopped["type"] == "stopped" and talk.close_code == 1000
        check_fields(DUPLEX, talk.heard)
    await client.idle()
    kept = await recording(worker, prepared["recording_session_id"])
    assert kept["mode"] == "duplex" and len(kept["chunks"]) == len(results)
    modes = [chunk["result"]["mode"] for chunk in kept["chunks"]]
    assert modes == ["LISTEN"] * 2 + ["SPEAK"] * 3 + ["LISTEN"]
    assert [event["type"] for event in kept["events"]] == ["pause", "resume", "interrupt"]


async def unit(talk: Talk, index: int) -> Message:
    """Send one second of speech and wait for its result."""
    result = await talk.ask("audio_chunk", audio=spoken(index))
    assert result["type"] == "result", result
    return result


@in_loop
async def test_health_has_every_field(worker: RunningWorker) -> None:
    health = await Client(worker.port).health()
    assert set(health) == set(WorkerHealth.model_fields)
    assert health["status"] == "healthy" and health["model_loaded"]
    assert health["load_progress"] == 1.0 and health["slots"] == 1
    assert health["uptime_s"] > 0 and "omni_duplex" in health["capabilities"]


@in_loop
async def test_metrics_count_what_happened(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("duplex", "adx_metrics") as talk:
        await talk.prepared()
        await unit(talk, 0)
        shown = (await client._call("GET", "/metrics")).text
        assert 'omni_worker_sessions{mode="audio_duplex"} 1.0' in shown
        assert 'omni_worker_unit_stage_seconds_count{mode="audio_duplex",stage="wall"}' in shown
    await client.idle()
    shown = (await client._call("GET", "/metrics")).text
    assert 'omni_worker_sessions{mode="audio_duplex"} 0.0' in shown


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
