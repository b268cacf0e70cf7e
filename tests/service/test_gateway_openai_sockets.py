"""OpenAI's sockets at the gateway: keys, subprotocols, the wait, and bytes both ways."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from core.schemas.limits import EVENT_LIMIT_BYTES
from tests.fakes.gateway_stage import HOST, Stage, on_stage, until

KEYS = {"api_keys": ["sk-of-this-test"]}
BEARER = {"Authorization": "Bearer sk-of-this-test"}
APPEND = {"type": "input_audio_buffer.append", "audio": "AAAA"}


@pytest.mark.parametrize("path", ["/v1/realtime?model=gpt-realtime", "/realtime"])
@on_stage(security=KEYS)
async def test_a_session_is_relayed_byte_for_byte(stage: Stage, path: str) -> None:
    pong = {"type": "session.updated", "session": {"a": 1}}
    stage.worker.script.speaks_to["session.update"] = [pong]
    async with stage.client(path, BEARER) as client:
        assert (await client.hear())["type"] == "session.created"
        await client.say("session.update", session={})
        assert await client.hear() == pong
        await client.connection.close()
    assert stage.worker.told == [{"type": "session.update", "session": {}}]
    (query,) = stage.worker.queries
    assert query["model"] == "minicpm-o-4.5" and "beta" not in query
    assert query["session_id"].startswith("realtime")


@on_stage()
async def test_an_item_as_long_as_an_event_may_be_comes_back(stage: Stage) -> None:
    item = {"type": "conversation.item.added", "item": {"text": "a" * EVENT_LIMIT_BYTES}}
    stage.worker.script.speaks_to["conversation.item.create"] = [item]
    async with stage.client("/v1/realtime") as client:
        assert (await client.hear())["type"] == "session.created"
        await client.say("conversation.item.create", item={})
        assert await client.hear() == item


@on_stage(security=KEYS)
async def test_a_wrong_key_is_refused_before_the_upgrade(stage: Stage) -> None:
    for path in ("/v1/realtime", "/v1/live/sessions"):
        with pytest.raises(InvalidStatus) as refused:
            async with stage.client(path, {"Authorization": "Bearer sk-wrong"}):
                pass
        response = refused.value.response
        assert response.status_code == 401
        error = json.loads(response.body)["error"]
        assert error["code"] == "invalid_api_key" and error["type"] == "invalid_request_error"
        assert error["message"] == "Incorrect API key provided." and error["param"] is None


@on_stage(security=KEYS)
async def test_pages_pass_their_key_as_a_subprotocol(stage: Stage) -> None:
    offered = ["realtime", "openai-insecure-api-key.sk-of-this-test", "openai-beta.realtime-v1"]
    address = f"ws://{HOST}:{stage.port}/v1/realtime"
    subprotocols = [Subprotocol(name) for name in offered]
    async with connect(address, subprotocols=subprotocols, open_timeout=None, proxy=None) as socket:
        assert socket.subprotocol == "realtime"
        assert json.loads(await socket.recv())["type"] == "session.created"
    assert stage.worker.queries[0]["beta"] == "1"


@pytest.mark.parametrize(
    ("path", "begin"),
    [("/v1/realtime", "session.update"), ("/v1/live/sessions", "session.start")],
)
@on_stage(openai={"max_wait_s": 3_600})
async def test_a_waiting_client_gets_no_messages_and_loses_none(
    stage: Stage, path: str, begin: str
) -> None:
    pong = {"type": "pong"}
    stage.worker.script.speaks_to[APPEND["type"]] = [pong]
    async with stage.client("/ws/half_duplex/hdx_first") as first:
        await first.expect("queue_done")
        async with stage.client(path) as client:
            await client.say(begin, session={"a": 1})
            await client.connection.send(json.dumps(APPEND))
            await until(lambda: stage.gateway.pool.queue_length)
            await first.connection.close()
            if path == "/v1/realtime":
                await client.expect("session.created")
            assert await client.hear() == pong
    assert stage.worker.told == [{"type": begin, "session": {"a": 1}}, APPEND]


@on_stage(openai={"max_wait_s": 3_600})
async def test_the_position_is_sent_on_request(stage: Stage) -> None:
    async with stage.client("/ws/half_duplex/hdx_first") as first:
        await first.expect("queue_done")
        async with stage.client("/v1/realtime?minicpmo_events=1") as client:
            assert (await client.expect("queued"))["position"] == 1
            await first.connection.close()
            await client.expect("queue_done")


@on_stage()
async def test_a_wait_that_is_known_to_be_long_is_refused_before_the_upgrade(stage: Stage) -> None:
    async with stage.client("/ws/half_duplex/hdx_first") as first:
        await first.expect("queue_done")
        async with stage.client("/ws/half_duplex/hdx_second") as second:
            await second.expect("queued")
            with pytest.raises(InvalidStatus) as refused:
                async with stage.client("/v1/realtime"):
                    pass
    response = refused.value.response
    assert response.status_code == 429 and response.headers["Retry-After"]
    assert stage.gateway.metrics.refused == 1
    assert json.loads(response.body)["error"]["type"] == "rate_limit_error"


@on_stage()
async def test_a_lost_worker_is_reported_as_an_error_event(stage: Stage) -> None:
    async with stage.client("/v1/realtime") as client:
        await client.expect("session.created")
        await stage.worker.drop_sockets()
        told = await client.expect("error")
        assert told["error"]["code"] == "internal_error"
        assert (await client.expect_end())[0] == 1011


@on_stage()
async def test_binary_is_answered_and_ignored(stage: Stage) -> None:
    pong = {"type": "session.updated", "session": {}}
    stage.worker.script.speaks_to["session.update"] = [pong]
    async with stage.client("/v1/realtime") as client:
        await client.expect("session.created")
        await client.connection.send(b"\x00\x01")
        error = (await client.expect("error"))["error"]
        assert error["code"] == "invalid_event" and error["type"] == "invalid_request_error"
        await client.say("session.update", session={})
        assert await client.hear() == pong


@on_stage()
async def test_other_uses_of_the_path_are_refused(stage: Stage) -> None:
    for query in ("call_id=rtc_1", "intent=transcription"):
        with pytest.raises(InvalidStatus) as refused:
            async with stage.client(f"/v1/realtime?{query}"):
                pass
        assert refused.value.response.status_code == 400
        assert query.split("=")[0] in json.loads(refused.value.response.body)["error"]["message"]
