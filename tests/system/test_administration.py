"""The queue and the routes around it, over real processes."""

from __future__ import annotations

import base64
from contextlib import AsyncExitStack

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from tests.system import shapes
from tests.system.client import (
    DuplexClient,
    HalfDuplexClient,
    Samples,
    StreamingClient,
    from_base64,
)
from tests.system.conftest import RECORDINGS
from tests.system.loops import in_loop, new_id
from tests.system.running import LIMIT_S, RunningSystem


@in_loop
async def test_who_finds_all_workers_busy_waits_with_a_place_and_an_estimate(
    system: RunningSystem,
) -> None:
    async with AsyncExitStack() as stack:
        urls = {
            "first": system.ws(f"/ws/duplex/{new_id('adx')}"),
            "second": system.ws(f"/ws/half_duplex/{new_id('hdx')}"),
            "third": system.ws(f"/ws/duplex/{new_id('omni')}"),
        }
        first = await stack.enter_async_context(DuplexClient.connected(urls["first"]))
        await first.prepare()
        second = await stack.enter_async_context(HalfDuplexClient.connected(urls["second"]))
        queued = await second.hear("queued")
        assert (queued["position"], queued["queue_length"]) == (1, 1)
        assert queued["estimated_wait_s"] == queued["eta_seconds"] > 0
        third = await stack.enter_async_context(DuplexClient.connected(urls["third"]))
        behind = await third.hear("queued")
        assert behind["position"] == behind["queue_length"] == 2
        assert behind["estimated_wait_s"] > queued["estimated_wait_s"]

        queue = system.get("/api/queue")
        assert [item["position"] for item in queue["items"]] == [1, 2]
        kinds = [item["request_type"] for item in queue["items"]]
        assert kinds == ["half_duplex_audio", "omni_duplex"]
        (task,) = queue["running_tasks"]
        assert task["request_type"] == "audio_duplex" and task["worker_id"] == "worker_0"
        ticket = system.get(f"/api/queue/{queued['ticket_id']}")
        assert ticket["found"] is True and ticket["ticket"]["position"] == 1
        update = await second.hear("queue_update")
        assert update["ticket_id"] == queued["ticket_id"]
        assert update["estimated_wait_s"] <= queued["estimated_wait_s"]

        gone = await system.call("DELETE", f"/api/queue/{behind['ticket_id']}")
        assert gone.json() == {"success": True}
        assert (await third.hear("error"))["code"] == "queue_cancelled"
        assert await third.closed() == 1000

        await first.say("stop")
        await first.hear("stopped")
        done = await second.hear("queue_done")
        assert done["worker_id"] == "worker_0"
        await second.say("prepare", system_prompt="Answer.")
        await second.hear("prepared")
        await second.say("stop")
        await second.hear("stopped")
    assert shapes.offences(second.messages, shapes.HALF_DUPLEX) == []
    assert shapes.offences(third.messages, shapes.DUPLEX) == []
    system.wait_until_idle(LIMIT_S)


@in_loop
async def test_who_stops_waiting_gives_the_place_up(system: RunningSystem) -> None:
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(
            DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}"))
        )
        await holder.hear("queue_done")
        live = await stack.enter_async_context(
            DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}"))
        )
        turns = await stack.enter_async_context(
            StreamingClient.connected(system.ws(f"/ws/streaming/{new_id('stream')}"))
        )
        await live.hear("queued")
        await turns.say("prefill", messages=[{"role": "user", "content": "Hello."}])
        assert (await turns.hear("queued"))["position"] == 2
        await live.say("stop")
        assert (await live.hear("stopped"))["recording_session_id"] is None
        assert await live.closed() == 1000
        while (await turns.hear("queue_update"))["position"] != 1:
            continue  # told before the change
        await turns.say("stop")
        assert (await turns.hear("done"))["stopped"] is True
        assert system.get("/api/queue")["items"] == []
    assert shapes.offences(turns.messages, shapes.STREAMING) == []
    assert shapes.offences(live.messages, shapes.DUPLEX) == []


def test_status_workers_caches_and_health(system: RunningSystem) -> None:
    system.wait_until_idle(LIMIT_S)
    status = system.get("/status")
    assert status["gateway_healthy"] is True
    assert (status["total_workers"], status["idle_workers"]) == (1, 1)
    (worker,) = system.get("/workers")["workers"]
    assert worker["worker_id"] == "worker_0" and worker["port"] == system.port + 1
    assert worker["status"] == "idle" and worker["last_heartbeat"]
    assert [one["worker_id"] for one in system.get("/cache")["workers"]] == ["worker_0"]
    health = system.get("/health")
    assert health["status"] == "healthy" and health["ready"] is True
    told = system.worker_health(0)
    assert told["worker_status"] == "idle" and told["model_loaded"] is True
    assert told["uptime_s"] > 0 and told["capabilities"]
    for url, name in ((system.url, "omni_gateway_workers"), (system.worker_url(0), "omni_worker")):
        metrics = httpx.get(f"{url}/metrics", trust_env=False, timeout=None)
        assert metrics.headers["content-type"].startswith("text/plain") and name in metrics.text


def test_estimates_can_be_changed_while_it_runs(system: RunningSystem) -> None:
    before = system.get("/api/config/eta")
    answer = system.ask("PUT", "/api/config/eta", json={"eta_omni_duplex_s": 33})
    changed = answer.json()["config"]
    assert changed["eta_omni_duplex_s"] == 33
    assert changed["eta_chat_s"] == before["config"]["eta_chat_s"]
    bad = system.ask("PUT", "/api/config/eta", json={"eta_chat_s": -1})
    assert bad.status_code == 422
    system.ask("PUT", "/api/config/eta", json=before["config"])
    assert system.get("/api/config/eta")["config"] == before["config"]


def test_presets_and_the_default_voice(system: RunningSystem) -> None:
    presets = system.get("/api/presets")
    assert set(presets) == {"turnbased", "half_duplex_audio", "omni", "audio_duplex"}
    for mode, listed in presets.items():
        assert {"chinese_call", "english_call"} <= {preset["id"] for preset in listed}
        for preset in listed:
            sounds = system.get(f"/api/presets/{mode}/{preset['id']}/audio")
            assert sounds.keys() == {"system_content_audio", "ref_audio"}
    voice = system.get("/api/default_ref_audio")
    assert voice["sample_rate"] == 16_000 and voice["samples"] == len(from_base64(voice["base64"]))
    defaults = system.get("/api/frontend_defaults")
    assert defaults["playback_delay_ms"] == 200 and defaults["max_kv_tokens"] == 8_192


@in_loop
async def test_a_voice_is_uploaded_used_and_deleted(system: RunningSystem, speech: Samples) -> None:
    path = "/api/assets/ref_audio"
    file = base64.b64encode((RECORDINGS / "ref_voice.wav").read_bytes()).decode()
    answer = await system.call("POST", path, json={"name": "Mine", "audio_base64": file})
    kept = answer.json()
    assert kept["success"] is True and kept["name"] == "Mine"
    listed = system.get("/api/assets/ref_audio")
    (voice,) = [one for one in listed["ref_audios"] if one["id"] == kept["id"]]
    assert voice["sample_rate"] == 16_000 and abs(voice["duration_ms"] - 4_300) < 5
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        await client.prepare(ref_audio_id=kept["id"], tts_ref_audio_id=kept["id"])
        await client.unit(speech[:16_000])
        await client.say("stop")
        await client.hear("stopped")
    assert client.all_of("warning") == []
    assert (await system.call("DELETE", f"{path}/{kept['id']}")).json()["success"] is True
    assert (await system.call("DELETE", f"{path}/{kept['id']}")).status_code == 404
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        await client.hear("queue_done")
        await client.say("prepare", ref_audio_id=kept["id"])
        assert (await client.hear("error"))["code"] == "not_found"
        await client.closed()
    silent = base64.b64encode(np.zeros(8, "<f4").tobytes()).decode()
    bad = await system.call("POST", path, json={"name": "No sound", "audio_base64": silent})
    assert bad.status_code == 400


@in_loop
async def test_an_app_that_is_switched_off_lets_nobody_in(system: RunningSystem) -> None:
    path = "/api/admin/apps/audio_duplex"
    answer = await system.call("PUT", path, json={"enabled": False})
    assert answer.json()["success"] is True
    try:
        apps = [app["app_id"] for app in system.get("/api/apps")["apps"]]
        assert apps == ["turnbased", "half_duplex_audio", "omni"]
        page = await system.call("GET", "/audio_duplex")
        assert page.status_code == 302 and page.headers["location"] == "/"
        with pytest.raises(InvalidStatus):
            async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")):
                pass
        async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('omni')}")) as client:
            await client.hear("queue_done")
    finally:
        await system.call("PUT", path, json={"enabled": True})
    assert len(system.get("/api/apps")["apps"]) == 4
    answer = await system.call("PUT", f"{path}x", json={"enabled": True})
    assert answer.status_code == 404


@in_loop
async def test_a_bad_or_used_session_id_is_refused(system: RunningSystem) -> None:
    async with DuplexClient.connected(system.ws("/ws/duplex/bad.id")) as client:
        assert (await client.hear("error"))["code"] == "invalid_session_id"
        assert await client.closed() == 1008
    name = new_id("adx")
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{name}")) as first:
        await first.hear("queue_done")
        async with DuplexClient.connected(system.ws(f"/ws/half_duplex/{name}")) as second:
            assert (await second.hear("error"))["code"] == "session_in_use"
            assert await second.closed() == 1008
        await first.say("stop")
        await first.hear("stopped")


@in_loop
async def test_a_page_of_another_site_is_refused(system: RunningSystem) -> None:
    url = system.ws(f"/ws/duplex/{new_id('adx')}")
    with pytest.raises(InvalidStatus):
        async with DuplexClient.connected(url, headers={"Origin": "https://evil.example"}):
            pass
    async with DuplexClient.connected(url, headers={"Origin": system.url}) as client:
        await client.hear("queue_done")


def test_the_http_interface_describes_itself(system: RunningSystem) -> None:
    document = system.get("/api/openapi.json")
    assert {"/api/chat", "/status", "/api/queue", "/api/presets"} <= document["paths"].keys()
