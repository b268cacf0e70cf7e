"""Rules common to full and half duplex: preparation, limits, stop, failures, and rate of audio."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from core.endpointing import SpeechStarted
from core.errors import (
    AudioError,
    BadPayloadError,
    CloseCode,
    ErrorCode,
    GenerationFailedError,
    PictureError,
    UnknownTypeError,
)
from core.protocols.effects import Close, ServerMessage, StartTimer
from core.protocols.events import (
    AudioReady,
    ChunkReady,
    Detected,
    Disconnected,
    EngineFailed,
    EngineWarning,
    Event,
    Failure,
    GenerateDone,
    PrefillDone,
    Rejected,
    Segment,
    ShuttingDown,
    StepDone,
    StopRequested,
    TimerName,
    TurnFailed,
)
from core.schemas import duplex, half_duplex
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import StreamingChunk
from core.schemas.worker import WorkerStatus
from tests.fakes.duplex_scenes import CHUNK, LISTEN, half_duplex_scene
from tests.fakes.duplex_scenes import scene as duplex_scene
from tests.fakes.scenes import Scene, audio

ENDED = ["Release", "Close"]
FAILED = EngineFailed(GenerationFailedError())


class Kind(NamedTuple):
    scene: Callable[..., Scene]
    begin_work: Callable[[Scene], object]
    part: Event  # of its result
    ends: tuple[Event, ...]
    stopped: ServerMessage
    commands: tuple[str, ...]

    def busy_scene(self, *, is_busy: bool = True, **limits: float) -> Scene:
        stage = self.scene(**limits)
        if is_busy:
            self.begin_work(stage)
        return stage


def begin_unit(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)


def begin_reply(stage: Scene) -> None:
    stage.say("audio_chunk", 0.5, audio=audio(500))
    stage.tell(Detected((SpeechStarted(0), Segment(bytes(64_000)))))


FULL = Kind(
    duplex_scene,
    begin_unit,
    AudioReady(bytes(4)),
    (StepDone(LISTEN), FAILED),
    duplex.Stopped(session_id="omni_1", recording_session_id="rec_1"),
    ("pause", "resume", "interrupt"),
)
HALF = Kind(
    half_duplex_scene,
    begin_reply,
    ChunkReady(StreamingChunk(chunk_index=0, text_delta="Hi")),
    (GenerateDone("", stopped=True), TurnFailed(GenerationFailedError()), FAILED),
    half_duplex.Stopped(session_id="hdx_1", recording_session_id="rec_1"),
    ("interrupt",),
)
KINDS = pytest.mark.parametrize("kind", [FULL, HALF], ids=["duplex", "half_duplex"])
BUSY = pytest.mark.parametrize("is_busy", [False, True])


# --- preparation ---


@KINDS
def test_a_missing_prepare_times_out(kind: Kind) -> None:
    stage = kind.scene(active=False)
    assert stage.history == [StartTimer(TimerName.PREPARE, 60.0)]
    assert stage.fire("prepare", 60.0) == ["Send(error)", *ENDED]
    assert (stage.only(ErrorMessage).code, stage.only(Close).code) == ("timeout", 1000)


@KINDS
def test_before_prepare_nothing_works(kind: Kind) -> None:
    stage = kind.scene(active=False)
    for command in kind.commands:
        assert stage.say(command) == ["Send(warning)"]
        assert stage.only(WarningMessage).code == "not_prepared"


@KINDS
def test_early_audio_is_dropped_with_one_warning(kind: Kind) -> None:
    stage = kind.scene(active=False)
    assert stage.say("audio_chunk", audio=CHUNK) == ["Send(warning)"]
    assert stage.only(WarningMessage).code == "not_prepared"
    stage.say("prepare")
    assert stage.say("audio_chunk", audio=CHUNK) == []


@KINDS
def test_a_second_prepare_is_refused(kind: Kind) -> None:
    stage = kind.scene(active=False)
    stage.say("prepare")
    for _ in range(2):
        assert stage.say("prepare") == ["Send(warning)"]
        assert stage.only(WarningMessage).code == "already_prepared"
        stage.tell(PrefillDone())


# --- the end ---


@KINDS
@BUSY
def test_the_longest_session(kind: Kind, is_busy: bool) -> None:
    stage = kind.busy_scene(is_busy=is_busy, max_session_s=300.0)
    assert StartTimer(TimerName.SESSION, 300.0) in stage.history
    told = stage.fire("session", 300.0 - stage.now_s)
    assert told == [*["Cancel"] * is_busy, "Send(timeout)", *ENDED]
    (timeout,) = stage.sent
    assert isinstance(timeout, duplex.Timeout | half_duplex.Timeout)
    assert (timeout.reason, timeout.elapsed_s) == ("max_session", 300.0)


@KINDS
def test_stop_without_work(kind: Kind) -> None:
    stage = kind.scene()
    assert stage.say("stop") == ["Send(stopped)", *ENDED]
    assert stage.sent == [kind.stopped]
    assert stage.machine.status is WorkerStatus.IDLE


@KINDS
def test_stop_waits_for_the_end_of_work(kind: Kind) -> None:
    for end in kind.ends:
        stage = kind.busy_scene()
        assert stage.say("stop") == ["Cancel", "StartTimer(stopping)"]
        assert stage.tell(kind.part) == []
        assert stage.say("audio_chunk", audio=CHUNK) == [], "still on its way: no mistake"
        assert stage.say("stop") == stage.tell(StopRequested()) == []
        assert stage.tell(end) == ["Send(stopped)", *ENDED]
    stage = kind.scene(active=False)
    stage.say("prepare")
    assert stage.say("stop") == ["Cancel", "StartTimer(stopping)"]
    assert stage.tell(PrefillDone()) == ["Send(stopped)", *ENDED]


@KINDS
def test_stop_does_not_wait_forever(kind: Kind) -> None:
    stage = kind.busy_scene()
    stage.say("stop")
    assert stage.only(StartTimer).delay_s == 5.0
    assert stage.fire("stopping", 5.0) == ["Send(stopped)", *ENDED]


@KINDS
@BUSY
@pytest.mark.parametrize(
    ("event", "close_code"),
    [
        (FAILED, 1011),
        (ShuttingDown(), 1001),
        (Rejected(AudioError()), 1007),
        (Rejected(BadPayloadError()), 1007),
        (Disconnected(), None),
    ],
)
def test_failures_end_the_session(
    kind: Kind, event: Event, close_code: int | None, is_busy: bool
) -> None:
    stage, cancel = kind.busy_scene(is_busy=is_busy), ["Cancel"] * is_busy
    told = stage.tell(event)
    if close_code is None:
        assert told == [*cancel, "Release"]
    else:
        assert told == [*cancel, "Send(error)", *ENDED]
        code = event.error.code if isinstance(event, Failure) else "shutting_down"
        assert (stage.only(ErrorMessage).code, stage.only(Close).code) == (code, close_code)
    assert stage.machine.status is WorkerStatus.IDLE
    assert stage.tell(Disconnected()) == [] and stage.releases == 1


@KINDS
@pytest.mark.parametrize("problem", [UnknownTypeError(), PictureError()])
def test_recoverable_errors_are_warnings(
    kind: Kind, problem: UnknownTypeError | PictureError
) -> None:
    stage = kind.scene()
    for event in (Rejected(problem), EngineWarning(problem)):
        assert stage.tell(event) == ["Send(warning)"]
        assert stage.only(WarningMessage).code == problem.code
    assert stage.tell(EngineWarning(AudioError())) == ["Send(warning)"]
    assert stage.say("heartbeat") == []


# --- audio may arrive at 1.5 times real time, and 40 s of it at once ---


def sent(stage: Scene, chunks: int, every_s: float, duration_ms: int = 1_000) -> int:
    """Send chunks at a rate until the session ends; return how many were accepted."""
    sound = audio(duration_ms)
    for count in range(chunks):
        stage.say("audio_chunk", every_s, audio=sound)
        if stage.machine.is_closed:
            return count
    return chunks


@KINDS
def test_a_real_time_client_is_never_refused(kind: Kind) -> None:
    stage = kind.scene()
    assert sent(stage, 500, every_s=1.0) == 500
    assert sent(stage, 500, every_s=0.7) == 500, "a clock that runs fast"


@KINDS
def test_a_burst_after_a_network_outage_is_accepted(kind: Kind) -> None:
    stage = kind.scene()
    for _ in range(3):
        assert sent(stage, 1, every_s=40.0) == 1
        assert sent(stage, 39, every_s=0.0) == 39
        assert sent(stage, 30, every_s=1.0) == 30


@KINDS
def test_twice_as_fast_is_refused_with_the_limits_named(kind: Kind) -> None:
    stage = kind.scene()
    assert sent(stage, 500, every_s=0.5) == 157, "each second of sound is 0.25 s more ahead"
    told = stage.only(ErrorMessage)
    assert told.code is ErrorCode.RATE_LIMITED
    assert "1.5 times" in told.message and "40 s" in told.message
    assert stage.only(Close).code is CloseCode.TRY_LATER


def test_a_chunk_shorter_than_its_unit_counts_as_a_unit() -> None:
    stage = duplex_scene()
    assert sent(stage, 500, every_s=0.0, duration_ms=1) == 40
    assert "A chunk counts as at least 1000 ms." in stage.only(ErrorMessage).message
