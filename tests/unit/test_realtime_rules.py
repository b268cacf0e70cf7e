"""Rules of the Realtime protocol: settings, items, responses, turns, and invalid input."""

from __future__ import annotations

import base64

import pytest

from core.errors import ContextFullError, GenerationFailedError, PictureError
from core.protocols.events import ShuttingDown
from tests.fakes.realtime_checks import ANSWER, ITEM, SEGMENT, TOOLS
from tests.fakes.realtime_scene import Raw, RealtimeScene, pcm


@pytest.fixture
def scene() -> RealtimeScene:
    return RealtimeScene()


def test_a_reply_that_fails_leaves_the_session_open() -> None:
    scene = RealtimeScene()
    codes = {"internal_error": GenerationFailedError(), "invalid_value": PictureError()}
    for code, scene.engine.error in codes.items():
        _, done = scene.respond()
        assert done["response"]["status"] == "failed"
        assert done["response"]["status_details"]["error"]["code"] == code
    scene.engine.error = None
    assert scene.types(scene.respond()) == ANSWER


def test_a_full_context_drops_the_oldest_items() -> None:
    scene = RealtimeScene(error=ContextFullError())
    for number in range(6):
        scene.text(f"Sentence {number}")
    scene.say("response.create")
    event = scene.engine.work()
    assert event is not None
    scene.engine.error = None
    scene.tell(event)
    scene.make()
    assert scene.last("response.done")["response"]["status"] == "completed"
    first, second = scene.engine.asked
    assert len(first.turns) == 6 and len(second.turns) == 4
    scene.say("session.update", session={"truncation": "disabled"})
    scene.engine.error = ContextFullError()
    _, done = scene.respond()
    error = done["response"]["status_details"]["error"]
    assert error["code"] == "context_length_exceeded"


def test_a_response_outside_the_conversation_adds_no_item(scene: RealtimeScene) -> None:
    scene.text("Hi")
    scene.say("response.create")
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Topic?"}],
    }
    outside = {"conversation": "none", "output_modalities": ["text"], "input": [item]}
    (created,) = scene.say("response.create", response={**outside, "metadata": {"a": "b"}})
    assert created["response"]["conversation_id"] is None
    told = scene.make()
    done = [event["response"] for event in told if event["type"] == "response.done"]
    assert [one["status"] for one in done] == ["completed", "completed"]
    assert done[1]["metadata"] == {"a": "b"} and done[1]["output"][0]["content"][0]["text"]
    items = [event for event in told if event["type"].startswith("conversation.item")]
    assert len(items) == 2, "added and done of the first response alone"
    (turn,) = scene.engine.asked[1].turns
    assert turn.content[0].text == "Topic?" and scene.engine.asked[1].is_outside


def test_a_second_response_of_the_conversation_is_refused(scene: RealtimeScene) -> None:
    (created,) = scene.say("response.create")
    error = scene.say("response.create", event_id="second")[0]["error"]
    assert error["code"] == "conversation_already_has_active_response"
    assert created["response"]["id"] in error["message"] and error["event_id"] == "second"


def test_items_are_created_retrieved_and_deleted(scene: RealtimeScene) -> None:
    content = [{"type": "input_text", "text": "a"}]
    first = {"id": "a" * 32, "type": "message", "role": "system", "content": content}
    told = scene.say("conversation.item.create", item=first, previous_item_id="root")
    assert told[0]["item"]["id"] == "a" * 32 and told[0]["previous_item_id"] is None
    second = {**first, "id": "b", "role": "assistant"}
    assert scene.say("conversation.item.create", item=second)[0]["previous_item_id"] == "a" * 32
    third = {**first, "id": "c", "role": "user"}
    told = scene.say("conversation.item.create", item=third, previous_item_id="a" * 32)
    assert told[0]["previous_item_id"] == "a" * 32
    scene.say("response.create")
    assert [turn.role for turn in scene.engine.asked[0].turns] == ["user", "assistant"]
    assert scene.engine.asked[0].system == "Be brief.\n\na"
    again = scene.say("conversation.item.create", item=first)[0]["error"]
    assert again["code"] == "item_create_duplicate_item_id"
    lost = scene.say("conversation.item.create", item={**first, "id": "d"}, previous_item_id="x")
    assert lost[0]["error"]["code"] == "item_create_invalid_previous_item_id"
    assert scene.types(scene.say("conversation.item.delete", item_id="b")) == [
        "conversation.item.deleted"
    ]
    for verb in ("delete", "retrieve"):
        error = scene.say(f"conversation.item.{verb}", item_id="b")[0]["error"]
        assert error["code"] == f"item_{verb}_invalid_item_id"
    error = scene.say("conversation.item.truncate", item_id="b", audio_end_ms=1)[0]["error"]
    assert error["code"] == "item_truncate_invalid_item_id"
    error = scene.say("conversation.item.truncate", item_id="c", audio_end_ms=1)[0]["error"]
    assert error["message"] == "Only model output audio messages can be truncated."
    assert error["code"] == "unsupported_content_type"


def test_an_item_is_retrieved_with_its_audio(scene: RealtimeScene) -> None:
    scene.detect(None)
    scene.hear(40_000, speech=True)
    (committed, *_) = scene.say("input_audio_buffer.commit")
    (told,) = scene.say("conversation.item.retrieve", item_id=committed["item_id"])
    (part,) = told["item"]["content"]
    sound = base64.b64decode(part["audio"])
    assert len(sound) == 600_000, "the last seconds, as much as every client takes"


def test_truncation_keeps_whole_words() -> None:
    scene = RealtimeScene(replies=[[("One two ", 400), ("three four five six.", 400)]])
    scene.respond()
    spoken = scene.last("response.done")["response"]["output"][0]["id"]
    # Half of the second piece was heard: of its words, as many characters.
    for end_ms, words in (
        (9_999, "One two three four five six."),
        (600, "One two three four"),
        (0, ""),
    ):
        cut = scene.say("conversation.item.truncate", item_id=spoken, audio_end_ms=end_ms)
        assert cut[0]["audio_end_ms"] == end_ms
        (told,) = scene.say("conversation.item.retrieve", item_id=spoken)
        assert told["item"]["content"][0]["transcript"] == words
        assert told["item"]["status"] == "incomplete"


def test_a_reply_may_be_truncated_during_generation(scene: RealtimeScene) -> None:
    scene.respond(1)
    spoken = scene.last("response.output_item.added")["item"]["id"]
    scene.say("conversation.item.truncate", item_id=spoken, audio_end_ms=300)
    scene.make()
    (told,) = scene.say("conversation.item.retrieve", item_id=spoken)
    assert told["item"]["content"][0]["transcript"] == "Hello"


def test_the_user_may_speak_over_a_response_that_is_not_interrupted(scene: RealtimeScene) -> None:
    scene.detect({"type": "server_vad", "interrupt_response": False})
    scene.say("response.create")
    scene.hear(320, speech=True)
    assert scene.types(scene.hear(640, speech=False)) == SEGMENT[1:]
    told = scene.make()
    assert scene.types(told).count("response.created") == 1, "the answer that is owed"
    assert scene.types(told).count("response.done") == 2


@pytest.mark.parametrize("end", ["silence", "clear", "commit", "update"])
def test_a_turn_that_is_owed_an_answer_gets_it_once_the_user_is_silent(
    scene: RealtimeScene, end: str
) -> None:
    rules = {"type": "server_vad", "interrupt_response": False}
    scene.detect(rules)
    scene.say("response.create")
    scene.hear(320, speech=True)
    scene.hear(640, speech=False)
    scene.hear(320, speech=True)
    scene.make()
    assert scene.types().count("response.created") == 1, "the user is speaking"
    match end:
        case "silence":
            told = scene.hear(640, speech=False)
        case "update":
            told = scene.detect({**rules, "silence_duration_ms": 300})
        case _:
            told = scene.say(f"input_audio_buffer.{end}")
    assert scene.types(told)[-1] == "response.created"
    users = [turn for turn in scene.engine.asked[-1].turns if turn.role == "user"]
    assert len(users) == (1 if end == "clear" else 2)
    scene.make()
    assert scene.types().count("response.created") == 2, "one answer to both turns"


@pytest.mark.parametrize("rules", [None, {"type": "server_vad", "create_response": False}])
def test_no_answer_is_owed_once_the_client_requests_them_itself(
    scene: RealtimeScene, rules: Raw | None
) -> None:
    scene.detect({"type": "server_vad", "interrupt_response": False})
    scene.say("response.create")
    scene.hear(320, speech=True)
    scene.hear(640, speech=False)
    scene.detect(rules)
    assert scene.types(scene.make()).count("response.created") == 0


def test_turns_without_automatic_responses(scene: RealtimeScene) -> None:
    told = scene.detect({"type": "semantic_vad", "eagerness": "high", "create_response": False})
    assert told[0]["session"]["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "high",
        "create_response": False,
        "interrupt_response": True,
    }
    scene.hear(320, speech=True)
    told = scene.hear(640, speech=False)
    assert scene.types(told) == SEGMENT[1:]
    assert told[0]["audio_end_ms"] == 320 + 400


def test_a_short_noise_opens_no_segment_and_interrupts_nothing(scene: RealtimeScene) -> None:
    assert scene.hear(64, speech=True) == [] and scene.hear(320, speech=False) == []
    scene.respond(1)
    assert scene.hear(96, speech=True) == [], "the model is audible"
    assert scene.hear(320, speech=False) == []


def test_changed_settings_end_the_open_segment(scene: RealtimeScene) -> None:
    scene.hear(320, speech=True)
    told = scene.detect(None)
    assert scene.types(told) == [*SEGMENT[1:], "session.updated"]
    assert told[-1]["session"]["audio"]["input"]["turn_detection"] is None


def test_a_requested_response_ends_the_open_segment(scene: RealtimeScene) -> None:
    scene.hear(320, speech=True)
    told = scene.say("response.create")
    assert scene.types(told) == [*SEGMENT[1:], "response.created"]


def test_pictures_are_items_without_automatic_responses(scene: RealtimeScene) -> None:
    url = "data:image/jpeg;base64,AAAA"
    for number in range(10):
        part = {"type": "input_image", "image_url": url}
        item = {"type": "message", "id": f"p{number}", "role": "user", "content": [part]}
        told = scene.say("conversation.item.create", item=item)
        assert scene.types(told) == ITEM and "image_url" not in str(told)
    scene.say("response.create")
    (request,) = scene.engine.asked
    assert [turn.key[0] for turn in request.turns] == [f"p{number}" for number in range(2, 10)]
    scene.say("conversation.item.create", item={**item, "id": "first"}, previous_item_id="root")
    (kept,) = scene.say("conversation.item.retrieve", item_id="first")
    assert kept["type"] == "conversation.item.retrieved", "the newest picture is never dropped"
    part = {"type": "input_image", "image_url": "https://example.com/a.png"}
    error = scene.say("conversation.item.create", item={**item, "content": [part]})[0]["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "item.content[0].image_url")


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{", "invalid_event", None),
        ("[]", "invalid_event", None),
        ('{"type": "\\ud800"}', "invalid_event", None),
        ('{"type": "response.audio"}', "invalid_event", "type"),
        ('{"event_id": "mine"}', "invalid_event", "type"),
        ('{"type": "session.update"}', "missing_required_parameter", "session"),
        (
            '{"type": "session.update", "session": {"audio": {"input": {"turn_detection": '
            '{"type": "server_vad", "threshold": 2}}}}}',
            "invalid_value",
            "session.audio.input.turn_detection.threshold",
        ),
        (
            '{"type": "session.update", "session": {"tools": [{"type": "mcp", "name": "a"}]}}',
            "invalid_value",
            "session.tools[0].type",
        ),
        (
            '{"type": "conversation.item.create", "item": {"type": "message", "content": []}}',
            "missing_required_parameter",
            "item.role",
        ),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "invalid_value", "audio"),
        (
            '{"type": "session.update", "session": {"audio": {"output": {"format": '
            '{"type": "audio/pcm", "rate": 8000}}}}}',
            "invalid_value",
            "session.audio.output.format",
        ),
    ],
)
def test_invalid_fields_are_named_and_change_nothing(
    scene: RealtimeScene, text: str, code: str, param: str | None
) -> None:
    before = scene.told[0]["session"]
    (told,) = scene.say_text(text)
    assert (told["error"]["code"], told["error"]["param"]) == (code, param)
    assert told["error"]["event_id"] == ("mine" if "mine" in text else None)
    assert scene.say("session.update", session={})[0]["session"] == before


def test_unknown_fields_are_ignored(scene: RealtimeScene) -> None:
    session = {"model": "gpt-realtime", "surprise": 1, "reasoning": None, "audio": {"x": 1}}
    assert scene.types(scene.say("session.update", session=session)) == ["session.updated"]


def test_settings_are_merged_key_by_key(scene: RealtimeScene) -> None:
    audio = {"output": {"voice": {"id": "mara"}, "speed": 1.2, "format": {"type": "audio/pcmu"}}}
    scene.say("session.update", session={"audio": audio, "tools": TOOLS})
    audio = {"input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 300}}}
    (told,) = scene.say("session.update", session={"audio": audio, "tracing": "auto"})
    session: Raw = told["session"]
    assert session["audio"]["output"] == {
        "format": {"type": "audio/pcmu"},
        "voice": "mara",
        "speed": 1.0,
    }
    detection = session["audio"]["input"]["turn_detection"]
    assert (detection["silence_duration_ms"], detection["threshold"]) == (300, 0.5)
    assert session["tools"][0]["name"] == "look_up" and session["tracing"] == "auto"
    (told,) = scene.say("session.update", session={"tools": [], "instructions": ""})
    assert told["session"]["tools"] == [] and told["session"]["instructions"] == ""


def test_the_voice_is_fixed_once_the_model_has_spoken(scene: RealtimeScene) -> None:
    scene.respond()
    same = {"audio": {"output": {"voice": "default"}}}
    assert scene.types(scene.say("session.update", session=same)) == ["session.updated"]
    other = {"audio": {"output": {"voice": "mara"}}}
    error = scene.say("session.update", session=other)[0]["error"]
    assert (error["code"], error["param"]) == ("cannot_update_voice", "session.audio.output.voice")


def test_the_beta_is_spelled_as_its_clients_expect() -> None:
    scene = RealtimeScene(is_beta=True)
    session = scene.told[0]["session"]
    assert session["modalities"] == ["text", "audio"] and session["input_audio_format"] == "pcm16"
    flat = {
        "modalities": ["text", "audio"],
        "voice": "alloy",
        "output_audio_format": "g711_ulaw",
        "turn_detection": None,
        "max_response_output_tokens": 50,
        "temperature": 0.6,
    }
    (told,) = scene.say("session.update", session=flat)
    assert told["session"]["output_audio_format"] == "g711_ulaw"
    assert told["session"]["turn_detection"] is None and told["session"]["voice"] == "alloy"
    assert (session["temperature"], told["session"]["temperature"]) == (0.8, 0.6)
    scene.text("Hi")
    scene.respond()
    types = scene.types()
    assert types.count("conversation.item.created") == 2
    assert "response.audio.delta" in types and "response.audio_transcript.done" in types
    assert not [kind for kind in types if "output_audio" in kind or "item.added" in kind[:22]]
    done = scene.last("response.done")["response"]
    assert done["output"][0]["content"][0]["type"] == "audio"
    assert done["modalities"] == ["text", "audio"] and done["output_audio_format"] == "g711_ulaw"
    assert scene.engine.asked[0].max_tokens == 50


def test_flat_settings_are_accepted_from_every_client(scene: RealtimeScene) -> None:
    (told,) = scene.say("session.update", session={"modalities": ["text"], "voice": "verse"})
    session = told["session"]
    assert (
        session["output_modalities"] == ["text"] and session["audio"]["output"]["voice"] == "verse"
    )


def test_the_limit_of_tokens_leaves_a_response_incomplete(scene: RealtimeScene) -> None:
    scene.respond(max_output_tokens=2)
    done = scene.last("response.done")["response"]
    assert done["status"] == "incomplete" and done["max_output_tokens"] == 2
    assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}


@pytest.mark.parametrize("cut", ['"argu', '"arguments": {"city'])
def test_a_function_call_cut_at_the_limit_of_tokens_is_incomplete(cut: str) -> None:
    scene = RealtimeScene(replies=[[('<tool_call>{"name": "look_up", ', 0), (cut, 0)]])
    scene.say("session.update", session={"tools": TOOLS})
    scene.respond(max_output_tokens=2)
    details = scene.last("response.done")["response"]["status_details"]
    assert details == {"type": "incomplete", "reason": "max_output_tokens"}


def test_an_odd_byte_waits_for_its_other_half(scene: RealtimeScene) -> None:
    scene.detect(None)
    sound = pcm(200, speech=True)
    for start in range(0, len(sound), 333):
        piece = base64.b64encode(sound[start : start + 333]).decode()
        assert scene.say("input_audio_buffer.append", audio=piece) == []
    scene.say("input_audio_buffer.commit")
    scene.say("response.create")
    part = scene.engine.asked[0].turns[0].content[0]
    assert part.audio is not None and part.audio.pcm == sound


def test_the_length_of_g711_audio_follows_its_rate(scene: RealtimeScene) -> None:
    audio = {"input": {"format": {"type": "audio/pcma"}, "turn_detection": None}}
    scene.say("session.update", session={"audio": audio})
    scene.say("input_audio_buffer.append", audio=base64.b64encode(bytes(8_000)).decode())
    scene.say("input_audio_buffer.commit")
    scene.say("response.create")
    part = scene.engine.asked[0].turns[0].content[0]
    assert part.audio is not None and part.audio.duration_ms == 1_000


def test_a_shutdown_is_announced(scene: RealtimeScene) -> None:
    (told,) = scene.tell(ShuttingDown())
    assert (told["error"]["type"], told["error"]["code"]) == ("server_error", "shutting_down")
    assert scene.closed is not None and scene.closed.code == 1001
