"""Random messages and requests: each is answered in the protocol's words, and nothing is left.

`HYPOTHESIS_PROFILE=nightly` makes a hundred times as many as a usual run.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from websockets.exceptions import ConnectionClosed

from core.errors import CloseCode
from core.serving.fake_backend import FakeBackend, FakeTimes
from tests.fakes.gateway_stage import Stage, on_stage
from tests.fakes.random_messages import (
    KINDS,
    MESSAGES,
    ROUNDS,
    WORDS,
    check_words,
    junk,
    messages,
    spoiled,
)
from tests.service.workers import Client, RunningWorker, Talk, running_worker, settings_for

QUICK = FakeTimes(prefill_ms=0, unit_ms=0, finalize_ms=0, piece_ms=0)
SERVED_BY_HAND = ("/api/admin/logout",)  # signs everybody out


async def talk_at_random(talk: Talk, kind: str, random: Random) -> None:
    """Say something; then leave with or without a goodbye."""
    words = messages(kind, random)
    try:
        for _ in range(random.randrange(1, MESSAGES + 1)):
            await talk.socket.send(next(words))
            if random.random() < 0.3:
                await asyncio.sleep(0.001)
    except ConnectionClosed:
        pass
    if random.random() < 0.5:
        talk.socket.transport.abort()
    else:
        await talk.socket.close()
    heard = await talk.hear_all()
    check_words(KINDS[kind], heard)
    closed = talk.close_code
    assert closed in (None, 1006, *CloseCode) and closed != CloseCode.INTERNAL, closed


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    with running_worker(settings_for(folder), lambda: FakeBackend(QUICK)) as running:
        yield running


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_breaks_a_session(worker: RunningWorker, kind: str) -> None:
    async def talk_often() -> None:
        client = Client(worker.port)
        for number in range(ROUNDS):
            async with client.talk(kind) as talk:
                try:
                    await talk_at_random(talk, kind, Random(number))
                except AssertionError as error:
                    error.add_note(f"session {number}")
                    raise
            await client.idle()

    asyncio.run(talk_often())


def filled(path: str, random: Random) -> str:
    while "{" in path:
        start, _, rest = path.partition("{")
        path = (
            start
            + random.choice(("a", "stream_1", "..%2f..", "%00", "x" * 200))
            + rest[rest.index("}") + 1 :]
        )
    return path


@on_stage(limits={"requests_per_minute": 1_000_000})
async def test_no_request_is_an_unexpected_error(stage: Stage) -> None:
    random, statuses = Random(0), Counter[int]()
    paths = (await stage.http.get("/api/openapi.json")).json()["paths"]
    routes = [
        (path, method)
        for path, methods in paths.items()
        for method in methods
        if path not in SERVED_BY_HAND
    ]
    for number in range(ROUNDS * 10):
        path, method = random.choice(routes)
        body = junk(random) if random.random() < 0.5 else spoiled({"session_id": "a"}, random)
        content = json.dumps(body).encode()
        if random.random() < 0.2:
            content = random.randbytes(random.randrange(200))
        kinds = ("application/json", "text/plain", "multipart/form-data; boundary=b", "")
        answer = await stage.http.request(
            method,
            filled(path, random),
            content=content,
            headers={"Content-Type": random.choice(kinds)},
            params={random.choice(("limit", "lang", "x")): random.choice(WORDS[:-2])},
        )
        statuses[answer.status_code] += 1
        assert answer.status_code != 500, (number, method, path, content, answer.text)
        if answer.is_error and answer.headers.get("content-type") == "application/json":
            told = answer.json()
            assert "detail" in told or "error" in told, (method, path, told)
    assert {200, 404, 422} <= set(statuses), statuses
