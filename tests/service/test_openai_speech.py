"""`POST /v1/audio/speech` with OpenAI's own client, unmodified."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import av
import numpy as np
import openai
import pytest

from core.errors import OmniError
from core.schemas.chat import ChatDone
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from gateway_modules.openai.speech import WAV_HEAD, Speech, SpeechRequest, encoded
from gateway_modules.queue.directory import loaded_model
from gateway_modules.routes.chat import ReplyMessage
from tests.fakes.gateway_stage import Stage, on_stage, until
from tests.fakes.pools import idle_count
from tests.pairing import by_default
from tests.service.test_openai_chat import client_of, wav

ASKED: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": "Good morning."}
SECONDS = 2  # of the fake worker's replies
SOUND_BYTES = 96_000  # a second


def duration_s(content: bytes) -> float:
    """Return the duration of a file, whatever its header says."""
    with av.open(io.BytesIO(content), "r") as file:
        frames = list(file.decode(audio=0))
    return sum(frame.samples for frame in frames) / frames[0].sample_rate


MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
}


# `tests/unit/test_sound_encoder.py` sees the other formats without a process.
@pytest.mark.parametrize("speech_format", by_default(["mp3", "wav"], list(MEDIA_TYPES)))
@on_stage()
async def test_a_text_is_spoken_in_every_format(stage: Stage, speech_format: Any) -> None:
    async with client_of(stage) as client:
        spoken = await client.audio.speech.create(**ASKED, response_format=speech_format)
    assert spoken.response.headers["content-type"] == MEDIA_TYPES[speech_format]
    assert duration_s(spoken.content) == pytest.approx(SECONDS, abs=0.15)
    (told,) = stage.worker.told
    assert told["reply_start"] == ASKED["input"]
    assert told["generation"]["max_new_tokens"] == 1
    assert told["tts"]["enabled"] and told["use_tts_template"]


@on_stage()
async def test_speech_is_streamed(stage: Stage) -> None:
    gate = stage.worker.script.gate = asyncio.Event()
    async with client_of(stage) as client:
        opened = client.audio.speech.with_streaming_response.create(**ASKED, response_format="pcm")
        async with opened as answer:
            assert answer.headers["content-type"] == "audio/pcm"
            parts = answer.iter_bytes(OUTPUT_SAMPLE_RATE_HZ * 2)
            first = await anext(parts)  # the worker waits for the gate
            gate.set()
            rest = [part async for part in parts]
    assert len(first) + sum(map(len, rest)) == SECONDS * OUTPUT_SAMPLE_RATE_HZ * 2


@on_stage()
async def test_a_suggestion_is_spoken_once_and_never_recorded(stage: Stage) -> None:
    facts = {"name": "demo", "kind": "nano", "device": "cpu", "try_saying": [ASKED["input"]]}
    stage.worker.script.health = {"model": facts}
    async with client_of(stage) as client:
        await until(lambda: loaded_model(stage.gateway.pool.workers.values()))
        asked = {**ASKED, "response_format": "wav"}
        first, again = [(await client.audio.speech.create(**asked)).content for _ in range(2)]
        await client.audio.speech.create(**asked | {"input": "Good night."})
    assert first == again and duration_s(again) == pytest.approx(SECONDS, abs=0.15)
    assert [told["reply_start"] for told in stage.worker.told] == [ASKED["input"], "Good night."]
    assert ["unrecorded" in query for query in stage.worker.queries] == [True, False]


def test_every_format_has_its_media_type() -> None:
    for name, media_type in MEDIA_TYPES.items():
        request = SpeechRequest.model_validate({**ASKED, "response_format": name})
        assert request.media_type == media_type


@pytest.mark.parametrize(
    ("speech_format", "speed"),
    [
        pytest.param("pcm", 1.5, marks=pytest.mark.matrix),
        ("wav", 0.25),
        pytest.param("mp3", 4.0, marks=pytest.mark.matrix),
    ],
)
@on_stage()
async def test_speech_has_the_requested_speed(
    stage: Stage, speech_format: Any, speed: float
) -> None:
    async with client_of(stage) as client:
        spoken = await client.audio.speech.create(
            **ASKED, response_format=speech_format, speed=speed
        )
    is_raw = speech_format == "pcm"
    content = (WAV_HEAD if is_raw else b"") + spoken.content
    assert duration_s(content) == pytest.approx(SECONDS / speed, rel=0.05, abs=0.15)


@on_stage()
async def test_speech_as_events(stage: Stage) -> None:
    async with client_of(stage) as client:
        answer = await client.audio.speech.create(
            **ASKED, response_format="pcm", stream_format="sse"
        )
    assert answer.response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    assert [event["type"] for event in events] == [*["speech.audio.delta"] * 2, "speech.audio.done"]
    sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert len(sound) == SECONDS * OUTPUT_SAMPLE_RATE_HZ * 2
    assert set(events[-1]["usage"]) == {"input_tokens", "output_tokens", "total_tokens"}


@pytest.mark.parametrize("is_by_name", [False, True])
@on_stage()
async def test_a_registered_voice_speaks(stage: Stage, is_by_name: bool) -> None:
    voice = stage.gateway.voices.upload("Ada", wav(1.0))
    async with client_of(stage) as client:
        chosen = voice.name if is_by_name else {"id": voice.id}
        raw = {**ASKED, "response_format": "pcm"}  # no process encodes it
        await client.audio.speech.create(**raw | {"voice": chosen})
        await client.audio.speech.create(**raw)
    hers, default = (told["tts"]["ref_audio_data"] for told in stage.worker.told)
    assert len(np.frombuffer(base64.b64decode(hers), "<f4")) == 16_000
    assert default is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speed": 9}, "speed"),
        ({"input": " "}, "input"),
        ({"input": ""}, "input"),
        ({"input": "a" * 4_097}, "input"),
        ({"input": "a" * 40_000}, "input"),
        ({"response_format": "ra"}, "response_format"),
        ({"stream_format": "x"}, "stream_format"),
    ],
)
@on_stage()
async def test_what_does_not_fit_names_its_field(
    stage: Stage, fields: dict[str, Any], param: str
) -> None:
    async with client_of(stage) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.audio.speech.create(**ASKED | fields)
    assert raised.value.status_code == 400 and raised.value.param == param
    assert stage.worker.told == []


@on_stage(service={"max_queue_size": 1})
async def test_speech_waits_in_the_queue_and_a_disconnect_frees_the_worker(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with client_of(stage) as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.audio.speech.create(**ASKED))
        await until(lambda: stage.worker.told)
        second = group.create_task(client.audio.speech.create(**ASKED))
        await until(lambda: stage.gateway.pool.queue_length == 1)
        with pytest.raises(openai.InternalServerError) as raised:
            await client.audio.speech.create(**ASKED)
        assert raised.value.response.headers["retry-after"]
        second.cancel()
        await until(lambda: stage.gateway.pool.queue_length == 0)
        first.cancel()
        await until(lambda: idle_count(stage.gateway.pool) == 1)
    await stage.check_quiet()


@on_stage()
async def test_a_lost_worker_aborts_the_speech(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with client_of(stage) as client:
        opened = client.audio.speech.with_streaming_response.create(**ASKED, stream_format="sse")
        async with opened as answer:
            await stage.worker.drop_sockets()
            text = "".join([part async for part in answer.iter_text()])
    assert "connection to the worker was lost" in text and "speech.audio.done" not in text
    await stage.check_quiet()


@pytest.mark.parametrize("speech_format", ["pcm", "mp3"])
@on_stage()
async def test_a_lost_worker_leaves_no_file_that_looks_complete(
    stage: Stage, speech_format: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with client_of(stage) as client:
        opened = client.audio.speech.with_streaming_response.create(
            **ASKED, response_format=speech_format
        )
        async with opened as answer:
            await stage.worker.drop_sockets()
            with pytest.raises(Exception, match="without sending complete message body"):
                async for _ in answer.iter_bytes():
                    continue
    await stage.check_quiet()
    assert all(record.exc_info is None for record in caplog.records), "it is no mistake of ours"


@on_stage()
async def test_a_text_without_words_is_refused(stage: Stage) -> None:
    stage.worker.script.reply = ()
    async with client_of(stage) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.audio.speech.create(**ASKED | {"input": "<|im_end|>"})
    assert raised.value.param == "input"


def test_an_encoder_without_a_reader_ends() -> None:
    async def samples() -> AsyncIterator[bytes]:
        while True:
            yield bytes(SOUND_BYTES)

    async def listen() -> None:
        parts = encoded(samples(), "mp3")
        assert await anext(parts)
        await parts.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(listen())


@pytest.mark.parametrize("text", ["", "Good morning."])
def test_a_text_without_speech_gives_its_worker_back_at_once(text: str) -> None:
    given_back = []

    async def messages() -> AsyncGenerator[ReplyMessage]:
        try:
            yield ChatDone(text=text)
        finally:
            given_back.append(text)

    async def begin() -> None:
        unheard = Speech(SpeechRequest.model_validate(ASKED), messages())
        with pytest.raises(OmniError) as caught:
            await unheard.begin()
        assert caught.value.http_status == (500 if text else 400)
        assert given_back == [text]

    asyncio.run(begin())
