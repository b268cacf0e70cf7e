"""What conversations leave behind, read through the HTTP routes that pages use."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from typing import Any

import httpx
import numpy as np
import soxr  # type: ignore[import-untyped]  # ships no type information

from benchmarks.launched import wait_until
from tests.system.client import (
    RATE_HZ,
    DuplexClient,
    HalfDuplexClient,
    Samples,
    StreamingClient,
    from_base64,
    in_chunks,
    read_wav,
    to_base64,
)
from tests.system.loops import in_loop, new_id
from tests.system.running import RunningSystem

FINISH_LIMIT_S = 120.0
MOST_UNITS = 30  # more than any talk needs until the model is heard
LEFT, RIGHT = 0, 1  # channels of a replay: the user, the model
SPEECH_RATE_HZ = 24_000
AUDIBLE = 0.01  # of full scale
SEAM_SAMPLES = 160  # a resampler hears that much of what comes before and after


def finished(system: RunningSystem, recording_id: str) -> dict[str, Any]:
    """Wait until a recording is complete and return what it says of itself."""

    def is_ready() -> bool:
        url = f"{system.url}/api/sessions/{recording_id}"
        answer = httpx.get(url, trust_env=False, verify=False, timeout=None)
        return answer.status_code == 200 and answer.json()["status"] == "ready"

    wait_until(f"the recording {recording_id} is ready", is_ready, FINISH_LIMIT_S)
    return system.get(f"/api/sessions/{recording_id}")


def asset(system: RunningSystem, recording_id: str, path: str, **headers: str) -> httpx.Response:
    url = f"{system.url}/api/sessions/{recording_id}/assets/{path}"
    return httpx.get(url, headers=headers, trust_env=False, verify=False, timeout=None)


def wav_of(body: bytes) -> tuple[int, Samples]:
    """Read a WAV file: its rate and its samples, one row a channel."""
    with wave.open(io.BytesIO(body)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        samples = pcm.reshape(-1, file.getnchannels()).T / 32_768
        return file.getframerate(), samples.astype(np.float32)


async def omni_session(
    system: RunningSystem, speech: Samples, frame: bytes, *, until_it_answers: bool = False
) -> str:
    picture = base64.b64encode(frame).decode()
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('omni')}")) as client:
        await client.prepare(prefix_system_prompt="Look and listen.")
        for unit in in_chunks(speech, 1.0):
            await client.unit(unit, frame_base64_list=[picture])
        if until_it_answers:
            await wait_for_a_voice(client)
        await client.say("client_diagnostic", metrics={"gap_ms": 12})
        await client.say("stop")
        recording_id: str = (await client.hear("stopped"))["recording_session_id"]
        await client.closed()
    return recording_id


async def wait_for_a_voice(client: DuplexClient) -> None:
    """Stay silent until the model has been heard.

    The toy draws how much it says. A turn whose first unit has too few codes for the vocoder
    begins with a second of silence, and may be the last thing that happens in a talk.
    """
    silence = np.zeros(RATE_HZ, np.float32)
    for _ in range(MOST_UNITS):
        if any(is_audible(from_base64(one["audio_data"])) for one in client.all_of("result")):
            return
        await client.unit(silence)
    raise AssertionError(f"the model was not heard in {MOST_UNITS} units more")


def is_audible(samples: Samples) -> bool:
    return bool(abs(samples).max(initial=0.0) > AUDIBLE)


def first_voice(system: RunningSystem, recording_id: str, chunks: list[Any]) -> tuple[int, Samples]:
    """Return the first unit that the model is heard in, and what it says in it, at 24 kHz."""
    for chunk in chunks:
        result = chunk["result"]
        if result["mode"] == "SPEAK" and result["ai_audio"]:
            rate_hz, said = wav_of(asset(system, recording_id, result["ai_audio"]).content)
            assert rate_hz == SPEECH_RATE_HZ
            assert abs(said.shape[1] / rate_hz * 1_000 - result["ai_audio_duration_ms"]) < 2
            if is_audible(said[0]):
                return chunk["index"], said[0]
    raise AssertionError("the model is heard in no unit")


@in_loop
async def test_an_omni_session_can_be_replayed(
    system: RunningSystem, speech: Samples, frame: bytes
) -> None:
    recording_id = await omni_session(system, speech, frame, until_it_answers=True)
    meta = finished(system, recording_id)
    assert meta["session_id"] == recording_id and meta["app_type"] == "omni_duplex"
    assert meta["end_reason"] == "stopped" and meta["worker_id"] == "worker_0"
    assert meta["duration_s"] >= 0 and meta["size_bytes"] > 0

    readable = [path for path in system.data.rglob("*") if path.stat().st_mode & 0o077]
    assert readable == [], "other users of the machine may read what was said"

    timeline = system.get(f"/api/sessions/{recording_id}/recording")
    chunks = timeline["chunks"]
    assert timeline["mode"] == "duplex" and len(chunks) >= len(speech) // RATE_HZ
    assert [chunk["index"] for chunk in chunks] == list(range(len(chunks)))
    assert {chunk["result"]["mode"] for chunk in chunks} == {"LISTEN", "SPEAK"}
    times_ms = [chunk["receive_ts_ms"] for chunk in chunks]
    assert times_ms == sorted(times_ms)

    rate_hz, heard = wav_of(asset(system, recording_id, chunks[0]["user_audio"]).content)
    assert rate_hz == RATE_HZ
    np.testing.assert_allclose(heard[0], speech[:RATE_HZ], atol=2 / 32_768)
    assert asset(system, recording_id, chunks[0]["user_frame"]).content == frame

    rate_hz, replay = wav_of(asset(system, recording_id, timeline["merged_replay"]).content)
    assert rate_hz == RATE_HZ and replay.shape[0] == 2
    assert replay.shape[1] >= len(chunks) * RATE_HZ
    np.testing.assert_allclose(replay[LEFT, : len(speech)], speech, atol=2 / 32_768)
    unit, said = first_voice(system, recording_id, chunks)
    start = unit * RATE_HZ  # nothing but silence before it, in whole seconds
    expected = soxr.resample(said, SPEECH_RATE_HZ, RATE_HZ)
    inside = slice(SEAM_SAMPLES, len(expected) - SEAM_SAMPLES)
    replayed = replay[RIGHT, start : start + len(expected)]
    assert is_audible(replayed[inside])
    np.testing.assert_allclose(replayed[inside], expected[inside], atol=2 / 32_768)
    film = asset(system, recording_id, timeline["merged_replay_video"])
    assert film.headers["content-type"] == "video/mp4" and film.content[4:8] == b"ftyp"


@in_loop
async def test_half_duplex_keeps_its_turns(system: RunningSystem, question: Samples) -> None:
    pause = np.zeros(3 * RATE_HZ // 2, np.float32)
    async with HalfDuplexClient.connected(system.ws(f"/ws/half_duplex/{new_id('hdx')}")) as client:
        prepared = await client.prepare(
            system_prompt="Answer.", config={"generation": {"max_new_tokens": 12}}
        )
        await client.send_sound(np.concatenate([pause, question, pause]))
        done = await client.hear("turn_done")
        await client.say("stop")
        await client.hear("stopped")
    recording_id = prepared["recording_session_id"]
    assert finished(system, recording_id)["app_type"] == "half_duplex_audio"
    timeline = system.get(f"/api/sessions/{recording_id}/recording")
    (turn,) = timeline["turns"]
    assert turn["turn_index"] == 0 and turn["output"]["text"] == done["text"]
    assert turn["input"]["type"] == "voice" and turn["input"]["duration_ms"] > 500
    _, heard = wav_of(asset(system, recording_id, turn["input"]["audio"]).content)
    assert abs(heard.shape[1] / RATE_HZ - len(question) / RATE_HZ) < 0.5
    rate_hz, replay = wav_of(asset(system, recording_id, timeline["merged_replay"]).content)
    assert (rate_hz, replay.shape[0]) == (RATE_HZ, 2)


def turns_of(system: RunningSystem, path: str) -> list[dict[str, Any]]:
    """Return the turns of a recording, none while it is being written."""
    answer = httpx.get(f"{system.url}{path}", trust_env=False, verify=False, timeout=None)
    turns: list[dict[str, Any]] = answer.json()["turns"] if answer.status_code == 200 else []
    return turns


@in_loop
async def test_a_streamed_conversation_is_one_recording(
    system: RunningSystem, question: Samples
) -> None:
    content = [{"type": "audio", "data": to_base64(question)}, {"type": "text", "text": "Well?"}]
    history: list[dict[str, Any]] = [{"role": "user", "content": content}]
    async with StreamingClient.connected(system.ws(f"/ws/streaming/{new_id('stream')}")) as client:
        first = await client.turn(history, max_new_tokens=8)
        recording_id = first["recording_session_id"]
        second = await client.turn(
            [
                *history,
                {"role": "assistant", "content": first["text"]},
                {"role": "user", "content": "Why?"},
            ],
            max_new_tokens=8,
        )
        assert second["recording_session_id"] == recording_id
        await client.say("close")
        await client.closed()
    path = f"/api/sessions/{recording_id}/recording"
    await asyncio.to_thread(
        wait_until, "both turns are kept", lambda: len(turns_of(system, path)) == 2, FINISH_LIMIT_S
    )
    # Another turn may follow; until then it can be read as it is.
    assert system.get(f"/api/sessions/{recording_id}")["app_type"] == "streaming"
    turn, following = turns_of(system, path)
    assert following["input"]["text"] == "Why?" and following["timing"]["cached_tokens"] > 0
    assert turn["input"]["text"].endswith("Well?")
    assert turn["output"]["text"] == first["text"]
    assert turn["timing"]["tokens"] == first["token_stats"]["generated_tokens"]
    _, heard = wav_of(asset(system, recording_id, turn["input"]["audio"]).content)
    assert heard.shape[1] == len(question)


def test_the_client_reads_files_as_they_are(system: RunningSystem) -> None:
    """The comparison above would be worth nothing if the client changed what it reads."""
    folder = system.folder / "sound"
    folder.mkdir(exist_ok=True)
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        file.writeframes(np.array([0, 16_384, -32_768], dtype="<i2").tobytes())
    assert read_wav(folder / "a.wav").tolist() == [0.0, 0.5, -1.0]
