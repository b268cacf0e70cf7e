"""What administrators see and do beyond switches: recordings, restarts, logs, audit, charts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.files import LOGS_FOLDER
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from gateway_modules.administration import Switches
from gateway_modules.queue.directory import loaded_model
from recording.folder import write_meta
from recording.names import recording_folder
from recording.records import Meta, Status
from tests.fakes.gateway_stage import Stage, on_stage, until
from tests.fakes.pools import count, idle_count

TOKEN = "a long enough token"
ADMIN = {"X-Admin-Token": TOKEN}
MODEL = {"name": "Tiny", "kind": "tiny_random", "parameters": 7, "device": "cpu"}


def record(stage: Stage, name: str, size_bytes: int) -> Path:
    folder = recording_folder(stage.gateway.settings.service.data_dir, name)
    folder.mkdir(parents=True)
    meta = Meta(
        session_id=name,
        app_type=RequestType.CHAT,
        created_at=datetime.now(UTC),
        status=Status.READY,
        size_bytes=size_bytes,
    )
    write_meta(folder, meta)
    return folder


# Status.


@on_stage(workers=2)
async def test_status_shows_the_model_and_the_progress_of_loading(stage: Stage) -> None:
    assert (await stage.http.get("/status")).json()["model"] is None
    stage.workers[0].script.health = {"model": MODEL, "vram_used_mb": 5, "uptime_s": 30}
    loading = {"load_stage": "loading weights", "load_progress": 0.5, "model_loaded": False}
    stage.workers[1].script.status = "loading"
    stage.workers[1].script.health = loading
    pool = stage.gateway.pool
    for worker in pool.workers.values():
        pool.directory.recheck(worker)
    await until(
        lambda: count(pool, WorkerStatus.LOADING) == 1 and loaded_model(pool.workers.values())
    )
    status = (await stage.http.get("/status")).json()
    assert status["model"]["kind"] == "tiny_random" and status["model"]["is_demonstration"] is True
    assert status["loading"] == {
        "worker_id": "worker_1",
        "stage": "loading weights",
        "progress": 0.5,
    }
    first, second = (await stage.http.get("/workers")).json()["workers"]
    assert (first["vram_used_mb"], first["can_restart"], first["sessions"]) == (5, False, [])
    assert first["uptime_s"] >= 30 and second["loading"]["progress"] == 0.5


# Recordings and voices.


@on_stage(security={"admin_token": TOKEN})
async def test_recordings_are_listed_in_pages(stage: Stage) -> None:
    folders = [record(stage, "small", 10), record(stage, "large", 500)]
    described = sum((folder / "meta.json").stat().st_size for folder in folders)
    path = "/api/admin/recordings"
    assert (await stage.http.get(path)).status_code == 401
    answer = await stage.http.get(path, headers=ADMIN, params={"sort": "largest", "limit": 1})
    told = answer.json()
    assert (told["total"], told["total_bytes"]) == (2, 510 + described)
    assert [one["id"] for one in told["recordings"]] == ["large"]
    assert answer.headers["cache-control"] == "no-store"
    for wrong in ({"limit": 0}, {"limit": 201}, {"offset": -1}, {"sort": "prettiest"}):
        answer = await stage.http.get(path, headers=ADMIN, params=wrong)
        assert answer.status_code == 422, wrong


# Restarting.


async def make_restartable(stage: Stage, boot_id: str = "one") -> None:
    """Let the worker say that a launcher looks after it."""
    stage.worker.script.health = {"is_supervised": True, "boot_id": boot_id}
    worker = stage.gateway.pool.workers["worker_0"]
    heard = worker.service.last_heartbeat
    stage.gateway.pool.directory.recheck(worker)
    await until(lambda: worker.service.last_heartbeat != heard)


@on_stage()
async def test_a_worker_whose_name_is_not_known_yet_is_not_drained(stage: Stage) -> None:
    place = "127.0.0.1:9"  # the port of discard, where nothing answers
    await stage.http.put("/api/admin/workers", json={"workers": [place]})
    (name,) = [one for one, known in stage.gateway.pool.workers.items() if not known.has_left]
    answer = await stage.http.put(f"/api/admin/workers/{name}", json={"draining": True})
    assert (answer.status_code, answer.json()["code"]) == (502, "worker_unreachable")
    assert not stage.gateway.pool.directory.drained
    assert not Switches(stage.gateway.store).names()


@on_stage()
async def test_a_restarting_worker_finishes_and_gets_no_new_sessions(stage: Stage) -> None:
    await make_restartable(stage)
    path = "/api/admin/workers/worker_0/restart"
    async with stage.client("/ws/duplex/adx_1") as first:
        await first.expect("queue_done")
        told = (await stage.http.post(path)).json()
        assert told["is_restarting"] is True and stage.worker.restarts == 1
        assert (await stage.http.post(path)).status_code == 429
        await first.say("prepare")
        await first.expect("prepared")
    async with stage.client("/ws/duplex/adx_2") as second:
        await second.expect("queued")
        await make_restartable(stage, "two")  # another process answers
        await second.expect_after("queue_done", "queue_update")
    assert stage.worker.restarts == 1


@on_stage()
async def test_a_failed_restart_leaves_the_worker_unchanged(stage: Stage) -> None:
    await make_restartable(stage)
    path = "/api/admin/workers/worker_0/restart"
    for status, expected in ((409, 409), (500, 502), (503, 503)):
        stage.worker.script.restart_status = status
        answer = await stage.http.post(path)
        assert answer.status_code == expected, answer.text
        if status == 409:
            assert "not started by the launcher" in answer.json()["detail"]
        async with stage.client("/ws/duplex/adx_1") as client:
            await client.expect("queue_done")
        await stage.check_quiet()
    answer = await stage.http.post("/api/admin/workers/worker_9/restart")
    assert answer.status_code == 404


# Joining and leaving.


@on_stage(workers=2)
async def test_a_worker_leaves_without_cutting_a_session_and_rejoins(stage: Stage) -> None:
    path, pool = "/api/admin/workers", stage.gateway.pool
    both = (await stage.http.get(path)).json()["workers"]
    async with stage.client("/ws/duplex/adx_1") as client:
        assert (await client.expect("queue_done"))["worker_id"] == "worker_0"
        answer = await stage.http.put(path, json={"workers": both[1:]})
        assert answer.json()["workers"] == both[1:]
        told = (await stage.http.get("/workers")).json()["workers"]
        assert [(one["worker_id"], one["is_draining"]) for one in told] == [
            ("worker_0", True),
            ("worker_1", False),
        ]
        await client.say("prepare")
        await client.expect("prepared")
        async with stage.client("/ws/duplex/adx_2") as other:
            assert (await other.expect("queue_done"))["worker_id"] == "worker_1"
        await client.say("stop")
        await client.expect("stopped")
    await until(lambda: set(pool.workers) == {"worker_1"})
    stage.worker.script.health = {"worker_id": "gpu-7"}
    await stage.http.put(path, json={"workers": both})
    await until(lambda: "gpu-7" in pool.workers and idle_count(pool) == 2)
    for wrong in (["http://x"], ["a:1", "a:1"], "a:1"):
        refused = await stage.http.put(path, json={"workers": wrong})
        assert refused.status_code in {400, 422}, wrong
    assert (await stage.http.get(path)).json()["workers"] == both


# Logs.


@on_stage(security={"admin_token": TOKEN})
async def test_logs_are_read_incrementally(stage: Stage) -> None:
    answer = await stage.http.get("/api/admin/logs", headers=ADMIN)
    assert answer.status_code == 404 and "not started by the launcher" in answer.json()["detail"]
    folder = stage.gateway.settings.service.data_dir / LOGS_FOLDER
    folder.mkdir()
    (folder / "gateway.log").write_text("one\ntwo\n")
    (folder / "worker_0.log").write_text("other\n")
    assert (await stage.http.get("/api/admin/logs")).status_code == 401
    told = (await stage.http.get("/api/admin/logs", headers=ADMIN, params={"limit": 1})).json()
    assert told["sources"] == ["gateway", "worker_0"]
    assert [line["text"] for line in told["lines"]] == ["two"]
    with (folder / "gateway.log").open("a") as file:
        file.write("three\n")
    after = {"after": told["cursor"]}
    answer = await stage.http.get("/api/admin/logs", headers=ADMIN, params=after)
    assert [line["text"] for line in answer.json()["lines"]] == ["three"]
    for wrong, status in (({"source": "../x"}, 404), ({"after": "x"}, 400), ({"limit": 501}, 422)):
        answer = await stage.http.get("/api/admin/logs", headers=ADMIN, params=wrong)
        assert answer.status_code == status, wrong


# Audit.


@on_stage(security={"admin_token": TOKEN})
async def test_only_changes_of_administrators_are_audited(stage: Stage) -> None:
    await stage.http.put("/api/admin/apps/omni", json={"enabled": False})  # nobody
    await stage.http.get("/api/admin/apps", headers=ADMIN)  # changes nothing
    await stage.http.post("/api/duplex/stop", json={"session_id": "x"})  # anybody may
    await stage.http.put("/api/admin/apps/omni", json={"enabled": False}, headers=ADMIN)
    await stage.http.put("/api/config/eta", json={"eta_chat_s": 7}, headers=ADMIN)
    await stage.http.delete("/api/sessions/nobody", headers=ADMIN)
    await stage.http.post("/api/streaming/stop", json={"all": True}, headers=ADMIN)
    await stage.http.post("/api/admin/login", json={"token": TOKEN})
    stage.http.cookies.clear()
    assert (await stage.http.get("/api/admin/audit")).status_code == 401
    answer = await stage.http.get("/api/admin/audit", headers=ADMIN)
    told = answer.json()["entries"]
    assert [(one["action"], one["target"], one["details"], one["status"]) for one in told] == [
        ("POST /api/admin/login", "", "", 200),
        ("POST /api/streaming/stop", "", "all=true", 200),
        ("DELETE /api/sessions/{recording_id}", "nobody", "", 404),
        ("PUT /api/config/eta", "", "eta_chat_s=7", 200),
        ("PUT /api/admin/apps/{app_id}", "omni", "enabled=false", 200),
    ]
    assert {one["address"] for one in told} == {"127.0.0.1"}
    assert TOKEN not in answer.text and answer.headers["cache-control"] == "no-store"
    one = await stage.http.get("/api/admin/audit", headers=ADMIN, params={"limit": 1})
    assert len(one.json()["entries"]) == 1


# Charts.


@on_stage(security={"admin_token": TOKEN})
async def test_the_last_hour_is_returned_as_columns(stage: Stage) -> None:
    async with stage.client("/ws/duplex/omni_1") as client:
        await client.expect("queue_done")
        await client.say("prepare")
        await client.expect("prepared")
        stage.worker.script.extra = {"wall_clock_ms": 321.5}
        await client.say("audio_chunk", audio_base64="")
        await client.expect("result")
        assert stage.gateway.trends is not None
        stage.gateway.trends.take()
    assert (await stage.http.get("/api/admin/history")).status_code == 401
    answer = await stage.http.get("/api/admin/history", headers=ADMIN)
    history = answer.json()
    columns, points = history["series"], len(history["t"])  # more than one on a slow machine
    assert points >= 1 and history["period_s"] == 10
    assert all(len(column) == points for column in columns.values())
    assert 1 in columns["sessions.omni_duplex"]
    for share in ("p50", "p99"):
        measured = [value for value in columns[f"unit.{share}_ms"] if value is not None]
        assert measured == [321.5]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/api/admin/audit", "/api/admin/recordings", "/api/admin/state"])
def test_responses_of_administration_are_not_cached(tmp_path: Path, path: str) -> None:
    @on_stage()
    async def ask(stage: Stage) -> None:
        answer = await stage.http.get(path)
        assert answer.is_success and answer.headers["cache-control"] == "no-store"

    ask(tmp_path)


@on_stage(workers=2)
async def test_the_next_gateway_keeps_a_worker_drained_and_the_intake_paused(stage: Stage) -> None:
    places = [worker.place.netloc for worker in stage.gateway.pool.workers.values()]

    async def restarted() -> tuple[list[bool], bool]:
        after = Stage(stage.settings, 0, stage.timing, places)
        await after.start()
        workers = (await after.http.get("/workers")).json()["workers"]
        paused = (await after.http.get("/api/admin/intake")).json()["paused"]
        await after.stop()
        return [worker["is_draining"] for worker in workers], paused

    path = "/api/admin/workers/worker_0"
    assert await restarted() == ([False, False], False)
    await stage.http.put(path, json={"draining": True})
    await stage.http.put("/api/admin/intake", json={"paused": True})
    assert await restarted() == ([True, False], True)
    await stage.http.put(path, json={"draining": False})
    await stage.http.put("/api/admin/intake", json={"paused": False})
    assert await restarted() == ([False, False], False)
