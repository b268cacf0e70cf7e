"""Prefetch of pictures in a worker with a toy-size model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from core.engine.passes import Task
from core.processors.backend import RealBackend
from MiniCPMO45.engine.steps import Collect, EncodeImages
from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint
from tests.service.model_talks import DUPLEX, model_backend
from tests.service.workers import (
    Client,
    Message,
    RunningWorker,
    jpeg,
    running_worker,
    settings_for,
    soon,
    spoken,
)
from tests.system.loops import in_loop

PICTURES = [jpeg(120 + 10 * index, 90) for index in range(4)]
ENCODING_S = 0.3
SAME = ("is_listen", "text", "end_of_turn", "n_tokens", "kv_cache_length", "vision_slices")


class Encoding:
    """Counts the slices that an executor encodes, and slows it down."""

    def __init__(self, backend: RealBackend) -> None:
        self.slices = 0
        self.delay_s = 0.0
        handlers = backend.context.model.executor._handlers
        self._usual = handlers[EncodeImages]
        handlers[EncodeImages] = self.run

    def run(self, requests: Sequence[Any]) -> Collect:
        time.sleep(self.delay_s)
        self.slices += sum(len(request.slices) for request in requests)
        return self._usual(requests)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> RealBackend:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_tiny_checkpoint(folder)
    return model_backend(folder, seed=3)


@pytest.fixture(scope="module")
def worker(
    backend: RealBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningWorker]:
    folder, slots = tmp_path_factory.mktemp("data"), {"worker_slots": 2}
    settings = settings_for(folder, recording={"enabled": False}, service=slots)
    with running_worker(settings, lambda: backend) as running:
        yield running


@pytest.fixture
def encoding(worker: RunningWorker, backend: RealBackend) -> Iterator[Encoding]:
    executor = backend.context.model.executor
    usual = executor._handlers[EncodeImages]
    yield Encoding(backend)
    executor._handlers[EncodeImages] = usual


async def converse(client: Client, *, is_ahead: bool) -> list[Message]:
    """Run a unit for each picture; return the answers."""
    results = []
    async with client.talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        for index, picture in enumerate(PICTURES):
            if is_ahead:
                await talk.say("video_frame", frame=picture)
                await talk.say("audio_chunk", audio=spoken(index))
            else:
                await talk.say("audio_chunk", audio=spoken(index), frame_base64_list=[picture])
            results.append(await talk.hear())
        await talk.stop()
    return results


@in_loop
async def test_prefetching_pictures_does_not_change_a_conversation(
    worker: RunningWorker, encoding: Encoding
) -> None:
    client = Client(worker.port)
    usual = await converse(client, is_ahead=False)
    assert encoding.slices == len(PICTURES)
    ahead = await converse(client, is_ahead=True)
    assert encoding.slices == 2 * len(PICTURES), "each picture is encoded once"
    for one, other in zip(usual, ahead, strict=True):
        assert [one[name] for name in SAME] == [other[name] for name in SAME]


@in_loop
async def test_prefetched_pictures_cost_the_unit_nothing(
    worker: RunningWorker, encoding: Encoding
) -> None:
    encoding.delay_s = ENCODING_S
    async with Client(worker.port).talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        await talk.say("video_frame", frame=PICTURES[0])
        await soon("the picture is seen", lambda: encoding.slices == 1)
        ahead = await talk.ask("audio_chunk", audio=spoken(0))
        inside = await talk.ask("audio_chunk", audio=spoken(1), frame_base64_list=[PICTURES[1]])
        assert ahead["vision_slices"] == inside["vision_slices"] == 1
        assert inside["prefill_ms"] > 1_000 * ENCODING_S
        assert ahead["prefill_ms"] < inside["prefill_ms"]
        await talk.stop()


@in_loop
async def test_units_have_priority_over_prefetches(
    worker: RunningWorker, backend: RealBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = worker.runtime.engine
    run, due = engine.run_pass, list[float | None]()

    def watch(tasks: Sequence[Task[Any]]) -> None:
        run(tasks)
        due.extend(task.due_s for task in tasks if task.has_ended)

    monkeypatch.setattr(engine, "run_pass", watch)
    async with Client(worker.port).talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        await talk.ask("audio_chunk", audio=spoken(0))
        due.clear()
        await talk.say("video_frame", frame=PICTURES[0])
        await soon("the picture is seen", lambda: None in due)
        await talk.ask("audio_chunk", audio=spoken(1))
        await talk.stop()
    assert any(each is not None for each in due), "units are due"


@pytest.mark.parametrize("picture", ["bm8gcGljdHVyZQ==", jpeg(4_096, 1)], ids=["damaged", "thin"])
@in_loop
async def test_an_unusable_picture_is_warned_of_once_and_its_unit_runs(
    worker: RunningWorker, picture: str
) -> None:
    async with Client(worker.port).talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        await talk.say("video_frame", frame=picture)
        await talk.say("audio_chunk", audio=spoken(0))
        warning, result = await talk.hear(), await talk.hear()
        assert (warning["type"], warning["code"]) == ("warning", "bad_frame")
        assert (result["type"], result["vision_slices"]) == ("result", 0)
        assert [message["type"] for message in await talk.stop()] == ["stopped"]


@in_loop
async def test_after_a_change_of_the_slice_limit_pictures_are_encoded_once(
    worker: RunningWorker, encoding: Encoding
) -> None:
    large, per_unit = jpeg(900, 600), []
    async with Client(worker.port).talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        for index in range(3):
            encoding.slices = 0
            await talk.say("video_frame", frame=large)
            await soon("the picture is seen", lambda: encoding.slices)
            result = await talk.ask("audio_chunk", audio=spoken(index), max_slice_nums=4)
            per_unit.append(encoding.slices - result["vision_slices"])
        await talk.stop()
    assert per_unit == [1, 0, 0], "nobody knew of the first one"


@pytest.mark.parametrize("ending", ["stop", "leave"])
@in_loop
async def test_a_session_that_ends_during_a_prefetch_leaks_nothing(
    worker: RunningWorker, backend: RealBackend, encoding: Encoding, ending: str
) -> None:
    encoding.delay_s = ENCODING_S
    client = Client(worker.port)
    async with client.talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        for picture in PICTURES:
            await talk.say("video_frame", frame=picture)
        if ending == "stop":
            assert (await talk.stop())[-1]["type"] == "stopped"
    await client.idle()
    assert encoding.slices <= 1, "what waits is not looked at any more"
    assert not backend.context.model.executor.llm_store.handles
