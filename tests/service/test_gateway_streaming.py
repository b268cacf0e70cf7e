"""Turn-based chat through the gateway: caches found again, missed and lost; stops; many turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from core.history import compute_history_hash
from core.schemas.worker import WorkerStatus
from tests.fakes.fake_worker import Raw
from tests.fakes.gateway_stage import HURRY, Client, Stage, on_stage, until
from tests.fakes.pools import busy_count, freshest, idle_count

PATH = "/ws/streaming/s_1"


def user(text: str) -> Raw:
    return {"role": "user", "content": text}


def model(text: str) -> Raw:
    return {"role": "assistant", "content": text}


async def turn(client: Client, messages: list[Raw], **fields: object) -> Raw:
    """Take a whole turn; return its `prefill_done`."""
    await client.say("prefill", messages=messages, **fields)
    await client.expect_after("queue_done", "queued", "queue_update")
    done = await client.expect("prefill_done")
    await client.say("generate")
    await client.expect("chunk", "chunk")
    assert (await client.expect("done"))["text"] == "Hello"
    return done


def prefills(stage: Stage) -> list[Raw]:
    """What the first worker was given to read."""
    return [message for message in stage.worker.told if message["type"] == "prefill"]


def cached(stage: Stage) -> list[str | None]:
    return [freshest(worker).cached_hash for worker in stage.gateway.pool.workers.values()]


@on_stage()
async def test_the_second_turn_sends_only_what_is_new(stage: Stage) -> None:
    history = [user("Hi")]
    async with stage.client(PATH) as client:
        first = await turn(client, history)
        assert (first["cached_tokens"], first["cache_hit"]) == (0, False)
        assert idle_count(stage.gateway.pool) == 1  # free before `done` was told
        history += [model("Hello"), user("And now?")]
        assert cached(stage) == [compute_history_hash(history[:-1])]
        second = await turn(client, history)
        assert (second["cached_tokens"], second["cache_hit"]) == (2, True)
    opening, following = prefills(stage)
    assert (opening["clear_kv_cache"], len(opening["messages"])) == (True, 1)
    assert following["messages"] == [user("And now?")]
    assert following["clear_kv_cache"] is False
    assert following["expect_hash"] == compute_history_hash(history[:-1])


@on_stage(workers=2)
async def test_a_conversation_continues_on_another_worker(stage: Stage) -> None:
    history = [user("Hi")]
    async with stage.client(PATH) as client:
        await turn(client, history)
        history += [model("Hello"), user("And now?")]
        stage.worker.script.refuses = True
        await client.say("prefill", messages=history)
        assert (await client.expect("queue_done"))["worker_id"] == "worker_0"
        assert (await client.expect("queue_done"))["worker_id"] == "worker_1"
        assert (await client.expect("prefill_done"))["cache_hit"] is False
        await client.say("generate")
        await client.expect("chunk", "chunk", "done")
    prefill = stage.workers[1].told[0]
    assert (prefill["clear_kv_cache"], prefill["messages"]) == (True, history)


@on_stage(workers=2, timing=replace(HURRY, connect_tries=3))
async def test_an_ignored_message_does_not_replace_a_turn(stage: Stage) -> None:
    for worker in stage.workers:
        worker.script.refuses = True
    async with stage.client(PATH) as client:
        await client.say("prefill", messages=[user("First")])
        await client.expect("queue_done")
        await client.say("prefill", messages=[user("Second")])
        await client.expect_after("warning", "queue_done", "queued")
        for worker in stage.workers:
            worker.script.refuses = False
        await client.expect_after("prefill_done", "queue_done", "queued", "queue_update")
        [told] = [message for worker in stage.workers for message in worker.told]
        assert told["messages"] == [user("First")]


@on_stage()
async def test_a_new_socket_hits_the_cache(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await turn(client, [user("Hi")])
    async with stage.client("/ws/streaming/s_2") as client:
        done = await turn(client, [user("Hi"), model("Hello"), user("More")])
        assert done["cache_hit"] is True


@on_stage()
async def test_other_spellings_of_the_same_history_hit(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await turn(client, [user("Hi")])
        spelled = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
        done = await turn(client, [spelled, model("Hello"), user("More")])
        assert done["cache_hit"] is True


@pytest.mark.parametrize(
    "changed",
    [
        {"messages": [user("Ho"), model("Hello"), user("More")]},
        {"messages": [user("Hi"), model("Hello!"), user("More")]},
        {"messages": [user("Hi"), model("Hello"), user("More")], "omni_mode": True},
        {"messages": [user("Hi"), model("Hello")]},
    ],
)
@on_stage()
async def test_another_history_or_other_options_miss(stage: Stage, changed: Raw) -> None:
    async with stage.client(PATH) as client:
        await turn(client, [user("Hi")])
        messages = changed.pop("messages")
        assert (await turn(client, messages, **changed))["cache_hit"] is False
    assert prefills(stage)[1]["clear_kv_cache"] is True
    assert len(prefills(stage)[1]["messages"]) == len(messages)


@on_stage()
async def test_a_worker_that_lost_its_cache_gets_the_whole_history(stage: Stage) -> None:
    history = [user("Hi"), model("Hello"), user("More")]
    async with stage.client(PATH) as client:
        await turn(client, history[:1])
        stage.worker.script.forgets = True
        done = await turn(client, history)
        assert done["cache_hit"] is False
    _, hopeful, everything = prefills(stage)
    assert (hopeful["clear_kv_cache"], len(hopeful["messages"])) == (False, 1)
    assert (everything["clear_kv_cache"], len(everything["messages"])) == (True, 3)
    assert "expect_hash" not in everything or everything["expect_hash"] is None


@on_stage(workers=2)
async def test_each_conversation_returns_to_its_own_worker(stage: Stage) -> None:
    async with stage.client(PATH) as one, stage.client("/ws/streaming/s_2") as two:
        talks = [(one, [user("one")]), (two, [user("two")])]
        for number in range(3):
            for client, history in talks:
                done = await turn(client, history)
                assert done["cache_hit"] is (number > 0)
                history += [model("Hello"), user("Go on")]
        assert len(set(cached(stage))) == 2


@on_stage()
async def test_a_stop_during_the_reply_ends_the_turn_and_retains_the_text(
    stage: Stage,
) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with stage.client(PATH) as client:
        await client.say("prefill", messages=[user("Hi")])
        await client.expect("queue_done", "prefill_done")
        await client.say("generate")
        await client.expect("chunk")
        assert busy_count(stage.gateway.pool) == 1
        await client.say("stop")
        done = await client.expect("done")
        assert (done["stopped"], done["text"]) == (True, "Hel")
        assert cached(stage) == [compute_history_hash([user("Hi"), model("Hel")])]
        stage.worker.script.gate.set()
        assert (await turn(client, [user("Hi"), model("Hel"), user("Go on")]))["cache_hit"]


@on_stage()
async def test_the_stop_button_reaches_a_reply(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with stage.client(PATH) as client:
        nothing = await stage.http.post("/api/streaming/stop", json={"session_id": "s_1"})
        assert (nothing.status_code, nothing.json()["success"]) == (200, False)
        await client.say("prefill", messages=[user("Hi")])
        await client.expect("queue_done", "prefill_done")
        await client.say("generate")
        await client.expect("chunk")
        answer = (await stage.http.post("/api/streaming/stop", json={"all": True})).json()
        assert answer["success"] is True
        assert answer["stopped"][0]["worker_id"] == "worker_0"
        assert (await client.expect("done"))["stopped"] is True
    for body, status in (({"session_id": "nobody"}, 404), ({"session_id": 5}, 422)):
        answered = await stage.http.post("/api/streaming/stop", json=body)
        assert answered.status_code == status
    assert (await stage.http.post("/api/streaming/stop", json={})).json()["success"] is False


@on_stage()
async def test_a_stop_before_the_reply_leaves_no_cache(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await client.say("prefill", messages=[user("Hi")])
        await client.expect("queue_done", "prefill_done")
        await client.say("stop")
        assert (await client.expect("done"))["stopped"] is True
        assert cached(stage) == [None]


@pytest.mark.parametrize("leaves_after", ["queue_done", "prefill_done", "chunk"])
@on_stage()
async def test_a_client_that_leaves_in_a_turn_frees_the_worker_and_its_cache(
    stage: Stage, leaves_after: str
) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with stage.client(PATH) as client:
        await client.say("prefill", messages=[user("Hi")])
        await client.say("generate")
        while (await client.hear())["type"] != leaves_after:
            if leaves_after == "chunk":
                await client.say("generate")
        client.connection.transport.abort()
        await stage.check_quiet()
    assert cached(stage) == [None]
    assert idle_count(stage.gateway.pool) == 1


@on_stage()
async def test_a_worker_that_dies_in_a_turn_is_reported(stage: Stage) -> None:
    stage.worker.script.dies_on = {"generate"}
    async with stage.client(PATH) as client:
        await client.say("prefill", messages=[user("Hi")])
        await client.expect("queue_done", "prefill_done")
        await client.say("generate")
        assert (await client.expect("error"))["code"] == "worker_lost"
        assert (await client.expect_end())[0] == 1011
    assert cached(stage) == [None]


@on_stage()
async def test_a_second_prefill_in_a_turn_makes_the_cache_uncertain(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await client.say("prefill", messages=[user("Hi")])
        await client.expect("queue_done", "prefill_done")
        await client.say("prefill", messages=[model("x" * 5_000), user("More")])
        await client.expect("prefill_done")
        await client.say("generate")
        await client.expect("chunk", "chunk", "done")
        assert cached(stage) == [None]


@on_stage()
async def test_a_close_ends_it_without_an_error(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await client.say("prefill", messages=[user("Hi")])
        await client.expect("queue_done", "prefill_done")
        assert stage.gateway.pool.workers["worker_0"].status is WorkerStatus.BUSY_STREAMING
        await client.say("close")
        assert await client.expect_end() == (1000, "")


@on_stage()
async def test_a_prefill_that_does_not_fit_is_refused_before_it_queues(stage: Stage) -> None:
    for fields, code in (
        ({"messages": []}, "bad_json"),
        ({"messages": [user("Hi")], "max_slice_nums": 99}, "bad_json"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "bad_audio"),
    ):
        async with stage.client(PATH) as client:
            await client.say("prefill", **fields)
            assert (await client.expect("error"))["code"] == code
            assert (await client.expect_end())[0] == 1007
        await until(lambda: not stage.gateway.live.all())
    assert stage.worker.told == []


@on_stage()
async def test_paths_of_the_server_never_reach_a_worker(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await turn(
            client,
            [user("Hi")],
            tts={"enabled": True, "ref_audio_path": "/etc/passwd", "output_path": "/tmp/x"},
            streaming={"generate_audio": True, "ref_audio_path": "../../secret.wav"},
        )
    (told,) = prefills(stage)
    assert told["tts"]["enabled"] is True
    assert "passwd" not in str(told) and "secret" not in str(told) and "/tmp" not in str(told)


@on_stage()
async def test_long_histories_are_relayed_completely(stage: Stage) -> None:
    image = {"type": "image", "data": "iVBORw0KGgo=" * 40_000}
    history = [{"role": "user", "content": [image, {"type": "text", "text": "?"}]}]
    async with stage.client(PATH) as client:
        await turn(client, history)
        assert (await turn(client, [*history, model("Hello"), user("Why?")]))["cache_hit"]
    assert prefills(stage)[0]["messages"] == history


@on_stage()
async def test_the_content_of_caches_is_shown(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await turn(client, [user("Hi")])
    expected = compute_history_hash([user("Hi"), model("Hello")])[:12] + "…"
    for path in ("/cache", "/api/cache"):
        (shown,) = (await stage.http.get(path)).json()["workers"]
        assert shown["cached_hash"] == expected
        assert shown["last_cache_used_at"]
    sessions = (await stage.http.get("/sessions")).json()
    assert sessions["total"] == 1
    assert sessions["sessions"][0]["messages_hash"] == expected


@on_stage()
async def test_a_live_session_evicts_the_cache(stage: Stage) -> None:
    async with stage.client(PATH) as client:
        await turn(client, [user("Hi")])
        assert cached(stage) != [None]
        async with stage.client("/ws/duplex/adx_1") as live:
            await live.expect("queue_done")
        await until(lambda: idle_count(stage.gateway.pool) == 1)
        assert (await turn(client, [user("Hi"), model("Hello"), user("?")]))["cache_hit"] is False


@on_stage()
async def test_the_secret_of_an_earlier_socket_reaches_the_worker_and_nothing_else_does(
    stage: Stage,
) -> None:
    secrets: list[str] = []
    for shown in (None, 0, None):
        fields = {} if shown is None else {"session_secret": secrets[shown]}
        async with stage.client(PATH) as client:
            await client.say("prefill", messages=[user("Hi")], **fields)
            secrets.append((await client.expect("queue_done"))["session_secret"])
            await client.expect("prefill_done")
    assert secrets[0] == secrets[1] != secrets[2]
    assert [told["x-session-secret"] for told in stage.worker.headers] == secrets
    assert all("session_secret" not in message for message in prefills(stage))
