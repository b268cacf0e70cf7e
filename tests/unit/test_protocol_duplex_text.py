"""Text typed during a full-duplex session."""

from __future__ import annotations

import pytest

from core.protocols.effects import Prefill, Step
from core.protocols.events import Disconnected, PrefillDone, Segment, Transcribed
from core.schemas.duplex import TextAdded
from core.schemas.queue import WarningMessage
from tests.fakes.duplex_scenes import CHUNK, LAST_WORDS, SPEAK, scene, step
from tests.fakes.scenes import Scene


def chunk(stage: Scene) -> list[str]:
    return stage.say("audio_chunk", audio=CHUNK)


def test_typed_text_restarts_the_conversation_before_the_next_unit() -> None:
    stage = scene(prepare={"prefix_system_prompt": "Be kind.", "suffix_system_prompt": "Go."})
    chunk(stage)
    step(stage, LAST_WORDS)
    assert stage.say("text_input", text=" My name is Ann. ") == ["Send(text_added)"]
    assert stage.only(TextAdded) == TextAdded(text="My name is Ann.", start_ms=1_000)
    assert chunk(stage) == ["StartTimer(idle)", "Prefill"]
    prompt = stage.effects[-1].message
    assert prompt.prefix_system_prompt == "Be kind."
    assert prompt.suffix_system_prompt == "Go.\n\nprevious: Assistant: .\nUser: My name is Ann."
    assert prompt.config.force_listen_count == 0
    assert stage.tell(PrefillDone()) == ["Step"]
    assert stage.only(Step).must_speak
    step(stage)
    chunk(stage)
    assert not stage.only(Step).must_speak, "one unit alone"


def test_typed_text_waits_for_the_end_of_the_models_turn_and_may_forgo_a_reply() -> None:
    stage = scene()
    chunk(stage)
    step(stage, SPEAK)
    stage.say("text_input", text="Later.", force_speak=False)
    assert chunk(stage)[-1] == "Step"
    assert step(stage, LAST_WORDS)[-1] == "Prefill"
    prompt = stage.only(Prefill).message
    assert prompt.suffix_system_prompt == "\n\nprevious: Assistant: Hello.\nUser: Later."
    stage.tell(PrefillDone())
    chunk(stage)
    assert not stage.only(Step).must_speak


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["  "], "'text' is empty."),
        (["x" * 1_001], "'text' has 1001 characters; 1000 are allowed."),
        (["x" * 900, "x" * 100], "'text' was dropped: 1000 characters wait"),
    ],
)
def test_typed_text_that_does_not_fit_is_refused_with_a_warning(
    texts: list[str], problem: str
) -> None:
    stage = scene()
    for text in texts:
        stage.say("text_input", text=text)
    assert stage.only(WarningMessage).message.startswith(problem)


def test_the_restarted_prompt_contains_both_sides_of_the_conversation() -> None:
    stage = scene(prepare={"transcribe": True})
    stage.tell(Transcribed(Segment(b""), "Hello."))
    stage.say("text_input", text="Typed.")
    chunk(stage)
    assert "User: Hello. Typed." in stage.only(Prefill).message.suffix_system_prompt


@pytest.mark.parametrize("end", ["stop", "disconnect"])
def test_a_session_that_ends_during_a_restart_is_released_once(end: str) -> None:
    stage = scene()
    stage.say("text_input", text="Hello.")
    chunk(stage)
    if end == "stop":
        stage.say("stop")
        stage.tell(PrefillDone())
    else:
        stage.tell(Disconnected())
    assert stage.releases == 1


def test_text_before_prepare_is_refused_with_a_warning() -> None:
    stage = scene(active=False)
    assert stage.say("text_input", text="Hello.") == ["Send(warning)"]
