"""A worker with a toy-size model: caches, rollback, concurrent sessions, no leak."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from core.processors.backend import RealBackend
from MiniCPMO45.engine.steps import Collect, LlmForward, Request
from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint
from tests.service.model_talks import (
    DUPLEX,
    GREEDY,
    UNITS,
    Failing,
    listen_and_speak,
    model_backend,
    say_something,
    turn,
)
from tests.service.workers import (
    SECOND,
    SILENCE,
    Client,
    Message,
    RunningWorker,
    jpeg,
    running_worker,
    settings_for,
    soon,
    sound_of,
    speech,
    spoken,
    wire,
)
from tests.system.loops import in_loop

SYSTEM = {"role": "system", "content": "You are nice."}
USER = {"role": "user", "content": "Hello there"}
MORE = {"role": "user", "content": "And now what?"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def backend(checkpoint: Path) -> RealBackend:
    return model_backend(checkpoint, seed=3)


@pytest.fixture(scope="module")
def worker(
    backend: RealBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningWorker]:
    folder, slots = tmp_path_factory.mktemp("data"), {"worker_slots": 2}
    settings = settings_for(folder, recording={"enabled": False}, service=slots)
    with running_worker(settings, lambda: backend) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_stays_in_memory(worker: RunningWorker, backend: RealBackend) -> Iterator[None]:
    """Check that each test leaves only the caches retained for a next turn."""
    yield
    client = Client(worker.port)
    asyncio.run(client.idle())
    asyncio.run(client.post("/clear_cache"))
    executor = backend.context.model.executor
    assert not executor.llm_store.handles and not executor.tts_store.handles


@pytest.fixture
def failing(backend: RealBackend) -> Iterator[Failing]:
    executor = backend.context.model.executor
    usual = executor._handlers[LlmForward]
    yield Failing(executor)
    executor._handlers[LlmForward] = usual


@in_loop
async def test_a_stopped_reply_can_be_continued_from_the_cache(
    worker: RunningWorker, failing: Failing
) -> None:
    client = Client(worker.port)
    async with client.talk("streaming") as talk:
        await talk.ask("prefill", messages=[SYSTEM, USER], clear_kv_cache=True)
        failing.delay_s = 0.005
        heard = [await talk.ask("generate", generate_audio=False, **GREEDY)]
        await talk.say("stop")
        heard += await talk.hear_until("done")
    done = heard[-1]
    told = "".join(each["text_delta"] or "" for each in heard[:-1])
    assert done["stopped"] and done["text"] == told
    await client.idle()
    kept = await client.get("/cache_info")
    hit = await turn(client, [MORE], expect_hash=kept["cached_hash"])
    said = {"role": "assistant", "content": told}
    full = await turn(client, [SYSTEM, USER, said, MORE], clear_kv_cache=True)
    assert hit["text"] == full["text"]


@pytest.mark.parametrize("passes", [0, 5], ids=["prefill", "reply"])
@in_loop
async def test_a_failed_turn_leaves_the_turns_before_it_usable(
    worker: RunningWorker, failing: Failing, passes: int
) -> None:
    client = Client(worker.port)
    first = await turn(client, [SYSTEM, USER], clear_kv_cache=True)
    await client.idle()
    kept = (await client.get("/cache_info"))["cached_hash"]
    async with client.talk("streaming") as talk:
        failing.passes_until_failure = passes
        await talk.say("prefill", messages=[MORE], expect_hash=kept)
        heard = await talk.hear_until("prefill_done", "error")
        if passes:
            await talk.say("generate", **GREEDY)
        heard += await talk.hear_all()
        error = heard[-1]
        assert error["type"] == "error" and error["code"] == "generation_failed"
        assert "hiccups" not in error["message"] and talk.close_code == 1011
    assert failing.failures == 1
    await client.idle()
    assert (await client.get("/cache_info"))["cached_hash"] == kept
    hit = await turn(client, [MORE], expect_hash=kept)
    assert hit["fed"]["cached_tokens"] == first["stats"]["total_tokens"]
    said = {"role": "assistant", "content": first["text"]}
    full = await turn(client, [SYSTEM, USER, said, MORE], clear_kv_cache=True)
    assert hit["text"] == full["text"]


@in_loop
async def test_half_duplex_continues_after_a_failed_turn(
    worker: RunningWorker, failing: Failing
) -> None:
    async with Client(worker.port).talk("half_duplex") as talk:
        vad, generation = {"min_silence_duration_ms": 100}, {"max_new_tokens": 20}
        await talk.prepared(config={"vad": vad, "generation": generation})
        await talk.say("audio_chunk", audio=SILENCE)
        first = (await say_something(talk, 1))[-1]
        failing.passes_until_failure = 3
        broken = await say_something(talk, 2)
        warnings = [each for each in broken if each["type"] == "warning"]
        assert [each["code"] for each in warnings] == ["generation_failed"]
        assert broken[-1]["interrupted"] and broken[-1]["turn_index"] == 1
        after = (await say_something(talk, 3))[-1]
        assert after["token_stats"]["cached_tokens"] == first["kv_cache_length"]
        assert not after["interrupted"] and after["turn_index"] == 2
        assert (await talk.stop())[-1]["type"] == "stopped"


@in_loop
async def test_a_text_only_reply_has_no_audio(worker: RunningWorker) -> None:
    async with Client(worker.port).talk("half_duplex") as talk:
        config = {
            "vad": {"min_silence_duration_ms": 100},
            "generation": {"max_new_tokens": 12, "temperature": 0},
            "tts": {"enabled": False},
        }
        await talk.prepared(config=config)
        await talk.say("audio_chunk", audio=SILENCE)
        heard = await say_something(talk, 1)
        chunks = [each for each in heard if each["type"] == "chunk"]
        assert chunks and all(each["audio_data"] is None for each in chunks)
        assert heard[-1]["text"]


@in_loop
async def test_concurrent_sessions_get_the_replies_of_separate_ones(worker: RunningWorker) -> None:
    client = Client(worker.port)
    alone = await listen_and_speak(client)
    gate = asyncio.Barrier(2)  # unit by unit, at the same moment
    both = await asyncio.gather(listen_and_speak(client, gate), listen_and_speak(client, gate))
    assert any(not each["is_listen"] for each in alone), "somebody has to speak"
    for results in both:
        for one, other in zip(alone, results, strict=True):
            same = ("is_listen", "text", "end_of_turn", "n_tokens", "kv_cache_length", "step")
            assert [one[name] for name in same] == [other[name] for name in same]
            if one["audio_data"]:
                expected, got = sound_of(one["audio_data"]), sound_of(other["audio_data"])
                np.testing.assert_allclose(got, expected, atol=1e-4)


@in_loop
async def test_a_failing_session_does_not_disturb_another(
    worker: RunningWorker, failing: Failing
) -> None:
    client = Client(worker.port)
    async with client.talk("duplex") as one, client.talk("duplex") as two:
        for talk in (one, two):
            await talk.prepared(config=DUPLEX)
        failing.passes_until_failure = 0
        await one.say("audio_chunk", audio=SILENCE)
        error = (await one.hear_all())[-1]
        assert error["type"] == "error" and one.close_code == 1011
        assert (await two.ask("audio_chunk", audio=SILENCE))["type"] == "result"
        await two.stop()


@in_loop
async def test_a_broken_pass_is_repeated_for_each_session_alone(
    worker: RunningWorker, backend: RealBackend, failing: Failing
) -> None:
    """A conversation that breaks a pass does not disturb the others."""
    client = Client(worker.port)
    alone = await turn(client, [USER], clear_kv_cache=True)
    usual, shared = failing._submit, 0

    def refuse_company(requests: Sequence[Request]) -> Collect:
        nonlocal shared
        if len(requests) > 1:
            shared += 1
            raise RuntimeError("only one at a time, please")
        return usual(requests)

    failing._submit = refuse_company
    turns = [turn(client, [USER], f"side_{n}", clear_kv_cache=True) for n in range(2)]
    both = await asyncio.gather(*turns)
    assert shared and [each["text"] for each in both] == [alone["text"]] * 2


@in_loop
async def test_duplex_with_audio_pictures_speech_and_interruption(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("duplex", "omni_1") as talk:
        voice = speech()[: 3 * SECOND]
        prepared = await talk.prepared(
            prefix_system_prompt="Talk.",
            ref_audio_base64=wire(voice),
            tts_ref_audio_base64=wire(voice[: 2 * SECOND]),
            config=DUPLEX,
            max_slice_nums=2,
        )
        assert prepared["prompt_tokens"] > 20, "the voice sample is part of the prompt"
        seen = await talk.ask(
            "audio_chunk", audio=wire(voice[:SECOND]), frame_base64_list=[jpeg(80, 60)]
        )
        assert seen["vision_slices"] >= 1
        assert seen["vision_tokens"] == 64 * seen["vision_slices"]
        assert seen["prefill_ms"] > 0 and seen["cost_all_ms"] >= seen["prefill_ms"]
        for index in range(1, UNITS):
            result = await talk.ask("audio_chunk", audio=spoken(index))
            if not result["is_listen"] and not result["end_of_turn"]:
                break
        forced = await talk.ask("audio_chunk", audio=SILENCE, force_listen=True)
        assert forced["is_listen"] and forced["audio_data"] == "" and forced["text"] == ""
        assert (await talk.stop())[-1]["type"] == "stopped"


@in_loop
async def test_a_short_first_chunk_waits_for_the_next(worker: RunningWorker) -> None:
    async with Client(worker.port).talk("duplex") as talk:
        await talk.prepared(config=DUPLEX)
        short = await talk.ask("audio_chunk", audio=wire(speech()[:4_000]))
        assert short["is_listen"] and short["current_time"] == 250
        whole = await talk.ask("audio_chunk", audio=wire(speech()[4_000 : 4_000 + SECOND]))
        assert whole["kv_cache_length"] > short["kv_cache_length"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"config": {"chunk_ms": 500}}, "bad_config"),
        ({"ref_audio_base64": wire(np.zeros(100, np.float32))}, "bad_audio"),
        ({"ref_audio_base64": "####"}, "bad_audio"),
    ],
)
@in_loop
async def test_an_invalid_prepare_is_reported_and_closes_the_session(
    worker: RunningWorker, fields: Message, code: str
) -> None:
    client = Client(worker.port)
    async with client.talk("duplex") as talk:
        await talk.say("prepare", **fields)
        [error] = await talk.hear_all()
        assert error["type"] == "error" and error["code"] == code
    await client.idle()


@in_loop
async def test_unknown_settings_are_named(worker: RunningWorker) -> None:
    async with Client(worker.port).talk("duplex") as talk:
        await talk.say("prepare", config={"colour": "red"})
        prepared, warning = await talk.hear(), await talk.hear()
        assert warning["code"] == "bad_config" and "colour" in warning["message"]
        assert prepared["type"] == "prepared"


@in_loop
async def test_no_file_that_a_client_names_is_opened(
    worker: RunningWorker, checkpoint: Path
) -> None:
    client, target = Client(worker.port), checkpoint / "written.wav"
    voice = str(checkpoint / "assets" / "no_such_voice.wav")
    tts = {"enabled": True, "ref_audio_path": voice, "output_path": str(target)}
    asked = {"messages": [USER], "generation": {"max_new_tokens": 4}, "tts": tts}
    assert (await client.post("/chat", asked)).status_code == 200
    async with client.talk("duplex") as talk:
        await talk.prepared(ref_audio_path=voice)
    await turn(client, [USER], clear_kv_cache=True, streaming={"ref_audio_path": voice}, tts=tts)
    assert not target.exists()


@pytest.mark.parametrize("in_pieces", [True, False], ids=["pieces", "whole"])
@in_loop
async def test_chat_speaks_with_the_voice_it_is_given(
    worker: RunningWorker, in_pieces: bool
) -> None:
    async with Client(worker.port).talk("chat") as talk:
        tts = {"enabled": True, "ref_audio_data": wire(speech()[: 2 * SECOND])}
        generation = {"max_new_tokens": 12, "do_sample": False}
        await talk.say(None, messages=[USER], streaming=in_pieces, tts=tts, generation=generation)
        heard = await talk.hear_all()
        sounds = [each.get("audio_data") for each in heard]
        assert any(sounds) and heard[-1]["type"] == "done" and heard[-1]["text"]


@in_loop
async def test_a_chat_over_http_is_cancelled_when_its_client_disconnects(
    worker: RunningWorker, failing: Failing
) -> None:
    failing.delay_s = 0.02  # all of the answer would take far longer than idleness is waited for
    client = Client(worker.port)
    whole = {"min_new_tokens": 4_000, "max_new_tokens": 4_000, "do_sample": False}
    asked = {"messages": [USER], "generation": whole}
    asking = asyncio.create_task(client.post("/chat", asked))

    async def is_answering() -> bool:
        return bool((await client.health())["worker_status"] == "busy_chat")

    await soon("the answer is in the making", is_answering)
    asking.cancel()
    await client.idle()
