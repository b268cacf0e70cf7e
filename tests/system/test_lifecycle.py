"""Real speech through the real sockets: every message of every protocol, field by field."""

from __future__ import annotations

import base64

import httpx
import numpy as np
import pytest

from tests.system import shapes
from tests.system.client import (
    RATE_HZ,
    ChatClient,
    DuplexClient,
    HalfDuplexClient,
    Message,
    Samples,
    StreamingClient,
    from_base64,
    in_chunks,
    to_base64,
)
from tests.system.loops import in_loop, new_id
from tests.system.running import RunningSystem

SYSTEM_PROMPT = "You are a helpful assistant."
SILENCE_S = 1.5  # ends a turn of half duplex: more than the 800 ms that are needed
COLD_START_S = 0.5
FORCED_LISTENS = 3
TOKENS_PER_SLICE = 64


def silence(duration_s: float) -> Samples:
    return np.zeros(round(duration_s * RATE_HZ), np.float32)


def has_sound(audio_base64: str | None) -> bool:
    return bool(audio_base64) and len(from_base64(audio_base64 or "")) > 0


def ask(*items: Message) -> list[Message]:
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": list(items)},
    ]


# --- streaming ---


@in_loop
async def test_a_streamed_turn_says_all_the_protocol_promises(
    system: RunningSystem, question: Samples, voice: Samples
) -> None:
    session_id = new_id("stream")
    async with StreamingClient.connected(system.ws(f"/ws/streaming/{session_id}")) as client:
        messages = ask({"type": "audio", "data": to_base64(question)})
        await client.say("prefill", messages=messages, ref_audio_base64=to_base64(voice))
        prefilled = await client.hear("prefill_done")
        await client.say("generate", max_new_tokens=24)
        done = await client.hear("done")
        await client.say("close")
        assert await client.closed() == 1000
    assert shapes.offences(client.messages, shapes.STREAMING) == []
    kinds = client.kinds_once_served
    assert kinds[:2] == ["queue_done", "prefill_done"]
    assert set(kinds[2:-1]) == {"chunk"} and kinds[-1] == "done"
    chunks = client.all_of("chunk")
    assert [chunk["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    assert [chunk["is_final"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert not chunks[-1]["text_delta"] and not chunks[-1]["audio_data"]
    assert any(has_sound(chunk["audio_data"]) for chunk in chunks)
    assert done["text"] == "".join(chunk["text_delta"] or "" for chunk in chunks) != ""
    assert done["session_id"] == session_id and done["stopped"] is False
    assert prefilled["cached_tokens"] == 0 and prefilled["message_count"] == 2
    tokens = done["token_stats"]
    assert tokens["input_tokens"] == prefilled["input_tokens"]
    assert tokens["generated_tokens"] > 0
    assert done["recording_session_id"] == prefilled["recording_session_id"] is not None


@in_loop
async def test_the_second_turn_reuses_the_cache_and_says_what_a_full_prefill_says(
    system: RunningSystem, question: Samples
) -> None:
    greedy = {"do_sample": False, "generate_audio": False, "max_new_tokens": 16}
    async with StreamingClient.connected(system.ws(f"/ws/streaming/{new_id('s')}")) as client:
        history = ask({"type": "audio", "data": to_base64(question)})
        first = await client.turn(history, **greedy)
        history += [
            {"role": "assistant", "content": first["text"]},
            {"role": "user", "content": "And what does that mean?"},
        ]
        hit = await client.turn(history, **greedy)
        await client.turn([{"role": "user", "content": "Something else."}], **greedy)
        miss = await client.turn(history, **greedy)
    _, hit_prefill, _, miss_prefill = client.all_of("prefill_done")
    assert hit_prefill["cache_hit"] is True and hit_prefill["message_count"] == 1
    assert hit_prefill["cached_tokens"] > hit_prefill["input_tokens"]
    assert miss_prefill["cache_hit"] is False and miss_prefill["cached_tokens"] == 0
    assert hit["text"] == miss["text"] != ""
    assert hit["token_stats"]["cached_tokens"] == hit_prefill["cached_tokens"]
    fed = hit_prefill["cached_tokens"] + hit_prefill["input_tokens"]
    assert abs(fed - miss_prefill["input_tokens"]) <= 2  # what ends a turn may be fed later


@in_loop
async def test_a_turn_that_is_stopped_before_its_reply_leaves_no_trace(
    system: RunningSystem,
) -> None:
    short = {"max_new_tokens": 8, "generate_audio": False, "do_sample": False}
    messages = ask({"type": "text", "text": "Tell me a story."})
    async with StreamingClient.connected(system.ws(f"/ws/streaming/{new_id('stream')}")) as client:
        told = await client.turn(messages, **short)
        await client.say("prefill", messages=ask({"type": "text", "text": "No, wait."}))
        await client.hear("prefill_done")
        await client.say("stop")
        stopped = await client.hear("done")
        assert stopped["stopped"] is True and stopped["text"] == ""
        again = await client.turn(messages, **short)
        assert again["stopped"] is False and again["text"] == told["text"]
    assert shapes.offences(client.messages, shapes.STREAMING) == []


# --- half duplex ---


@in_loop
async def test_half_duplex_takes_turns(
    system: RunningSystem, question: Samples, speech: Samples, voice: Samples
) -> None:
    session_id = new_id("hdx")
    async with HalfDuplexClient.connected(system.ws(f"/ws/half_duplex/{session_id}")) as client:
        prepared = await client.prepare(
            system_content=[
                {"type": "text", "text": "Mimic the voice from the audio sample."},
                {"type": "audio", "data": to_base64(voice)},
                {"type": "text", "text": SYSTEM_PROMPT},
            ],
            config={"generation": {"max_new_tokens": 24}, "session": {"timeout_s": 60}},
        )
        await client.send_sound(silence(COLD_START_S))
        for said in (question, speech):
            await client.send_sound(np.concatenate([said, silence(SILENCE_S)]))
            await client.hear("turn_done")
        await client.say("stop")
        stopped = await client.hear("stopped")
        assert await client.closed() == 1000
    assert shapes.offences(client.messages, shapes.HALF_DUPLEX) == []
    assert prepared["session_id"] == session_id and prepared["timeout_s"] == 60
    assert stopped["session_id"] == session_id
    assert stopped["recording_session_id"] == prepared["recording_session_id"] is not None
    kinds = [kind for kind in client.kinds_once_served if kind != "chunk"]
    turn = ["vad_state", "vad_state", "generating", "turn_done"]
    assert kinds == ["queue_done", "prepared", *turn, *turn, "stopped"]
    assert [state["speaking"] for state in client.all_of("vad_state")] == [True, False] * 2
    heard_ms = [message["speech_duration_ms"] for message in client.all_of("generating")]
    for duration_ms, said in zip(heard_ms, (question, speech), strict=True):
        assert 0.5 < duration_ms / 1_000 / (len(said) / RATE_HZ) < 1.1
    turns = client.all_of("turn_done")
    assert [done["turn_index"] for done in turns] == [0, 1]
    assert 0 < turns[0]["kv_cache_length"] < turns[1]["kv_cache_length"]
    assert any(has_sound(chunk["audio_data"]) for chunk in client.all_of("chunk"))
    answered = "".join(chunk["text_delta"] or "" for chunk in client.all_of("chunk"))
    assert answered == "".join(done["text"] for done in turns)


# --- duplex ---


@in_loop
async def test_audio_duplex_listens_speaks_pauses_and_stops(
    system: RunningSystem, speech: Samples, voice: Samples
) -> None:
    session_id = new_id("adx")
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{session_id}")) as client:
        prepared = await client.prepare(
            prefix_system_prompt="You are a fun assistant.",
            ref_audio_base64=to_base64(voice),
            config={"generate_audio": True, "force_listen_count": FORCED_LISTENS},
        )
        units = list(in_chunks(speech, 1.0))
        results = [await client.unit(unit) for unit in units]
        await client.say("pause", timeout=60)
        paused = await client.hear("paused")
        assert system.get("/workers")["workers"][0]["status"] == "duplex_paused"
        await client.say("resume")
        await client.hear("resumed")
        await client.say("interrupt")
        await client.hear("interrupted")
        after = await client.unit(units[0])
        forced = await client.unit(units[0], force_listen=True)
        await client.say("stop")
        stopped = await client.hear("stopped")
        assert await client.closed() == 1000
    assert shapes.offences(client.messages, shapes.DUPLEX) == []
    assert prepared["session_id"] == stopped["session_id"] == session_id
    assert paused["timeout"] == 60
    assert after["is_listen"] and forced["is_listen"]
    _check_results([*results, after, forced])
    assert any(not result["is_listen"] for result in results), "it never spoke"


@in_loop
async def test_omni_duplex_sees_pictures_either_way(
    system: RunningSystem, speech: Samples, frame: bytes
) -> None:
    picture = base64.b64encode(frame).decode()
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('omni')}")) as client:
        await client.prepare(prefix_system_prompt="Streaming Omni Conversation.")
        running = system.get("/status")["running_tasks"]
        assert [task["request_type"] for task in running] == ["omni_duplex"]
        results = []
        for index, unit in enumerate(in_chunks(speech, 1.0)):
            if index % 2:
                results.append(await client.unit(unit, frame_base64_list=[picture]))
            else:
                await client.say("video_frame", frame=picture)
                results.append(await client.unit(unit))
        await client.say("stop")
        await client.hear("stopped")
    assert shapes.offences(client.messages, shapes.DUPLEX) == []
    _check_results(results)
    for result in results:
        assert result["vision_slices"] >= 1
        assert result["vision_tokens"] == TOKENS_PER_SLICE * result["vision_slices"]


def _check_results(results: list[Message]) -> None:
    """What holds between the results of one session, one second of sound each."""
    assert [result["step"] for result in results] == list(range(len(results)))
    heard_ms = [result["current_time"] for result in results]
    assert heard_ms == [1_000 * (index + 1) for index in range(len(results))]
    assert all(result["is_listen"] for result in results[:FORCED_LISTENS])
    for result in results:
        if result["is_listen"]:
            assert (result["text"], result["audio_data"]) == ("", "")
        assert result["cost_all_ms"] >= result["cost_llm_ms"]
    turn_ids = [result["turn_id"] for result in results]
    assert turn_ids == sorted(turn_ids)
    tokens = [result["kv_cache_length"] for result in results]
    assert tokens == sorted(set(tokens))


# --- chat ---


@pytest.mark.parametrize("is_streaming", [True, False])
@in_loop
async def test_chat_over_a_socket(
    system: RunningSystem, question: Samples, is_streaming: bool
) -> None:
    async with ChatClient.connected(system.ws("/ws/chat")) as client:
        done = await client.ask(
            ask({"type": "audio", "data": to_base64(question)}),
            streaming=is_streaming,
            generation={"max_new_tokens": 12},
            tts={"enabled": True},
        )
        assert await client.closed() == 1000
    assert shapes.offences(client.messages, shapes.CHAT) == []
    kinds = client.kinds_once_served
    assert kinds[:2] == ["queue_done", "prefill_done"] and kinds[-1] == "done"
    chunks = client.all_of("chunk")
    assert bool(chunks) == is_streaming
    sounds = [chunk["audio_data"] for chunk in chunks] if is_streaming else [done["audio_data"]]
    assert any(has_sound(sound) for sound in sounds)
    if is_streaming:
        assert done["text"] == "".join(chunk["text_delta"] or "" for chunk in chunks)


def test_chat_over_http(system: RunningSystem, question: Samples) -> None:
    body = {
        "messages": ask({"type": "audio", "data": to_base64(question)}),
        "generation": {"max_new_tokens": 12},
        "tts": {"enabled": True},
    }
    response = httpx.post(
        f"{system.url}/api/chat", json=body, timeout=60, trust_env=False, verify=False
    )
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["success"] is True and answer["error"] is None
    assert answer["text"] and answer["tokens_generated"] > 0
    assert base64.b64decode(answer["audio_data"])[:4] == b"RIFF"
    assert answer["audio_sample_rate"] == shapes.OUTPUT_RATE_HZ
    assert answer["queue_wait_ms"] >= 0 and answer["estimated_queue_wait_s"] >= 0
    assert (
        httpx.post(
            f"{system.url}/api/chat", json={}, trust_env=False, verify=False, timeout=None
        ).status_code
        == 422
    )
