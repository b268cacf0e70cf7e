"""Realtime with the duplex engine, where the model decides when to speak."""

from __future__ import annotations

from collections import deque

import pytest

from core.errors import AudioError, RateLimitedError
from core.protocols.effects import StopTimer
from core.protocols.events import Prefetched, TimerName, TurnFailed
from core.protocols.realtime_items import RealtimeLimits
from tests.fakes.realtime_checks import ANSWER, CLOSED, OPENED, SEGMENT, TOOLS
from tests.fakes.realtime_scene import Raw, RealtimeScene

SOUND, WORDS = "response.output_audio.delta", "response.output_audio_transcript.delta"


@pytest.fixture
def scene() -> RealtimeScene:
    return RealtimeScene()


@pytest.fixture
def live(scene: RealtimeScene) -> RealtimeScene:
    """A session that listens, after a second of silence."""
    scene.semantic()
    scene.talk(1_000, speech=False)
    return scene


@pytest.fixture
def spoken(live: RealtimeScene) -> RealtimeScene:
    return speaking(live)


def speaking(scene: RealtimeScene) -> RealtimeScene:
    scene.engine.units = [("One two", 1_000, False), (" three four.", 1_000, True)]
    scene.talk(1_000, speech=False)
    assert scene.types()[-1] == SOUND
    return scene


def engine_of(told: Raw) -> str:
    """The engine that a session reports."""
    return str(told["session"]["minicpmo"]["engine"])


@pytest.mark.parametrize(
    ("model", "detection", "tools", "engine"),
    [
        ("minicpm-o-4.5", {"type": "server_vad"}, [], "turn"),
        ("minicpm-o-4.5", None, [], "turn"),
        ("minicpm-o-4.5", {"type": "semantic_vad"}, [], "live"),
        ("minicpm-o-4.5", {"type": "semantic_vad"}, TOOLS, "turn"),
        ("minicpm-o-4.5-live", None, TOOLS, "live"),
        ("minicpm-o-4.5-turn", {"type": "semantic_vad"}, [], "turn"),
    ],
)
def test_the_choice_of_the_engine(
    model: str, detection: Raw | None, tools: list[Raw], engine: str
) -> None:
    scene = RealtimeScene(model=model)
    audio = {"input": {"turn_detection": detection}}
    (told,) = scene.say("session.update", session={"audio": audio, "tools": tools})
    assert engine_of(told) == engine
    scene.talk(1_000, speech=False)
    assert len(scene.engine.steps) == (engine == "live")


def test_s9_the_model_answers_when_it_wants_to(live: RealtimeScene) -> None:
    assert live.types(live.talk(800, speech=True)) == SEGMENT[:1]
    live.engine.units = [("Hello", 1_000, False), (" there.", 500, True)]
    told = live.talk(2_000, speech=False)
    kinds = live.types(told)
    # Silence has not ended the turn yet: the model did.
    assert kinds[: len(SEGMENT) + 4] == [*SEGMENT[1:], "response.created", *OPENED, SOUND]
    assert kinds[-len(CLOSED) - 1 :] == [*CLOSED, "response.done"]
    done = told[-1]["response"]
    assert done["status"] == "completed"
    assert done["output"][0]["content"][0]["transcript"] == "Hello there."
    assert done["usage"]["output_token_details"] == {"text_tokens": 2, "audio_tokens": 37}


def test_a_listening_unit_ends_a_response(live: RealtimeScene) -> None:
    live.engine.units = [("Well", 1_000, False)]
    live.talk(2_000, speech=False)
    assert live.last("response.done")["response"]["status"] == "completed"


def test_speech_interrupts_the_model_and_the_next_unit_listens(spoken: RealtimeScene) -> None:
    told = spoken.talk(200, speech=True)
    assert spoken.types(told) == [SEGMENT[0], *CLOSED, "response.done"]
    assert told[-1]["response"]["status_details"]["reason"] == "turn_detected"
    steps = len(spoken.engine.steps)
    assert SOUND not in spoken.types(spoken.talk(800, speech=True))
    assert len(spoken.engine.steps) == steps + 1


def test_audio_in_generation_is_not_sent_after_an_interruption(live: RealtimeScene) -> None:
    live.engine.units = [("One two", 1_000, False)]
    live.hear(1_000, speech=False)
    live.make(1)  # its beginning
    assert live.types()[-1] == SOUND
    live.say("response.cancel")
    assert SOUND not in live.types(live.make())
    (done,) = [each for each in live.told if each["type"] == "response.done"]
    assert done["response"]["status"] == "cancelled"


def test_a_short_sound_while_the_model_speaks_has_no_effect(spoken: RealtimeScene) -> None:
    assert spoken.types(spoken.hear(96, speech=True)) == []


def test_without_interruptions_speech_becomes_the_next_item(scene: RealtimeScene) -> None:
    scene.semantic(interrupt_response=False)
    scene.talk(1_000, speech=False)
    speaking(scene)
    assert scene.types(scene.talk(300, speech=True)) == SEGMENT[:1]
    told = scene.talk(1_500, speech=False)
    assert scene.last("response.done")["response"]["status"] == "completed"
    assert "input_audio_buffer.committed" in scene.types(told)


@pytest.mark.parametrize(("eagerness", "scale"), [("low", 1.3), ("medium", 1.0), ("high", 0.7)])
def test_a_model_that_keeps_listening_is_forced_to_respond(
    scene: RealtimeScene, eagerness: str, scale: float
) -> None:
    scene.semantic(eagerness=eagerness)
    scene.talk(1_000, speech=True)
    scene.talk(1_500, speech=False)
    assert scene.types()[-len(SEGMENT) + 1 :] == SEGMENT[1:]
    assert scene.engine.prompts[0].config.listen_prob_scale == scale
    scene.fire(TimerName.ANSWER)
    scene.settle()
    assert scene.engine.steps[-1].must_speak
    assert scene.last("response.done")["response"]["output"][0]["status"] == "completed"


def test_gaps_are_filled_with_silence_only_while_a_response_is_due(live: RealtimeScene) -> None:
    live.talk(500, speech=True)
    live.talk(1_000, speech=False)
    steps = len(live.engine.steps)
    live.engine.units = [("Yes.", 500, True)]
    live.fire(TimerName.PACE, 3.0)
    live.make()
    assert len(live.engine.steps) > steps and live.types()[-1] == "response.done"
    steps = len(live.engine.steps)
    live.fire(TimerName.PACE, 3.0)
    assert live.make() == [] and len(live.engine.steps) <= steps + 3
    live.fire(TimerName.PACE, 30.0)
    assert live.make() == []


def test_without_create_response_the_model_only_listens(scene: RealtimeScene) -> None:
    scene.semantic(create_response=False)
    scene.engine.units = [("No.", 500, True)]
    scene.talk(1_000, speech=True)
    scene.talk(2_000, speech=False)
    assert "response.created" not in scene.types()
    scene.say("response.create")
    scene.settle()
    assert scene.types()[-1] == "response.done"


def test_no_response_is_due_once_the_client_requests_them_itself(live: RealtimeScene) -> None:
    live.talk(1_000, speech=True)
    live.talk(1_500, speech=False)
    first = len(live.effects)
    live.semantic(create_response=False)
    assert StopTimer(TimerName.ANSWER) in live.effects[first:]


def test_text_items_reach_the_model_during_a_call(live: RealtimeScene) -> None:
    live.talk(800, speech=True)
    live.engine.units = [("Hello there.", 800, True)]
    live.talk(1_200, speech=False)
    live.text("My name is Ada.")
    created = live.say("response.create", response={"metadata": {"k": "v"}})
    assert live.types(created) == ["response.created"]
    live.settle()
    prompt = live.engine.prompts[-1]
    assert prompt.suffix_system_prompt is not None
    said = prompt.suffix_system_prompt.partition("previous: ")[2].splitlines()
    assert said[0].startswith("User: [the user spoke for ")
    assert said[1:] == ["Assistant: Hello there.", "User: My name is Ada."]
    assert live.engine.steps[-1].must_speak and not live.engine.asked
    assert live.last("response.done")["response"]["metadata"] == {"k": "v"}


def test_a_response_with_its_own_settings_uses_the_turn_engine_and_enters_the_prompt(
    live: RealtimeScene,
) -> None:
    live.text("Hi")
    live.say("response.create", response={"instructions": "Sing."})
    assert live.types(live.make()) == ANSWER[1:]
    (request,) = live.engine.asked
    assert request.system == "Sing." and request.is_beside_units and not request.is_outside
    live.talk(1_000, speech=False)
    assert "Assistant: Hello there." in (live.engine.prompts[-1].suffix_system_prompt or "")
    live.say("response.create", response={"conversation": "none"})
    prompts = len(live.engine.prompts)
    live.make()
    live.talk(1_000, speech=False)
    assert len(live.engine.asked) == 2 and len(live.engine.prompts) == prompts


def test_a_cancelled_turn_does_not_cancel_the_next_reply(spoken: RealtimeScene) -> None:
    spoken.say("response.cancel")
    spoken.say("response.create", response={"instructions": "Sing."})
    spoken.settle()
    assert spoken.last("response.done")["response"]["status"] == "completed"


def test_a_queued_response_begins_without_audio_once_the_active_one_was_cancelled(
    spoken: RealtimeScene,
) -> None:
    spoken.say("response.create", response={"conversation": "none"})
    spoken.say("response.cancel")
    assert not spoken.engine.asked
    spoken.fire(TimerName.PACE, 0.1)
    spoken.make()
    assert spoken.last("response.done")["response"]["status"] == "completed"
    assert len(spoken.engine.asked) == 1


def test_a_greeting_uses_the_turn_engine(scene: RealtimeScene) -> None:
    scene.semantic()
    told = scene.respond()
    assert scene.types(told) == ANSWER and len(scene.engine.asked) == 1


@pytest.mark.parametrize("change", ["instructions", "delete", "truncate"])
def test_changes_of_the_conversation_restart_the_duplex_session(
    spoken: RealtimeScene, change: str
) -> None:
    spoken.talk(1_000, speech=False)
    item = spoken.last("conversation.item.done")["item"]["id"]
    match change:
        case "instructions":
            spoken.say("session.update", session={"instructions": "Be loud."})
        case "delete":
            spoken.say("conversation.item.delete", item_id=item)
        case "truncate":
            spoken.say("conversation.item.truncate", item_id=item, audio_end_ms=900)
            heard = spoken.say("conversation.item.retrieve", item_id=item)[0]["item"]
            assert heard["content"][0]["transcript"] == "One"
    assert len(spoken.engine.prompts) == 1
    spoken.talk(1_000, speech=False)
    prompt = spoken.engine.prompts[1]
    said = {
        "instructions": "Assistant: One two three four.",
        "truncate": "Assistant: One",
        "delete": None,
    }[change]
    assert (prompt.suffix_system_prompt or "").partition("previous: ")[2] == (said or "")
    loud = "Be loud." if change == "instructions" else "Be brief."
    assert prompt.prefix_system_prompt == loud and prompt.config.force_listen_count == 0


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_message_truncated_while_it_is_spoken_restarts_the_duplex_session(
    spoken: RealtimeScene, is_cancelled: bool
) -> None:
    item = spoken.last("response.output_item.added")["item"]["id"]
    spoken.say("conversation.item.truncate", item_id=item, audio_end_ms=900)
    if is_cancelled:
        spoken.say("response.cancel")
    spoken.talk(2_000, speech=False)
    assert len(spoken.engine.prompts) == 2
    said = (spoken.engine.prompts[1].suffix_system_prompt or "").partition("previous: ")[2]
    assert said == "Assistant: One"


def test_pictures_go_into_the_next_unit(scene: RealtimeScene) -> None:
    (told,) = scene.say("input_image_buffer.append", image="AAAA", event_id="e1")
    assert told["error"]["code"] == "invalid_event" and told["error"]["event_id"] == "e1"
    scene.semantic()
    assert scene.say("input_image_buffer.append", image="AAAA") == []
    content = [{"type": "input_image", "image_url": "data:image/png;base64,BBBB"}]
    item = {"type": "message", "role": "user", "content": content}
    scene.say("conversation.item.create", item=item)
    scene.talk(1_000, speech=False)
    assert [frame.data for frame in scene.engine.steps[0].frames] == ["AAAA", "BBBB"]
    scene.say("input_image_buffer.append", image="CCCC")
    scene.talk(1_000, speech=False)
    assert [frame.data for frame in scene.engine.steps[1].frames] == ["CCCC"]
    assert len(scene.engine.prompts) == 1, "and the conversation goes on"


def test_a_limit_of_tokens_ends_a_response(scene: RealtimeScene) -> None:
    scene.semantic()
    scene.say("session.update", session={"max_output_tokens": 2})
    scene.engine.units = [("One two", 1_000, False), (" three four.", 1_000, True)]
    scene.talk(1_000, speech=False)
    done = scene.last("response.done")["response"]
    assert done["status"] == "incomplete"
    assert done["status_details"]["reason"] == "max_output_tokens"
    assert SOUND not in scene.types(scene.talk(1_000, speech=False))


@pytest.mark.parametrize("sample", ["AAAA", None])
def test_an_unusable_voice_is_reported_and_ignored(
    scene: RealtimeScene, sample: str | None
) -> None:
    scene.semantic()
    output = {"output": {"voice": "Ada", "voice_sample": sample}}
    scene.say("session.update", session={"audio": output})
    scene.text("Hi")
    scene.say("response.create")
    scene.engine._unit_work = deque([TurnFailed(AudioError("No sound."))])
    told = scene.make()
    if sample is None:
        assert scene.closed is not None and scene.releases == 1
        return
    assert told[0]["error"]["param"] == "session.audio.output.voice_sample"
    assert told[1]["response"]["status"] == "failed"
    scene.talk(1_000, speech=False)
    assert [prompt.ref_audio_base64 for prompt in scene.engine.prompts] == ["AAAA", None]
    assert len(scene.engine.steps) == 1


def test_text_responses_have_no_audio(scene: RealtimeScene) -> None:
    scene.semantic()
    scene.say("session.update", session={"output_modalities": ["text"]})
    scene.engine.units = [("Hello.", 0, True)]
    scene.talk(1_000, speech=False)
    assert not scene.engine.prompts[0].config.generate_audio
    assert scene.only("response.output_text.done")["text"] == "Hello."


def test_the_session_restarts_before_the_context_is_full() -> None:
    scene = RealtimeScene(limits=RealtimeLimits(max_kv_tokens=2_000, kv_reserve_tokens=200))
    scene.semantic()
    scene.talk(1_000, speech=False)
    scene.engine.kv_tokens = 1_900
    scene.talk(2_000, speech=False)
    assert len(scene.engine.prompts) > 1 and scene.closed is None


def test_the_engine_changes_between_responses_and_keeps_the_settings(spoken: RealtimeScene) -> None:
    (told,) = spoken.say("session.update", session={"tools": TOOLS})
    assert engine_of(told) == "turn"
    spoken.talk(1_000, speech=False)
    assert spoken.types()[-1] == "response.done", "the response ends where it began"
    steps = len(spoken.engine.steps)
    spoken.talk(2_000, speech=False)
    assert len(spoken.engine.steps) == steps
    spoken.respond()
    assert len(spoken.engine.asked) == 1
    spoken.say("session.update", session={"tools": []})
    spoken.talk(1_000, speech=False)
    assert len(spoken.engine.steps) == steps + 1 and len(spoken.engine.prompts) == 2


def test_audio_far_ahead_of_the_clock_is_dropped(scene: RealtimeScene) -> None:
    scene.semantic()
    for _ in range(60):
        scene.hear(1_000, speech=False)
        scene.now_s -= 1.0  # all at once
        scene.make()
    assert len(scene.engine.steps) <= 4 and scene.closed is None


def test_cancelling_again_and_again_ends_no_session(live: RealtimeScene) -> None:
    live.text("Hi")
    for _ in range(200):
        live.respond()
        live.say("response.cancel")
        live.now_s += 0.02
    assert live.closed is None and live.releases == 0
    live.say("response.create")
    live.settle()
    assert live.types()[-1] == "response.done"


def test_an_engine_that_ends_by_itself_ends_the_session_once(live: RealtimeScene) -> None:
    live.machine.units.fail(RateLimitedError())
    (told,) = live.tell(Prefetched())
    assert (told["type"], told["error"]["type"]) == ("error", "server_error")
    assert live.closed is not None and live.releases == 1
