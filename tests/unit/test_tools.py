"""What offers functions in a prompt, what is text and what a call in a reply, and where it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.schemas.common import Function
from core.tools import (
    CallArguments,
    CallBegun,
    CallDone,
    CallEvent,
    CallInvalid,
    CallParser,
    Offer,
    Said,
    StopFilter,
    call_text,
    outputs_text,
)

WEATHER = Function(
    name="weather",
    description="Tells the weather in Köln.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
CLOCK = Function(name="clock")
NAMES = {"weather", "clock"}
ARGUMENTS = json.dumps({"city": 'a "b" } </tool_call> \\', "days": [1, {"n": None}]})


def parsed(pieces: Iterable[str], names: Iterable[str] = NAMES) -> list[CallEvent]:
    parser, events = CallParser(set(names)), []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.flush()
    joined: list[CallEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, Said) and isinstance(last, Said):
            joined[-1] = Said(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            joined[-1] = CallArguments(last.text + event.text)
        else:
            joined.append(event)
    return joined


def called(name: str, arguments: str) -> list[CallEvent]:
    return [CallBegun(name), CallArguments(arguments), CallDone(name, arguments)]


def test_the_prompt_is_the_one_the_model_was_trained_on() -> None:
    prompt = Offer((WEATHER, CLOCK)).prompt
    assert prompt.startswith("# Tools\n\nYou may call one or more functions to assist")
    assert prompt.endswith(
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
    lines = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0].split("\n")
    assert "Köln" in lines[0]
    assert json.loads(lines[0]) == {
        "type": "function",
        "function": WEATHER.model_dump(exclude_none=True),
    }
    assert json.loads(lines[1]) == {"type": "function", "function": {"name": "clock"}}
    assert Offer().prompt == ""


@pytest.mark.parametrize(
    ("functions", "rest"),
    [((WEATHER,), ' {"city": "Bonn"}}'), ((WEATHER, CLOCK), ' "clock", "arguments": {}}')],
)
def test_a_call_that_must_be_begins_as_a_call_does(
    functions: tuple[Function, ...], rest: str
) -> None:
    offer = Offer(functions, must_call=True)
    events = parsed([offer.reply_start, rest])
    assert [type(event) for event in events] == [CallBegun, CallArguments, CallDone]
    assert Offer(functions).reply_start == ""


def test_a_history_has_calls_and_outputs_as_a_reply_has_them() -> None:
    text = call_text("weather", '{"city": "Bonn"}') + "\n" + call_text("clock", "")
    assert parsed([text]) == called("weather", '{"city": "Bonn"}') + called("clock", "{}")
    assert outputs_text(["1", "2"]) == (
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    )


@given(st.lists(st.integers(0, 400), max_size=12), st.sampled_from(["", "Let me look.\n\n"]))
def test_a_reply_means_the_same_however_it_is_cut(cuts: Sequence[int], said: str) -> None:
    text = f"{said}{call_text('weather', ARGUMENTS)}\n{call_text('clock', '{}')}\n"
    ends = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    spoken: list[CallEvent] = [Said(said.strip())] if said else []
    assert parsed(pieces) == [*spoken, *called("weather", ARGUMENTS), *called("clock", "{}")]


def test_arguments_are_told_while_they_come() -> None:
    parser = CallParser(NAMES)
    assert parser.feed('<tool_call>\n{"name": "weather", "argum') == []
    assert parser.feed('ents": {"ci') == [CallBegun("weather"), CallArguments('{"ci')]
    assert parser.feed('ty": "x"}') == [CallArguments('ty": "x"}')]
    assert parser.feed("}") == [CallDone("weather", '{"city": "x"}')]


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "clock"}', '{"a": 1}'),
        ('{"name": "clock"}', "{}"),
        (' {"name" : "clock" ,\n"arguments" :  {"a":1} } ', '{"a":1}'),
    ],
)
def test_other_spellings_of_a_call_are_understood(inner: str, arguments: str) -> None:
    assert parsed(["<tool_call>", inner, "</tool_call>"]) == called("clock", arguments)


@pytest.mark.parametrize(
    "inner",
    [
        "clock()",
        "}",
        '{"name": "shutdown", "arguments": {}}',
        '{"arguments": {}, "name": "shutdown"}',
        '{"name": "clock", "arguments": "now"}',
        '{"name": "clock", "arguments": {"a": NaN}}',
        '{"name": "clock", "arguments": {}, "name": "weather"}',
        '{"name": 1}',
        '{"name": "clock", "arguments": {"a": ]}}',
        '{"name": "clock", "arguments": {"a": 1}',
    ],
)
def test_a_call_that_is_none_ends_the_reply(inner: str) -> None:
    events = parsed(["Well. <tool_call>", *inner, "</tool_call> And on."])
    assert events[0] == Said("Well.")
    assert isinstance(events[-1], CallInvalid)
    assert not any(isinstance(event, CallDone) for event in events)


@given(st.text(alphabet=' \n<tol_ca>/"{}ab', max_size=60), st.booleans())
def test_text_without_calls_stays_as_it_is(text: str, has_names: bool) -> None:
    if has_names and any(mark in text for mark in ("<tool_call>", "</tool_call>")):
        return
    events = parsed(text, NAMES if has_names else ())
    assert "".join(event.text for event in events if isinstance(event, Said)) == text
    assert all(isinstance(event, Said) for event in events)


texts = st.text("ab", max_size=20)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(texts, stops, st.integers(1, 5))
def test_the_text_ends_before_a_sequence(text: str, sequences: list[str], size: int) -> None:
    stop = StopFilter(sequences)
    passed = "".join(stop.feed(text[at : at + size]) for at in range(0, len(text), size))
    assert stop.has_stopped == any(sequence in text for sequence in sequences)
    if stop.has_stopped:
        assert stop.feed("more") == stop.flush() == ""
        assert not any(sequence in passed for sequence in sequences)
        assert text.startswith(passed)
        assert text[len(passed) :].startswith(tuple(sequences))
    else:
        assert passed + stop.flush() == text
