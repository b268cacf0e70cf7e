"""Start and shutdown of a worker, and its admission of clients."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import httpx
import pytest

from core.audio import FloatArray
from core.engine.engine import Engine
from core.errors import ModelError
from core.modes import Backend, Report
from core.schemas.chat import ChatRequest
from core.schemas.common import Message, Role
from core.serving import slots
from core.serving.fake_backend import FakeBackend, FakeTranscriber
from core.serving.runtime import WorkerRuntime
from core.serving.session_server import SessionServer
from core.transcription import DEFAULT_OPTIONS, Transcript, TranscriptionOptions
from tests.service.workers import (
    LIMIT_S,
    SILENCE,
    Client,
    RunningWorker,
    eventually,
    running_worker,
    settings_for,
    soon,
    speech,
)
from tests.system.loops import in_loop
from worker import create_app

USER = {"role": "user", "content": "Hello"}
STEPS = "loading by steps"


@pytest.fixture
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningWorker]:
    """A worker of its own for each test."""
    with running_worker(settings_for(tmp_path, **request.param), FakeBackend) as running:
        yield running


def configured(**sections: dict[str, object]) -> pytest.MarkDecorator:
    """Return the mark of a test whose worker has these sections of settings."""
    return pytest.mark.parametrize("worker", [sections], indirect=True)


# Loading


class BrokenBackend(FakeBackend):
    """Fails to load."""

    def load(self, engine: Engine, report: Report) -> None:
        raise ModelError("There is no checkpoint in /nowhere.")


def missing_library() -> Backend:
    raise ImportError("No module named 'nothing'")


@pytest.mark.parametrize(
    ("make", "reason"),
    [(BrokenBackend, "There is no checkpoint in /nowhere."), (missing_library, "No module named")],
)
def test_a_worker_that_cannot_load_keeps_running_and_reports_why(
    tmp_path: Path, make: Callable[[], Backend], reason: str
) -> None:
    async def scenario(worker: RunningWorker) -> None:
        client = Client(worker.port)

        async def has_failed() -> bool:
            return bool((await client.health())["status"] == "error")

        await soon("loading has failed", has_failed)
        health = await client.health()
        assert health["worker_status"] == "error" and not health["model_loaded"]
        assert reason in health["error"]
        assert reason in await client.denied("duplex")
        assert (await client.post("/chat", {"messages": [USER]})).status_code == 503

    with running_worker(settings_for(tmp_path), make, waits=False) as worker:
        asyncio.run(scenario(worker))


class StepwiseBackend(FakeBackend):
    """Loads step by step under the test's control."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Queue[float | None] = Queue()

    def load(self, engine: Engine, report: Report) -> None:
        while (share := self.steps.get(timeout=LIMIT_S)) is not None:
            report(STEPS, share)


def test_a_loading_worker_reports_progress_and_denies_sessions(tmp_path: Path) -> None:
    make = StepwiseBackend()

    async def scenario(worker: RunningWorker) -> None:
        client = Client(worker.port)
        for share in (0.25, 0.5, 0.75):
            make.steps.put(share)

            async def is_shown(share: float = share) -> bool:
                health = await client.health()
                assert health["status"] == "initializing" and health["worker_status"] == "loading"
                return bool((health["load_stage"], health["load_progress"]) == (STEPS, share))

            await soon("the step is shown", is_shown)
        assert "still loading" in await client.denied("streaming")
        make.steps.put(None)
        eventually("the model is loaded", lambda: worker.runtime.progress.is_loaded)
        assert (await client.health())["model_loaded"]
        await client.idle()

    with running_worker(settings_for(tmp_path), lambda: make, waits=False) as worker:
        asyncio.run(scenario(worker))


# The end


@configured(service={"drain_timeout_s": 20})
@in_loop
async def test_running_sessions_end_by_themselves_before_the_program_does(
    worker: RunningWorker,
) -> None:
    client = Client(worker.port)
    async with client.talk("duplex") as talk, client.talk("streaming") as between_turns:
        await talk.prepared()
        worker.begin_drain()
        [told] = await between_turns.hear_all()
        assert told["type"] == "error" and between_turns.close_code == 1001
        assert "shutting down" in await client.denied("duplex", "shutting_down")
        assert (await client.health())["is_draining"] is True
        assert (await talk.ask("audio_chunk", audio=SILENCE))["type"] == "result"
        assert [each["type"] for each in await talk.stop()] == ["stopped"]
    eventually("the program ends", lambda: not worker._thread.is_alive())


@configured(service={"drain_timeout_s": 0.1})
@in_loop
async def test_a_session_that_does_not_end_is_ended(worker: RunningWorker, tmp_path: Path) -> None:
    async with Client(worker.port).talk("duplex", "adx_end") as talk:
        prepared = await talk.prepared()
        assert (await talk.ask("audio_chunk", audio=SILENCE))["type"] == "result"
        worker.begin_drain()
        [told] = await talk.hear_all()
        assert (told["type"], told["code"], talk.close_code) == ("error", "shutting_down", 1001)
    eventually("the program ends", lambda: not worker._thread.is_alive())
    folder = tmp_path / "sessions" / prepared["recording_session_id"]
    kept = json.loads((folder / "recording.json").read_text(encoding="utf8"))
    assert len(kept["chunks"]) == 1, "recordings are complete when the program has ended"


@configured(service={"drain_timeout_s": 2 * LIMIT_S})
@in_loop
async def test_a_second_stop_ends_the_sessions_that_are_waited_for(worker: RunningWorker) -> None:
    async with Client(worker.port).talk("duplex") as talk:
        await talk.prepared()
        worker.begin_drain()
        eventually("it waits", lambda: worker.runtime.is_draining)
        worker.begin_drain()
        [told] = await talk.hear_all()
        assert (told["type"], told["code"], talk.close_code) == ("error", "shutting_down", 1001)
    eventually("the program ends", lambda: not worker._thread.is_alive())


@configured(service={"drain_timeout_s": 2 * LIMIT_S})
@pytest.mark.parametrize("is_hurried", [False, True])
@in_loop
async def test_a_transcript_under_way_is_waited_for_until_a_second_stop(
    worker: RunningWorker, monkeypatch: pytest.MonkeyPatch, is_hurried: bool
) -> None:
    begun, may_end = threading.Event(), asyncio.Event()  # the other is the worker's loop's

    class Slow(FakeTranscriber):
        async def transcribe(
            self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
        ) -> Transcript:
            begun.set()
            await may_end.wait()
            return await super().transcribe(samples, options)

    monkeypatch.setattr(WorkerRuntime, "transcriber", Slow())
    worker.server.config.timeout_graceful_shutdown = 0
    url = f"http://127.0.0.1:{worker.port}/transcribe"
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=LIMIT_S) as http:
        sound = speech().astype("<f4").tobytes()
        asked = asyncio.create_task(http.post(url, content=sound))
        await asyncio.to_thread(eventually, "it is transcribed", begun.is_set)
        worker.begin_drain()
        eventually("it drains", lambda: worker.runtime.is_draining)
        assert (await Client(worker.port).health())["is_draining"] is True
        if is_hurried:
            worker.begin_drain()
            with pytest.raises(httpx.HTTPError):
                (await asked).raise_for_status()
        else:
            worker.on_loop(may_end.set)
            assert "I speak for" in (await asked).text
    eventually("the program ends", lambda: not worker._thread.is_alive())
    assert worker.runtime.transcripts == 0


@configured(service={"drain_timeout_s": 20})
@in_loop
async def test_a_session_that_waits_for_a_slot_does_not_begin_once_the_worker_drains(
    worker: RunningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "BUSY_WAIT_S", LIMIT_S)
    client = Client(worker.port)
    async with client.talk("duplex") as first, client.talk("duplex") as second:
        await first.prepared()
        await second.say("prepare")
        eventually("it waits", lambda: worker.runtime.slots._queue)
        worker.begin_drain()
        eventually("it drains", lambda: worker.runtime.is_draining)
        await first.say("stop")
        [told] = await second.hear_all()
        assert (told["code"], second.close_code) == ("shutting_down", 1001)


@configured(limits={"chat_audio_max_s": 0.5})
@in_loop
async def test_configured_limits_hold_over_http_too(worker: RunningWorker) -> None:
    spoken = {"role": "user", "content": [{"type": "audio", "data": SILENCE}]}
    answer = await Client(worker.port).post("/chat", {"messages": [spoken]})
    assert answer.status_code == 413
    assert answer.json() == {
        "detail": "data: the audio is longer than 0.5 s.",
        "code": "bad_audio",
    }


@configured(half_duplex={"timeout_s": 33})
@in_loop
async def test_half_duplex_defaults_come_from_the_configuration(worker: RunningWorker) -> None:
    async with Client(worker.port).talk("half_duplex") as talk:
        assert (await talk.prepared())["timeout_s"] == 33


# The secret


@configured(security={"worker_secret": "open sesame"})
@in_loop
async def test_only_clients_with_the_secret_are_admitted(worker: RunningWorker) -> None:
    stranger, friend = Client(worker.port), Client(worker.port, {"X-Worker-Secret": "open sesame"})
    assert (await stranger.health())["status"] == "healthy"
    assert (await stranger.post("/clear_cache")).status_code == 401
    assert (await friend.post("/clear_cache")).status_code == 200
    with pytest.raises(Exception, match="403"):
        async with stranger.talk("duplex"):
            pass
    async with friend.talk("duplex") as talk:
        await talk.prepared()


@in_loop
async def test_a_chat_over_http_and_the_worker_leave_no_task(tmp_path: Path) -> None:
    app = create_app(settings_for(tmp_path), FakeBackend)
    is_kept = False

    async with app.router.lifespan_context(app):
        sessions: SessionServer = app.state.sessions
        await soon("the model is loaded", lambda: sessions.runtime.progress.is_loaded)

        async def disconnected() -> None:
            """Wait for a client that stays, and take long to end."""
            nonlocal is_kept
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(20):
                    await sessions.runtime.engine.call(list)
                is_kept = bool(sessions.runtime.slots.owners)

        before = asyncio.all_tasks()
        request = ChatRequest(messages=[Message(role=Role.USER, content="Hello")])
        response = await sessions.chat(request, disconnected, "")
        assert response.success and asyncio.all_tasks() <= before
        assert is_kept, "its slot is free before its tasks have ended"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_loop
async def test_a_worker_closes_after_its_start_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, close = [], SessionServer.close

    async def recover(_: SessionServer) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append("its start has ended")

    async def noted(sessions: SessionServer) -> None:
        order.append("it closes")
        await close(sessions)

    monkeypatch.setattr(SessionServer, "recover", recover)
    monkeypatch.setattr(SessionServer, "close", noted)
    app = create_app(settings_for(tmp_path), FakeBackend)
    async with app.router.lifespan_context(app):
        await asyncio.sleep(0)  # it starts
    assert order == ["its start has ended", "it closes"]


def test_a_session_that_the_gateway_asks_not_to_record_leaves_no_file(tmp_path: Path) -> None:
    async def scenario(worker: RunningWorker) -> None:
        for query, is_recorded in (({"unrecorded": "1"}, False), ({}, True)):
            async with Client(worker.port).talk("chat", None, **query) as talk:
                await talk.say(None, messages=[USER])
                [done] = [told for told in await talk.hear_all() if told["type"] == "done"]
            assert bool(done["recording_session_id"]) is is_recorded

    with running_worker(settings_for(tmp_path), FakeBackend) as worker:
        asyncio.run(scenario(worker))
    assert len(list((tmp_path / "sessions").iterdir())) == 1
