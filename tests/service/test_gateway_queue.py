"""The wait for a worker as a client sees it, and who is not let in at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from websockets.exceptions import InvalidStatus

from core.schemas.worker import WorkerStatus
from tests.fakes.gateway_stage import HURRY, Client, Stage, on_stage, until
from tests.fakes.pools import count, idle_count

LIVE = "/ws/duplex/adx_"


async def occupy(stage: Stage, client: Client) -> None:
    await client.expect("queue_done")
    await client.say("prepare")
    await client.expect("prepared")


# Waiting.


@on_stage()
async def test_a_waiting_client_is_sent_its_position(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first, stage.client(f"{LIVE}2") as second:
        await occupy(stage, first)
        queued = await second.expect("queued")
        assert queued["position"] == queued["queue_length"] == 1
        assert queued["ticket_id"].startswith("q_")
        assert queued["estimated_wait_s"] == queued["eta_seconds"] > 100
        update = await second.expect("queue_update")
        assert update["ticket_id"] == queued["ticket_id"]
        assert update["position"] == 1
        assert update["eta_seconds"] == update["estimated_wait_s"] <= queued["eta_seconds"]
        await first.say("stop")
        await second.expect_after("queue_done", "queue_update")


@on_stage(timing=replace(HURRY, queueing=replace(HURRY.queueing, update_period_s=30.0)))
async def test_every_change_of_position_is_sent_at_once(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first:
        await occupy(stage, first)
        async with stage.client(f"{LIVE}2") as second, stage.client(f"{LIVE}3") as third:
            assert (await second.expect("queued"))["position"] == 1
            assert (await third.expect("queued"))["position"] == 2
            await second.say("stop")
            assert (await second.expect("stopped"))["session_id"] == "adx_2"
            assert await second.expect_end() == (1000, "")
            assert (await third.expect("queue_update"))["position"] == 1
            await third.say("stop")
            await third.expect("stopped")


@on_stage()
async def test_a_client_that_leaves_the_queue_is_not_assigned(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first:
        await occupy(stage, first)
        async with stage.client(f"{LIVE}2") as second:
            await second.expect("queued")
        await until(lambda: stage.gateway.pool.queue_length == 0)
    await stage.check_quiet()
    assert [query["session_id"] for query in stage.worker.queries] == ["adx_1"]


@on_stage()
async def test_first_come_first_served_over_all_protocols(stage: Stage) -> None:
    async with (
        stage.client(f"{LIVE}1") as first,
        stage.client("/ws/half_duplex/h_1") as second,
        stage.client("/ws/streaming/s_1") as third,
    ):
        await occupy(stage, first)
        await second.expect("queued")
        await third.say("prefill", messages=[{"role": "user", "content": "Hi"}])
        assert (await third.expect_after("queued", "queue_update"))["position"] == 2
        await first.say("stop")
        await second.expect_after("queue_done", "queue_update")
        while (await third.expect("queue_update"))["position"] != 1:
            continue  # told before the change
        await second.say("stop")
        await third.expect_after("queue_done", "queue_update")
        await third.expect("prefill_done")
        await third.say("close")


@on_stage()
async def test_an_early_prepare_is_held_and_nothing_else(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first, stage.client(f"{LIVE}2") as second:
        await occupy(stage, first)
        await second.expect("queued")
        await second.say("audio_chunk", audio="AAAA")
        await second.say("prepare", prefix_system_prompt="early")
        await second.say("prepare", prefix_system_prompt="again")
        warning = await second.expect_after("warning", "queue_update")
        assert warning["code"] == "already_prepared"
        await first.say("stop")
        await second.expect_after("queue_done", "queue_update")
        await second.expect("prepared")
        await second.say("stop")
        await second.expect("stopped")
    mine = [message for message in stage.worker.told if message.get("prefix_system_prompt")]
    assert [message["prefix_system_prompt"] for message in mine] == ["early"]
    assert "audio_chunk" not in stage.worker.told_types()


@on_stage()
async def test_a_stop_ends_the_wait_of_a_turn_and_the_socket_stays_open(stage: Stage) -> None:
    prefill = {"messages": [{"role": "user", "content": "Hi"}]}
    async with stage.client(f"{LIVE}1") as first, stage.client("/ws/streaming/s_1") as second:
        await occupy(stage, first)
        await second.say("prefill", **prefill)
        await second.expect("queued")
        await second.say("stop")
        done = await second.expect_after("done", "queue_update")
        assert (done["stopped"], done["session_id"]) == (True, "s_1")
        assert stage.gateway.pool.queue_length == 0
        await first.say("stop")
        await first.expect("stopped")
        await until(lambda: idle_count(stage.gateway.pool) == 1)
        await second.say("prefill", **prefill)
        await second.expect("queue_done", "prefill_done")
        await second.say("close")


@on_stage()
async def test_unknown_and_unexpected_messages_get_a_warning(stage: Stage) -> None:
    async with stage.client("/ws/streaming/s_1") as client:
        await client.say("dance")
        assert (await client.expect("warning"))["code"] == "unknown_type"
        await client.say("generate")
        assert (await client.expect("warning"))["code"] == "out_of_order"
        await client.say("heartbeat")
        await client.say("close")
        assert await client.expect_end() == (1000, "")


# Ends of the wait that the client did not choose.


@on_stage(service={"max_queue_size": 1})
async def test_a_full_queue_refuses_and_closes(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first, stage.client(f"{LIVE}2") as second:
        await occupy(stage, first)
        await second.expect("queued")
        async with stage.client(f"{LIVE}3") as third:
            error = await third.expect("error")
            assert error["code"] == "queue_full"
            assert error["error"] == error["message"] == "Queue full (1 requests)"
            assert error["fatal"] is True
            assert await third.expect_end() == (1013, "queue_full")


@on_stage()
async def test_a_cancelled_ticket_is_reported(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first, stage.client(f"{LIVE}2") as second:
        await occupy(stage, first)
        ticket_id = (await second.expect("queued"))["ticket_id"]
        found = (await stage.http.get(f"/api/queue/{ticket_id}")).json()
        assert found["found"] and found["ticket"]["session_id"] == "adx_2"
        answer = await stage.http.delete(f"/api/queue/{ticket_id}")
        assert answer.json() == {"success": True}
        error = await second.expect_after("error", "queue_update")
        assert error["code"] == "queue_cancelled"
        assert await second.expect_end() == (1000, "queue_cancelled")
        assert (await stage.http.delete(f"/api/queue/{ticket_id}")).json() == {"success": False}
        assert (await stage.http.get(f"/api/queue/{ticket_id}")).json()["found"] is False


@on_stage()
async def test_without_any_worker_the_wait_ends(stage: Stage) -> None:
    for worker in stage.gateway.pool.workers.values():
        stage.gateway.pool.directory.report_unreachable(worker)
    stage.worker.script.status = "error"
    await until(lambda: count(stage.gateway.pool, WorkerStatus.ERROR) == 1)
    async with stage.client(f"{LIVE}1") as client:
        await client.expect("queued")
        error = await client.expect_after("error", "queue_update")
        assert error["code"] == "no_worker"
        assert await client.expect_end() == (1013, "no_worker")


@on_stage()
async def test_paused_intake_refuses_and_running_sessions_continue(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first:
        await occupy(stage, first)
        assert (await stage.http.put("/api/admin/intake", json={"paused": True})).is_success
        assert (await stage.http.get("/api/admin/intake")).json() == {"paused": True}
        async with stage.client(f"{LIVE}2") as second:
            assert (await second.expect("error"))["code"] == "no_worker"
            assert (await second.expect_end())[0] == 1013
        await first.say("audio_chunk", audio="AAAA")
        await first.expect("result")
        await stage.http.put("/api/admin/intake", json={"paused": False})
        await first.say("stop")
        await first.expect("stopped")


# Who is not let in.


@pytest.mark.parametrize("session_id", ["a.b", "x" * 65, "%C3%A4", "a%20b"])
@on_stage()
async def test_a_bad_session_id_is_refused_with_a_reason(stage: Stage, session_id: str) -> None:
    async with stage.client(f"/ws/duplex/{session_id}") as client:
        assert (await client.expect("error"))["code"] == "invalid_session_id"
        assert await client.expect_end() == (1008, "invalid_session_id")


@on_stage(timing=replace(HURRY, takeover_grace_s=0.05))
async def test_one_id_has_one_socket_at_a_time(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first:
        await occupy(stage, first)
        async with stage.client(f"{LIVE}1") as second:
            assert (await second.expect("error"))["code"] == "session_in_use"
            assert await second.expect_end() == (1008, "session_in_use")
        await first.say("audio_chunk", audio="AAAA")
        await first.expect("result")
    await stage.check_quiet()
    async with stage.client(f"{LIVE}1") as third:
        await third.expect_after("queue_done", "queued", "queue_update")


@on_stage()
async def test_a_socket_opened_while_the_old_one_closes_is_accepted(stage: Stage) -> None:
    async with stage.client("/ws/streaming/s_1") as first:
        await first.say("close")
        async with stage.client("/ws/streaming/s_1") as second:
            await second.say("prefill", messages=[{"role": "user", "content": "Hi"}])
            await second.expect("queue_done")


@on_stage()
async def test_an_app_that_is_switched_off_is_refused_before_it_is_accepted(stage: Stage) -> None:
    answer = await stage.http.put("/api/admin/apps/omni", json={"enabled": False})
    assert answer.json()["app"]["enabled"] is False
    with pytest.raises(InvalidStatus):
        async with stage.client("/ws/duplex/omni_1"):
            pass
    async with stage.client("/ws/duplex/adx_1") as client:
        await client.expect("queue_done")
    assert (await stage.http.get("/omni")).status_code == 302


@on_stage()
async def test_foreign_origins_are_refused(stage: Stage) -> None:
    path = f"{LIVE}1"
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus):
            async with stage.client(path, {"Origin": origin}):
                pass
    ours = f"http://127.0.0.1:{stage.port}"
    async with stage.client(path, {"Origin": ours}) as client:
        await client.expect("queue_done")
    evil = {"Origin": "https://evil.example"}
    answer = await stage.http.post("/api/duplex/stop", json={"session_id": "x"}, headers=evil)
    assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused")


@on_stage(limits={"max_connections": 1})
async def test_connections_are_limited(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first:
        await first.expect("queue_done")
        async with stage.client(f"{LIVE}2") as second:
            assert (await second.expect("error"))["code"] == "rate_limited"
            assert (await second.expect_end())[0] == 1013
    await until(lambda: not stage.gateway.live.all())
    async with stage.client(f"{LIVE}3") as third:
        await third.expect_after("queue_done", "queued", "queue_update")


@on_stage(workers=2)
async def test_two_workers_serve_two_at_once(stage: Stage) -> None:
    async with stage.client(f"{LIVE}1") as first, stage.client(f"{LIVE}2") as second:
        names = [(await client.expect("queue_done"))["worker_id"] for client in (first, second)]
        assert sorted(names) == ["worker_0", "worker_1"]
        await asyncio.gather(first.say("stop"), second.say("stop"))
