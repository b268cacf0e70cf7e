"""Full duplex: pictures that arrive ahead of their unit are prefetched, and no others."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocols.duplex import DuplexMachine
from core.protocols.effects import Effect, Frame, Prefetch, Step
from core.protocols.events import FinalizeDone, Prefetched, PrefillDone, StepDone
from tests.fakes.duplex_scenes import CHUNK, LISTEN, listened, scene, step, unit_frames
from tests.fakes.scenes import Scene


def looked_at(stage: Scene) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pictures that the last event prefetched and dropped."""
    look = stage.only(Prefetch)
    return tuple(frame.data for frame in look.frames), tuple(frame.data for frame in look.dropped)


@pytest.fixture
def stage() -> Scene:
    return scene()


def test_a_picture_is_prefetched_on_arrival(stage: Scene) -> None:
    assert stage.say("video_frame", frame="f0") == ["Prefetch"]
    assert looked_at(stage) == (("f0",), ())
    assert stage.tell(Prefetched()) == []
    stage.say("audio_chunk", 0.2, audio=CHUNK)
    assert unit_frames(stage) == ("f0",)
    assert step(stage) == ["Send(result)", "Finalize"]


def test_a_unit_does_not_wait_for_a_prefetch(stage: Scene) -> None:
    """The handler makes the unit's step wait, or encode the picture itself."""
    stage.say("video_frame", frame="f0")
    assert stage.say("audio_chunk", 0.2, audio=CHUNK) == ["StartTimer(idle)", "Step"]
    assert stage.tell(Prefetched()) == [], "nobody has to forget what a unit took along"


def test_pictures_are_prefetched_during_another_unit(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.say("video_frame", 0.8, frame="f1") == ["Prefetch"]


def test_a_picture_that_begins_a_unit_is_not_prefetched(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", 0.004, frame="f0")
    stage.tell(Prefetched())
    step(stage)
    stage.say("audio_chunk", 1.0, audio=CHUNK)
    assert stage.say("video_frame", 0.004, frame="f1") == ["StopTimer(frame)", "Step"]


def test_pictures_inside_a_chunk_are_not_prefetched(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("audio_chunk", audio=CHUNK, frame_base64_list=["inline"])
    assert stage.say("video_frame", frame="loose") == ["Prefetch"]
    assert looked_at(stage) == (("loose",), ())


def test_pictures_that_arrive_during_a_prefetch_form_the_next_one(stage: Scene) -> None:
    stage.say("video_frame", frame="f0")
    assert stage.say("video_frame", frame="f1") == []
    assert stage.say("video_frame", frame="f2") == []
    assert stage.tell(Prefetched()) == ["Prefetch"]
    assert looked_at(stage) == (("f1", "f2"), ())


def test_a_surplus_picture_is_dropped_from_the_prefetch() -> None:
    stage = scene(max_frames_per_chunk=2)
    stage.say("video_frame", frame="f0")
    assert stage.say("video_frame", frame="f1") == []
    assert stage.say("video_frame", frame="f2") == ["Send(warning)"]
    assert stage.tell(Prefetched()) == ["Prefetch"]
    assert looked_at(stage) == (("f1",), ("f0",)), "two is what a unit can use"


def test_pictures_of_a_dropped_chunk_are_dropped_from_the_prefetch() -> None:
    stage = scene(max_backlog_chunks=1)
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", 0.5, frame="f1")
    stage.tell(Prefetched())
    stage.say("audio_chunk", 0.5, audio=CHUNK)
    assert stage.say("audio_chunk", 1.0, audio=CHUNK)[-1] == "Prefetch"
    assert looked_at(stage) == ((), ("f1",))


def test_the_same_picture_twice_is_two_pictures(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", frame="same")
    stage.tell(Prefetched())
    step(stage)
    assert stage.say("video_frame", 0.1, frame="same") == ["Prefetch"]
    assert looked_at(stage) == (("same",), ())


def test_a_picture_sent_before_the_session_is_prefetched_at_its_start() -> None:
    stage = scene(active=False)
    stage.say("prepare")
    assert stage.say("video_frame", frame="early") == []
    assert stage.tell(PrefillDone())[-1] == "Prefetch"
    assert looked_at(stage) == (("early",), ())


def test_a_pause_drops_the_pictures_that_wait_for_a_chunk(stage: Scene) -> None:
    stage.say("video_frame", frame="before")
    stage.tell(Prefetched())
    assert stage.say("pause")[-2:] == ["Send(paused)", "Prefetch"], "and no warning"
    assert looked_at(stage) == ((), ("before",))
    assert stage.say("video_frame", frame="during") == ["Send(warning)"]
    assert stage.tell(Prefetched()) == []
    stage.say("resume")
    stage.say("audio_chunk", audio=CHUNK)
    assert unit_frames(stage) == ()


def test_a_prefetch_overtaken_by_a_pause_is_dropped_after_it(stage: Scene) -> None:
    stage.say("video_frame", frame="before")
    assert stage.say("pause")[-1] == "Send(paused)"
    assert stage.tell(Prefetched()) == ["Prefetch"]
    assert looked_at(stage) == ((), ("before",))


def test_pictures_of_a_chunk_outlast_a_pause(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", frame="before")
    stage.tell(Prefetched())
    assert stage.say("pause")[-1] == "Send(paused)"
    step(stage)
    assert "Step" in stage.say("resume")
    assert unit_frames(stage) == ("before",)


def test_a_client_that_sends_only_pictures_does_not_keep_the_engine_busy() -> None:
    stage, looked = scene(max_frames_per_chunk=2), list[str]()
    for number in range(20):
        stage.say("video_frame", 0.04, frame=f"f{number}")
        looked += [
            frame.data
            for look in stage.effects
            if isinstance(look, Prefetch)
            for frame in look.frames
        ]
        stage.tell(Prefetched())
    assert looked == ["f0", "f1"]
    stage.say("audio_chunk", audio=CHUNK)
    assert unit_frames(stage) == ("f18", "f19"), "its unit looks at them itself"
    assert stage.say("video_frame", 0.5, frame="next") == ["Prefetch"]
    assert looked_at(stage) == (("next",), ())


def test_the_end_of_a_session_ends_its_prefetch(stage: Scene) -> None:
    stage.say("video_frame", frame="f0")
    assert stage.say("stop") == ["Cancel", "Send(stopped)", "Release", "Close"]


def test_a_full_context_ends_a_prefetch(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("video_frame", 0.5, frame="f1")
    told = stage.tell(listened(9_000))
    assert told == ["Send(result)", "Cancel", "Send(error)", "Release", "Close"]


MAX_FRAMES = 2


class Eyes:
    """A handler's pictures, which must be the waiting ones once no prefetch runs."""

    def __init__(self) -> None:
        self.held: Counter[Frame] = Counter()
        self.looks = 0
        self.left = MAX_FRAMES
        self.is_prefetching = False

    def take_in(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Prefetch(frames, dropped):
                    assert not self.is_prefetching, "two looks at once"
                    self.is_prefetching = True
                    self.looks += len(frames)
                    self.left -= len(frames)
                    assert self.left >= 0, "more than a unit can use"
                    assert not Counter(dropped) - self.held, "dropped what it never had"
                    self.held += Counter(frames)
                    self.held -= Counter(dropped)
                case Step(_, frames):
                    self.held -= Counter(frames)
                    self.left = MAX_FRAMES


SAID = ("audio_chunk", "video_frame", "video_frame", "pause", "resume", "prefetched", "stepped")


@given(st.lists(st.tuples(st.sampled_from(SAID), st.sampled_from([0.0, 0.01, 0.5]))))
def test_the_prefetched_pictures_are_the_waiting_ones(said: list[tuple[str, float]]) -> None:
    stage, eyes = scene(max_frames_per_chunk=MAX_FRAMES, max_backlog_chunks=2), Eyes()
    sent = 0
    for what, after_s in said:
        if what == "audio_chunk":
            stage.say(what, after_s, audio=CHUNK)
        elif what == "video_frame":
            sent += 1
            stage.say(what, after_s, frame=f"f{sent % 5}")
        elif what == "prefetched":
            if eyes.is_prefetching:
                eyes.is_prefetching = False
                stage.tell(Prefetched(), after_s)
        elif what == "stepped":
            stage.tell(StepDone(LISTEN), after_s)
            eyes.take_in(stage.effects)
            stage.tell(FinalizeDone())
        else:
            stage.say(what, after_s)
        eyes.take_in(stage.effects)
    stage.say("resume")
    eyes.take_in(stage.effects)
    stage.say("video_frame", frame="last")
    eyes.take_in(stage.effects)
    while eyes.is_prefetching:
        eyes.is_prefetching = False
        stage.tell(Prefetched())
        eyes.take_in(stage.effects)
    assert isinstance(stage.machine, DuplexMachine)
    given = stage.machine._input
    inside = (frame for entry in given._waiting for frame in entry.frames)
    waiting = Counter([*(frame for frame in inside if frame.is_separate), *given.held])
    assert not eyes.held - waiting, "nothing stays of what went"
    assert eyes.held == waiting or eyes.left == 0, "a picture is left out for the budget alone"
    assert eyes.looks <= sent + 1, "no picture is looked at twice"
    assert eyes.held.total() <= MAX_FRAMES * (2 + 1), "bounded"
