"""Our Python client, `minicpmo_live`, with a gateway and a worker that says fixed words."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

import minicpmo_live
from core.serving.fake_backend import FakeBackend, FakeTimes
from minicpmo_live import AsyncClient, Client, ConnectionLostError, LiveError, ServerError
from tests.fakes.gateway_stage import HOST, Stage, settings_for, until
from tests.service.callers import GRACE_S, restarted, staged
from tests.service.workers import RunningWorker, jpeg, running_worker, speech
from tests.system.loops import in_loop

SECOND = np.zeros(16_000, np.float32)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is on this machine, whatever the environment says."""
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """A worker with fixed replies, which all tests of this file share."""
    settings = settings_for(tmp_path_factory.mktemp("worker"), limits={"resume_grace_s": GRACE_S})
    with running_worker(settings, lambda: FakeBackend(FakeTimes(unit_ms=5))) as running:
        yield running


def client_of(stage: Stage) -> AsyncClient:
    return AsyncClient(f"http://{HOST}:{stage.port}")


# Any: events of any kind.
async def until_type(events: AsyncIterator[Any], kind: str) -> Any:
    async for event in events:
        if event.type == kind:
            return event
    raise AssertionError(f"no {kind}")


def cut(call: Any) -> None:
    """Break a session's socket without a goodbye."""
    call._link._socket.transport.abort()


@in_loop
async def test_a_recording_is_played_and_answered(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        picture = base64.b64decode(jpeg(64, 64))
        async with client_of(stage).duplex(with_pictures=True, prefix_system_prompt="Hi") as call:
            events = [event async for event in call.play(speech(), [picture], rest_s=2)]
        results = [event for event in events if event.type == "result"]
        assert [event.type for event in events[:2]] == ["queue_done", "prepared"]
        assert [result.step for result in results] == list(range(10))
        assert results[0].vision_slices > 0
        spoken = [result for result in results if not result.is_listen]
        assert spoken and all(result.text for result in spoken)
        assert all(len(result.samples) == len(result.audio_data) * 3 // 16 for result in spoken)
        assert np.asarray(spoken[0].samples).dtype == np.float32


@in_loop
async def test_a_call_goes_on_where_its_socket_broke(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage, client_of(stage).duplex() as call:
        kinds, steps = [], []
        async for event in call.play(np.tile(SECOND, 4), rest_s=0):
            kinds.append(event.type)
            if event.type == "result":
                steps.append(event.step)
                if event.step == 1:
                    cut(call)
        assert steps == list(range(len(steps))) and len(steps) >= 3
        assert kinds.index("connection_lost") < kinds.index("session_resumed")


@in_loop
async def test_a_call_outlives_the_gateway(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        async with client_of(stage).duplex() as call:
            await call.send_audio(SECOND)
            await until_type(call, "result")
            async with restarted(stage) as after:
                old, new = (f"{HOST}:{each.port}" for each in (stage, after))
                address = call._link._address
                call._link._address = replace(address, url=address.url.replace(old, new))
                await until_type(call, "session_resumed")
                assert await call.send_audio(SECOND)
                assert (await until_type(call, "result")).step == 1
                await call.stop()
                await until_type(call, "stopped")


@in_loop
async def test_the_place_in_the_queue_is_told(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        async with client_of(stage).duplex() as first, client_of(stage).half_duplex() as second:
            await first.send_audio(SECOND)
            queued = await until_type(second, "queued")
            assert (queued.position, queued.queue_length) == (1, 1)
            cut(second)  # a place is kept, too
            await until_type(second, "connection_lost")
            assert (await until_type(second, "queue_update")).position == 1
            await first.stop()
            await until_type(first, "stopped")
            assert await second.send_audio(SECOND)  # waits until the session is ready
            await until_type(second, "prepared")


@in_loop
async def test_a_turn_is_answered(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        settings: Any = {"config": {"vad": {"min_silence_duration_ms": 100}}}
        async with client_of(stage).half_duplex(**settings) as call:
            events = [event async for event in call.play(speech())]
        assert events[-1].type == "turn_done"
        chunks = [event for event in events if event.type == "chunk"]
        assert "".join(chunk.text_delta or "" for chunk in chunks) == events[-1].text
        assert events[-1].token_stats.generated_tokens > 0


@in_loop
async def test_a_chat_keeps_its_history(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        async with client_of(stage).chat(max_new_tokens=8, generate_audio=False) as chat:
            first: list[Any] = [event async for event in chat.ask("What is seven plus five?")]
            assert [event.type for event in first[:2]] == ["queue_done", "prefill_done"]
            async for event in chat.ask("And eight?"):  # broken off: as if never asked
                if event.type == "chunk":
                    break
            assert [message["role"] for message in chat.messages] == ["user", "assistant"]
            again = [event async for event in chat.ask("And nine?", sound=SECOND)]
            assert first[-1].text == chat.messages[1]["content"]
            assert [type(event) for event in again][-1] is minicpmo_live.events.Done
            assert len(chat.messages) == 4


@in_loop
async def test_a_question_keeps_its_place_in_the_queue(
    worker: RunningWorker, tmp_path: Path
) -> None:
    async with staged(worker, tmp_path) as stage:
        async with client_of(stage).duplex() as first, client_of(stage).chat() as chat:
            await first.send_audio(SECOND)
            events = chat.ask("Hello?")
            assert (await until_type(events, "queued")).position == 1
            async with client_of(stage).half_duplex() as behind:
                assert (await until_type(behind, "queued")).position == 2
                cut(chat)
                assert (await until_type(events, "connection_lost")).grace_s == 60
                assert (await until_type(events, "queued")).position == 1
                await first.stop()
                assert (await until_type(events, "done")).text
                await until_type(behind, "queue_done")
            assert len(chat.messages) == 2


@in_loop
async def test_a_question_whose_answer_is_cut_is_lost(
    worker: RunningWorker, tmp_path: Path
) -> None:
    async with staged(worker, tmp_path) as stage:
        async with client_of(stage).chat() as chat:
            events = chat.ask("Hello?")
            await until_type(events, "chunk")
            cut(chat)
            with pytest.raises(ConnectionLostError, match="1006"):
                await until_type(events, "done")
            assert not chat.messages


@in_loop
async def test_without_async(worker: RunningWorker, tmp_path: Path) -> None:
    def talk(url: str) -> list[str]:
        with Client(url).duplex() as call:
            kinds: list[str] = [event.type for event in call.play(SECOND, rest_s=0)]
            call.stop()
            kinds += [event.type for event in call]
        with Client(url).chat(max_new_tokens=2) as chat:
            kinds.append(list(chat.ask("Hello"))[-1].type)
            unfinished = chat.ask("Hello again")
            next(unfinished)
        unfinished.close()  # later than its session, as a garbage collector may
        assert "minicpmo_live" not in {thread.name for thread in threading.enumerate()}
        return kinds

    async with staged(worker, tmp_path) as stage:
        kinds = await asyncio.to_thread(talk, f"http://{HOST}:{stage.port}")
        assert kinds == ["queue_done", "prepared", "result", "stopped", "done"]


@in_loop
async def test_a_refusal_has_its_code(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path) as stage:
        config: Any = {"chunk_ms": 7}
        async with client_of(stage).duplex(config=config) as call:
            with pytest.raises(ServerError, match="chunk_ms") as refused:
                async for _ in call:
                    pass
            assert refused.value.code == "bad_config"
            with pytest.raises(LiveError, match="before it was ready"):
                await call.send_audio(SECOND)


@in_loop
async def test_a_session_that_nobody_keeps_is_lost(worker: RunningWorker, tmp_path: Path) -> None:
    async with staged(worker, tmp_path, limits={"resume_grace_s": 0}) as stage:
        async with client_of(stage).duplex() as call:
            await call.send_audio(SECOND)
            cut(call)
            with pytest.raises(ConnectionLostError, match="1006"):
                async for _ in call:
                    pass


@in_loop
async def test_a_closed_connection_has_its_reason_and_a_session_is_used_once() -> None:
    async def refuse(socket: ServerConnection) -> None:
        await socket.close(1008, "ended_by_admin")

    async with serve(refuse, HOST, 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        call = AsyncClient(f"http://{HOST}:{port}").duplex()
        async with call:
            with pytest.raises(ConnectionLostError, match="with 1008: ended_by_admin"):
                await anext(call)
        with pytest.raises(LiveError, match="used once"):
            await call.__aenter__()


OFFER = {
    "type": "session_resumable",
    "session_id": "s",
    "resume_token": "abc",
    "grace_s": 60.0,
    "return_ticket": "",
}


@asynccontextmanager
async def resuming(
    goodbye: list[dict[str, Any]], code: int
) -> AsyncIterator[tuple[Any, ServerConnection]]:
    """A call whose first socket ended with this code, after these messages; and its second one."""
    sockets: asyncio.Queue[ServerConnection] = asyncio.Queue()

    async def keep(socket: ServerConnection) -> None:
        sockets.put_nowait(socket)
        await socket.wait_closed()

    async with serve(keep, HOST, 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with AsyncClient(f"http://{HOST}:{port}").duplex() as call:
            first = await sockets.get()
            for message in (OFFER, *goodbye):
                await first.send(json.dumps(message))
            await first.close(code)
            yield call, await sockets.get()


@in_loop
async def test_input_is_lost_until_the_session_is_resumed() -> None:
    facts = {"prompt_length": 1, "prompt_tokens": 1, "session_id": "s", "session_secret": None}
    limits = {"max_kv_tokens": 8_192, "chunk_ms": 1_000, "pause_timeout": 60.0}
    prepared = {"type": "prepared", "seq": 1, "recording_session_id": None, **facts, **limits}
    async with resuming([prepared], 1012) as (call, second):
        assert [(await anext(call)).type for _ in range(2)] == ["prepared", "connection_lost"]
        await until(lambda: call._link._socket is not None)
        assert not await call.pause(), "the session does not continue over this socket yet"
        numbers = {"last_seq": 1, "lost_messages": 0, "away_ms": 10}
        await second.send(json.dumps({"type": "session_resumed", **numbers}))
        assert (await anext(call)).type == "session_resumed"
        assert await call.pause()
        assert json.loads(await second.recv()) == {"type": "pause"}
        await second.close(1000)


@in_loop
async def test_prepare_is_sent_again_after_a_warning_that_came_first() -> None:
    warning = {"type": "warning", "code": "not_prepared", "message": "Wait.", "error": "Wait."}
    async with resuming([warning | {"fatal": False, "seq": 1}], 1012) as (call, second):
        numbers = {"last_seq": 1, "lost_messages": 0, "away_ms": 10}
        await second.send(json.dumps({"type": "session_resumed", **numbers}))
        heard = [(await anext(call)).type for _ in range(3)]
        assert heard == ["warning", "connection_lost", "session_resumed"]
        await call.pause()
        assert json.loads(await second.recv())["type"] == "prepare"
        await second.close(1000)


@in_loop
async def test_a_worker_that_ends_is_the_reason_not_that_nobody_keeps_its_session() -> None:
    goodbye = {"type": "error", "code": "shutting_down", "message": "Bye.", "fatal": True}
    async with resuming([goodbye | {"error": "Bye."}], 1001) as (call, second):
        gone = {"code": "session_expired", "message": "Gone.", "fatal": True, "error": "Gone."}
        await second.send(json.dumps({"type": "error", **gone}))
        assert (await anext(call)).type == "connection_lost"
        with pytest.raises(ServerError, match="Bye"):
            await anext(call)


@pytest.mark.parametrize("url", ["localhost:8006", "ftp://localhost", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(LiveError, match="url"):
        Client(url)


def test_a_setting_that_does_not_exist_is_named() -> None:
    wrong: Any = {"prefix": "Hi"}
    with pytest.raises(LiveError, match="prefix"):
        Client().duplex(**wrong)


def test_nobody_there() -> None:
    with pytest.raises(ConnectionLostError, match=":1/"), Client("http://127.0.0.1:1").duplex():
        pass
