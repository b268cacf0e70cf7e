"""Client events of Realtime that refer to what is not there, or ask for what does not exist."""

from __future__ import annotations

import pytest

from tests.fakes.realtime_checks import ITEM
from tests.fakes.realtime_scene import Raw, RealtimeScene


@pytest.fixture
def scene() -> RealtimeScene:
    return RealtimeScene()


def test_a_response_has_one_modality(scene: RealtimeScene) -> None:
    both = {"output_modalities": ["text", "audio"]}
    for kind, field in (("session.update", "session"), ("response.create", "response")):
        (told,) = scene.say(kind, **{field: both})
        assert told["error"]["param"] == f"{field}.output_modalities"
    flat = {"modalities": ["text", "audio"]}
    (told,) = scene.say("session.update", session=flat)
    assert told["session"]["output_modalities"] == ["audio"], "the beta's spelling of speech"


def test_a_function_that_has_to_be_called_is_among_the_tools(scene: RealtimeScene) -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    wanted: Raw = {"tools": [tool], "tool_choice": {"type": "function", "name": "lok"}}
    for kind, field in (("session.update", "session"), ("response.create", "response")):
        (told,) = scene.say(kind, **{field: wanted})
        assert told["error"]["code"] == "invalid_value"
        assert told["error"]["param"] == f"{field}.tool_choice"
    assert not scene.engine.asked, "no response was begun"
    named = wanted | {"tool_choice": {"type": "function", "name": "look"}}
    (told,) = scene.say("session.update", session=named)
    assert told["session"]["tool_choice"]["name"] == "look"
    (told,) = scene.say("session.update", session={"tools": []})
    assert told["type"] == "session.updated", "a client may take its tools away first"


def test_a_part_that_an_item_lacks_is_not_truncated(scene: RealtimeScene) -> None:
    scene.respond()
    (item,) = scene.last("response.done")["response"]["output"]
    cut = {"item_id": item["id"], "audio_end_ms": 0}
    (told,) = scene.say("conversation.item.truncate", content_index=3, **cut)
    assert told["error"]["param"] == "content_index"
    (told,) = scene.say("conversation.item.retrieve", item_id=item["id"])
    assert told["item"]["status"] == "completed"
    (told,) = scene.say("conversation.item.truncate", content_index=0, **cut)
    assert told["type"] == "conversation.item.truncated"


def test_an_output_belongs_to_a_call_of_the_conversation(scene: RealtimeScene) -> None:
    output: Raw = {"type": "function_call_output", "call_id": "c1", "output": "an owl"}
    (told,) = scene.say("conversation.item.create", item=output, event_id="mine")
    assert told["error"]["code"] == "invalid_tool_call_id"
    assert told["error"]["message"] == "Tool call ID 'c1' not found in conversation."
    assert (told["error"]["param"], told["error"]["event_id"]) == ("item.call_id", "mine")
    call = {"type": "function_call", "call_id": "c1", "name": "look"}
    for restored in (call, output):
        assert scene.types(scene.say("conversation.item.create", item=restored)) == ITEM


def test_an_output_in_the_input_of_a_response_belongs_to_a_call(scene: RealtimeScene) -> None:
    output: Raw = {"type": "function_call_output", "call_id": "c1", "output": "an owl"}
    call = {"type": "function_call", "call_id": "c1", "name": "look"}
    user = {"type": "message", "role": "user", "content": []}
    for conversation in ("auto", "none"):
        response = {"conversation": conversation, "input": [user, output]}
        (told,) = scene.say("response.create", response=response, event_id="mine")
        assert told["error"]["code"] == "invalid_tool_call_id"
        assert told["error"]["param"] == "response.input[1].call_id"
        assert told["error"]["event_id"] == "mine"
    told, *_ = scene.say("response.create", response={"input": [call, output]})
    assert told["type"] == "response.created", "a call of the same input"
    scene.say("response.cancel")
    scene.say("conversation.item.create", item=call)
    outside = {"conversation": "none", "input": [output]}
    told, *_ = scene.say("response.create", response=outside)
    assert told["type"] == "response.created", "a call of the conversation"
