"""A lost socket and another one in its place, through gateway and worker: nothing is lost or told
twice, nobody else gets in, and whatever nobody comes back to ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.serving.fake_backend import FakeBackend, FakeTimes
from gateway_modules.relay import link
from tests.fakes.gateway_stage import Stage, settings_for, until
from tests.fakes.pools import idle_count
from tests.service.callers import (
    GRACE_S,
    SILENCE,
    Caller,
    Raw,
    duplex_unit,
    prepare,
    restarted,
    staged,
)
from tests.service.workers import RunningWorker, running_worker, spoken
from tests.system.loops import in_loop


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A worker with fixed replies, which all tests of this file share."""
    settings = settings_for(tmp_path_factory.mktemp("worker"), limits={"resume_grace_s": GRACE_S})
    with running_worker(settings, lambda: FakeBackend(FakeTimes(unit_ms=5))) as running:
        yield running


@in_loop
async def test_full_duplex_resumes_where_it_broke(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        before = worker.runtime.slots.total_grants
        caller = await Caller.prepared(stage, "/ws/duplex/adx_resume")
        for _ in range(3):
            await duplex_unit(caller)
            caller.cut()
            assert (await caller.come_back())["lost_messages"] == 0
            await duplex_unit(caller)
        caller.check_whole()
        assert len(caller.of("result")) == 6
        assert worker.runtime.slots.total_grants == before + 1
        assert stage.gateway.live.all()[0].worker_id == "worker_0"
        await caller.say("stop")
        await caller.hear("stopped")
        assert await caller.end() == 1000


@in_loop
async def test_a_reply_is_complete_although_the_socket_breaks(
    worker: RunningWorker, tmp_path: Path
) -> None:
    async def reply(stage: Stage, name: str, break_after: int | None) -> str:
        caller = await Caller.prepared(stage, f"/ws/half_duplex/{name}")
        for sound in (SILENCE, spoken(1), SILENCE):
            await caller.say("audio_chunk", audio_base64=sound)
        await caller.hear("generating")  # what was said has arrived
        if break_after is not None:
            for _ in range(break_after):
                await caller.hear("chunk")
            caller.cut()
            await caller.come_back()
        await caller.hear("turn_done")
        caller.check_whole()
        await caller.stop()
        return "".join(message["text_delta"] or "" for message in caller.of("chunk"))

    async with staged(worker, tmp_path) as stage:
        whole = await reply(stage, "hdx_whole", None)
        assert whole
        for count in range(3):
            assert await reply(stage, f"hdx_{count}", count) == whole


@in_loop
async def test_a_session_survives_the_gateway(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        before = worker.runtime.slots.total_grants
        caller = await Caller.prepared(stage, "/ws/duplex/adx_restart")
        await duplex_unit(caller)
        async with restarted(stage) as after:
            caller.stage = after
            assert (await caller.come_back())["lost_messages"] == 0
            pool = after.gateway.pool
            assert [task.session_id for w in pool.workers.values() for task in w.tasks] == [
                "adx_restart"
            ]
            assert not pool.queue_length
            await duplex_unit(caller)
            caller.check_whole()
            await caller.say("stop")
            await caller.hear("stopped")
            assert await caller.end() == 1000
        assert worker.runtime.slots.total_grants == before + 1


@pytest.mark.parametrize(
    "changed",
    [
        {"resume_token": "0" * 32},
        {"resume_token": "none"},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_restarted", [False, True])
@in_loop
async def test_only_the_owner_resumes_a_session(
    worker: RunningWorker, tmp_path: Path, changed: Raw, is_restarted: bool
) -> None:
    async def refuse(stage: Stage, caller: Caller) -> None:
        stranger = Caller(stage, caller.path, caller.session_id, caller.token, heard=caller.heard)
        error = await stranger.come_back(**changed)
        assert error["code"] == "session_expired"
        assert await stranger.end() == 1008

    async with staged(worker, tmp_path) as stage:
        caller = await Caller.prepared(stage, "/ws/duplex/adx_stranger")
        if is_restarted:
            async with restarted(stage) as after:
                caller.stage = after
                await refuse(after, caller)
                await caller.come_back()
                await caller.stop()
            return
        caller.cut()
        await refuse(stage, caller)
        await caller.come_back()
        await duplex_unit(caller)
        await caller.stop()


@in_loop
async def test_the_later_of_two_sockets_wins(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        caller = await Caller.prepared(stage, "/ws/duplex/adx_twice")
        first, closed = caller.socket, Caller(stage, caller.path, socket=caller.socket)
        await caller.come_back()
        assert caller.socket is not first
        assert await closed.end() == 4001
        await duplex_unit(caller)
        caller.check_whole()
        await caller.stop()


@in_loop
async def test_a_client_that_closes_is_not_awaited(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        caller = await Caller.prepared(stage, "/ws/duplex/adx_goodbye")
        assert caller.socket is not None
        await caller.socket.close()  # 1000
        await until(lambda: not worker.sessions._live)
        assert (await caller.come_back())["code"] == "session_expired"


@in_loop
async def test_a_position_in_the_queue_is_retained(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        first = await Caller.prepared(stage, "/ws/duplex/adx_first")
        second, third = (Caller(stage, f"/ws/duplex/adx_{name}") for name in ("second", "third"))
        for caller in (second, third):
            await caller.open()
            await caller.hear("queued")
        second.cut()
        await second.dial(f"resume_token={second.token}&last_seq=0")
        assert (await second.hear("queued", "queue_update"))["position"] == 1
        assert stage.gateway.pool.queue_length == 2
        second.cut()  # away when its turn comes
        await first.stop()
        await until(lambda: stage.gateway.pool.queue_length == 1)
        await second.dial(f"resume_token={second.token}&last_seq=0")
        await second.hear("queue_done", "session_resumed")  # so it has to prepare
        await second.say("prepare", prefix_system_prompt="Hi")
        await second.hear("prepared")
        await duplex_unit(second)
        second.check_whole()
        for caller in (second, third):
            await caller.stop()


@in_loop
async def test_without_a_grace_time_a_lost_clients_session_ends(
    worker: RunningWorker, tmp_path: Path
) -> None:
    async with staged(worker, tmp_path, limits={"resume_grace_s": 0}) as stage:
        caller = Caller(stage, "/ws/duplex/adx_never")
        await caller.dial("resumable=1")
        await prepare(caller)
        assert not caller.of("session_resumable") and not caller.seqs
        caller.cut()
        await stage.check_quiet()


@in_loop
async def test_an_unknown_sequence_number_ends_the_session(
    worker: RunningWorker, tmp_path: Path
) -> None:
    async with staged(worker, tmp_path) as stage:
        caller = await Caller.prepared(stage, "/ws/duplex/adx_future")
        caller.cut()
        assert (await caller.come_back(last_seq=999))["code"] == "session_expired"
        assert await caller.end() == 1008


@in_loop
async def test_a_session_that_is_not_resumed_ends(tmp_path: Path) -> None:
    limits = {"resume_grace_s": 0.05}

    with running_worker(settings_for(tmp_path / "worker", limits=limits), FakeBackend) as hasty:
        async with staged(hasty, tmp_path / "gateway", limits=limits) as stage:
            caller = await Caller.prepared(stage, "/ws/duplex/adx_expired")
            caller.cut()
            await stage.check_quiet()
            await until(lambda: not hasty.sessions._live)
            assert (await caller.come_back())["code"] == "session_expired"


@in_loop
async def test_a_worker_that_shuts_down_does_not_wait_for_a_lost_client(tmp_path: Path) -> None:
    settings = settings_for(
        tmp_path / "worker", limits={"resume_grace_s": 60}, service={"drain_timeout_s": 60}
    )

    with running_worker(settings, FakeBackend) as leaving:
        async with staged(leaving, tmp_path / "gateway") as stage:
            caller = await Caller.prepared(stage, "/ws/duplex/adx_away")
            caller.cut()
            [live] = leaving.sessions._live.values()
            await until(lambda: live.resumable is not None and live.resumable.is_away)
            leaving.begin_drain()
            await until(lambda: not leaving.sessions._live)


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/live/sessions"])
@in_loop
async def test_openai_sessions_resume(worker: RunningWorker, tmp_path: Path, path: str) -> None:
    async with staged(worker, tmp_path) as stage:
        caller = Caller(stage, path)
        await caller.open()
        if path == "/v1/realtime":
            await caller.hear("session.created")
        else:
            await caller.say("session.start", session={"model": "gpt-live-1"})
            await caller.hear("session.started")
        for count in range(2):
            caller.cut()
            assert (await caller.come_back())["lost_messages"] == 0
            if path == "/v1/realtime":
                text = {"type": "input_text", "text": f"Hello {count}"}
                item = {"type": "message", "role": "user", "content": [text]}
                await caller.say("conversation.item.create", item=item)
                await caller.hear("conversation.item.done")
            else:
                await caller.hear("session.output_audio.delta")
        caller.check_whole()
        assert caller.socket is not None
        await caller.socket.close()


@in_loop
async def test_a_session_survives_a_gateway_that_is_stopped(
    worker: RunningWorker, tmp_path: Path
) -> None:
    async with staged(worker, tmp_path) as stage:
        caller = await Caller.prepared(stage, "/ws/duplex/adx_drain")
        await stage.stop_gateway()
        assert await caller.end() == 1001
        assert caller.heard[-1]["code"] == "shutting_down"
        async with restarted(stage) as after:
            caller.stage = after
            assert (await caller.come_back())["lost_messages"] == 0
            await duplex_unit(caller)
            caller.check_whole()
            await caller.stop()


@pytest.mark.parametrize("path", ["/ws/duplex/adx_over", "/v1/live/sessions"])
@in_loop
async def test_a_session_that_ends_while_detached_frees_its_slot(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "RETAINED_CHECK_S", 0.05)
    settings = settings_for(
        tmp_path / "worker", limits={"resume_grace_s": GRACE_S}, duplex={"max_session_s": 1}
    )

    async def begin(caller: Caller) -> None:
        await caller.open()
        if path.startswith("/ws"):
            await prepare(caller)
        else:
            await caller.say("session.start", session={"model": "gpt-live-1"})
            await caller.hear("session.started")

    with running_worker(settings, lambda: FakeBackend(FakeTimes(unit_ms=5))) as brief:
        async with staged(brief, tmp_path / "gateway") as stage:
            caller = Caller(stage, path)
            await begin(caller)
            caller.cut()
            await until(lambda: not brief.runtime.slots.owners)
            await until(lambda: idle_count(stage.gateway.pool) == 1)
            after = Caller(stage, f"{path}_2" if path.startswith("/ws") else path)
            await begin(after)
            assert after.socket is not None
            await after.socket.close()
