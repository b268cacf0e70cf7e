"""The relay of live sessions: both ways, what it looks at, and every way a session can end."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from websockets.exceptions import ConnectionClosed

from core.schemas.worker import WorkerStatus
from gateway_modules.web.client_socket import Pace
from tests.fakes.fake_worker import SECOND_OF_SOUND
from tests.fakes.gateway_stage import HURRY, Client, Stage, on_stage, until
from tests.fakes.pools import idle_count

DUPLEX = "/ws/duplex/adx_1"
VOICE = Path("examples/hello.wav").read_bytes()


async def prepare(client: Client) -> None:
    await client.expect("queue_done")
    await client.say("prepare", prefix_system_prompt="Hi")
    await client.expect("prepared")


def workers_statuses(stage: Stage) -> list[WorkerStatus]:
    return [worker.status for worker in stage.gateway.pool.workers.values()]


# Both ways.


@on_stage()
async def test_a_whole_session(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        done = await client.expect("queue_done")
        assert (done["worker_id"], done["position"]) == ("worker_0", 0)
        assert workers_statuses(stage) == [WorkerStatus.DUPLEX_ACTIVE]
        await client.say("prepare", prefix_system_prompt="Hi")
        await client.expect("prepared")
        await client.say("audio_chunk", audio=SECOND_OF_SOUND)
        result = await client.expect("result")
        assert result["audio_data"] == SECOND_OF_SOUND
        await client.say("stop")
        assert (await client.expect("stopped"))["session_id"] == "adx_1"
        assert await client.expect_end() == (1000, "")
    assert stage.worker.told_types() == ["prepare", "audio_chunk", "stop"]
    assert stage.worker.queries == [{"session_id": "adx_1", "variant": "audio"}]
    await until(lambda: idle_count(stage.gateway.pool) == 1)


@on_stage(service={"https": True})
async def test_a_long_frame_over_tls_is_unchanged(stage: Stage) -> None:
    """It comes in several records, and in more than one turn of the loop."""
    sound = base64.b64encode(Random(0).randbytes(4 * 16_000)).decode()
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        for _ in range(3):
            await client.say("audio_chunk", audio=sound)
            await client.expect("result")
        await client.say("stop")
        await client.expect("stopped")
    assert [told["audio"] for told in stage.worker.told if "audio" in told] == [sound] * 3


@pytest.mark.parametrize(
    ("session_id", "variant", "status"),
    [
        ("omni_1", "omni", "omni_duplex"),
        ("anything", "omni", "omni_duplex"),
        ("audio_duplex_1", "audio", "audio_duplex"),
        ("adx_1", "audio", "audio_duplex"),
    ],
)
@on_stage()
async def test_the_worker_is_told_which_variant_it_is(
    stage: Stage, session_id: str, variant: str, status: str
) -> None:
    async with stage.client(f"/ws/duplex/{session_id}") as client:
        await client.expect("queue_done")
        (task,) = (await stage.http.get("/status")).json()["running_tasks"]
        assert task["request_type"] == status
        await until(lambda: stage.worker.queries)
        assert stage.worker.queries[0]["variant"] == variant


@on_stage()
async def test_texts_are_relayed_unchanged(stage: Stage) -> None:
    odd = '{ "audio" : "AAAA","type":"audio_chunk", "note":"\\u00e4 ä",  "seq": 1.0 }'
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        await client.connection.send(odd)
        await client.expect("result")
    assert odd in stage.worker.texts


@on_stage()
async def test_half_duplex_passes_both_ways(stage: Stage) -> None:
    async with stage.client("/ws/half_duplex/hdx_1") as client:
        await client.expect("queue_done")
        assert workers_statuses(stage) == [WorkerStatus.BUSY_HALF_DUPLEX]
        await client.say("prepare", system_prompt="Hi")
        assert (await client.expect("prepared"))["timeout_s"] == 180
        await client.say("audio_chunk", audio_base64="AAAA")
        await client.expect("vad_state")
        answer = await stage.http.post("/api/half_duplex/stop", json={"session_id": "hdx_1"})
        assert answer.json() == {
            "success": True,
            "session_id": "hdx_1",
            "message": "scripted",
        }
        await client.say("stop")
        await client.expect("stopped")
        assert await client.expect_end() == (1000, "")
    assert stage.worker.stops == [("half_duplex", {"session_id": "hdx_1"})]
    assert stage.worker.queries == [{"session_id": "hdx_1"}]


@on_stage()
async def test_replies_larger_than_a_mebibyte_pass(stage: Stage) -> None:
    """Library defaults would refuse them on the inner hop."""
    stage.worker.script.extra = {"audio_data": SECOND_OF_SOUND * 30}
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        await client.say("audio_chunk", audio="AAAA")
        assert len((await client.expect("result"))["audio_data"]) > 3_000_000


@on_stage()
async def test_a_pause_is_visible_in_the_workers_status(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        await client.say("pause")
        await client.expect("paused")
        assert workers_statuses(stage) == [WorkerStatus.DUPLEX_PAUSED]
        await client.say("resume")
        await client.expect("resumed")
        assert workers_statuses(stage) == [WorkerStatus.DUPLEX_ACTIVE]


@on_stage()
async def test_the_stop_button_ends_a_duplex_session(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        answer = await stage.http.post("/api/duplex/stop", json={"session_id": "adx_1"})
        assert answer.json()["success"] is True
        await client.expect("stopped")
    for body, status in (({"session_id": "nobody"}, 404), ({}, 422)):
        assert (await stage.http.post("/api/duplex/stop", json=body)).status_code == status
        assert (await stage.http.post("/api/half_duplex/stop", json=body)).status_code == status


@on_stage()
async def test_only_durations_of_started_sessions_count(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await client.expect("queue_done")
    await stage.check_quiet()
    assert stage.gateway.pool.eta_tracker.get_status().ema_audio_duplex_samples == 0
    async with stage.client(DUPLEX) as client:
        await client.expect_after("queue_done", "queued", "queue_update")
        await client.say("prepare")
        await client.expect("prepared")
    await stage.check_quiet()
    assert stage.gateway.pool.eta_tracker.get_status().ema_audio_duplex_samples == 1


# What the gateway keeps or changes.


@on_stage(limits={"diagnostics_per_s": 0.001})  # one, and then none for as long as a test takes
async def test_client_diagnostics_are_passed_on_within_limits(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        for size in (17_000, 70_000, 1_200_000):
            await client.say("client_diagnostic", metrics={"fps": "x" * size})
        await client.say("client_diagnostic", metrics={"fps": 30, "note": "one\ntwo"})
        await client.say("client_diagnostic", metrics={"fps": "too fast"})
        escaped = '{"type": "client_diagnosti\\u0063", "metrics": {"fps": "too fast"}}'
        await client.connection.send(escaped)
        await client.say("audio_chunk", audio="AAAA")
        await client.expect("result")
    kept = [told for told in stage.worker.told if told.get("type") == "client_diagnostic"]
    assert [told["metrics"]["fps"] for told in kept] == [30]


@on_stage()
async def test_names_of_voices_are_replaced_by_audio(stage: Stage) -> None:
    audio = base64.b64encode(VOICE).decode()
    upload = {"name": "Ann", "audio_base64": audio}
    voice_id = (await stage.http.post("/api/assets/ref_audio", json=upload)).json()["id"]
    async with stage.client(DUPLEX) as client:
        await client.expect("queue_done")
        await client.say("prepare", ref_audio_id=voice_id, tts_ref_audio_base64="mine")
        await client.expect("prepared")
    (told,) = stage.worker.told
    assert len(base64.b64decode(told["ref_audio_base64"])) == 131_310 * 4
    assert told["tts_ref_audio_base64"] == "mine"
    assert "ref_audio_id" not in told


@on_stage()
async def test_an_unknown_path_is_removed_with_a_warning(
    stage: Stage,
) -> None:
    for path in ("assets/ref_audio/somebody.wav", "../../../etc/passwd", "/etc/passwd"):
        async with stage.client(DUPLEX) as client:
            await client.expect_after("queue_done", "queued", "queue_update")
            await client.say("prepare", ref_audio_path=path)
            await client.expect("prepared")
            assert (await client.expect("warning"))["code"] == "bad_audio"
        await stage.check_quiet()
    assert all(told.keys() == {"type"} for told in stage.worker.told)


@on_stage()
async def test_an_unknown_voice_ends_the_session(stage: Stage) -> None:
    async with stage.client("/ws/half_duplex/h_1") as client:
        await client.expect("queue_done")
        await client.say("prepare", ref_audio_id="nobody")
        assert (await client.expect("error"))["code"] == "not_found"
        assert (await client.expect_end())[0] == 1008


# Ends.


@on_stage()
async def test_the_worker_is_free_when_the_client_disconnects(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        client.connection.transport.abort()
        await stage.check_quiet()
        await until(lambda: idle_count(stage.gateway.pool) == 1)


@on_stage()
async def test_the_worker_is_free_when_the_client_leaves_upon_assignment(
    stage: Stage,
) -> None:
    for _ in range(5):
        async with stage.client(DUPLEX) as client:
            await client.expect_after("queue_done", "queued", "queue_update")
            client.connection.transport.abort()
        await stage.check_quiet()
    await until(lambda: idle_count(stage.gateway.pool) == 1)


@on_stage()
async def test_a_dead_worker_is_reported_and_not_used_until_it_returns(stage: Stage) -> None:
    stage.worker.script.dies_on = {"audio_chunk"}
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        await client.say("audio_chunk", audio="AAAA")
        error = await client.expect("error")
        assert (error["code"], error["error"]) == ("worker_lost", error["message"])
        assert await client.expect_end() == (1011, "worker_lost")
    await until(lambda: idle_count(stage.gateway.pool) == 1)  # it answers health again


@on_stage()
async def test_a_worker_that_closes_without_a_message_is_lost(stage: Stage) -> None:
    stage.worker.script.closes_on = {"audio_chunk"}
    async with stage.client("/ws/half_duplex/h_1") as client:
        await client.expect("queue_done")
        await client.say("prepare")
        await client.expect("prepared")
        await client.say("audio_chunk", audio="AAAA")
        assert (await client.expect("error"))["code"] == "worker_lost"
        assert (await client.expect_end())[0] == 1011


@on_stage(timing=replace(HURRY, connect_tries=2))
async def test_a_worker_that_refuses_connections_is_unreachable(stage: Stage) -> None:
    stage.worker.script.refuses = True
    async with stage.client(DUPLEX) as client:
        await client.expect("queue_done")
        assert (await client.expect("error"))["code"] == "worker_unreachable"
        assert (await client.expect_end())[0] == 1011


@on_stage(workers=2)
async def test_a_worker_that_refuses_connections_is_replaced_by_another(stage: Stage) -> None:
    stage.worker.script.refuses = True
    async with stage.client(DUPLEX) as client:
        assert (await client.expect("queue_done"))["worker_id"] == "worker_0"
        await client.say("prepare", prefix_system_prompt="Be kind.")
        assert (await client.expect("queue_done"))["worker_id"] == "worker_1"
        await client.expect("prepared")
    (prepare,) = stage.workers[1].told
    assert prepare["prefix_system_prompt"] == "Be kind."


@on_stage(timing=replace(HURRY, connect_tries=5))
async def test_a_client_that_leaves_during_the_connect_frees_the_worker(stage: Stage) -> None:
    stage.worker.script.refuses = True
    async with stage.client(DUPLEX) as client:
        await client.expect("queue_done")
    await stage.check_quiet()


@on_stage()
async def test_invalid_json_is_relayed_to_the_worker(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        await client.connection.send('{"type": "audio_chunk", ')
        assert (await client.expect("error"))["code"] == "bad_json"
        assert await client.expect_end() == (1007, "bad_json")
    assert stage.worker.texts[-1] == '{"type": "audio_chunk", '


@pytest.mark.parametrize("path", [DUPLEX, "/ws/streaming/s_1", "/ws/half_duplex/h_1", "/ws/chat"])
@on_stage()
async def test_invalid_json_before_a_worker_is_connected_ends_the_session(
    stage: Stage, path: str
) -> None:
    stage.worker.script.status = "loading"
    async with stage.client("/ws/duplex/adx_0") as first, stage.client(path) as client:
        await first.expect("queue_done")
        await client.connection.send("{")
        error = await client.expect_after("error", "queued", "queue_update")
        assert error["code"] == "bad_json"
        assert await client.expect_end() == (1007, "bad_json")


@on_stage()
async def test_bytes_are_refused_at_any_time(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        await client.connection.send(b"{}")
        assert (await client.expect("error"))["code"] == "bad_json"
        assert (await client.expect_end())[0] == 1003


@on_stage(limits={"live_message_bytes": 2_000, "prepare_bytes": 4_000})
async def test_only_the_first_message_may_be_long(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await client.expect("queue_done")
        await client.say("prepare", prefix_system_prompt="x" * 3_000)
        await client.expect("prepared")
        await client.say("audio_chunk", audio="AAAA")
        await client.expect("result")  # longer than any of the limits: they are for clients
        await client.say("audio_chunk", audio="A" * 3_000)
        error = await client.expect("error")
        assert error["code"] == "too_big"
        assert await client.expect_end() == (1009, "too_big")
    assert stage.worker.told_types() == ["prepare", "audio_chunk"]


@on_stage()
async def test_oversized_messages_are_not_buffered(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        with pytest.raises(ConnectionClosed) as closed:
            await client.connection.send("x" * 10 * 1024 * 1024)
            await client.hear()
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


@on_stage()
async def test_an_administrator_ends_a_session(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        (info,) = (await stage.http.get("/api/sessions")).json()["sessions"]
        assert (info["session_id"], info["worker_id"], info["phase"]) == (
            "adx_1",
            "worker_0",
            "relaying",
        )
        assert (await stage.http.post("/api/admin/sessions/adx_1/stop")).is_success
        assert (await client.expect("error"))["code"] == "ended_by_admin"
        assert (await client.expect_end())[0] == 1008
    assert (await stage.http.post("/api/admin/sessions/adx_1/stop")).status_code == 404


@on_stage(timing=replace(HURRY, pace=Pace(messages_per_s=200.0, messages_at_once=2.0)))
async def test_a_fast_sender_is_slowed_down_without_loss(stage: Stage) -> None:
    async with stage.client(DUPLEX) as client:
        await prepare(client)
        for number in range(20):
            await client.say("audio_chunk", audio="AAAA", seq=number)
        for _ in range(20):
            await client.expect("result")
    chunks = [told["seq"] for told in stage.worker.told if told["type"] == "audio_chunk"]
    assert chunks == list(range(20))
