"""Client errors of GPT-Live (L7): each is named, none ends the session; any order is safe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.endpointing import SpeechStarted
from core.errors import ContextFullError, GenerationFailedError
from core.protocols.duplex_context import APPENDED_TOKENS, Append, Appended, Rebase
from core.protocols.effects import Finalize, Prefill, Release, Step
from core.protocols.events import (
    Detected,
    Disconnected,
    EngineFailed,
    Event,
    FinalizeDone,
    PrefillDone,
    Received,
    Rejected,
    StepDone,
    TimerFired,
    TimerName,
)
from core.schemas.duplex import Prepare
from core.schemas.gpt_live import AudioReceived
from tests.fakes.live_scenes import LISTEN, START, LiveScene, append, kinds, speak
from tests.fakes.protocols import OUTSIDE

APPENDS = ["instructions", "thinking", "commentary"]


@pytest.fixture
def live() -> LiveScene:
    scene = LiveScene()
    scene.start()
    return scene


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("no JSON", "invalid_event", None),
        ("[1]", "invalid_event", None),
        ('{"session":1}', "invalid_event", "type"),
        ('{"type":"session.sing"}', "invalid_event", "type"),
        ('{"type":"response.create"}', "invalid_event", None),
        ('{"type":"session.update"}', "missing_required_parameter", "session"),
        ('{"type":"session.input_audio.append"}', "missing_required_parameter", "audio"),
        ('{"type":"session.input_audio.append","audio":1}', "invalid_value", "audio"),
        ('{"type":"session.input_audio.append","audio":"§"}', "invalid_value", "audio"),
        ('{"type":"session.output_audio.fixture.play","audio":"AAA="}', None, None),
        ('{"type":"session.output_audio.fixture.play","audio":"AA=="}', "invalid_value", "audio"),
        (
            '{"type":"session.thinking.append","content":"x"}',
            "missing_required_parameter",
            "delegation_id",
        ),
        (
            '{"type":"session.thinking.append","content":"x","delegation_id":"d"}',
            "invalid_value",
            "delegation_id",
        ),
        ('{"type":"session.start","session":{"model":"x"}}', "session_already_started", None),
    ],
)
def test_l7_errors_are_named_and_the_session_continues(
    live: LiveScene, text: str, code: str | None, param: str | None
) -> None:
    named = text.replace('{"type"', '{"event_id":"mine","type"')
    told = live.say_text(named)
    if code is None:
        assert "error" not in kinds(told)
        return
    (error,) = told
    assert error["error"]["code"] == code and error["error"].get("param") == param
    if "mine" in named and "sing" not in text:
        assert error["error"]["client_event_id"] == "mine"
    live.run(1.1)
    assert len(live.steps) == 1


@pytest.mark.parametrize("purpose", APPENDS)
def test_l7_a_text_of_600_tokens_is_too_long(live: LiveScene, purpose: str) -> None:
    (told,) = append(live, purpose, "word " * 600)
    assert told["error"]["code"] == "content_too_long" and told["error"]["param"] == "content"
    assert "600" in told["error"]["message"] and "500" in told["error"]["message"]
    assert len(live.prompts) == 1


def test_l7_appended_text_is_bounded(live: LiveScene) -> None:
    answers = [append(live, "thinking", "word " * 400)[-1] for _ in range(6)]
    codes = [answer.get("error", {}).get("code") for answer in answers]
    assert codes == [None] * 5 + ["content_too_long"]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "session.input_audio.append", "audio": "AAAA"},
        {"type": "session.input_audio.mute"},
        {"type": "session.commentary.append", "content": "x", "delegation_id": None},
        {"type": "session.output_audio.fixture.play", "audio": "AAA="},
        {"type": "session.update", "session": {}},
        {"type": "session.close"},
        {"type": "response.item.create"},
    ],
)
def test_l7_nothing_works_before_the_start(event: dict[str, Any]) -> None:
    scene = LiveScene()
    (told,) = scene.say_text(json.dumps(event | {"event_id": "e"}))
    assert told["error"]["code"] == "session_not_started"
    assert told["error"]["client_event_id"] == told["client_event_id"] == "e"


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"model": None}, "session.model"),
        ({"audio": {"format": {"type": "audio/pcm", "rate": 44_100}}}, "session.audio.format.rate"),
        ({"audio": {"format": {"type": "audio/mp3"}}}, "session.audio.format"),
        ({"input": [{"role": "user", "content": []}]}, "session.input[0].content"),
        ({"input": [{"role": "tool", "content": [{"text": "x"}]}]}, "session.input[0].role"),
        ({"delegation": {"type": "nobody"}}, "session.delegation.type"),
    ],
)
def test_l7_an_invalid_start_names_the_field(session: dict[str, Any], param: str) -> None:
    scene = LiveScene()
    (told,) = scene.start(**session)
    assert told["error"]["param"] == param and told["error"]["client_event_id"] == "start"
    assert kinds(scene.start())[0] == "session.started"


def test_instructions_that_exceed_the_context_are_named_with_the_limit() -> None:
    scene = LiveScene(max_kv_tokens=600)
    scene.is_held = True
    scene.start(instructions="word " * 700)
    error, closed = scene.tell(EngineFailed(ContextFullError()))
    assert error["client_event_id"] == "start"
    assert error["error"]["code"] == "context_length_exceeded"
    assert error["error"]["param"] == "session.instructions"
    assert "600 tokens" in error["error"]["message"]
    assert (closed["type"], closed["reason"]) == ("session.closed", "expired")


def test_a_context_that_fills_up_in_a_unit_is_reported_before_the_end(live: LiveScene) -> None:
    live.is_held = True
    live.run(1.1)
    error, closed = live.tell(EngineFailed(ContextFullError()))
    assert error["error"]["code"] == "context_length_exceeded"
    assert "param" not in error["error"] and "client_event_id" not in error
    assert (closed["type"], closed["reason"]) == ("session.closed", "expired")


def test_an_event_that_is_too_big_is_refused_and_the_session_continues(live: LiveScene) -> None:
    (told,) = live.tell(Rejected(GenerationFailedError("The message has 9 bytes.")))
    assert told["error"]["code"] == "invalid_event"
    live.run(1.1)
    assert len(live.steps) == 1


def test_the_type_of_a_delegation_is_fixed() -> None:
    scene = LiveScene()
    scene.start(delegation={"type": "responses", "responses": {"model": "a"}})
    change: dict[str, Any] = {"delegation": {"type": "responses", "responses": {"model": "b"}}}
    (told,) = scene.say("session.update", session=change)
    assert told["session"]["delegation"]["responses"] == {"model": "b"}
    change = {"delegation": {"type": "client"}}
    (told,) = scene.say("session.update", session=change)
    assert told["error"]["param"] == "session.delegation.type"


def test_a_delegation_that_an_update_asks_for_is_reported_once() -> None:
    scene = LiveScene()
    scene.start()
    change = {"delegation": {"type": "client"}}
    updated, note = scene.say("session.update", session=change)
    assert updated["session"]["delegation"] == {"type": "client"}
    assert (note["type"], note["code"]) == ("info", "delegation_unsupported")
    assert kinds(scene.say("session.update", session=change)) == ["session.updated"]
    assert kinds(scene.say("session.update", session={"triggers": []})) == ["session.updated"]
    early = LiveScene()
    early.is_held = True
    early.start()
    assert kinds(early.say("session.update", session=change)) == ["session.updated"]
    early.is_held = False
    early.answer()
    codes = [event["code"] for event in early.told if event["type"] == "info"]
    assert codes == ["input_transcript_unavailable", "delegation_unsupported"]


SECOND = Received(AudioReceived(samples=bytes(64_000)))
ENDS: dict[type, tuple[Event, ...]] = {
    Prefill: (PrefillDone(kv_tokens=10), EngineFailed(GenerationFailedError())),
    Step: (
        StepDone(LISTEN.model_copy(update={"kv_cache_length": 10})),
        StepDone(speak().model_copy(update={"kv_cache_length": 8_000})),
        StepDone(speak(end_of_turn=True).model_copy(update={"kv_cache_length": 9_000})),
    ),
    Finalize: (FinalizeDone(kv_tokens=10), FinalizeDone(kv_tokens=9_000)),
}
TEXTS: tuple[dict[str, Any], ...] = (
    {"type": "session.start", "session": START},
    {"type": "session.update", "session": {"triggers": []}},
    {"type": "session.input_image.append", "image": "a"},
    {"type": "session.input_audio.mute"},
    {"type": "session.output_audio.fixture.play", "audio": "AAA="},
    *(
        {"type": f"session.{kind}.append", "content": "x", "delegation_id": None}
        for kind in APPENDS
    ),
    {"type": "response.create"},
    {"type": "nothing"},
)


@given(st.data())
def test_any_order_of_events_ends_in_one_release(data: st.DataObject) -> None:
    """Work never overlaps, nothing raises, and all effects are in the table."""
    scene = LiveScene(max_session_s=9.0)
    scene.is_held = True
    if data.draw(st.booleans(), label="begun"):
        scene.start()
    events = [*OUTSIDE, *[SECOND] * 8, *[TimerFired(TimerName.PACE)] * 8]
    events += [scene.read(json.dumps(text)) for text in TEXTS * 2]
    for _ in range(data.draw(st.integers(0, 40), label="events")):
        work = [asked for asked in scene.asked if type(asked) in ENDS]
        assert len(work) <= 1, f"{work} at once"
        assert len(scene.asked) - len(work) <= 1, "one piece of sound is detected at a time"
        answers = [end for asked in work for end in ENDS[type(asked)]]
        if len(scene.asked) > len(work):
            answers += [Detected(), Detected((SpeechStarted(0),))]
        event = data.draw(st.sampled_from([*answers * 8, *events]), label="event")
        if event in answers:
            is_detected = isinstance(event, Detected)
            scene.asked = [each for each in scene.asked if (each in work) is is_detected]
        scene.tell(event, data.draw(st.sampled_from([0.0, 0.1, 1.0])))
        if scene.stage.machine.is_closed:
            break
    if not scene.stage.machine.is_closed:
        scene.tell(Disconnected())
    assert sum(isinstance(effect, Release) for effect in scene.stage.history) == 1
    assert kinds(scene.told).count("session.closed") <= 1


def test_empty_texts_are_bounded_too() -> None:
    rebase, empty = Rebase(Prepare(), len), Appended(Append.THINKING, "")
    for _ in range(APPENDED_TOKENS):
        rebase.append(empty)
    assert not rebase.has_room(empty)


def test_a_recording_that_comes_too_soon_is_told_what_to_wait_for() -> None:
    scene = LiveScene()
    scene.is_held = True
    scene.start()
    told = scene.say("session.output_audio.fixture.play", audio="AAA=", event_id="f")
    assert told[0]["error"]["code"] == "session_not_started"
    assert told[0]["error"]["message"] == "Wait for 'session.started' first."
