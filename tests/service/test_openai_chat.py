"""`/v1` as OpenAI's own client uses it, unmodified."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from fastapi import FastAPI
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk
from starlette.types import Message
from websockets.exceptions import InvalidStatus

from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from gateway_modules.openai import routes as openai_routes
from tests.fakes.gateway_stage import Stage, on_stage, until
from tests.fakes.pools import busy_count, idle_count
from tests.fakes.stock_client import stock_client

HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
KEY = "sk-of-this-test"


def client_of(stage: Stage, key: str = KEY) -> AsyncOpenAI:
    """The stock client, without retries."""
    return stock_client(f"http://127.0.0.1:{stage.port}/v1", key)


def words(chunks: Iterable[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def wav(seconds: float) -> str:
    """Base64 of a WAV file with a tone."""
    file = io.BytesIO()
    times = np.arange(round(seconds * 16_000)) / 16_000
    soundfile.write(file, np.sin(2_000 * times) / 2, 16_000, format="WAV")
    return base64.b64encode(file.getvalue()).decode()


@on_stage()
async def test_models_are_listed(stage: Stage) -> None:
    async with client_of(stage) as client:
        models = (await client.models.list()).data
        names = ["minicpm-o-4.5", "minicpm-o-4.5-turn", "minicpm-o-4.5-live"]
        assert [(model.id, model.object) for model in models] == [(one, "model") for one in names]
        assert (await client.models.retrieve(names[-1])).id == names[-1]
        with pytest.raises(openai.NotFoundError, match="'gpt-9' does not exist"):
            await client.models.retrieve("gpt-9")


@on_stage()
async def test_a_whole_response(stage: Stage) -> None:
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="gpt-audio",
            messages=[{"role": "developer", "content": "Be brief."}, *HELLO],
            max_completion_tokens=20,
            temperature=0,
        )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello", "stop")
    assert answer.model == "minicpm-o-4.5" and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None and answer.usage.total_tokens == 0
    (told,) = stage.worker.told
    assert [message["role"] for message in told["messages"]] == ["system", "user"]
    assert told["generation"]["max_new_tokens"] == 20
    assert told["generation"]["do_sample"] is False
    assert told["tts"]["enabled"] is False


@on_stage()
async def test_nulls_and_a_top_p_of_zero_are_accepted(stage: Stage) -> None:
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x", messages=HELLO, modalities=None, stream=None, top_p=0
        )
    assert answer.choices[0].message.content == "Hello"
    (told,) = stage.worker.told
    assert told["generation"]["do_sample"] is False and told["tts"]["enabled"] is False


@on_stage()
async def test_a_streamed_response(stage: Stage) -> None:
    async with client_of(stage) as client:
        stream = await client.chat.completions.create(
            model="x", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert words(chunks) == "Hello"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert len({chunk.id for chunk in chunks}) == 1


@on_stage()
async def test_a_spoken_response_may_be_referenced_by_its_id(stage: Stage) -> None:
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x",
            messages=HELLO,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "wav"},
        )
        sound = answer.choices[0].message.audio
        assert sound is not None and sound.expires_at > answer.created
        said: list[Any] = [{"role": "assistant", "audio": {"id": sound.id}}]
        await client.chat.completions.create(model="x", messages=[*HELLO, *said, *HELLO])
        with pytest.raises(openai.BadRequestError, match="no longer stored"):
            said[0]["audio"]["id"] = "audio_of_somebody_else"
            await client.chat.completions.create(model="x", messages=[*HELLO, *said, *HELLO])
    assert stage.worker.told[1]["messages"][1]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize("answer_format", ["wav", "mp3", "flac", "opus"])
@on_stage()
async def test_a_response_is_spoken_in_every_format(stage: Stage, answer_format: Any) -> None:
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x",
            messages=HELLO,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": answer_format},
        )
    message = answer.choices[0].message
    assert message.content is None and message.audio is not None
    assert message.audio.transcript == "Hello"
    samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(message.audio.data)))
    assert len(samples) / rate_hz == pytest.approx(2, abs=0.1)  # two pieces of a second
    assert stage.worker.told[0]["tts"]["enabled"] is True


@on_stage()
async def test_a_spoken_stream_is_pcm16(stage: Stage) -> None:
    async with client_of(stage) as client:
        stream = await client.chat.completions.create(
            model="x",
            messages=HELLO,
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "pcm16"},
            stream=True,
        )
        deltas = [chunk.choices[0].delta.to_dict() async for chunk in stream if chunk.choices]
    spoken: list[Any] = [delta["audio"] for delta in deltas if "audio" in delta]
    assert "".join(part.get("transcript", "") for part in spoken) == "Hello"
    sound = b"".join(base64.b64decode(part.get("data", "")) for part in spoken)
    assert len(sound) == 2 * OUTPUT_SAMPLE_RATE_HZ * 2


@on_stage()
async def test_audio_and_pictures_reach_the_worker(stage: Stage) -> None:
    picture = "iVBORw0KGgo="
    content: list[Any] = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "input_audio", "input_audio": {"data": wav(0.5), "format": "wav"}},
    ]
    async with client_of(stage) as client:
        await client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": content}]
        )
    text, image, sound = stage.worker.told[0]["messages"][0]["content"]
    assert (text["text"], image["data"]) == ("What is this?", picture)
    heard = np.frombuffer(base64.b64decode(sound["data"]), dtype="<f4")
    assert len(heard) == 8_000 and 0.4 < np.abs(heard).max() < 0.6


@on_stage()
async def test_text_ends_before_a_stop_sequence(stage: Stage) -> None:
    stage.worker.script.reply = ("One, t", "wo, three", ", four")
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(model="x", messages=HELLO, stop="two, t")
        stream = await client.chat.completions.create(
            model="x", messages=HELLO, stop=["four", "two"], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert answer.choices[0].message.content == "One, "
    assert words(chunks) == "One, "


@on_stage(security={"api_keys": [KEY]})
async def test_a_configured_key_is_required(stage: Stage) -> None:
    async with client_of(stage) as client, client_of(stage, "sk-wrong") as stranger:
        assert (await client.models.list()).data
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key") as raised:
            await stranger.chat.completions.create(model="x", messages=HELLO)
    assert raised.value.code == "invalid_api_key"
    assert stage.worker.told == []


@on_stage(service={"max_queue_size": 1})
async def test_a_full_queue_is_an_overloaded_server(stage: Stage) -> None:
    gate = stage.worker.script.gate = asyncio.Event()
    async with client_of(stage) as client, asyncio.TaskGroup() as group:
        group.create_task(client.chat.completions.create(model="x", messages=HELLO))
        await until(lambda: busy_count(stage.gateway.pool) == 1)
        group.create_task(client.chat.completions.create(model="x", messages=HELLO))
        await until(lambda: stage.gateway.pool.queue_length == 1)
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(model="x", messages=HELLO)
        assert (raised.value.status_code, raised.value.code) == (503, "server_overloaded")
        assert raised.value.response.headers["retry-after"]
        gate.set()


@on_stage()
async def test_a_disconnect_frees_the_worker(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with client_of(stage) as client:
        whole = asyncio.create_task(client.chat.completions.create(model="x", messages=HELLO))
        await until(lambda: stage.worker.told)
        waiting = asyncio.create_task(client.chat.completions.create(model="x", messages=HELLO))
        await until(lambda: stage.gateway.pool.queue_length == 1)
        waiting.cancel()
        await until(lambda: stage.gateway.pool.queue_length == 0)
        whole.cancel()
        await until(lambda: idle_count(stage.gateway.pool) == 1)
        stream = await client.chat.completions.create(model="x", messages=HELLO, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await until(lambda: idle_count(stage.gateway.pool) == 1)
    await stage.check_quiet()


@on_stage()
async def test_a_lost_worker_is_an_error_of_the_stream(stage: Stage) -> None:
    stage.worker.script.gate = asyncio.Event()
    async with client_of(stage) as client:
        stream = await client.chat.completions.create(model="x", messages=HELLO, stream=True)
        chunks = aiter(stream)
        await anext(chunks)
        await stage.worker.drop_sockets()
        with pytest.raises(openai.APIError, match="connection to the worker was lost"):
            async for _ in chunks:
                continue


NAMED: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
}


@on_stage()
async def test_a_json_response_ends_with_its_object(stage: Stage) -> None:
    stage.worker.script.reply = ('{"na', 'me": "Ada"}', " That was it.")
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x", messages=HELLO, response_format=NAMED
        )
        stream = await client.chat.completions.create(
            model="x", messages=HELLO, response_format={"type": "json_object"}, stream=True
        )
        chunks = [chunk async for chunk in stream]
        plain = await client.chat.completions.create(
            model="x", messages=HELLO, response_format={"type": "text"}
        )
    assert answer.choices[0].message.content == words(chunks) == '{"name": "Ada"}'
    assert str(plain.choices[0].message.content).endswith("That was it.")
    told = stage.worker.told[0]
    assert told["reply_start"] == "{"
    assert '"required": ["name"]' in str(told["messages"][0]["content"])


@pytest.mark.parametrize("stream", [False, True])
@on_stage()
async def test_a_response_that_does_not_fit_its_schema_is_an_error(
    stage: Stage, stream: bool
) -> None:
    stage.worker.script.reply = ('{"name": 3}',)
    seen: list[Any] = []
    async with client_of(stage) as client:
        with pytest.raises(openai.APIError) as raised:
            answer: Any = await client.chat.completions.create(
                model="x", messages=HELLO, response_format=NAMED, stream=stream
            )
            seen += [chunk async for chunk in answer]
    assert raised.value.code == "invalid_json"
    assert not words(seen)


@on_stage(decodes_apart=True)
async def test_usage_counts_audio(stage: Stage) -> None:
    sound: Any = {"type": "input_audio", "input_audio": {"data": wav(2.0), "format": "wav"}}
    stage.worker.script.input_tokens = 100
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x",
            messages=[{"role": "user", "content": [sound]}],
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "pcm16"},
        )
    usage = answer.usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.audio_tokens == 20  # ten a second
    assert usage.completion_tokens_details.audio_tokens == 50  # twenty-five a second
    assert usage.completion_tokens == 50
    assert usage.total_tokens == 150


@on_stage(openai={"accept_any_model": False})
async def test_other_models_may_be_refused(stage: Stage) -> None:
    async with client_of(stage) as client:
        await client.chat.completions.create(model="minicpm-o-4.5", messages=HELLO)
        for call in (
            client.chat.completions.create(model="gpt-9", messages=HELLO),
            client.audio.speech.create(model="gpt-9", voice="alloy", input="Hi"),
            client.audio.transcriptions.create(model="gpt-9", file=b"x"),
        ):
            with pytest.raises(openai.NotFoundError) as raised:
                await call
            assert raised.value.code == "model_not_found" and raised.value.param == "model"
        with pytest.raises(InvalidStatus) as refused:
            async with client.realtime.connect(model="gpt-9"):
                pass
    assert refused.value.response.status_code == 404


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech"])
@on_stage()
async def test_a_disconnect_during_a_stream_frees_the_worker(stage: Stage, path: str) -> None:
    stage.worker.script.gate = asyncio.Event()  # the reply would never end by itself
    app, is_full = FastAPI(), asyncio.Event()
    app.state.gateway = stage.gateway
    app.include_router(openai_routes.router)
    asked = {"model": "minicpm-o-4.5", "messages": HELLO, "stream": True, "input": "Hi"}
    bodies = [json.dumps(asked | {"response_format": "pcm"} if "speech" in path else asked)]

    async def receive() -> Message:
        if bodies:
            return {"type": "http.request", "body": bodies.pop().encode(), "more_body": False}
        await is_full.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            is_full.set()
            await asyncio.Event().wait()  # the client reads nothing

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
    gc.disable()  # a generator that is only forgotten is closed at some collection, or never
    try:
        await app(scope | {"asgi": {"version": "3.0", "spec_version": "2.3"}}, receive, send)
        await until(lambda: idle_count(stage.gateway.pool) == 1, "the worker is still held")
    finally:
        gc.enable()
