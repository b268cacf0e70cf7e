"""Function calls in chat completions as OpenAI's own client uses them, unmodified."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.fakes.gateway_stage import Stage, on_stage
from tests.service.test_openai_chat import HELLO, client_of

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
CALLS = (
    "One mo",
    'ment.\n\n<tool_call>\n{"name": "weather", "argu',
    'ments": {"city": "Bo',
    'nn"}}\n</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {}}',
    "\n</tool_call>",
)
LONG = "a" * 250_000  # more characters than a text may have
FORCED: Any = {"type": "function", "function": {"name": "clock"}}


@on_stage()
async def test_a_response_calls_functions(stage: Stage) -> None:
    stage.worker.script.reply = CALLS
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x", messages=HELLO, tools=[WEATHER, CLOCK], seed=7
        )
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment.")
    calls: list[Any] = choice.message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", '{"city": "Bonn"}'),
        ("clock", "{}"),
    ]
    assert len({call.id for call in calls}) == 2 and len(calls[0].id) <= 32
    (told,) = stage.worker.told
    system, user = told["messages"]
    assert system["role"] == "system" and "<tools>" in system["content"]
    assert json.dumps(WEATHER) in system["content"]
    assert user["role"] == "user" and told["reply_start"] == "" and told["seed"] == 7


@on_stage()
async def test_calls_are_streamed(stage: Stage) -> None:
    stage.worker.script.reply = CALLS
    async with client_of(stage) as client:
        stream = await client.chat.completions.create(
            model="x", messages=HELLO, tools=[WEATHER, CLOCK], stream=True
        )
        deltas = [chunk.choices[0] async for chunk in stream]
    assert "".join(each.delta.content or "" for each in deltas) == "One moment."
    pieces = [call for each in deltas for call in each.delta.tool_calls or []]
    named = [(piece.index, piece.function.name) for piece in pieces if piece.id and piece.function]
    assert named == [(0, "weather"), (1, "clock")]
    arguments = [piece.function.arguments for piece in pieces if piece.function and not piece.index]
    assert arguments == ["", '{"city": "Bo', 'nn"}']
    assert deltas[-1].finish_reason == "tool_calls"


@on_stage()
async def test_function_outputs_are_fed_in_the_order_of_the_calls(stage: Stage) -> None:
    def call(call_id: str, name: str, arguments: str) -> Any:
        function = {"name": name, "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("a", "weather", '{"city": "Bonn"}'), call("b", "clock", "")],
        },
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "noon"}]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]
    async with client_of(stage) as client:
        await client.chat.completions.create(model="x", messages=messages, tools=[WEATHER])
        with pytest.raises(openai.BadRequestError, match="no earlier call has this id") as raised:
            stranger: Any = {"role": "tool", "tool_call_id": "c", "content": "?"}
            await client.chat.completions.create(model="x", messages=[*messages, stranger])
    assert raised.value.param == "messages[5].tool_call_id"
    system, _, called, returned = stage.worker.told[0]["messages"]
    assert [item["text"][:9] for item in system["content"]] == ["Be brief.", "\n# Tools\n"]
    texts = [item["text"] for item in called["content"]]
    assert texts == [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    ]
    outputs = [f"<tool_response>\n{output}\n</tool_response>" for output in ("rain", "noon")]
    assert returned["role"] == "user"
    assert [item["text"] for item in returned["content"]] == outputs


@pytest.mark.parametrize(
    ("choice", "start"),
    [
        ("auto", ""),
        ("required", '<tool_call>\n{"name":'),
        (FORCED, '<tool_call>\n{"name": "clock", "arguments":'),
    ],
)
@on_stage()
async def test_the_tool_choice_determines_the_beginning_of_the_reply(
    stage: Stage, choice: Any, start: str
) -> None:
    stage.worker.script.reply = (CALLS[3].partition("\n")[2].partition("\n")[2], CALLS[4])
    async with client_of(stage) as client:
        await client.chat.completions.create(
            model="x", messages=HELLO, tools=[WEATHER, CLOCK], tool_choice=choice
        )
    assert stage.worker.told[0]["reply_start"] == start


@on_stage()
async def test_tool_choice_none_offers_no_function(stage: Stage) -> None:
    stage.worker.script.reply = CALLS
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x", messages=HELLO, tools=[WEATHER], tool_choice="none"
        )
    assert answer.choices[0].message.content == "".join(CALLS)
    assert len(stage.worker.told[0]["messages"]) == 1


@on_stage()
async def test_without_parallel_calls_one_call_ends_the_response(stage: Stage) -> None:
    stage.worker.script.reply = CALLS
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x", messages=HELLO, tools=[WEATHER, CLOCK], parallel_tool_calls=False
        )
    assert len(answer.choices[0].message.tool_calls or []) == 1


@on_stage()
async def test_a_spoken_response_may_call_too(stage: Stage) -> None:
    stage.worker.script.reply = CALLS
    async with client_of(stage) as client:
        answer = await client.chat.completions.create(
            model="x",
            messages=HELLO,
            tools=[WEATHER, CLOCK],
            modalities=["text", "audio"],
            audio={"voice": "alloy", "format": "wav"},
        )
    message = answer.choices[0].message
    assert message.audio is not None and message.audio.transcript == "One moment."
    assert len(message.tool_calls or []) == 2


@pytest.mark.parametrize("stream", [False, True])
@on_stage()
async def test_an_invalid_call_has_its_own_error_code(stage: Stage, stream: bool) -> None:
    stage.worker.script.reply = ('<tool_call>{"name": "shut', 'down", "arguments": {}}</tool_call>')
    async with client_of(stage) as client:
        with pytest.raises(openai.APIError, match="invalid tool call") as raised:
            asked: Any = client.chat.completions.create(
                model="x", messages=HELLO, tools=[CLOCK], stream=stream
            )
            answer = await asked
            async for _ in answer:
                continue
    assert raised.value.code == "invalid_tool_call"
    await stage.check_quiet()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "mcp"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": FORCED}, "tool_choice.function.name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": LONG}]}, "messages[0].content"),
        ({"messages": HELLO * 1_024, "tools": [CLOCK]}, "messages"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]},
            "tools",
        ),
    ],
)
@on_stage()
async def test_what_does_not_fit_names_its_field(
    stage: Stage, fields: dict[str, Any], param: str
) -> None:
    async with client_of(stage) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(**{"model": "x", "messages": HELLO, **fields})
    assert (raised.value.param or "").startswith(param)
    assert stage.worker.told == []


@on_stage()
async def test_a_switched_off_app_completes_no_chat(stage: Stage) -> None:
    off = {"app_id": "turnbased", "enabled": False}
    assert (await stage.http.put("/api/admin/apps", json=off)).is_success
    async with client_of(stage) as client:
        with pytest.raises(openai.PermissionDeniedError, match="currently disabled"):
            await client.chat.completions.create(model="x", messages=HELLO)
    assert stage.worker.told == []
