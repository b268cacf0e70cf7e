"""One-shot chat over HTTP and over a socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator

import pytest

from core.schemas.worker import WorkerStatus
from gateway_modules.routes.chat import reply
from gateway_modules.voices import DECODERS
from tests.fakes.gateway_stage import Stage, on_stage, until
from tests.fakes.pools import busy_count, count, idle_count

WAIT_S = 60.0  # ends a test that hangs
REQUEST = {"messages": [{"role": "user", "content": "Hi"}]}


@on_stage()
async def test_a_reply_includes_its_wait(stage: Stage) -> None:
    answer = await stage.http.post("/api/chat", json=REQUEST)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["text"], body["success"]) == ("Hello", True)
    assert body["queue_wait_ms"] >= 0
    assert body["estimated_queue_wait_s"] == 0
    assert stage.worker.told == [REQUEST]
    assert stage.gateway.pool.eta_tracker.get_status().ema_chat_samples == 1


@on_stage()
async def test_a_request_without_a_voice_does_not_wait_for_decoders(stage: Stage) -> None:
    decoded = threading.Event()
    voices = stage.gateway.voices
    decoding = [asyncio.create_task(voices.run(decoded.wait, WAIT_S)) for _ in range(DECODERS)]
    try:
        async with asyncio.timeout(WAIT_S):
            answer = await stage.http.post("/api/chat", json=REQUEST)
    finally:
        decoded.set()
        await asyncio.gather(*decoding)
    assert answer.status_code == 200


@on_stage()
async def test_requests_are_served_one_after_the_other(stage: Stage) -> None:
    gate = stage.worker.script.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        replies = [group.create_task(stage.http.post("/api/chat", json=REQUEST)) for _ in range(3)]
        await until(lambda: stage.gateway.pool.queue_length == 2)
        status = (await stage.http.get("/status")).json()
        assert (status["queue_length"], status["busy_workers"]) == (2, 1)
        (worker,) = (await stage.http.get("/workers")).json()["workers"]
        assert worker["status"] == WorkerStatus.BUSY_CHAT
        gate.set()
    waits = sorted(reply.result().json()["estimated_queue_wait_s"] for reply in replies)
    assert waits[0] == 0 and waits[1] > 10 and waits[2] > 20


@on_stage()
async def test_every_wait_is_counted_by_its_outcome(stage: Stage) -> None:
    pool = stage.gateway.pool
    gate = stage.worker.script.gate = asyncio.Event()
    asked = []
    for _ in range(3):  # one after the other, so that their order is known
        asked.append(asyncio.create_task(stage.http.post("/api/chat", json=REQUEST)))
        await until(lambda: busy_count(pool) == 1 and pool.queue_length == len(asked) - 1)
    served, cancelled, gone = asked
    pool.cancel(pool.get_queue_status().items[0].ticket_id)
    assert not (await cancelled).is_success
    gone.cancel()
    await until(lambda: pool.queue_length == 0)
    pool.is_intake_paused = True
    assert (await stage.http.post("/api/chat", json=REQUEST)).status_code == 503
    gate.set()
    assert (await served).is_success

    def count_of(outcome: str) -> float | None:
        name = "omni_gateway_queue_wait_seconds_count"
        labels = {"mode": "chat", "outcome": outcome}
        return stage.gateway.registry.get_sample_value(name, labels)

    outcomes = ("assigned", "cancelled", "gone", "refused")
    assert {one: count_of(one) for one in outcomes} == dict.fromkeys(outcomes, 1)


@pytest.mark.parametrize(
    ("worker_status", "status", "code"),
    [
        (422, 422, "bad_json"),
        (429, 503, "no_worker"),
        (503, 503, "no_worker"),
        (500, 502, "worker_lost"),
    ],
)
@on_stage()
async def test_failures_of_the_worker_have_specific_errors(
    stage: Stage, worker_status: int, status: int, code: str
) -> None:
    stage.worker.script.chat_status = worker_status
    answer = await stage.http.post("/api/chat", json=REQUEST)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["detail"]


@on_stage(service={"request_timeout": 0.1})
async def test_a_slow_worker_times_out(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    answer = await stage.http.post("/api/chat", json=REQUEST)
    assert (answer.status_code, answer.json()["code"]) == (504, "timeout")
    await until(lambda: stage.worker.aborted == len(stage.worker.told))


@on_stage(service={"max_queue_size": 1})
async def test_a_full_queue_refuses(stage: Stage) -> None:
    gate = stage.worker.script.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.http.post("/api/chat", json=REQUEST))
        await until(lambda: busy_count(stage.gateway.pool) == 1)
        group.create_task(stage.http.post("/api/chat", json=REQUEST))
        await until(lambda: stage.gateway.pool.queue_length == 1)
        answer = await stage.http.post("/api/chat", json=REQUEST)
        assert (answer.status_code, answer.json()["code"]) == (503, "queue_full")
        assert answer.headers["retry-after"]
        gate.set()


@on_stage()
async def test_a_disconnect_frees_the_queue_position_or_the_worker(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    served = asyncio.create_task(stage.http.post("/api/chat", json=REQUEST))
    await until(lambda: stage.worker.told)
    waiting = asyncio.create_task(stage.http.post("/api/chat", json=REQUEST))
    await until(lambda: stage.gateway.pool.queue_length == 1)
    waiting.cancel()
    await until(lambda: stage.gateway.pool.queue_length == 0)
    served.cancel()
    await stage.check_quiet()
    await until(lambda: stage.worker.aborted == 1)
    assert stage.worker.told == [REQUEST]
    assert idle_count(stage.gateway.pool) == 1


@on_stage()
async def test_a_cancelled_ticket_is_reported(stage: Stage) -> None:
    gate = stage.worker.script.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.http.post("/api/chat", json=REQUEST))
        await until(lambda: busy_count(stage.gateway.pool) == 1)
        waiting = group.create_task(stage.http.post("/api/chat", json=REQUEST))
        await until(lambda: stage.gateway.pool.queue_length == 1)
        (item,) = (await stage.http.get("/api/queue")).json()["items"]
        await stage.http.delete(f"/api/queue/{item['ticket_id']}")
        answer = await waiting
        assert (answer.status_code, answer.json()["code"]) == (503, "queue_cancelled")
        gate.set()


@on_stage(workers=2)
async def test_a_worker_that_is_not_ready_is_replaced_by_another(stage: Stage) -> None:
    stage.worker.script.chat_status = 503
    answer = await stage.http.post("/api/chat", json=REQUEST)
    assert (answer.status_code, answer.json()["text"]) == (200, "Hello")
    assert stage.workers[1].told == [REQUEST]


@on_stage()
async def test_without_any_worker_the_wait_ends(stage: Stage) -> None:
    stage.worker.script.status = "error"
    for worker in stage.gateway.pool.workers.values():
        stage.gateway.pool.directory.report_unreachable(worker)
    await until(lambda: count(stage.gateway.pool, WorkerStatus.ERROR) == 1)
    answer = await stage.http.post("/api/chat", json=REQUEST)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "bad_json"),
        (b'{"messages": []}', "bad_json"),
        (b'{"messages": [{"role": "user", "content": "x"}], "tts": {"mode": 5}}', "bad_config"),
    ],
)
@on_stage()
async def test_an_invalid_request_is_refused_by_the_gateway(
    stage: Stage, body: bytes, code: str
) -> None:
    answer = await stage.http.post("/api/chat", content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert stage.worker.told == []


@on_stage(limits={"chat_message_bytes": 2_000})
async def test_a_request_that_is_too_long_is_refused(stage: Stage) -> None:
    long = json.dumps({"messages": [{"role": "user", "content": "x" * 3_000}]}).encode()

    async def in_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(long), 500):
            yield long[start : start + 500]

    for content in (long, in_pieces()):
        answer = await stage.http.post("/api/chat", content=content)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_big")


@on_stage()
async def test_paths_of_the_server_never_reach_a_worker(stage: Stage) -> None:
    tts = {"enabled": True, "ref_audio_path": "/etc/passwd", "output_path": "/tmp/reply.wav"}
    assert (await stage.http.post("/api/chat", json={**REQUEST, "tts": tts})).is_success
    (told,) = stage.worker.told
    assert told["tts"] == {"enabled": True, "ref_audio_path": None, "output_path": None} | {
        "ref_audio_data": None
    }


@on_stage()
async def test_a_disabled_app_refuses_requests(stage: Stage) -> None:
    await stage.http.put("/api/admin/apps", json={"app_id": "turnbased", "enabled": False})
    answer = await stage.http.post("/api/chat", json=REQUEST)
    assert (answer.status_code, answer.json()["code"]) == (403, "app_disabled")


# Over a socket.


@pytest.mark.parametrize("message", [REQUEST, {**REQUEST, "type": "chat", "streaming": False}])
@on_stage()
async def test_a_socket_gives_one_reply_and_closes(stage: Stage, message: object) -> None:
    text = json.dumps(message)
    async with stage.client("/ws/chat") as client:
        await client.connection.send(text)
        await client.expect("queue_done", "prefill_done")
        assert (await client.expect("done"))["text"] == "Hello"
        assert await client.expect_end() == (1000, "")
    assert stage.worker.texts == [text]
    assert stage.worker.queries[0]["session_id"].startswith("chat_")


@on_stage()
async def test_a_reply_that_ends_before_the_stop_is_complete(stage: Stage) -> None:
    body = json.dumps({**REQUEST, "streaming": True, "tts": {"enabled": False}})
    kinds = []
    async for message in reply(stage.gateway, body, "", lambda: True):
        await until(lambda: stage.worker.told and not stage.worker.sockets)
        kinds.append(message.type)
    assert kinds == ["prefill_done", "chunk", "chunk", "done"]


@on_stage()
async def test_leaving_a_chat_socket_frees_the_worker(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with stage.client("/ws/chat") as client:
        await client.connection.send(json.dumps(REQUEST))
        await client.expect("queue_done", "prefill_done")
        assert stage.gateway.pool.workers["worker_0"].status is WorkerStatus.BUSY_CHAT
    await stage.check_quiet()
    assert idle_count(stage.gateway.pool) == 1


@on_stage()
async def test_a_chat_that_waits_can_be_stopped(stage: Stage) -> None:
    async with stage.client("/ws/duplex/adx_1") as live, stage.client("/ws/chat") as client:
        await live.expect("queue_done")
        await client.connection.send(json.dumps(REQUEST))
        await client.expect("queued")
        await client.say("stop")
        assert (await client.expect_after("done", "queue_update"))["stopped"] is True
