"""Faults of chat requests as OpenAI's own client reports them, and what a request waits for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import openai
import pytest

from core.errors import ContextFullError
from core.schemas.queue import ErrorMessage
from gateway_modules.openai.routes import _in_turn
from gateway_modules.voices import DECODERS, AudioDecoder
from tests.fakes.gateway_stage import Stage, on_stage, until
from tests.fakes.pools import busy_count
from tests.service.test_openai_chat import HELLO, client_of

AUDIO = {"type": "input_audio", "input_audio": {"data": "bm8gc291bmQ=", "format": "wav"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"temperature": 3}, "temperature"),
        ({"n": 2}, "n"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "messages[0].role"),
        ({"messages": None}, "messages"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": [{"role": "user", "content": [AUDIO] * 65}]}, "messages"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "long", "schema": {"enum": ["x" * 1_000] * 33}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
@on_stage()
async def test_what_does_not_fit_names_its_field(
    stage: Stage, fields: dict[str, Any], param: str
) -> None:
    async with client_of(stage) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(**{"model": "x", "messages": HELLO, **fields})
    assert raised.value.status_code == 400
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"
    assert stage.worker.told == []


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"modalities": ["text", "audio"]}, "audio", "missing_required_parameter"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [AUDIO]}]},
            "messages[0].content[0].input_audio.data",
            "bad_audio",
        ),
    ],
)
@on_stage()
async def test_what_is_missing_or_damaged_has_its_field_and_code(
    stage: Stage, fields: dict[str, Any], param: str, code: str
) -> None:
    async with client_of(stage) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(**{"model": "x", "messages": HELLO, **fields})
    assert (raised.value.param, raised.value.code) == (param, code)


@on_stage()
async def test_a_text_does_not_wait_for_decoders(stage: Stage) -> None:
    is_decoded = threading.Event()
    for _ in range(DECODERS):
        stage.gateway.voices._threads.submit(is_decoded.wait)
    try:
        async with client_of(stage) as client:
            answer = await client.chat.completions.create(model="x", messages=HELLO)
    finally:
        is_decoded.set()
    assert answer.choices[0].message.content == "Hello"


@on_stage()
async def test_a_client_that_leaves_occupies_its_decoder_until_it_is_done(stage: Stage) -> None:
    began, is_decoded = list[str](), threading.Event()

    async def decode(client: str, name: str) -> None:
        def work() -> None:
            began.append(name)
            is_decoded.wait()

        await _in_turn(stage.gateway, client, work)

    left = asyncio.create_task(decode("one", "left"))
    try:
        await until(lambda: began == ["left"])
        left.cancel()
        await asyncio.wait([left])
        others = [asyncio.create_task(decode(*each)) for each in (("one", "next"), ("two", "two"))]
        await until(lambda: len(began) == 2)
        assert began == ["left", "two"]
    finally:
        is_decoded.set()
    await asyncio.gather(*others)
    assert left.cancelled() and began == ["left", "two", "next"]


@on_stage()
async def test_a_history_that_is_too_long_names_the_messages(stage: Stage) -> None:
    full = ErrorMessage.of(ContextFullError()).model_dump(mode="json")
    stage.worker.script.speaks_to |= {"None": [full], "chat": [full]}
    async with client_of(stage) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="x", messages=HELLO)
    assert (raised.value.param, raised.value.code) == ("messages", "context_length_exceeded")


@on_stage()
async def test_the_worker_is_released_before_its_audio_is_encoded(stage: Stage) -> None:
    busy: list[int] = []

    def encode(*_: object) -> bytes:
        busy.append(busy_count(stage.gateway.pool))
        return b"a file"

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AudioDecoder, "encode", encode)
        async with client_of(stage) as client:
            await client.chat.completions.create(
                model="x",
                messages=HELLO,
                modalities=["text", "audio"],
                audio={"voice": "alloy", "format": "mp3"},
            )
    assert busy == [0]
