"""Clients that try to exhaust the gateway: it refuses, and others do not notice."""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import json
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter
from starlette.types import Message, Scope
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame

import gateway
from benchmarks.floods import FLOODS, measured
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, JSON_VALUES_MAX, MIB
from core.schemas.streaming import WorkerPrefill
from core.schemas.worker import WorkerStatus
from gateway import create_app, settle
from gateway_modules.queue import worker_client
from gateway_modules.relay import link, traffic
from gateway_modules.routes import chat as routes_chat
from gateway_modules.voices import Audio
from gateway_modules.web import client_socket
from gateway_modules.web.messages import LongTextReader
from gateway_modules.web.server import GatewayHttpProtocol
from gateway_modules.web.socket_server import GatewaySocketProtocol
from recording.store import Download
from tests.fakes.fake_worker import SECOND_OF_SOUND
from tests.fakes.gateway_stage import HOST, Stage, on_stage, settings_for, until
from tests.fakes.pools import idle_count

BOMB = '{"type":"prefill","messages":[' + "[]," * JSON_VALUES_MAX + "[]]}"
ORIGIN = "https://friend.example"
ELSEWHERE = {"X-Forwarded-For": "203.0.113.9"}
SOCKETS = ("/ws/streaming/s_1", "/ws/chat", "/ws/half_duplex/h_1", "/ws/duplex/adx_1")
STALL_LIMIT_MS = 50.0
V1 = "/v1/chat/completions"
LONG_MESSAGE_BYTES = 3 * MIB
STEP_LIMIT_BYTES = MIB
STEPS = (
    (GatewaySocketProtocol, "data_received"),
    (GatewaySocketProtocol, "handle_text"),
    (GatewaySocketProtocol, "handle_cont"),
    (GatewayHttpProtocol, "data_received"),
    (LongTextReader, "feed"),
    (traffic, "parse_message"),
    (client_socket, "parse_type"),
    (routes_chat, "parse_message"),
    (binascii, "a2b_base64"),
    (WorkerPrefill, "model_dump_json"),
    (link, "parts_of"),
    (worker_client, "parts_of"),
)
ROUTES = ("/api/chat", "/api/assets/ref_audio", "/api/streaming/stop", "/api/admin/login")


@pytest.mark.parametrize("path", SOCKETS)
@on_stage()
async def test_a_message_of_too_many_values_reaches_no_parser(stage: Stage, path: str) -> None:
    async with stage.client(path) as client:
        if "duplex" in path:
            await client.expect("queue_done")
        await client.connection.send(BOMB)
        assert (await client.expect("error"))["code"] == "too_big"
        assert await client.expect_end() == (1009, "too_big")


@pytest.mark.parametrize("path", ROUTES)
@on_stage()
async def test_a_body_of_too_many_values_reaches_no_parser(stage: Stage, path: str) -> None:
    headers = {"Content-Type": "application/json"}
    assert (await stage.http.post(path, content=BOMB, headers=headers)).status_code == 413


@on_stage()
async def test_a_client_cannot_put_a_worker_out_of_service(stage: Stage) -> None:
    """A worker closes when its client says so, or sends an event that only the worker refuses."""
    worker = stage.gateway.pool.workers["worker_0"]
    async with stage.client("/ws/streaming/s_1") as client:
        await client.say("prefill", messages=[{"role": "user", "content": "Hi"}])
        await client.expect("queue_done", "prefill_done")
        await client.say("close", pad="A" * 5_000)
        await client.expect("error")
        await client.expect_end()
        assert worker.status is not WorkerStatus.OFFLINE
    await until(lambda: idle_count(stage.gateway.pool) == 1)
    async with stage.client("/v1/realtime") as client:
        await client.expect("session.created")
        await client.connection.send("[" * (JSON_VALUES_MAX + 1))
        assert (await client.expect("error"))["code"] == "invalid_event"
        assert await client.expect_end() == (1009, "invalid_event")
        assert worker.status is not WorkerStatus.OFFLINE
    await until(lambda: idle_count(stage.gateway.pool) == 1)


@pytest.mark.parametrize("voice", ["ref_audio_id", "ref_audio_path"])
@on_stage()
async def test_half_a_character_ends_its_own_session_only(stage: Stage, voice: str) -> None:
    worker = stage.gateway.pool.workers["worker_0"]
    for said in ({"system_prompt": "\ud800", voice: ""}, {voice: "\ud800"}):
        async with stage.client("/ws/duplex/adx_1") as client:
            await client.expect("queue_done")
            await client.say("prepare", **said)
            assert (await client.expect("error"))["code"] == "bad_json"
            assert worker.status is not WorkerStatus.OFFLINE
        await until(lambda: idle_count(stage.gateway.pool) == 1)


@on_stage(limits={"waiting_per_client": 2})
async def test_one_client_cannot_take_the_whole_queue(stage: Stage) -> None:
    path = "/ws/duplex/adx_"
    async with (
        stage.client(path + "1", ELSEWHERE) as served,
        stage.client(path + "2", ELSEWHERE) as second,
        stage.client(path + "3", ELSEWHERE) as third,
    ):
        await served.expect("queue_done")
        await second.expect("queued")
        await third.expect("queued")
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        refused = await stage.http.post("/api/chat", json=chat, headers=ELSEWHERE)
        assert (refused.status_code, refused.json()["code"]) == (503, "queue_full")
        other = {"X-Forwarded-For": "203.0.113.10"}
        async with stage.client(path + "4", other) as other_client:
            await other_client.expect("queued")


@pytest.mark.parametrize("path", ["/ws/streaming/s_1", "/ws/chat", "/api/chat", V1])
@on_stage()
async def test_no_step_handles_a_long_message_as_a_whole(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Everything that reads, parses, writes and sends a message notes on how much it works."""
    steps_bytes: list[int] = []
    for place, name in STEPS:
        monkeypatch.setattr(place, name, noting(getattr(place, name), steps_bytes))
    content = [{"type": "video", "data": "A" * LONG_MESSAGE_BYTES}]
    url = {"url": "data:video/mp4;base64," + "A" * LONG_MESSAGE_BYTES}
    sent = [{"type": "video_url", "video_url": url}] if path == V1 else content
    talk = (("user", sent), ("assistant", "A film."), ("user", "Whose?"))
    messages = [{"role": role, "content": said} for role, said in talk]
    if path.startswith("/ws"):
        async with stage.client(path) as client:
            kind = {} if path == "/ws/chat" else {"type": "prefill"}
            await client.connection.send(json.dumps({**kind, "messages": messages}))
            await client.expect_after("prefill_done", "queued", "queue_done", "queue_update")
    else:
        body = {"messages": messages, "model": "x"}
        assert (await stage.http.post(path, json=body)).status_code == 200
    (told,) = stage.worker.told[0]["messages"][0]["content"]
    assert (told["type"], told["data"]) == ("video", content[0]["data"])
    assert sum(steps_bytes) > LONG_MESSAGE_BYTES
    assert max(steps_bytes) <= STEP_LIMIT_BYTES


def noting(step: Callable[..., Any], steps_bytes: list[int]) -> Callable[..., Any]:
    """Return a function that also notes the length of what it is given and what it returns."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        made = step(*args, **kwargs)
        if isinstance(made, Iterator):
            parts = list(made)
            steps_bytes.extend(map(len, parts))
            return iter(parts)
        texts = (each.data if isinstance(each, Frame) else each for each in (*args, made))
        steps_bytes.extend(len(each) for each in texts if isinstance(each, str | bytes | bytearray))
        return made

    return noted


@on_stage(security={"allowed_origins": [ORIGIN]})
async def test_an_allowed_origin_can_read_refusals(stage: Stage) -> None:
    body = json.dumps({"x": "y" * 2_000_000})
    headers = {"Origin": ORIGIN, "Host": HOST}
    answer = await stage.http.post("/api/streaming/stop", content=body, headers=headers)
    assert answer.status_code == 413
    assert answer.headers["access-control-allow-origin"] == ORIGIN


@on_stage()
async def test_pages_are_served_while_every_decoder_is_busy(stage: Stage) -> None:
    voices, may_go_on = stage.gateway.voices, threading.Event()
    try:
        waiting = [asyncio.create_task(voices.run(may_go_on.wait)) for _ in range(100)]
        assert (await stage.http.get("/turnbased")).status_code == 200
        assert (await stage.http.get("/api/presets")).status_code == 200
    finally:
        may_go_on.set()
    await asyncio.gather(*waiting)


@on_stage()
async def test_only_uploads_may_be_as_large_as_uploads(stage: Stage) -> None:
    """A route's own names in the path are not the upload's."""
    for kind in ("apps", "workers"):
        path = f"/api/admin/{kind}/upload-recording"
        large = await stage.http.put(path, content=b" " * 2 * MIB, headers=ELSEWHERE)
        assert large.status_code == 413


@on_stage()
async def test_one_client_occupies_one_decoder(stage: Stage) -> None:
    decoded, may_go_on = list[bytes](), threading.Event()

    def read(content: bytes, max_duration_s: float = 0.0) -> Audio:
        decoded.append(content)
        may_go_on.wait()
        return Audio(bytes(4))

    stage.gateway.voices.decoder.read = read  # type: ignore[method-assign]

    async def chat(data: bytes, headers: dict[str, str]) -> None:
        sound = {"data": base64.b64encode(data).decode(), "format": "wav"}
        content = [{"type": "input_audio", "input_audio": sound}]
        body = {"model": "x", "messages": [{"role": "user", "content": content}]}
        await stage.http.post(V1, json=body, headers=headers)

    mine = [asyncio.create_task(chat(b"mine", ELSEWHERE)) for _ in range(3)]
    await until(lambda: len(decoded) == 1)
    other = asyncio.create_task(chat(b"other", {"X-Forwarded-For": "203.0.113.10"}))
    await until(lambda: len(decoded) == 2)
    assert decoded == [b"mine", b"other"]
    may_go_on.set()
    await asyncio.gather(*mine, other)


@on_stage()
async def test_an_aborted_download_closes_its_files(stage: Stage) -> None:
    blocks = endless()
    next(blocks)

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def taken(message: Message) -> None:
        await asyncio.sleep(0)

    scope: Scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
    await Download(blocks, {})(scope, gone, taken)
    assert inspect.getgeneratorstate(blocks) == inspect.GEN_CLOSED


def endless() -> Generator[bytes, None, None]:
    while True:
        yield b"x"


@on_stage()
async def test_a_multipart_request_has_few_parts(stage: Stage) -> None:
    url = "/api/sessions/stm_0123456789/upload-recording"
    fields = '--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n' * 17
    (stage.settings.service.data_dir / "sessions" / "stm_0123456789").mkdir(parents=True)
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = await stage.http.post(url, content=fields, headers=headers)
    assert (answer.status_code, answer.json()["detail"][:15]) == (400, "Too many fields")


@pytest.mark.parametrize(
    ("parameters", "is_right"),
    [
        ("; charset=punycode", False),  # 150 KB of it take seconds, 1 MB minutes
        ("; charset=undefined", False),
        ('; CHARSET = "idna"', False),
        ("; charset=utf-8; charset=punycode", False),
        ("; charset=UTF-8", True),
        ('; charset="utf8"; a=b', True),
    ],
)
@on_stage()
async def test_a_form_is_decoded_as_utf_8_only(
    stage: Stage, parameters: str, is_right: bool
) -> None:
    form = '--b\r\nContent-Disposition: form-data; name="x-"\r\n\r\na-a\r\n--b--\r\n'
    headers = {"Content-Type": f"multipart/form-data; boundary=b{parameters}"}
    answer = await stage.http.post("/v1/audio/transcriptions", content=form, headers=headers)
    assert answer.status_code == 400
    fault = "file: " if is_right else "content-type: "  # the form has no file
    assert answer.json()["error"]["message"].startswith(fault)


@on_stage(limits={"bytes_held_per_client": CHAT_SOCKET_LIMIT_BYTES})
async def test_pending_bytes_are_limited_per_client(stage: Stage) -> None:
    held = stage.gateway.bytes_held
    message = {"messages": [{"role": "user", "content": "x" * 100_000}]}
    async with stage.client("/ws/duplex/adx_1") as served:
        await served.expect("queue_done")
        async with stage.client("/ws/streaming/s_1", ELSEWHERE) as waiting:
            await waiting.say("prefill", **message)
            await waiting.expect("queued")
            assert held.held > 100_000
            other = held.lease("203.0.113.9")
            other.add(CHAT_SOCKET_LIMIT_BYTES - held.held)
            refused = await stage.http.post("/api/chat", json=message, headers=ELSEWHERE)
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            other.release()
        await until(lambda: held.held == 0)


@on_stage(limits={"bytes_held_per_client": CHAT_SOCKET_LIMIT_BYTES})
async def test_unfinished_messages_are_limited_over_all_sockets(stage: Stage) -> None:
    held = stage.gateway.bytes_held
    other = held.lease("203.0.113.9")
    other.add(CHAT_SOCKET_LIMIT_BYTES - 100_000)
    async with stage.client("/ws/streaming/s_1", ELSEWHERE) as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.connection.send(endless_text())
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
    other.release()
    await until(lambda: held.held == 0)


@on_stage()
async def test_a_call_goes_on_while_other_clients_hold_all_memory(stage: Stage) -> None:
    held = stage.gateway.bytes_held
    async with stage.client("/ws/duplex/adx_1", ELSEWHERE) as client:
        await client.expect("queue_done")
        await client.say("prepare", pad="x" * MIB)
        await client.expect("prepared")
        await until(lambda: held.held == 0)
        with held.lease("") as others:
            others.add(held.total)
            await client.say("client_diagnostic", pad="x")
            for _ in range(3):
                await client.say("audio_chunk", audio=SECOND_OF_SOUND)
                await client.expect("result")
            message = {"messages": [{"role": "user", "content": "x" * 100_000}]}
            refused = await stage.http.post("/api/chat", json=message)
            assert refused.status_code == 429
            refused = await stage.http.post("/api/duplex/stop", json={"session_id": "adx_1"})
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            assert "retry-after" in refused.headers
        await client.say("stop")
        await client.expect("stopped")
    assert stage.worker.told_types()[1:] == ["client_diagnostic", *["audio_chunk"] * 3, "stop"]


async def endless_text() -> AsyncIterator[str]:
    """The fragments of one message without end."""
    while True:
        yield "x" * 10_000
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["/api/presets", "/v1/models", "/nothing"])
def test_no_validator_is_built_for_the_first_client(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("built while a client waits")

    async def ask() -> int:
        app = create_app(settings_for(tmp_path))
        settle()
        monkeypatch.setattr(TypeAdapter, "__init__", refuse)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get(path)).status_code

    assert asyncio.run(ask()) == (404 if path == "/nothing" else 200)


def test_the_interface_is_described_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def described(app: FastAPI) -> dict[str, object]:
        threads.append(threading.current_thread())
        return {}

    async def ask() -> object:
        monkeypatch.setattr(gateway, "describe", described)
        transport = httpx.ASGITransport(create_app(settings_for(tmp_path)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/api/openapi.json")).json()

    assert asyncio.run(ask()) == {}
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


@pytest.mark.realtime
def test_no_flood_stalls_the_loop(tmp_path: Path) -> None:
    stalls_ms = asyncio.run(measured(tmp_path, list(FLOODS)))
    assert set(stalls_ms) == set(FLOODS)
    assert {name: ms for name, ms in stalls_ms.items() if ms > STALL_LIMIT_MS} == {}
