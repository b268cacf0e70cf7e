"""A gateway in parts: one desk with the queue, several doors with the sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from core.schemas.queue import SESSION_SECRET_HEADER
from core.schemas.worker import WORKER_SECRET_HEADER, KeptSession
from core.serving.fake_backend import FakeBackend, FakeTimes
from gateway import create_app
from gateway_modules.queue.desk_client import DeskClient
from gateway_modules.queue.desk_link import DOOR_PATH, Assigned
from gateway_modules.service import Role
from gateway_modules.web.client_socket import SocketKind
from tests.fakes.doors import SECURITY, House, in_house, play, units
from tests.fakes.gateway_stage import HOST, settings_for, until
from tests.service.callers import GRACE_S, Caller, duplex_unit, prepare
from tests.service.workers import running_worker


@in_house()
async def test_the_order_is_kept_over_two_doors(house: House) -> None:
    talk = await house.talk(0, "adx_first")
    names = [f"adx_{number}" for number in range(4)]
    waiting = [await house.wait(number % 2, name) for number, name in enumerate(names)]
    assert house.in_line() == names
    assert [caller.heard[-1]["position"] for caller in waiting] == [1, 2, 3, 4]
    waiting[1].cut()
    await until(lambda: house.in_line() == [names[0], *names[2:]])
    while (await waiting[3].hear("queue_update"))["position"] != 3:
        continue
    talk.cut()
    for number in (0, 2, 3):
        await waiting[number].hear("queue_done")
        assert house.in_line() == names[number + 1 :][-len(house.in_line()) or 4 :]
        await waiting[number].say("prepare")
        await waiting[number].hear("prepared")
        assert house.served() == [names[number]]
        waiting[number].cut()
    await until(lambda: not house.served())


@in_house()
async def test_sessions_continue_when_the_desk_is_killed(house: House) -> None:
    talk = await house.talk(0, "adx_talks")
    names = [f"adx_{number}" for number in range(4)]
    waiting = [await house.wait(number % 2, name) for number, name in enumerate(names)]
    await house.kill_desk()
    await units(talk, 3)
    refused = await house.dial(1, "adx_new")
    assert (await refused.hear("error"))["code"] == "no_worker"
    assert "queue cannot be reached" in refused.heard[-1]["message"]
    async with house.stranger(house.doors[0]) as http:
        health = (await http.get("/health")).json()
        assert (health["status"], health["ready"]) == ("healthy", False)
        assert (await http.get("/status")).status_code == 503
    waiting[1].cut()
    await house.desk_returns()
    await units(talk, 3)
    late = await house.wait(1, "adx_late")
    assert house.in_line() == [names[0], *names[2:], "adx_late"]
    house.desk.gateway.pool._end_hold()
    pool = house.desk.gateway.pool
    await until(lambda: pool.busy_count == 1)
    assert [task.session_id for worker in pool.workers.values() for task in worker.tasks] == [
        "adx_talks"
    ], "the new desk knows who is served"
    assert house.served() == ["adx_talks"]
    talk.cut()
    await waiting[0].hear("queue_done")
    for caller in (waiting[0], waiting[2], waiting[3], late):
        caller.cut()
    await until(lambda: pool.queue_length == 0 and not house.served())


@in_house(doors=1)
async def test_a_door_reconnects_after_an_unexpected_error(house: House) -> None:
    talk = await house.talk(0, "adx_talks")
    waiting = await house.wait(0, "adx_waits")
    doors = house.desk.gateway.doors
    assert doors is not None
    [before] = doors._doors.values()
    ticket_id = waiting.heard[-1]["ticket_id"]
    before.send(Assigned(ticket_id=ticket_id, order=1, worker="nowhere:1", is_cache_hit=False))
    await until(lambda: len(doors) == 1 and [*doors._doors.values()] != [before])
    await units(talk)
    talk.cut()
    await waiting.hear("queue_done")
    waiting.cut()


@in_house()
async def test_tickets_and_slots_of_a_killed_door_are_released(house: House) -> None:
    talk = await house.talk(0, "adx_talks")
    lost = await house.wait(0, "adx_lost")
    kept = await house.wait(1, "adx_kept")
    assert house.in_line() == ["adx_lost", "adx_kept"]
    await house.doors[0].kill()
    await until(lambda: house.in_line() != ["adx_lost", "adx_kept"])
    await kept.hear("queue_done")
    await until(lambda: house.served() == ["adx_kept"])
    assert house.desk.gateway.doors is not None
    assert len(house.desk.gateway.doors) == 1
    for caller in (talk, lost):
        assert await caller.end() is None
    kept.cut()


@in_house(workers=2)
async def test_sessions_keep_their_slots_while_a_door_reconnects(house: House) -> None:
    talks = [await house.talk(door, f"adx_{door}") for door in (0, 1)]
    waiting = await house.wait(0, "adx_waits")
    for task in list(house.desk._servers[0][0].server_state.connections):
        task.transport.abort()  # type: ignore[union-attr]
    await until(lambda: not house.in_line())
    await until(lambda: house.in_line() == ["adx_waits"])
    pool = house.desk.gateway.pool
    await until(lambda: sum(len(worker.tasks) for worker in pool.workers.values()) == 2)
    assert all(worker.service.foreign_sessions == 0 for worker in pool.workers.values())
    for talk in talks:
        await units(talk)
    talks[0].cut()
    await waiting.hear("queue_done")
    for caller in (talks[1], waiting):
        caller.cut()
    await until(lambda: pool.idle_count == 2)


@in_house(workers=3)
async def test_cached_histories_are_found_through_both_doors(house: House) -> None:
    async def turn(door: int, messages: list[dict[str, str]]) -> str:
        async with house.doors[door].client(f"/ws/streaming/s_{door}") as client:
            await client.say("prefill", messages=messages)
            await client.expect("queue_done", "prefill_done")
            await client.say("generate")
            return str((await client.expect_after("done", "chunk"))["text"])

    asked = [{"role": "user", "content": "Hi"}]
    said = await turn(0, asked)
    await until(lambda: house.desk.gateway.pool.idle_count == 3)
    history = [*asked, {"role": "assistant", "content": said}, {"role": "user", "content": "So?"}]
    await turn(1, history)
    prefills = [
        [message for message in worker.told if message["type"] == "prefill"]
        for worker in house.workers
    ]
    [both] = [each for each in prefills if each]
    assert [message["clear_kv_cache"] for message in both] == [True, False]


@in_house()
async def test_a_return_ticket_is_valid_at_every_door_and_once(house: House) -> None:
    talk = await house.talk(0, "adx_talks")
    first, second = [await house.wait(0, name) for name in ("adx_one", "adx_two")]
    ticket = quote(first.heard[-1]["return_ticket"])
    first.cut()
    await until(lambda: house.in_line() == ["adx_two"])
    again = await house.dial(1, "adx_one", f"ticket={ticket}")
    await again.hear("queued")
    assert house.in_line() == ["adx_one", "adx_two"]
    talk.cut()
    await again.hear("queue_done")
    replayed = await house.dial(0, "adx_one", f"ticket={ticket}")
    await replayed.hear("queued", "error")
    if replayed.heard[-1]["type"] == "queued":
        assert house.in_line() == ["adx_two", "adx_one"], "its place was spent at the other door"
    for caller in (again, second, replayed):
        caller.cut()
    await until(lambda: not house.served())


def test_a_session_resumes_through_another_door(tmp_path: Path) -> None:
    limits = {"resume_grace_s": GRACE_S}
    served = settings_for(tmp_path / "worker", limits=limits, security=SECURITY)

    async def test(house: House) -> None:
        caller = Caller(house.doors[0], "/ws/duplex/adx_stays")
        await caller.open()
        await prepare(caller)
        await duplex_unit(caller)
        await house.doors[0].kill()
        caller.cut()
        caller.stage = house.doors[1]
        kept = KeptSession(
            kind=SocketKind.DUPLEX, session_id=caller.session_id, session_secret=caller.token
        )
        await until(lambda: worker.on_loop(lambda: worker.sessions.keeps(kept)))
        assert (await caller.come_back())["lost_messages"] == 0
        await duplex_unit(caller)
        caller.check_whole()
        pool = house.desk.gateway.pool
        await until(lambda: [w.tasks[0].session_id for w in pool.workers.values()] == ["adx_stays"])
        await caller.say("stop")
        await caller.hear("stopped")
        await until(lambda: pool.idle_count == 1)

    with running_worker(served, lambda: FakeBackend(FakeTimes(unit_ms=5))) as worker:
        settings = settings_for(tmp_path / "gateway", limits=limits, security=SECURITY)
        asyncio.run(play(House(settings, 0, [f"{HOST}:{worker.port}"]), 2, test))


@in_house()
async def test_http_requests_reach_the_part_that_can_answer(house: House) -> None:
    talk = await house.talk(0, "adx_talks")
    waiting = await house.wait(1, "adx_waits")
    for door in house.doors:
        http = door.http
        assert (await http.get("/api/queue")).json()["queue_length"] == 1
        listed = (await http.get("/sessions")).json()["sessions"]
        known = {(one["session_id"], one["phase"]) for one in listed}
        assert known == {("adx_talks", "relaying"), ("adx_waits", "waiting")}
        assert (await http.get("/")).status_code == 200
        assert "omni_gateway_sessions" in (await http.get("/metrics")).text
    assert "omni_gateway_doors 2.0" in (await house.desk.http.get("/metrics")).text
    async with house.stranger(house.doors[1]) as http:
        assert (await http.get("/api/admin/workers")).status_code == 401
        masked = (await http.get("/api/queue")).json()["items"]
        assert [item["session_id"] != "adx_waits" for item in masked] == [True]
        token = house.desk.admin_headers["X-Admin-Token"]
        answer = await http.post("/api/admin/login", json={"token": token})
        assert answer.status_code == 200
        http.cookies.update(answer.cookies)
        assert (await http.get("/api/admin/workers")).status_code == 200
        await http.post("/api/admin/sessions/adx_talks/stop")
    assert (await talk.hear("error"))["code"] == "ended_by_admin"
    await waiting.hear("queue_done")
    waiting.cut()


@in_house()
async def test_a_client_sees_and_stops_its_own_sessions_at_every_door(house: House) -> None:
    callers = [await house.talk(0, "adx_talks"), await house.wait(0, "adx_waits")]
    shown = [
        {SESSION_SECRET_HEADER: message["session_secret"]}
        for caller in callers
        for message in caller.heard
        if message["type"] in ("queued", "queue_done")
    ]
    async with house.stranger(house.doors[1]) as http:
        for caller, secret in zip(callers, shown, strict=True):
            listed = (await http.get("/sessions", headers=secret)).json()["sessions"]
            seen = [one["session_id"] for one in listed if one["session_id"][0] != "…"]
            assert (len(listed), seen) == (2, [caller.session_id])
        items = (await http.get("/api/queue", headers=shown[1])).json()["items"]
        assert [item["session_id"] for item in items] == ["adx_waits"]
        own = {"session_id": "adx_talks"}
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
    await until(lambda: not house.served())


@in_house()
async def test_the_desk_answers_doors_only(house: House) -> None:
    async with house.stranger(house.desk) as http:
        assert (await http.get("/status")).status_code == 401
        assert (await http.get("/health")).status_code == 200
    for path, secret in ((DOOR_PATH, "wrong"), ("/ws/duplex/adx_one", "")):
        headers = {WORKER_SECRET_HEADER: secret}
        with pytest.raises(InvalidStatus, match="403"):
            async with connect(f"ws://{HOST}:{house.desk.port}{path}", additional_headers=headers):
                pass


@in_house()
async def test_a_chat_over_http_through_a_door(house: House) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = await house.doors[0].http.post("/api/chat", json=body)
    assert answer.status_code == 200, answer.text
    await house.kill_desk()
    answer = await house.doors[0].http.post("/api/chat", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_worker")


async def _nothing(house: House) -> None:
    """Never begins."""


def test_a_door_that_fails_at_its_start_ends_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(DeskClient, "start", fail)
    house = House(settings_for(tmp_path, security=SECURITY), 1)
    with pytest.raises((RuntimeError, AssertionError, KeyError), match="did not start|a mistake"):
        asyncio.run(play(house, 1, _nothing))


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
