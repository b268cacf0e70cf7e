"""A client before it has a worker: what it is sent, what is held for the worker, how that ends."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from core.errors import EndedByAdminError, ShuttingDownError
from core.schemas.export.pages import pages
from core.schemas.queue import QueueingPhase, SocketKind
from core.schemas.worker import WorkerStatus
from gateway_modules.relay.link import QueueingLimits
from tests.fakes.gateway_stage import until
from tests.fakes.pools import ask, freshest, release, workers_of
from tests.fakes.relay_scene import USER, now_s, staged
from tests.fakes.virtual_time import in_virtual_time, let_others_run

LIVE, TURNS, CHAT = SocketKind.DUPLEX, SocketKind.STREAMING, SocketKind.CHAT
PHASES = ["waiting", "connecting"]


@in_virtual_time
async def test_a_live_client_queues_at_once_and_is_sent_its_position(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, "waiting") as stage:
        queued = stage.last("queued")
        assert (queued["position"], queued["queue_length"]) == (1, 1)
        assert queued["eta_seconds"] == queued["estimated_wait_s"]
        assert queued["session_secret"] == "0" * 32
        assert queued["return_ticket"]
        began_s = now_s()
        await stage.hear("queue_update", 2)
        assert now_s() - began_s == pytest.approx(2 * QueueingLimits().update_period_s)
        assert stage.last("queue_update")["ticket_id"] == queued["ticket_id"]
        assert "session_secret" not in stage.last("queue_update")
        stage.assign()
        await stage.hear("queue_done")
        done = stage.last("queue_done")
        assert (done["worker_id"], done["session_secret"]) == ("worker_0", "0" * 32)
        await asyncio.sleep(60)
        assert stage.types[-1] == "queue_done"


@in_virtual_time
async def test_a_client_served_at_once_hears_nothing_of_the_queue(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, workers=2) as stage:
        stage.assign()
        await stage.hear("queue_done")
    async with staged(TURNS, tmp_path) as stage:
        stage.assign()
        stage.ask()
        await stage.hear("prefill_done")
        assert stage.types == ["queue_done", "prefill_done"]


@pytest.mark.parametrize("phase", PHASES)
@in_virtual_time
async def test_one_early_prepare_is_held_and_audio_is_dropped(phase: str, tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, phase) as stage:
        stage.say(type="prepare", prefix_system_prompt="early")
        stage.say(type="prepare", prefix_system_prompt="again")
        stage.say(type="audio_chunk")
        stage.say(type="heartbeat")
        await stage.hear("warning")
        await let_others_run(30)
        stage.assign()
        stage.may_connect.set()
        await stage.hear("prepared")
        assert stage.told == [{"type": "prepare", "prefix_system_prompt": "early"}]
        assert stage.last("warning")["code"] == "already_prepared"
        assert stage.types.count("warning") == 1


@in_virtual_time
async def test_messages_that_arrive_while_held_ones_are_sent_follow_them(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, "connecting") as stage:
        stage.say(type="prepare")
        await let_others_run()
        stage.say(type="audio_chunk")
        stage.may_connect.set()
        for _ in range(3):
            stage.say(type="audio_chunk")
        await stage.hear("result", 3)
        kinds = [message["type"] for message in stage.told]
        assert kinds[0] == "prepare" and set(kinds[1:]) == {"audio_chunk"}


@in_virtual_time
async def test_each_turn_queues_anew_and_begins_with_its_prefill(tmp_path: Path) -> None:
    async with staged(TURNS, tmp_path, "waiting") as stage:
        for turn in (1, 2):
            stage.say(type="generate")
            await stage.hear("warning", turn)
            assert stage.last("warning")["message"] == "'generate' is not expected now."
            stage.assign()
            stage.may_connect.set()
            await stage.hear("prefill_done", turn)
            stage.say(type="generate")
            await stage.hear("done", turn)
            assert not stage.pool.is_busy, "the worker is free before the turn's last message"
            assert stage.told[0]["messages"] == [USER]
            if turn == 1:
                stage.occupy()
                stage.ask()
                await stage.hear("queued", 2)
        stage.say(type="close")
        assert await stage.end() == [1000]


@in_virtual_time
async def test_between_turns_unexpected_messages_are_warnings(tmp_path: Path) -> None:
    async with staged(TURNS, tmp_path) as stage:
        for kind, code in (
            ("generate", "out_of_order"),
            ("stop", "out_of_order"),
            ("dance", "unknown_type"),
        ):
            stage.say(type=kind)
            await stage.hear("warning", stage.types.count("warning") + 1)
            assert stage.last("warning")["code"] == code
        assert stage.last("warning")["message"] == "The message's type is not known here."
        assert stage.relay.phase is QueueingPhase.OPEN


@in_virtual_time
async def test_a_client_that_begins_no_turn_is_disconnected(tmp_path: Path) -> None:
    async with staged(TURNS, tmp_path) as stage:
        began_s = now_s()
        stage.say(type="heartbeat")
        assert await stage.end() == [1000]
        assert now_s() - began_s == pytest.approx(QueueingLimits().open_timeout_s)
        assert stage.last("error")["code"] == "timeout"


@in_virtual_time
async def test_the_time_between_turns_begins_with_the_end_of_one(tmp_path: Path) -> None:
    async with staged(TURNS, tmp_path, "waiting") as stage:
        await asyncio.sleep(2 * QueueingLimits().open_timeout_s)
        stage.say(type="stop")
        await stage.hear("done")
        began_s = now_s()
        assert await stage.end() == [1000]
        assert now_s() - began_s == pytest.approx(QueueingLimits().open_timeout_s)


@in_virtual_time
async def test_what_was_held_for_the_worker_no_longer_counts_once_it_was_sent(
    tmp_path: Path,
) -> None:
    async with staged(LIVE, tmp_path, "waiting") as stage:
        stage.say(type="prepare", pad="x" * 1_000)
        await until(lambda: stage.lease.held > 1_000)
        stage.may_connect.set()
        stage.assign()
        await stage.hear("prepared")
        assert stage.lease.held == 0


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", [LIVE, SocketKind.HALF_DUPLEX, TURNS, CHAT])
@in_virtual_time
async def test_a_stop_leaves_the_queue(
    kind: SocketKind, phase: str, outside: bool, tmp_path: Path
) -> None:
    async with staged(kind, tmp_path, phase) as stage:
        if outside:
            answer = await stage.relay.request_stop()
            assert answer.success
        else:
            stage.say(type="stop")
        await stage.hear("done" if kind.has_turns else "stopped")
        assert stage.pool.queue_length == 0
        assert len(stage.others) == sum(len(worker.tasks) for worker in workers_of(stage.pool))
        if kind is not TURNS:
            assert await stage.end() == [1000]
            assert kind is not CHAT or stage.last("done")["stopped"]
            return
        assert (stage.last("done")["session_id"], stage.last("done")["stopped"]) == ("adx_1", True)
        assert not (await stage.relay.request_stop()).success
        stage.assign()
        stage.may_connect.set()
        stage.ask()
        await stage.hear("prefill_done")


@in_virtual_time
async def test_a_close_ends_the_wait(tmp_path: Path) -> None:
    for kind in (LIVE, TURNS):
        async with staged(kind, tmp_path, "waiting") as stage:
            stage.say(type="close")
            assert await stage.end() == [1000]
            assert stage.types == ["queued"]


@pytest.mark.parametrize("kind", [LIVE, TURNS])
@pytest.mark.parametrize("phase", PHASES)
@in_virtual_time
async def test_unknown_and_unexpected_messages_are_warnings_in_the_queue_too(
    kind: SocketKind, phase: str, tmp_path: Path
) -> None:
    async with staged(kind, tmp_path, phase) as stage:
        stage.say(type="dance")
        await stage.hear("warning")
        assert stage.last("warning")["code"] == "unknown_type"
        for command in ("interrupt", "pause", "resume", "text_input") if kind is LIVE else ():
            stage.say(type=command)
            await stage.hear("warning", stage.types.count("warning") + 1)
            assert stage.last("warning")["code"] == "out_of_order"
        assert stage.relay.phase == phase


@in_virtual_time
async def test_a_refusal_ends_the_session(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, "waiting") as stage:
        stage.cancel_tickets()
        assert await stage.end() == [1000]
        assert stage.last("error")["code"] == "queue_cancelled"
    async with staged(TURNS, tmp_path) as stage:
        stage.pool.max_queue_size = 0
        stage.ask()
        assert await stage.end() == [1013]
        assert stage.last("error")["code"] == "queue_full"


@in_virtual_time
async def test_a_wait_without_any_worker_ends(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, "waiting") as stage:
        began_s = now_s()
        for worker in workers_of(stage.pool):
            worker.mark_offline()
        assert await stage.end() == [1013]
        assert stage.last("error")["code"] == "no_worker"
        assert 29.9 <= now_s() - began_s <= 33


@in_virtual_time
async def test_a_worker_that_fails_ends_the_session(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, "connecting", unreachable=1) as stage:
        stage.may_connect.set()
        assert await stage.end() == [1011]
        assert stage.last("error")["code"] == "worker_unreachable"
    async with staged(LIVE, tmp_path, "relaying") as stage:
        stage.kill_worker()
        assert await stage.end() == [1011]
        assert stage.last("error")["code"] == "worker_lost"


@pytest.mark.parametrize("kind", [LIVE, TURNS])
@in_virtual_time
async def test_an_unreachable_worker_is_replaced_by_another(
    kind: SocketKind, tmp_path: Path
) -> None:
    moves = QueueingLimits().max_moves
    async with staged(kind, tmp_path, workers=moves + 2, unreachable=moves) as stage:
        stage.assign()
        stage.say(type="prepare")
        stage.ask()
        await stage.hear("prepared" if kind is LIVE else "prefill_done")
        names = [message["worker_id"] for message in stage.sent if message["type"] == "queue_done"]
        assert len(set(names)) == moves + 1
        assert stage.told[0]["type"] == ("prepare" if kind is LIVE else "prefill")
    async with staged(kind, tmp_path, workers=moves + 2, unreachable=moves + 1) as stage:
        stage.assign()
        stage.ask()
        assert await stage.end() == [1011]
        assert stage.last("error")["code"] == "worker_unreachable"
        assert not stage.sockets


@in_virtual_time
async def test_a_request_that_moves_keeps_its_position(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, workers=2) as stage:
        await stage.hear("queued")
        later, _ = ask(stage.pool, "chat")
        stage.unreachable = 1
        first, stage.others = stage.others[0], stage.others[1:]
        release(stage.pool, first.worker, ticket=first)
        await stage.hear("queued", 2)
        assert stage.last("queued")["position"] == 1
        assert later.position == 2
        stage.pool.leave(later)
        stage.assign()
        await stage.hear("queue_done", 2)


@in_virtual_time
async def test_a_client_that_resumes_is_told_that_its_worker_is_gone(tmp_path: Path) -> None:
    async def keeps(*_: object) -> bool:
        return True

    async with staged(LIVE, tmp_path, "relaying", workers=2, grace_s=60.0) as stage:
        vars(stage.pool.client)["keeps"] = keeps
        stage.unreachable = 1
        resuming = await stage.resume()
        assert await stage.end() == [1011]
        assert stage.last("error")["code"] == "worker_unreachable"
        await resuming


@pytest.mark.parametrize(("given", "passed_on"), [(1007, 1007), (1000, 1000), (4999, 1000)])
@in_virtual_time
async def test_the_workers_close_code_is_passed_on(
    given: int, passed_on: int, tmp_path: Path
) -> None:
    async with staged(LIVE, tmp_path, "relaying") as stage:
        stage.sockets[-1].say({"type": "stopped", "session_id": "s"})
        stage.sockets[-1].say(ConnectionClosedOK(Close(given, "why"), None))
        assert await stage.end() == [passed_on]
        assert stage.types[-1] == "stopped"


@pytest.mark.parametrize(
    ("received", "sent", "is_gone"),
    [
        (None, None, True),
        (Close(1011, ""), None, True),
        (Close(1012, ""), None, True),
        (None, Close(1011, "no pong"), True),
        (Close(1000, ""), None, False),
        (Close(1009, ""), None, False),
        (None, Close(1009, "too long"), False),
    ],
)
@in_virtual_time
async def test_only_a_worker_that_is_gone_counts_as_unreachable(
    received: Close | None, sent: Close | None, is_gone: bool, tmp_path: Path
) -> None:
    async with staged(LIVE, tmp_path, "relaying") as stage:
        stage.sockets[-1].say(ConnectionClosedError(received, sent))
        await stage.end()
        (worker,) = workers_of(stage.pool)
        assert (worker.status is WorkerStatus.OFFLINE) is is_gone


@pytest.mark.parametrize(("phase", "is_kept"), [("connecting", True), ("relaying", False)])
@in_virtual_time
async def test_a_worker_that_was_given_nothing_keeps_its_cache(
    phase: str, is_kept: bool, tmp_path: Path
) -> None:
    async with staged(TURNS, tmp_path) as stage:
        stage.assign()
        stage.ask()
        await stage.hear("prefill_done")
        stage.say(type="generate")
        await stage.hear("done")
        (worker,) = workers_of(stage.pool)
        kept = freshest(worker).cached_hash
        assert kept
        if phase == "connecting":
            stage.may_connect.clear()
        answer = {"role": "assistant", "content": "Hello"}
        stage.say(type="prefill", messages=[USER, answer, USER])
        await stage.hear("queue_done", 2)
        await until(lambda: stage.relay.phase == phase)
        stage.leave()
        await stage.end()
        assert freshest(worker).cached_hash == (kept if is_kept else None)


@pytest.mark.parametrize("phase", [None, *PHASES, "relaying"])
@pytest.mark.parametrize("kind", [LIVE, TURNS])
@in_virtual_time
async def test_each_phase_ends_by_shutdown_administrator_and_bad_messages(
    kind: SocketKind, phase: str | None, tmp_path: Path
) -> None:
    async with staged(kind, tmp_path, phase) as stage:
        stage.relay.fail(ShuttingDownError())
        assert await stage.end() == [1001]
        assert stage.last("error")["code"] == "shutting_down"
    async with staged(kind, tmp_path, phase) as stage:
        stage.relay.end()
        assert await stage.end() == [1008]
        assert stage.last("error")["code"] == "ended_by_admin"
        assert stage.relay.phase is QueueingPhase.CLOSED
    async with staged(kind, tmp_path, phase) as stage:
        stage.incoming.put_nowait({"type": "websocket.receive", "bytes": b"x"})
        assert await stage.end() == [1003]
        assert stage.last("error")["code"] == "bad_json"


@in_virtual_time
async def test_the_first_end_counts(tmp_path: Path) -> None:
    async with staged(LIVE, tmp_path, "waiting") as stage:
        stage.relay.fail(EndedByAdminError())
        stage.relay.fail(ShuttingDownError())
        stage.say(type="stop")
        assert await stage.end() == [1008]
        assert stage.types == ["queued", "error"]


def test_the_page_has_the_limits() -> None:
    page = pages()["queue"]
    for limit in fields(QueueingLimits):
        assert f"| `{limit.name}` | `{limit.default}` | " in page
