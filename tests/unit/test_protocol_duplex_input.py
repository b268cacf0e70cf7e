"""Full duplex: input of a unit: backlog, pictures, and barge-in."""

from __future__ import annotations

import base64

import pytest

from core.endpointing import SpeechStarted
from core.protocols.effects import Detect, Step
from core.protocols.events import (
    Detected,
    FinalizeDone,
    Prefetched,
    PrefillDone,
    StepDone,
)
from core.schemas.duplex import Result
from core.schemas.queue import WarningMessage
from tests.fakes.duplex_scenes import CHUNK, LISTEN, SPEAK, scene, step, unit_frames
from tests.fakes.scenes import Scene, audio


@pytest.fixture
def stage() -> Scene:
    return scene()


def test_beyond_the_backlog_the_oldest_chunk_is_dropped(stage: Scene) -> None:
    for number in range(5):
        told = stage.say("audio_chunk", audio=CHUNK, seq=number)
    assert told == ["Send(warning)", "StartTimer(idle)"]
    warning = stage.only(WarningMessage)
    assert warning.code == "late_chunk"
    assert "1 chunks dropped" in warning.message
    assert stage.say("audio_chunk", audio=CHUNK, seq=5) == ["StartTimer(idle)"], "warned already"
    begun = [(0, 0)]
    while step(stage)[-1] == "Step":
        begun.append((stage.only(Step).chunk.seq, stage.only(Step).start_samples))
    samples = len(base64.b64decode(CHUNK)) // 4
    assert begun == [(number, number * samples) for number in (0, 3, 4, 5)]


def test_drops_are_reported_once_per_unit(stage: Scene) -> None:
    for _ in range(6):
        stage.say("audio_chunk", audio=CHUNK)
    step(stage)
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.say("audio_chunk", audio=CHUNK) == ["Send(warning)", "StartTimer(idle)"]
    assert "3 chunks dropped" in stage.only(WarningMessage).message


# --- pictures ---


def test_a_frame_belongs_to_the_oldest_waiting_chunk(stage: Scene) -> None:
    for number in range(3):
        stage.say("audio_chunk", 1.0, audio=CHUNK, seq=number)
    stage.say("video_frame", 0.5, frame="f1")
    stage.say("video_frame", 0.1, frame="f2")
    step(stage)
    assert (stage.only(Step).chunk.seq, unit_frames(stage)) == (1, ("f1", "f2"))


def test_a_frame_without_a_chunk_waits_for_the_next() -> None:
    stage = scene(active=False)
    stage.say("prepare")
    assert stage.say("video_frame", frame="early") == []
    stage.tell(PrefillDone())
    stage.say("video_frame", 0.5, frame="f1")
    stage.say("audio_chunk", 0.5, audio=CHUNK, frame_base64_list=["inline"])
    assert unit_frames(stage) == ("early", "f1", "inline")


def test_the_newest_frames_are_kept(stage: Scene) -> None:
    told = [stage.say("video_frame", 0.1, frame=f"f{number}") for number in range(6)]
    assert told == [["Prefetch"], [], [], [], ["Send(warning)"], []]
    stage.say("audio_chunk", 0.1, audio=CHUNK, frame_base64_list=["inline"])
    assert unit_frames(stage) == ("f3", "f4", "f5", "inline")


def test_surplus_frames_are_reported(stage: Scene) -> None:
    told = stage.say("audio_chunk", audio=CHUNK, frame_base64_list=list("abcdef"))
    assert told == ["Send(warning)", "StartTimer(idle)", "Step"]
    assert stage.only(WarningMessage).code == "bad_frame"
    assert unit_frames(stage) == tuple("cdef")


def test_a_chunk_waits_for_its_frame_once_frames_follow_chunks(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", 0.004, frame="f0")  # right behind: this client sends them so
    step(stage)
    assert stage.say("audio_chunk", 1.0, audio=CHUNK) == ["StartTimer(idle)", "StartTimer(frame)"]
    assert stage.effects[-1].delay_s == pytest.approx(0.02)
    assert stage.say("video_frame", 0.004, frame="f1") == ["StopTimer(frame)", "Step"]
    assert unit_frames(stage) == ("f0", "f1")
    step(stage)
    stage.say("audio_chunk", 1.0, audio=CHUNK)
    assert stage.say("video_frame", 0.004, frame="f2") == ["StopTimer(frame)", "Step"]
    assert unit_frames(stage) == ("f2",), "from now on each chunk has its own"


def test_a_missing_frame_ends_the_waiting(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", 0.004, frame="f0")
    step(stage)
    stage.say("audio_chunk", 1.0, audio=CHUNK)
    assert stage.fire("frame", 0.02) == ["Step"]
    step(stage)
    assert stage.say("audio_chunk", 1.0, audio=CHUNK) == ["StartTimer(idle)", "Step"]


def test_a_client_that_sends_frames_first_never_waits(stage: Scene) -> None:
    for number in range(3):
        assert stage.say("video_frame", 0.5, frame=f"f{number}") == ["Prefetch"]
        assert stage.tell(Prefetched(), 0.1) == []
        assert stage.say("audio_chunk", 0.4, audio=CHUNK) == ["StartTimer(idle)", "Step"]
        assert unit_frames(stage) == (f"f{number}",)
        step(stage)


def test_a_camera_that_starts_late_delays_no_unit(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    step(stage)
    for number in range(3):
        stage.say("video_frame", 0.9, frame=f"f{number}")  # long after the last chunk
        told = stage.say("audio_chunk", 0.1, audio=CHUNK)
        assert told == ["StartTimer(idle)", "Step"]
        step(stage)


def test_time_spent_behind_a_running_unit_counts_as_waiting(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", 0.004, frame="f0")
    stage.say("audio_chunk", 0.5, audio=CHUNK)
    stage.tell(StepDone(LISTEN), 0.1)
    assert stage.tell(FinalizeDone()) == ["Step"]


def test_a_late_frame_timer_has_no_effect(stage: Scene) -> None:
    assert stage.fire("frame") == []


# --- the server's own barge-in ---


def test_without_the_policy_nothing_is_detected(stage: Scene) -> None:
    assert "Detect" not in stage.say("audio_chunk", audio=CHUNK)


def test_the_users_speech_interrupts_the_model() -> None:
    stage = scene(prepare={"barge_in": {"threshold": 0.9}})
    assert stage.say("audio_chunk", audio=CHUNK, seq=0) == ["StartTimer(idle)", "Detect"]
    assert stage.tell(Detected((SpeechStarted(0),))) == ["Step"], "the model is silent"
    step(stage, SPEAK)
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.tell(Detected()) == ["Step"], "nobody begins to speak"
    step(stage, SPEAK)
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.tell(Detected((SpeechStarted(0),))) == ["Interrupt", "Step"]
    stage.tell(StepDone(LISTEN))
    assert stage.only(Result).barge_in


def test_one_chunk_is_in_detection_at_a_time() -> None:
    stage = scene(prepare={"barge_in": {}})
    stage.say("audio_chunk", audio=CHUNK, seq=0)
    other = audio(500)
    assert stage.say("audio_chunk", audio=other, seq=1) == ["StartTimer(idle)"]
    assert stage.tell(Detected()) == ["Detect", "Step"]
    assert stage.only(Detect).samples == base64.b64decode(other)
    assert stage.only(Step).chunk.seq == 0
    assert step(stage) == ["Send(result)", "Finalize"], "the next is not detected yet"
    assert stage.tell(Detected()) == ["Step"]


def test_detection_of_a_dropped_chunk_has_no_effect() -> None:
    stage = scene(prepare={"barge_in": {}})
    for number in range(5):
        stage.say("audio_chunk", audio=CHUNK, seq=number)
    assert stage.tell(Detected()) == ["Detect"]
    assert stage.tell(Detected()) == ["Detect", "Step"]
    assert stage.only(Step).chunk.seq == 2


def test_a_unit_may_be_forced_to_speak(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK, force_speak=True)
    step = stage.only(Step)
    assert (step.chunk.force_speak, step.chunk.force_listen) == (True, False)
