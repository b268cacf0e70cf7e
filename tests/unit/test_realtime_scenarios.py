"""Scenarios of the Realtime protocol. Each event is parsed by the stock client's types.

Source of the names S1 to S12: the scenarios of the protocol's specification.
"""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ContextFullError, GenerationFailedError
from core.protocols.effects import StartTimer, StopTimer, Transcribe
from core.protocols.events import EngineFailed, ItemTranscribed, StopRequested, TimerName
from core.protocols.realtime_items import RealtimeLimits
from core.schemas import openai_errors, realtime
from tests.fakes.realtime_checks import (
    ANSWER,
    CALL,
    CLOSED,
    ITEM,
    SEGMENT,
    TOOLS,
    WRITTEN,
)
from tests.fakes.realtime_scene import Raw, RealtimeScene
from tests.source_tree import ROOT


@pytest.fixture
def scene() -> RealtimeScene:
    return RealtimeScene()


def test_s1_connect(scene: RealtimeScene) -> None:
    assert scene.types() == ["session.created", "conversation.created"]
    session = scene.told[0]["session"]
    assert session["model"] == "minicpm-o-4.5" and session["expires_at"] == 1_700_003_600
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    told = scene.say("session.update", session={"type": "realtime", "instructions": "Sing."})
    assert scene.types(told) == ["session.updated"]
    assert told[0]["session"]["instructions"] == "Sing."
    assert told[0]["session"]["output_modalities"] == ["audio"]


def test_s2_a_spoken_turn(scene: RealtimeScene) -> None:
    scene.hear(640, speech=False)
    started = scene.hear(320, speech=True)
    assert scene.types(started) == SEGMENT[:1]
    assert started[0]["audio_start_ms"] == 340  # 300 ms before the onset
    told = scene.hear(640, speech=False)
    assert scene.types(told) == [*SEGMENT[1:], "response.created"]
    user = started[0]["item_id"]
    assert told[0]["audio_end_ms"] == 960 + 500 and told[0]["item_id"] == user
    assert told[1]["previous_item_id"] is None and told[1]["item_id"] == user
    assert told[2]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    answer = scene.make()
    assert scene.types(answer) == ANSWER[1:]
    assert answer[1]["previous_item_id"] == user
    done = answer[-1]["response"]
    assert done["status"] == "completed" and done["status_details"] is None
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hello there."}]
    assert done["usage"]["total_tokens"] == 7 + 2 + 12
    (request,) = scene.engine.asked
    (turn,) = request.turns
    (part,) = turn.content
    assert part.audio is not None and part.audio.duration_ms == 1_460 - 340
    assert request.system == "Be brief."


def test_s2_the_users_transcript_follows() -> None:
    scene = RealtimeScene(can_transcribe=True)
    wanted = {"model": "whisper-1", "language": "en"}
    told = scene.say("session.update", session={"audio": {"input": {"transcription": wanted}}})
    assert told[0]["session"]["audio"]["input"]["transcription"] == wanted
    scene.hear(320, speech=True)
    scene.hear(640, speech=False)
    [asked] = [effect for effect in scene.effects if isinstance(effect, Transcribe)]
    assert asked.pcm and asked.wanted.language == "en"
    [heard] = scene.tell(ItemTranscribed(asked.item_id, "Hello there."))
    assert heard["type"] == "conversation.item.input_audio_transcription.completed"
    assert heard["item_id"] == asked.item_id and heard["transcript"] == "Hello there."
    assert heard["usage"] == {"type": "duration", "seconds": 0.82}
    [item] = scene.say("conversation.item.retrieve", item_id=asked.item_id)
    assert item["item"]["content"][0]["transcript"] == "Hello there."
    [failed] = scene.tell(ItemTranscribed(asked.item_id, problem=GenerationFailedError("No.")))
    assert failed["type"].endswith("transcription.failed") and failed["error"]["message"] == "No."
    scene.say("conversation.item.delete", item_id=asked.item_id)
    assert scene.tell(ItemTranscribed(asked.item_id, "Too late.")) == []
    content = [{"type": "input_text", "text": text} for text in ("Hello", "there.")]
    replaced = {"id": asked.item_id, "type": "message", "role": "user", "content": content}
    scene.say("conversation.item.create", item=replaced)
    assert scene.tell(ItemTranscribed(asked.item_id, "Too late.")) == []
    scene.make()


def test_without_a_transcriber_no_transcription_is_announced(scene: RealtimeScene) -> None:
    wanted = {"model": "whisper-1"}
    told = scene.say("session.update", session={"audio": {"input": {"transcription": wanted}}})
    assert told[0]["session"]["audio"]["input"]["transcription"] is None
    scene.hear(320, speech=True)
    scene.hear(640, speech=False)
    assert not any(isinstance(effect, Transcribe) for effect in scene.effects)


def test_s3_barge_in(scene: RealtimeScene) -> None:
    scene.text("Hi")
    scene.respond(1)
    told = scene.hear(320, speech=True)
    assert scene.types(told) == [SEGMENT[0], *CLOSED, "response.done"]
    done = told[-1]["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    spoken = told[-2]["item"]
    assert spoken["status"] == "incomplete"
    cut = scene.say("conversation.item.truncate", item_id=spoken["id"], audio_end_ms=100)
    assert scene.types(cut) == ["conversation.item.truncated"]
    assert scene.make() == [], "nothing of the old response follows"
    assert scene.types(scene.hear(640, speech=False)) == [*SEGMENT[1:], "response.created"]
    assert scene.types(scene.make()) == ANSWER[1:]
    heard = scene.engine.asked[1].turns[1]
    assert heard.role == "assistant" and heard.content[0].text == "", "not one word was heard"


def test_s4_text(scene: RealtimeScene) -> None:
    assert scene.types(scene.text("Hi")) == ITEM
    told = scene.say("response.create", response={"output_modalities": ["text"]})
    assert scene.types([*told, *scene.make()]) == WRITTEN
    item = scene.last("response.output_item.done")["item"]
    assert item["content"] == [{"type": "output_text", "text": "Hello there."}]
    assert not scene.engine.asked[0].output.speaks


def test_s5_manual_turns(scene: RealtimeScene) -> None:
    scene.detect(None)
    assert scene.hear(320, speech=True) == []
    assert scene.types(scene.say("input_audio_buffer.commit")) == SEGMENT[2:]
    assert scene.types(scene.respond()) == ANSWER
    scene.hear(50, speech=True)
    assert scene.types(scene.say("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    error = scene.say("input_audio_buffer.commit", event_id="mine")[0]["error"]
    assert error["code"] == "input_audio_buffer_commit_empty" and error["event_id"] == "mine"
    assert error["message"] == (
        "Error committing input audio buffer: buffer too small. Expected at least 100ms of audio, "
        "but buffer only has 0.00ms of audio."
    )
    assert scene.engine.asked[0].turns[0].content[0].audio.duration_ms == 320  # type: ignore[union-attr]


def test_s6_a_function() -> None:
    scene = RealtimeScene(replies=[[(CALL[:40], 0), (CALL[40:], 0)], [("An owl.", 100)]])
    scene.say("session.update", session={"tools": TOOLS, "tool_choice": "auto"})
    scene.text("What is that?")
    told = scene.respond()
    deltas = [event for event in told if event["type"].endswith("arguments.delta")]
    assert [kind for kind in scene.types(told) if not kind.endswith("arguments.delta")] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert told[1]["item"]["arguments"] == "" and told[1]["item"]["status"] == "in_progress"
    assert "".join(event["delta"] for event in deltas) == '{"word": "owl"}'
    done = scene.only("response.function_call_arguments.done")
    assert done["name"] == "look_up" and done["arguments"] == '{"word": "owl"}'
    assert "<tools>" in scene.engine.asked[0].system
    output = {"type": "function_call_output", "call_id": done["call_id"], "output": "a bird"}
    assert scene.types(scene.say("conversation.item.create", item=output)) == ITEM
    scene.respond()
    user, call, returned = scene.engine.asked[1].turns
    assert (user.role, call.role, returned.role) == ("user", "assistant", "user")
    assert "look_up" in (call.content[0].text or "") and "a bird" in (
        returned.content[0].text or ""
    )


def test_s6_text_and_a_call_are_two_items_of_one_response() -> None:
    scene = RealtimeScene(replies=[[("Let me see. ", 200), (CALL, 100)]])
    scene.say("session.update", session={"tools": TOOLS})
    scene.respond()
    message, call = scene.last("response.done")["response"]["output"]
    assert message["content"][0]["transcript"] == "Let me see."
    assert (call["type"], call["status"]) == ("function_call", "completed")
    scene.say("response.create")
    assert len(scene.engine.asked) == 2
    (turn,) = scene.engine.asked[1].turns
    assert turn.role == "assistant" and len(turn.content) == 3


def test_s6_an_invalid_call_fails_the_response() -> None:
    scene = RealtimeScene(replies=[[('<tool_call>\n{"name": "other", "arguments": {}}', 100)]])
    scene.say("session.update", session={"tools": TOOLS})
    scene.respond()
    done = scene.last("response.done")["response"]
    assert (done["status"], done["output"]) == ("failed", [])
    assert done["status_details"]["error"]["code"] == "invalid_tool_call"


def test_s6_a_required_call_is_begun_for_the_model(scene: RealtimeScene) -> None:
    choice = {"type": "function", "name": "look_up"}
    scene.say("response.create", response={"tools": TOOLS, "tool_choice": choice})
    assert "look_up" in scene.engine.asked[0].reply_start
    scene.say("response.cancel")
    scene.say("response.create", response={"tools": TOOLS, "tool_choice": "none"})
    scene.make()
    assert (
        scene.engine.asked[-1].reply_start == "" and "<tools>" not in scene.engine.asked[-1].system
    )


def test_s7_cancelled_before_it_begins(scene: RealtimeScene) -> None:
    metadata = {"client_event_id": "mine"}
    (created,) = scene.say("response.create", response={"metadata": metadata})
    (done,) = scene.say("response.cancel")
    assert (created["type"], done["type"]) == ("response.created", "response.done")
    assert created["response"]["metadata"] == done["response"]["metadata"] == metadata
    assert done["response"]["output"] == []
    assert done["response"]["status_details"]["reason"] == "client_cancelled"
    error = scene.say("response.cancel")[0]["error"]
    assert error["code"] == "response_cancel_not_active"
    assert error["message"].startswith("Cancellation failed: no active response found")
    scene.say("response.create")
    assert len(scene.engine.asked) == 1, "the engine still ends the first reply"
    assert scene.types(scene.make()) == ANSWER[1:]


@pytest.mark.parametrize("given", [{}, {"input": []}])
def test_a_response_outside_the_conversation_that_is_too_long_drops_no_items(given: Raw) -> None:
    scene = RealtimeScene(error=ContextFullError())
    for number in range(6):
        scene.text(f"Sentence {number}")
    scene.say("response.create", response={"conversation": "none", **given})
    scene.make()
    error = scene.only("response.done")["response"]["status_details"]["error"]
    assert error["code"] == "context_length_exceeded"
    scene.engine.error = None
    scene.say("response.create")
    assert len(scene.engine.asked[-1].turns) == 6


def test_s8_greeting(scene: RealtimeScene) -> None:
    told = scene.respond(instructions="Greet.")
    assert scene.types(told) == ANSWER
    assert told[2]["previous_item_id"] is None
    (request,) = scene.engine.asked
    assert (request.system, request.turns) == ("Greet.", ())
    assert scene.say("session.update", session={})[0]["session"]["instructions"] == "Be brief."


def test_s10_idle(scene: RealtimeScene) -> None:
    scene.detect({"type": "server_vad", "idle_timeout_ms": 5_000})
    scene.hear(6_400, speech=False)
    told = scene.fire(TimerName.IDLE)
    kinds = ["input_audio_buffer.timeout_triggered", *SEGMENT[2:], "response.created"]
    assert scene.types(told) == kinds
    assert (told[0]["audio_start_ms"], told[0]["audio_end_ms"]) == (1_400, 6_400)


def patient_scene(**engine: Any) -> RealtimeScene:
    """Return a scene whose model speaks after five seconds of silence."""
    scene = RealtimeScene(**engine)
    scene.detect({"type": "server_vad", "idle_timeout_ms": 5_000})
    return scene


def is_waiting_for_speech(scene: RealtimeScene) -> bool:
    timers = [
        isinstance(effect, StartTimer)
        for effect in scene.effects
        if isinstance(effect, StartTimer | StopTimer) and effect.name is TimerName.IDLE
    ]
    return timers[-1]


def test_silence_is_timed_again_however_a_response_ends() -> None:
    failed = patient_scene(error=GenerationFailedError())
    failed.say("response.create")
    assert not is_waiting_for_speech(failed)
    failed.make()
    assert is_waiting_for_speech(failed)
    stopped = patient_scene()
    stopped.say("response.create")
    stopped.tell(StopRequested())
    assert is_waiting_for_speech(stopped)
    live = patient_scene(model="minicpm-o-4.5-live", units=[("Hello.", 400, True)])
    live.talk(2_000, speech=False)
    assert live.last("response.done")["response"]["status"] == "completed"
    assert is_waiting_for_speech(live)


@pytest.mark.parametrize("command", ["clear", "commit"])
def test_silence_is_timed_again_after_speech_that_the_client_ends(command: str) -> None:
    scene = patient_scene()
    scene.hear(320, speech=True)
    assert not is_waiting_for_speech(scene)
    scene.say(f"input_audio_buffer.{command}")
    assert is_waiting_for_speech(scene)
    first = len(scene.effects)
    scene.hear(320, speech=False)
    scene.say(f"input_audio_buffer.{command}")
    timers = [effect for effect in scene.effects[first:] if isinstance(effect, StartTimer)]
    assert not timers, "between segments the timer runs on"


@pytest.mark.parametrize("rules", [None, {"type": "server_vad"}, {"type": "semantic_vad"}])
def test_silence_is_timed_no_more_without_idle_timeout_ms(rules: Raw | None) -> None:
    scene = patient_scene()
    assert is_waiting_for_speech(scene)
    scene.detect(rules)
    assert not is_waiting_for_speech(scene)


def test_the_voice_may_change_until_the_model_has_spoken(scene: RealtimeScene) -> None:
    scene.now_s = 1.0
    scene.say("output_audio_buffer.clear")
    scene.say("response.create")
    scene.hear(500, speech=True)
    assert scene.last("response.done")["response"]["status"] == "cancelled"
    session = {"audio": {"output": {"voice": "mara"}}}
    assert scene.types(scene.say("session.update", session=session)) == ["session.updated"]


def test_an_error_names_the_field_in_one_sentence(scene: RealtimeScene) -> None:
    (told,) = scene.say("input_audio_buffer.append", audio="?")
    assert told["error"]["message"] == "Invalid value of 'audio': The audio is not valid Base64."
    item = {"type": "message", "role": "user", "content": [{"text": "a"}]}
    (told,) = scene.say("conversation.item.create", item=item)
    assert told["error"]["code"] == "missing_required_parameter"
    assert told["error"]["param"] == "item.content[0].type"
    (told,) = scene.say("conversation.item.create", item={"type": "song"})
    kinds = "'message', 'function_call' or 'function_call_output'"
    assert told["error"]["message"] == f"Invalid value of 'item': The type should be {kinds}."
    rate = {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 7}}}}
    (told,) = scene.say("session.update", session=rate)
    reason = "rate must be one of 16000, 24000, 48000."
    assert told["error"]["message"] == f"Invalid value of 'session.audio.input.format': {reason}"


def test_the_texts_and_pictures_of_a_conversation_are_bounded() -> None:
    scene = RealtimeScene(limits=RealtimeLimits(max_chars=1_000))
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{'A' * 600}"}
    for name in ("a", "b"):
        content = [{"type": "input_text", "text": "Look."}, picture]
        item = {"type": "message", "role": "user", "id": name, "content": content}
        scene.say("conversation.item.create", item=item)
    call = {"type": "function_call", "id": "d", "call_id": "call", "name": "look_up"}
    output = {"type": "function_call_output", "id": "c", "call_id": "call", "output": "x" * 300}
    for added in (call, output):
        scene.say("conversation.item.create", item=added)
    found = [scene.say("conversation.item.retrieve", item_id=name)[0] for name in "abc"]
    assert scene.types(found) == ["error", *["conversation.item.retrieved"] * 2]


def test_s11_the_end() -> None:
    scene = RealtimeScene(limits=RealtimeLimits(max_session_s=60))
    (told,) = scene.fire(TimerName.SESSION)
    assert told["error"]["code"] == "session_expired"
    assert scene.closed is not None and scene.closed.code == 1000 and scene.releases == 1
    left = RealtimeScene()
    left.say("response.create")
    left.leave()
    assert left.releases == 1 and left.closed is None


def test_s12_the_engine_fails(scene: RealtimeScene) -> None:
    scene.respond(1)
    told = scene.tell(EngineFailed(GenerationFailedError()))
    assert scene.types(told) == [*CLOSED, "response.done", "error"]
    assert told[-2]["response"]["status"] == "failed"
    assert told[-1]["error"]["code"] == "internal_error"
    assert scene.closed is not None and scene.closed.code == 1011 and scene.releases == 1


def test_no_response_begins_once_the_engine_has_failed(scene: RealtimeScene) -> None:
    scene.detect({"type": "server_vad", "interrupt_response": False})
    scene.say("response.create")
    scene.hear(320, speech=True)
    scene.hear(640, speech=False)
    told = scene.tell(EngineFailed(GenerationFailedError()))
    assert scene.types(told) == ["response.done", "error"]


def test_the_page_names_every_event() -> None:
    page = (ROOT / "docs" / "openai-realtime.md").read_text(encoding="utf8")
    for kind in openai_errors.event_types(realtime.ClientEvent):
        assert f"`{kind}`" in page
