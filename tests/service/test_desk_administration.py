"""What a desk does and shows of the sessions of its doors: storage, history, logs, ending them."""

from __future__ import annotations

import asyncio

from core.errors import ErrorCode
from core.files import LOGS_FOLDER
from tests.fakes.doors import Deployment, with_deployment
from tests.fakes.gateway_stage import until
from tests.fakes.pools import busy_count


@with_deployment(doors=1)
async def test_sessions_that_end_at_a_door_have_the_storage_cleaned_up(
    deployment: Deployment,
) -> None:
    requested = deployment.desk.gateway.cleanup._requested
    requested.clear()
    session = await deployment.open_session(0, "adx_ends")
    assert not requested.is_set()
    session.cut()
    await until(requested.is_set)
    await deployment.open_session(0, "adx_lost")
    requested.clear()
    await deployment.doors[0].kill()
    await until(requested.is_set)


@with_deployment()
async def test_the_history_of_a_desk_has_its_doors_units_and_refusals(
    deployment: Deployment,
) -> None:
    trends = deployment.desk.gateway.trends
    assert trends is not None
    for door in deployment.doors:
        metrics = door.gateway.metrics
        for duration_ms in (100.0, 300.0, 500.0):
            metrics.unit("omni_duplex", duration_ms)
        metrics.error(ErrorCode.QUEUE_FULL)

    def counts() -> tuple[float, ...]:
        trends.take()
        series = trends.history().series
        columns = (series[name] for name in ("unit.count", "refused.count"))
        return tuple(sum(value or 0 for value in column) for column in columns)

    await until(lambda: counts() == (6, 2))
    assert {value for value in trends.history().series["unit.p50_ms"] if value} == {300.0}


@with_deployment(doors=1)
async def test_requests_over_http_are_no_sessions_of_a_desk(deployment: Deployment) -> None:
    may_end = deployment.workers[0].script.gate = asyncio.Event()
    http, pool = deployment.doors[0].http, deployment.desk.gateway.pool
    http.headers.update(deployment.desk.admin_headers)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    chat = asyncio.create_task(http.post("/api/chat", json=body))
    await until(lambda: busy_count(pool) == 1)
    [task] = pool.get_queue_status().running_tasks
    assert (await http.get("/sessions")).json()["sessions"] == []
    stopped = await http.post(f"/api/admin/sessions/{task.session_id}/stop")
    assert stopped.status_code == 404
    may_end.set()
    assert (await chat).status_code == 200


@with_deployment(doors=1)
async def test_a_session_on_a_worker_that_a_new_desk_has_not_found_is_listed_and_ended(
    deployment: Deployment,
) -> None:
    session = await deployment.open_session(0, "adx_runs")
    await deployment.kill_desk()
    addresses = deployment.addresses
    deployment.addresses = ["dns:worker.invalid:1"]  # a name that has no addresses yet
    await deployment.restart_desk()
    desk, http = deployment.desk.gateway, deployment.desk.http
    await until(lambda: len(desk.sessions.all()) == 1)
    http.headers.update(deployment.desk.admin_headers)
    [listed] = (await http.get("/sessions")).json()["sessions"]
    assert (listed["session_id"], listed["worker_id"]) == ("adx_runs", addresses[0])
    await desk.pool.directory.replace(addresses)
    await until(lambda: desk.pool.ready_count == 1)
    [worker] = desk.pool.workers.values()
    assert worker.available_slots == 0, "its slot is occupied"
    assert (await http.post("/api/admin/sessions/adx_runs/stop")).status_code == 200
    await session.hear("error")
    await until(lambda: not desk.sessions.all() and worker.available_slots == 1)


@with_deployment(doors=1)
async def test_administrators_are_shown_a_desks_log_first(deployment: Deployment) -> None:
    folder = deployment.settings.service.data_dir / LOGS_FOLDER
    folder.mkdir()
    for name in ("desk", "door_0"):
        (folder / f"{name}.log").write_text(f"{name} is up\n")
    deployment.doors[0].http.headers.update(deployment.desk.admin_headers)
    for query in ("", "?source="):
        part = (await deployment.doors[0].http.get(f"/api/admin/logs{query}")).json()
        assert (part["source"], part["sources"]) == ("desk", ["desk", "door_0"])
        assert [line["text"] for line in part["lines"]] == ["desk is up"]
