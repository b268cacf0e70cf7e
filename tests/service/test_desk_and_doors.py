"""A gateway in several processes: a desk with the queue, and doors with the sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from core.errors import WorkerUnreachableError
from core.schemas.limits import MIB
from core.schemas.queue import SESSION_SECRET_HEADER, SocketKind
from core.schemas.worker import WORKER_SECRET_HEADER, KeptSession
from core.serving.fake_backend import FakeBackend, FakeTimes
from gateway import create_app
from gateway_modules.queue.desk_client import DeskClient
from gateway_modules.queue.desk_link import DOOR_PATH, Assigned
from gateway_modules.routes.chat import Assignment, replies
from gateway_modules.routes.http_edge import BODY_MAX_BYTES
from gateway_modules.service import Role
from tests.fakes.doors import SECURITY, Deployment, Program, play, units, with_deployment
from tests.fakes.gateway_stage import HOST, settings_for, until
from tests.fakes.pools import busy_count, idle_count
from tests.service.callers import GRACE_S, Caller, duplex_unit, prepare
from tests.service.workers import running_worker


@with_deployment()
async def test_the_order_is_kept_over_two_doors(deployment: Deployment) -> None:
    session = await deployment.open_session(0, "adx_first")
    names = [f"adx_{number}" for number in range(4)]
    waiting = [await deployment.enqueue(number % 2, name) for number, name in enumerate(names)]
    assert deployment.queued() == names
    assert [caller.heard[-1]["position"] for caller in waiting] == [1, 2, 3, 4]
    waiting[1].cut()
    await until(lambda: deployment.queued() == [names[0], *names[2:]])
    while (await waiting[3].hear("queue_update"))["position"] != 3:
        continue
    session.cut()
    for number in (0, 2, 3):
        await waiting[number].hear("queue_done")
        assert deployment.queued() == names[number + 1 :][-len(deployment.queued()) or 4 :]
        await waiting[number].say("prepare")
        await waiting[number].hear("prepared")
        assert deployment.served() == [names[number]]
        waiting[number].cut()
    await until(lambda: not deployment.served())


@with_deployment()
async def test_sessions_continue_when_the_desk_is_killed(deployment: Deployment) -> None:
    session = await deployment.open_session(0, "adx_runs")
    names = [f"adx_{number}" for number in range(4)]
    waiting = [await deployment.enqueue(number % 2, name) for number, name in enumerate(names)]
    await deployment.kill_desk()
    await units(session, 3)
    refused = await deployment.dial(1, "adx_new")
    assert (await refused.hear("error"))["code"] == "no_worker"
    assert "queue cannot be reached" in refused.heard[-1]["message"]
    async with deployment.anonymous(deployment.doors[0]) as http:
        health = (await http.get("/health")).json()
        assert (health["status"], health["ready"]) == ("healthy", False)
        assert (await http.get("/status")).status_code == 503
    waiting[1].cut()
    await deployment.restart_desk()
    await units(session, 3)
    late = await deployment.enqueue(1, "adx_late")
    assert deployment.queued() == [names[0], *names[2:], "adx_late"]
    deployment.desk.gateway.pool._end_hold()
    pool = deployment.desk.gateway.pool
    await until(lambda: busy_count(pool) == 1)
    assert [task.session_id for worker in pool.workers.values() for task in worker.tasks] == [
        "adx_runs"
    ], "the new desk knows who is served"
    assert deployment.served() == ["adx_runs"]
    session.cut()
    await waiting[0].hear("queue_done")
    for caller in (waiting[0], waiting[2], waiting[3], late):
        caller.cut()
    await until(lambda: pool.queue_length == 0 and not deployment.served())


@with_deployment(workers=2, doors=1)
async def test_a_request_whose_worker_is_lost_keeps_its_position(deployment: Deployment) -> None:
    orders: list[int] = []

    async def work(assignment: Assignment) -> AsyncGenerator[str]:
        orders.append(assignment.ticket.order)
        if len(orders) == 1:
            raise WorkerUnreachableError()
        yield "reply"

    assert [one async for one in replies(deployment.doors[0].gateway, "", work)] == ["reply"]
    assert orders[0] == orders[1] > 0


@with_deployment(doors=1)
async def test_a_door_reconnects_after_an_unexpected_error(deployment: Deployment) -> None:
    session = await deployment.open_session(0, "adx_runs")
    waiting = await deployment.enqueue(0, "adx_waits")
    doors = deployment.desk.gateway.doors
    assert doors is not None
    [before] = doors.doors.values()
    ticket_id = waiting.heard[-1]["ticket_id"]
    before.send(Assigned(ticket_id=ticket_id, order=1, worker="nowhere:1", is_cache_hit=False))
    await until(lambda: len(doors.doors) == 1 and [*doors.doors.values()] != [before])
    await units(session)
    session.cut()
    await waiting.hear("queue_done")
    waiting.cut()


@with_deployment()
async def test_tickets_and_slots_of_a_killed_door_are_released(deployment: Deployment) -> None:
    session = await deployment.open_session(0, "adx_runs")
    lost = await deployment.enqueue(0, "adx_lost")
    kept = await deployment.enqueue(1, "adx_kept")
    assert deployment.queued() == ["adx_lost", "adx_kept"]
    await deployment.doors[0].kill()
    await until(lambda: deployment.queued() != ["adx_lost", "adx_kept"])
    await kept.hear("queue_done")
    await until(lambda: deployment.served() == ["adx_kept"])
    assert deployment.desk.gateway.doors is not None
    assert len(deployment.desk.gateway.doors.doors) == 1
    for caller in (session, lost):
        assert await caller.end() is None
    kept.cut()


@with_deployment(workers=2)
async def test_sessions_keep_their_slots_while_a_door_reconnects(deployment: Deployment) -> None:
    sessions = [await deployment.open_session(door, f"adx_{door}") for door in (0, 1)]
    waiting = await deployment.enqueue(0, "adx_waits")
    for task in list(deployment.desk._servers[0][0].server_state.connections):
        task.transport.abort()  # type: ignore[union-attr]
    await until(lambda: not deployment.queued())
    await until(lambda: deployment.queued() == ["adx_waits"])
    pool = deployment.desk.gateway.pool
    await until(lambda: sum(len(worker.tasks) for worker in pool.workers.values()) == 2)
    assert all(worker.service.foreign_sessions == 0 for worker in pool.workers.values())
    for session in sessions:
        await units(session)
    sessions[0].cut()
    await waiting.hear("queue_done")
    for caller in (sessions[1], waiting):
        caller.cut()
    await until(lambda: idle_count(pool) == 2)


@with_deployment(workers=3)
async def test_cached_histories_are_found_through_both_doors(deployment: Deployment) -> None:
    async def turn(door: int, messages: list[dict[str, str]]) -> str:
        async with deployment.doors[door].client(f"/ws/streaming/s_{door}") as client:
            await client.say("prefill", messages=messages)
            await client.expect("queue_done", "prefill_done")
            await client.say("generate")
            return str((await client.expect_after("done", "chunk"))["text"])

    asked = [{"role": "user", "content": "Hi"}]
    said = await turn(0, asked)
    await until(lambda: idle_count(deployment.desk.gateway.pool) == 3)
    history = [*asked, {"role": "assistant", "content": said}, {"role": "user", "content": "So?"}]
    await turn(1, history)
    prefills = [
        [message for message in worker.told if message["type"] == "prefill"]
        for worker in deployment.workers
    ]
    [both] = [each for each in prefills if each]
    assert [message["clear_kv_cache"] for message in both] == [True, False]


@with_deployment()
async def test_a_return_ticket_is_valid_at_every_door_and_once(deployment: Deployment) -> None:
    session = await deployment.open_session(0, "adx_runs")
    first, second = [await deployment.enqueue(0, name) for name in ("adx_one", "adx_two")]
    ticket = quote(first.heard[-1]["return_ticket"])
    first.cut()
    await until(lambda: deployment.queued() == ["adx_two"])
    again = await deployment.dial(1, "adx_one", f"ticket={ticket}")
    await again.hear("queued")
    assert deployment.queued() == ["adx_one", "adx_two"]
    session.cut()
    await again.hear("queue_done")
    replayed = await deployment.dial(0, "adx_one", f"ticket={ticket}")
    await replayed.hear("queued", "error")
    if replayed.heard[-1]["type"] == "queued":
        assert deployment.queued() == ["adx_two", "adx_one"], (
            "its place was spent at the other door"
        )
    for caller in (again, second, replayed):
        caller.cut()
    await until(lambda: not deployment.served())


def test_a_session_resumes_through_another_door(tmp_path: Path) -> None:
    limits = {"resume_grace_s": GRACE_S}
    served = settings_for(tmp_path / "worker", limits=limits, security=SECURITY)

    async def test(deployment: Deployment) -> None:
        caller = Caller(deployment.doors[0], "/ws/duplex/adx_stays")
        await caller.open()
        await prepare(caller)
        await duplex_unit(caller)
        await deployment.doors[0].kill()
        caller.cut()
        caller.stage = deployment.doors[1]
        kept = KeptSession(
            kind=SocketKind.DUPLEX, session_id=caller.session_id, session_secret=caller.token
        )
        await until(lambda: worker.on_loop(lambda: worker.sessions.keeps(kept)))
        assert (await caller.come_back())["lost_messages"] == 0
        await duplex_unit(caller)
        caller.check_whole()
        pool = deployment.desk.gateway.pool
        await until(lambda: [w.tasks[0].session_id for w in pool.workers.values()] == ["adx_stays"])
        await caller.say("stop")
        await caller.hear("stopped")
        await until(lambda: idle_count(pool) == 1)

    with running_worker(served, lambda: FakeBackend(FakeTimes(unit_ms=5))) as worker:
        settings = settings_for(tmp_path / "gateway", limits=limits, security=SECURITY)
        asyncio.run(play(Deployment(settings, 0, [f"{HOST}:{worker.port}"]), 2, test))


@with_deployment(doors=0)
async def test_a_door_that_knows_no_workers_lets_no_session_expire(deployment: Deployment) -> None:
    await deployment.desk.kill()
    settings, desk = deployment.settings, f"{HOST}:{deployment.desk.port}"
    service = settings.service.model_copy(update={"desk": desk})
    door = Program(settings.model_copy(update={"service": service}), Role.DOOR, [])
    deployment.programs.append(door)
    await door.serve()
    address = f"ws://{HOST}:{door.port}/ws/duplex/adx_one?resume_token={'0' * 32}&last_seq=3"
    with pytest.raises(InvalidStatus, match="403"):  # the client tries again
        async with connect(address):
            pass
    await deployment.start_desk(deployment.desk.port)
    await until(lambda: door.desk.ready_count == 1)
    async with connect(address) as socket:
        assert "session_expired" in [str(await socket.recv()) for _ in range(2)][1]


@with_deployment()
async def test_http_requests_reach_the_part_that_can_answer(deployment: Deployment) -> None:
    session = await deployment.open_session(0, "adx_runs")
    waiting = await deployment.enqueue(1, "adx_waits")
    for door in deployment.doors:
        http = door.http
        assert (await http.get("/api/queue")).json()["queue_length"] == 1
        listed = (await http.get("/sessions")).json()["sessions"]
        known = {(one["session_id"], one["phase"]) for one in listed}
        assert known == {("adx_runs", "relaying"), ("adx_waits", "waiting")}
        assert (await http.get("/")).status_code == 200
        for name in ("%00", "a%3Fb%23c", "%252e"):
            found = await http.get(f"/api/queue/{name}")
            assert (found.status_code, found.json()["found"]) == (200, False), name
        assert "omni_gateway_sessions" in (await http.get("/metrics")).text
    assert "omni_gateway_doors 2.0" in (await deployment.desk.http.get("/metrics")).text
    async with deployment.anonymous(deployment.doors[1]) as http:
        assert (await http.get("/api/admin/workers")).status_code == 401
        masked = (await http.get("/api/queue")).json()["items"]
        assert [item["session_id"] != "adx_waits" for item in masked] == [True]
        token = deployment.desk.admin_headers["X-Admin-Token"]
        answer = await http.post("/api/admin/login", json={"token": token})
        assert answer.status_code == 200
        http.cookies.update(answer.cookies)
        assert (await http.get("/api/admin/workers")).status_code == 200
        await http.post("/api/admin/sessions/adx_runs/stop")
    assert (await session.hear("error"))["code"] == "ended_by_admin"
    await waiting.hear("queue_done")
    waiting.cut()


@with_deployment(doors=1)
async def test_a_door_refuses_what_it_would_not_accept_itself(deployment: Deployment) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(BODY_MAX_BYTES // MIB + 1):
            yield bytes(MIB)

    answer = await deployment.doors[0].http.put("/api/config/eta", content=body())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_big")


@with_deployment()
async def test_a_client_sees_and_stops_its_own_sessions_at_every_door(
    deployment: Deployment,
) -> None:
    callers = [
        await deployment.open_session(0, "adx_runs"),
        await deployment.enqueue(0, "adx_waits"),
    ]
    shown = [
        {SESSION_SECRET_HEADER: message["session_secret"]}
        for caller in callers
        for message in caller.heard
        if message["type"] in ("queued", "queue_done")
    ]
    async with deployment.anonymous(deployment.doors[1]) as http:
        for caller, secret in zip(callers, shown, strict=True):
            listed = (await http.get("/sessions", headers=secret)).json()["sessions"]
            seen = [one["session_id"] for one in listed if one["session_id"][0] != "…"]
            assert (len(listed), seen) == (2, [caller.session_id])
        items = (await http.get("/api/queue", headers=shown[1])).json()["items"]
        assert [item["session_id"] for item in items] == ["adx_waits"]
        own = {"session_id": "adx_runs"}
        for path, secret in (
            ("/api/duplex/stop", {}),
            ("/api/duplex/stop", shown[1]),
            ("/api/half_duplex/stop", shown[0]),
        ):
            assert (await http.post(path, json=own, headers=secret)).status_code == 404
        refused = await http.post("/api/streaming/stop", json={"all": True})
        assert refused.status_code == 401
        for caller, secret in zip(reversed(callers), reversed(shown), strict=True):
            body = {"session_id": caller.session_id}
            answer = await http.post("/api/duplex/stop", json=body, headers=secret)
            assert answer.json()["success"] is True
            await caller.hear("stopped")
    await until(lambda: not deployment.served())


@with_deployment(workers=2)
async def test_a_stop_of_half_duplex_reaches_no_realtime_session(deployment: Deployment) -> None:
    realtime = Caller(deployment.doors[0], "/v1/realtime")
    await realtime.dial("minicpmo_events=1")
    await realtime.hear("session.created")
    half_duplex = await deployment.open_session(0, "hdx_one", "/ws/half_duplex")
    doors = deployment.desk.gateway.doors
    assert doors is not None
    for caller, session, status in zip(
        (realtime, half_duplex), doors.all(), (404, 200), strict=True
    ):
        [assigned] = caller.of("queue_done")
        secret = {SESSION_SECRET_HEADER: assigned["session_secret"]}
        own = {"session_id": session.request.session_id}
        for door in deployment.doors:
            async with deployment.anonymous(door) as http:
                answer = await http.post("/api/half_duplex/stop", json=own, headers=secret)
                assert answer.status_code == status
        caller.cut()
    await until(lambda: not deployment.served())


@with_deployment()
async def test_the_desk_answers_doors_only(deployment: Deployment) -> None:
    async with deployment.anonymous(deployment.desk) as http:
        assert (await http.get("/status")).status_code == 401
        assert (await http.get("/health")).status_code == 200
    for path, secret in ((DOOR_PATH, "wrong"), ("/ws/duplex/adx_one", "")):
        headers = {WORKER_SECRET_HEADER: secret}
        with pytest.raises(InvalidStatus, match="403"):
            async with connect(
                f"ws://{HOST}:{deployment.desk.port}{path}", additional_headers=headers
            ):
                pass


@with_deployment()
async def test_a_chat_over_http_through_a_door(deployment: Deployment) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = await deployment.doors[0].http.post("/api/chat", json=body)
    assert answer.status_code == 200, answer.text
    await deployment.kill_desk()
    answer = await deployment.doors[0].http.post("/api/chat", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")


async def _nothing(deployment: Deployment) -> None:
    """Never begins."""


def test_a_door_that_fails_at_its_start_ends_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(DeskClient, "start", fail)
    deployment = Deployment(settings_for(tmp_path, security=SECURITY), 1)
    with pytest.raises((RuntimeError, AssertionError, KeyError), match="did not start|a mistake"):
        asyncio.run(play(deployment, 1, _nothing))


@pytest.mark.parametrize(
    ("role", "service", "problem"),
    [
        (Role.DOOR, {}, "service.desk"),
        (Role.DOOR, {"desk": "127.0.0.1:8007"}, "security.worker_secret"),
        (Role.DESK, {}, "security.worker_secret"),
    ],
)
def test_desk_and_door_require_their_settings(
    tmp_path: Path, role: Role, service: dict[str, str], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        create_app(settings_for(tmp_path, service=service), [], role=role)
