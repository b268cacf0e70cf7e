"""The queue and the routes around it, over real processes."""

from __future__ import annotations

import base64
from contextlib import AsyncExitStack

import httpx
import numpy as np

from tests.system import shapes
from tests.system.client import (
    DuplexClient,
    HalfDuplexClient,
    Samples,
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
        metrics = httpx.get(f"{url}/metrics", trust_env=False, verify=False, timeout=None)
        assert metrics.headers["content-type"].startswith("text/plain") and name in metrics.text


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
