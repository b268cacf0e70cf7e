"""Random messages and requests: each is answered in the protocol's words, and nothing is left.

`HYPOTHESIS_PROFILE=nightly` makes a hundred times as many as a usual run.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed

from core.errors import CloseCode, ErrorCode
from core.schemas.export.message_schemas import definitions_of, messages_of
from core.schemas.export.sockets import CHAT, DUPLEX, HALF_DUPLEX, STREAMING, Side, Socket
from core.serving.fake_backend import FakeBackend, FakeTimes
from tests.fakes.gateway_stage import Stage, on_stage
from tests.fakes.samples import Json, sample
from tests.service.workers import Client, RunningWorker, Talk, running_worker, settings_for

ROUNDS = settings().max_examples // 2
MESSAGES = 8  # of a session at most
QUICK = FakeTimes(prefill_ms=0, unit_ms=0, finalize_ms=0, piece_ms=0)
KINDS = {"streaming": STREAMING, "chat": CHAT, "half_duplex": HALF_DUPLEX, "duplex": DUPLEX}
UNEXPECTED = {ErrorCode.INTERNAL, ErrorCode.GENERATION_FAILED, ErrorCode.WORKER_LOST}
# Known ones, for most of what is made up at random would be refused before it is looked at.
WORDS = ("", "user", "assistant", "abcd", "AAAA", "AAAAAAAA", "../../etc/passwd", "\ud800", "汉字")
NUMBERS = (0, -1, 1, 2**31, -(2**63), 2**70, 0.5, -0.0, 1e308, float("nan"), float("inf"))
SERVED_BY_HAND = ("/api/admin/logout",)  # signs everybody out


def junk(random: Random, depth: int = 3) -> Json:
    kind = random.randrange(7 if depth else 5)
    match kind:
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2:
            return random.choice(NUMBERS)
        case 3:
            return random.choice(WORDS)
        case 4:
            return "".join(map(chr, random.choices(range(1, 0xD800), k=random.randrange(40))))
        case 5:
            return [junk(random, depth - 1) for _ in range(random.randrange(4))]
    return {random.choice(WORDS): junk(random, depth - 1) for _ in range(random.randrange(4))}


def spoiled(value: Json, random: Random) -> Json:
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        match random.randrange(5):
            case 0:
                return {key: inner for key, inner in value.items() if key != name}
            case 1:
                return {**value, random.choice(WORDS): junk(random)}
        return {**value, name: spoiled(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], spoiled(value[at], random), *value[at + 1 :]]
    return junk(random)


@functools.cache
def right_messages(kind: str) -> list[Json]:
    """Return each message of a client with all its fields, and with as few as may be."""
    definitions = definitions_of()
    return [
        sample(told.schema, definitions, is_full=is_full)
        for told in messages_of(KINDS[kind], Side.CLIENT)
        for is_full in (False, True)
    ]


def messages(kind: str, random: Random) -> Iterator[str | bytes]:
    """Yield what a client says, without end: mostly right, in any order."""
    while True:
        message = random.choice(right_messages(kind))
        text = json.dumps(message if random.random() < 0.5 else spoiled(message, random))
        match random.randrange(12):
            case 0:
                yield text[: random.randrange(len(text))]
            case 1:
                yield text.encode()
            case 2:
                yield random.choice(("", "[]", "null", "[" * 500, '"type"'))
            case _:
                yield text


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


def check_words(socket: Socket, heard: list[dict[str, Any]]) -> None:
    """Every message is one of the protocol, and an error is the last and expected."""
    for message in heard:
        TypeAdapter(socket.server).validate_python(message)
    errors = [message["code"] for message in heard if message["type"] == "error"]
    assert len(errors) <= 1 and (not errors or heard[-1]["type"] == "error"), heard
    assert not UNEXPECTED & set(errors), heard[-1]


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
