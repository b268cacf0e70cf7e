"""A relay between a client and a worker in memory: whatever happens at whatever await, it all ends.

Something is made to happen at every suspension of every task of a session, one run for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.websockets import WebSocket, WebSocketState

from core.errors import ShuttingDownError
from core.schemas.queue import SocketKind
from core.schemas.worker import WorkerStatus
from core.sockets import ReplaceableSocket
from gateway_modules.queue.worker_connection import Ticket
from tests.fakes.awaits import Awaits
from tests.fakes.gateway_stage import until
from tests.fakes.pools import ask, hear, release, workers_of
from tests.fakes.relay_scene import USER, Scene, Stage, staged
from tests.fakes.virtual_time import VirtualTimeLoop, in_virtual_time, let_others_run

# A task cancelled before its first step never runs what the counter of awaits wrapped.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")

SEND_S = 0.01  # a slow client's, so that its next message passes the one that is sent to it


class Talk(Scene):
    """A scene in which a whole session is played."""

    async def play(self) -> None:
        """Run a whole session; somebody else has the worker at first."""
        other, _ = ask(self.pool, "duplex")
        script = asyncio.create_task(self._script(other))
        await self.websocket.accept()
        self.running = asyncio.create_task(self.relay.run())
        await asyncio.gather(self.running, return_exceptions=True)
        script.cancel()
        await asyncio.gather(script, return_exceptions=True)
        release(self.pool, self.pool.workers["worker_0"], ticket=other)

    async def _script(self, other: Ticket) -> None:
        if self.kind is SocketKind.STREAMING:
            self.say(type="prefill", messages=[USER])
        elif self.kind is SocketKind.CHAT:
            self.say(messages=[USER])
        await self.hear("queued")
        release(self.pool, self.pool.workers["worker_0"], ticket=other)
        await self.hear("queue_done")
        match self.kind:
            case SocketKind.STREAMING:
                await self.hear("prefill_done")
                self.say(type="generate")
                await self.hear("done")
                more = [USER, {"role": "assistant", "content": "Hello"}, USER]
                self.say(type="prefill", messages=more)
                await self.hear("prefill_done", 2)
                self.say(type="close")
            case SocketKind.DUPLEX | SocketKind.HALF_DUPLEX:
                self.say(type="prepare")
                await self.hear("prepared")
                self.say(type="audio_chunk")
                await self.hear("result")
                self.say(type="stop")
            case SocketKind.REALTIME | SocketKind.LIVE:
                self.say(type="conversation.item.create")
                await self.hear("conversation.item.created")
                self.leave()


def play(
    kind: SocketKind,
    folder: Path,
    at: int | None,
    act: Callable[[Talk], object],
    send_s: float = 0.0,
) -> tuple[Talk, int]:
    """Play a session; let something happen at a suspension; return how many there were."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        scenes: list[Talk] = []
        awaits = Awaits(at, lambda: act(scenes[0]) if scenes and scenes[0].running else None)
        awaits.install(runner.get_loop())

        async def run() -> Talk:
            scene = Talk(kind, folder, send_s=send_s)
            scenes.append(scene)
            await scene.play()
            scene.check_quiet()
            return scene

        return runner.run(run()), awaits.count


HAPPENINGS: dict[str, Callable[[Talk], object]] = {
    "the client leaves": Scene.leave,
    "the client says stop": lambda scene: scene.say(type="stop"),
    "the worker dies": Scene.kill_worker,
    "the place is taken away": Scene.cancel_tickets,
    "the task is cancelled": Scene.cancel_task,
    "the program ends": lambda scene: scene.relay.fail(ShuttingDownError()),
    "an administrator ends it": lambda scene: scene.relay.end(),
    "it is stopped from outside": lambda scene: scene.relay.stop_soon(),
}


@pytest.mark.parametrize("kind", [kind for kind in SocketKind if not kind.has_events])
def test_a_session_goes_to_its_end(kind: SocketKind, tmp_path: Path) -> None:
    scene, _ = play(kind, tmp_path, None, Scene.leave)
    assert scene.closed == [1000]
    last = {"streaming": "prefill_done", "chat": "done"}.get(kind, "stopped")
    assert scene.sent[-1]["type"] == last
    assert len(scene.sockets) == (2 if kind is SocketKind.STREAMING else 1)


@pytest.mark.parametrize("speech_event", HAPPENINGS)
@pytest.mark.parametrize(
    "kind",
    [
        SocketKind.STREAMING,
        SocketKind.DUPLEX,
        pytest.param(SocketKind.CHAT, marks=pytest.mark.matrix),
        pytest.param(SocketKind.HALF_DUPLEX, marks=pytest.mark.matrix),
        pytest.param(SocketKind.REALTIME, marks=pytest.mark.matrix),
        pytest.param(SocketKind.LIVE, marks=pytest.mark.matrix),
    ],
)
def test_whatever_happens_at_any_await_leaves_nothing(
    kind: SocketKind, speech_event: str, tmp_path: Path
) -> None:
    _, count = play(kind, tmp_path, None, Scene.leave)
    assert count > 15
    for at in range(count):
        play(kind, tmp_path, at, HAPPENINGS[speech_event])


def saying(kind: str) -> Callable[[Stage], None]:
    return lambda stage: stage.say(type=kind)


ACTS: dict[str, Callable[[Stage], object]] = {
    "request": Stage.ask,
    **{
        kind: saying(kind)
        for kind in "prepare generate stop close audio_chunk heartbeat dance".split()
    },
    "assign": Stage.assign,
    "occupy": Stage.occupy,
    "let connect": lambda stage: stage.may_connect.set(),
    "connect late": lambda stage: stage.may_connect.clear(),
    "be unreachable": lambda stage: vars(stage).update(unreachable=1),
    "lose the worker": Stage.kill_worker,
    "cancel the ticket": Stage.cancel_tickets,
    "stop from outside": lambda stage: stage.relay.stop_soon(),
    "end": lambda stage: stage.relay.end(),
    "shut down": lambda stage: stage.relay.fail(ShuttingDownError()),
    "leave": Stage.leave,
}


@given(
    st.sampled_from([SocketKind.DUPLEX, SocketKind.STREAMING, SocketKind.CHAT]),
    st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.integers(0, 20)), max_size=20),
)
def test_every_worker_is_released_whatever_happens_in_whatever_order(
    tmp_path_factory: pytest.TempPathFactory, kind: SocketKind, acts: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.getbasetemp()

    @in_virtual_time
    async def live() -> None:
        async with staged(kind, folder, workers=2) as stage:
            for act, rounds in acts:
                ACTS[act](stage)
                await let_others_run(rounds)
        assert "error" not in stage.types[:-1], "it is the last message"

    live()


def test_a_close_at_any_await_is_no_lost_worker(tmp_path: Path) -> None:
    """The worker closes its socket then, also while a message is on its way to the client."""

    def say_close(scene: Talk) -> None:
        scene.say(type="close")

    _, count = play(SocketKind.STREAMING, tmp_path, None, Scene.leave, SEND_S)
    for at in range(count):
        scene, _ = play(SocketKind.STREAMING, tmp_path, at, say_close, SEND_S)
        assert "error" not in [message["type"] for message in scene.sent], at


def test_an_internal_error_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    def break_it(scene: Talk) -> None:
        def fail(*args: object) -> None:
            raise ZeroDivisionError

        scene.relay._traffic.downward = fail  # type: ignore[method-assign, assignment]

    scene, _ = play(SocketKind.DUPLEX, tmp_path, 10, break_it)
    assert scene.sent[-1]["code"] == "internal"
    assert scene.closed == [1011]


@in_virtual_time
async def test_after_the_workers_last_message_the_client_is_told_no_error(tmp_path: Path) -> None:
    async with staged(SocketKind.DUPLEX, tmp_path, "relaying") as stage:
        stage.sockets[-1].say({"type": "error", "code": "bad_json", "message": "No JSON."})
        await stage.hear("error")
        stage.incoming.put_nowait({"type": "websocket.receive", "bytes": b"{}"})
        assert await stage.end() == [1003]
        assert stage.types.count("error") == 1


class ClosingSlowly(WebSocket):
    """A client's socket whose close waits for `may_close`."""

    def __init__(self) -> None:
        super().__init__({"type": "websocket"}, receive=None, send=None)  # type: ignore[arg-type]
        self.application_state = WebSocketState.CONNECTED
        self.may_close = asyncio.Event()

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        await self.may_close.wait()


def test_of_two_resumptions_the_later_socket_says_what_it_has_received(tmp_path: Path) -> None:
    resumed: list[int] = []

    async def resume(last_seq: int) -> None:
        resumed.append(last_seq)

    async def nothing() -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        relay = Scene(SocketKind.DUPLEX, tmp_path).relay
        before, first, second = ClosingSlowly(), ClosingSlowly(), ClosingSlowly()
        relay._client.socket = ReplaceableSocket(before, grace_s=10.0)
        ticket = SimpleNamespace(position=0)
        link = SimpleNamespace(detach=nothing, resume=resume, ticket=ticket)
        relay._link = link  # type: ignore[assignment]
        first.may_close.set()
        earlier = asyncio.create_task(relay.resume(first, 3))
        await asyncio.sleep(0.01)  # the first socket of all is being closed
        later = asyncio.create_task(relay.resume(second, 5))
        await asyncio.sleep(0.01)
        before.may_close.set()
        await earlier
        later.cancel()
        await asyncio.gather(later, return_exceptions=True)

    asyncio.run(test())
    assert resumed == [5]


@in_virtual_time
async def test_a_stop_reaches_the_worker_of_a_client_that_is_away(tmp_path: Path) -> None:
    async with staged(SocketKind.DUPLEX, tmp_path, "relaying", grace_s=5.0) as stage:
        stage.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await until(lambda: stage.relay.is_away)
        answer = await stage.relay.request_stop()
        assert (answer.success, answer.message) == (True, "It was stopped.")
        assert "/duplex/stop" in stage.posted


@pytest.mark.parametrize("is_reachable", [True, False])
@in_virtual_time
async def test_a_client_that_closes_during_the_reconnect_ends_its_session(
    is_reachable: bool, tmp_path: Path
) -> None:
    async def keeps(*_: object) -> bool:
        return True

    async with staged(SocketKind.DUPLEX, tmp_path, "relaying", grace_s=60.0) as stage:
        vars(stage.pool.client)["keeps"] = keeps
        stage.may_connect.clear()
        resuming = await stage.resume()
        await asyncio.sleep(1.0)
        stage.incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.sleep(1.0)
        if is_reachable:
            stage.may_connect.set()
        assert await stage.end() == []
        # The worker ends a session whose socket is closed with 1000.
        assert len(stage.sockets) == 1 + is_reachable
        await resuming


@pytest.mark.parametrize("has_returned_before", [False, True])
@in_virtual_time
async def test_an_administrator_ends_the_session_of_a_client_that_is_away_at_its_worker_too(
    has_returned_before: bool, tmp_path: Path
) -> None:
    async def keeps(*_: object) -> bool:
        return True

    async with staged(SocketKind.DUPLEX, tmp_path, "relaying", grace_s=60.0) as stage:
        vars(stage.pool.client)["keeps"] = keeps
        if has_returned_before:
            resuming = await stage.resume()
            await asyncio.sleep(1.0)
        connected = len(stage.sockets)
        stage.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await until(lambda: stage.relay.is_away)
        await asyncio.sleep(1.0)
        stage.relay.end()
        await stage.end()
        # The worker ends a session whose socket is closed with 1000.
        assert len(stage.sockets) == connected + 1
        if has_returned_before:
            await resuming


@in_virtual_time
async def test_a_gateway_that_ends_leaves_the_session_of_a_client_that_is_away(
    tmp_path: Path,
) -> None:
    async with staged(SocketKind.DUPLEX, tmp_path, "relaying", grace_s=60.0) as stage:
        stage.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await until(lambda: stage.relay.is_away)
        connected = len(stage.sockets)
        stage.relay.fail(ShuttingDownError())
        await stage.end()
        assert len(stage.sockets) == connected


@in_virtual_time
async def test_a_long_wait_survives_the_restart_of_the_only_worker(tmp_path: Path) -> None:
    async with staged(SocketKind.DUPLEX, tmp_path, "waiting") as stage:
        [worker] = workers_of(stage.pool)
        await asyncio.sleep(120)
        worker.mark_offline()
        await asyncio.sleep(20)
        release(stage.pool, worker)
        hear(worker, WorkerStatus.IDLE)
        stage.pool._dispatch_next()
        await stage.hear("queue_done")
        assert "error" not in stage.types
