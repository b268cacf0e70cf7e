"""Half duplex, row by row: turns, dropped audio, and time-outs."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from core.endpointing import SpeechDiscarded, SpeechStarted
from core.errors import (
    ContextFullError,
    GenerationFailedError,
)
from core.protocols.effects import Close, Detect, Generate, StartTimer
from core.protocols.events import (
    ChunkReady,
    Detected,
    GenerateDone,
    PrefillDone,
    Segment,
    StopRequested,
    TimerName,
    Transcribed,
    TurnFailed,
)
from core.schemas.common import TokenStats
from core.schemas.half_duplex import (
    Generating,
    Prepared,
    Timeout,
    TurnDone,
    VadState,
)
from core.schemas.limits import SAMPLE_BYTES
from core.schemas.queue import ErrorMessage, UserTranscript, WarningMessage
from core.schemas.streaming import Chunk, StreamingChunk
from core.schemas.worker import WorkerStatus
from tests.fakes.duplex_scenes import half_duplex_scene as scene
from tests.fakes.scenes import Scene, audio

HALF_SECOND = audio(500)
FIRST_SAMPLES = 8_000  # of the audio that is ignored; position of the first that is detected
SPOKEN = Segment(bytes(4 * 16_000))
STARTED = SpeechStarted(0)
DISCARDED = SpeechDiscarded(0, 100)
TURN_START = ["Send(vad_state)", "StopTimer(idle)", "Send(generating)", "Generate"]
BACK = ["ResetDetector", "StartTimer(idle)"]


def speak(stage: Scene, *speech_events: Any) -> list[str]:
    """Send audio in which detection finds these events."""
    stage.say("audio_chunk", 0.5, audio=HALF_SECOND)
    return stage.tell(Detected(speech_events or (STARTED, SPOKEN)))


def piece(index: int, text: str = "Hi", sound_ms: int = 0, **fields: Any) -> ChunkReady:
    sound = audio(sound_ms, 24_000) or None
    return ChunkReady(
        StreamingChunk(chunk_index=index, text_delta=text, audio_data=sound, **fields)
    )


@pytest.fixture
def stage() -> Scene:
    return scene()


def test_preparation() -> None:
    stage = scene(active=False)
    assert stage.history == [StartTimer(TimerName.PREPARE, 60.0)]
    assert stage.say("prepare", config={"session": {"timeout_s": 60}}) == [
        "StopTimer(prepare)",
        "Prefill",
    ]
    assert stage.tell(PrefillDone()) == ["Send(prepared)", "StartTimer(idle)"]
    wanted = Prepared(session_id="hdx_1", timeout_s=60.0, recording_session_id="rec_1")
    assert stage.only(Prepared) == wanted
    assert stage.machine.status is WorkerStatus.BUSY_HALF_DUPLEX
    assert stage.only(StartTimer).delay_s == 60.0


@pytest.mark.parametrize(
    ("first_s", "skipped"),
    [
        (0.3, [4_800, 3_200, 0]),  # a microphone that runs when `prepared` comes
        (0.0, [4_800, 3_200, 0]),  # a file, sent faster than it plays at first
        (0.6, [3_200, 0, 0]),
        (99.0, [0, 0, 0]),  # a microphone that starts later
    ],
)
def test_audio_of_the_first_half_second_after_prepared_is_ignored(
    first_s: float, skipped: list[int]
) -> None:
    stage = scene(active=False)
    stage.say("prepare")
    stage.tell(PrefillDone(), 10.0)
    for after_s, samples in zip((first_s, 0.3, 0.3), skipped, strict=True):
        told = stage.say("audio_chunk", after_s, audio=audio(300))
        if samples == 4_800:
            assert told == ["StartTimer(idle)"]
            continue
        assert told == ["StartTimer(idle)", "Detect"]
        assert len(stage.only(Detect).samples) == SAMPLE_BYTES * (4_800 - samples)
        stage.tell(Detected())


def test_a_whole_turn(stage: Scene) -> None:
    assert speak(stage, STARTED) == ["Send(vad_state)"]
    assert stage.only(VadState).speaking
    assert speak(stage, SPOKEN) == TURN_START
    assert not stage.only(VadState).speaking
    assert stage.only(Generating).speech_duration_ms == 1_000
    assert stage.only(Generate) == Generate(replace(SPOKEN, start_samples=FIRST_SAMPLES), 0)
    assert stage.tell(piece(0)) == ["Send(chunk)"]
    assert stage.only(Chunk) == Chunk(chunk_index=0, text_delta="Hi")
    stats = TokenStats(generated_tokens=3)
    done = GenerateDone("Hi", token_stats=stats, kv_tokens=70)
    assert stage.tell(done, 0.25) == ["Send(chunk)", "Send(turn_done)", *BACK]
    assert stage.only(Chunk) == Chunk(chunk_index=1, is_final=True)
    assert stage.only(TurnDone) == TurnDone(
        turn_index=0, text="Hi", elapsed_ms=250.0, kv_cache_length=70, token_stats=stats
    )
    speak(stage)
    assert stage.only(Generate).turn_index == 1


def test_a_final_piece_is_not_sent_twice(stage: Scene) -> None:
    speak(stage)
    stage.tell(piece(0, is_final=True))
    assert stage.tell(GenerateDone("Hi")) == ["Send(turn_done)", *BACK]


def test_a_discarded_burst_is_reported(stage: Scene) -> None:
    assert speak(stage, STARTED, DISCARDED) == ["Send(vad_state)", "Send(vad_state)"]
    assert [one.speaking for one in stage.sent if isinstance(one, VadState)] == [True, False]


def test_audio_during_a_reply_is_dropped(stage: Scene) -> None:
    speak(stage)
    assert stage.say("audio_chunk", audio=HALF_SECOND) == []
    told = stage.tell(GenerateDone())
    assert "Detect" not in told


def test_undetected_audio_is_dropped_when_the_reply_begins(stage: Scene) -> None:
    stage.say("audio_chunk", audio=HALF_SECOND)
    assert stage.say("audio_chunk", audio=HALF_SECOND) == ["StartTimer(idle)"]
    stage.tell(Detected((STARTED, SPOKEN)))
    assert "Detect" not in stage.tell(GenerateDone())
    newest = audio(400)
    assert "Detect" in stage.say("audio_chunk", audio=newest)
    assert stage.only(Detect).samples == base64.b64decode(newest)


@pytest.mark.parametrize("limits", [{"max_waiting_chunks": 2}, {"max_waiting_s": 1.0}])
def test_detection_works_on_one_chunk_at_a_time(limits: dict[str, Any]) -> None:
    stage = scene(**limits)
    assert stage.say("audio_chunk", audio=HALF_SECOND) == ["StartTimer(idle)", "Detect"]
    assert stage.say("audio_chunk", audio=HALF_SECOND) == ["StartTimer(idle)"]
    assert stage.say("audio_chunk", audio=HALF_SECOND) == ["StartTimer(idle)"]
    assert stage.say("audio_chunk", audio=HALF_SECOND) == ["StartTimer(idle)", "Send(warning)"]
    assert stage.only(WarningMessage).code == "late_chunk"
    assert stage.say("audio_chunk", audio=HALF_SECOND) == ["StartTimer(idle)"], "warned already"
    assert stage.tell(Detected()) == ["Detect"]
    assert stage.tell(Detected()) == ["Detect"]
    assert stage.tell(Detected()) == []


def test_a_file_sent_at_once_loses_no_more_than_the_first_half_second() -> None:
    stage = scene(active=False)
    stage.say("prepare")
    stage.tell(PrefillDone())
    spoken = [audio(500 + at) for at in range(60)]
    heard: list[Detect] = []
    for sound in spoken:
        told = stage.say("audio_chunk", audio=sound)
        assert "Send(warning)" not in told
        heard += [stage.only(Detect)] if "Detect" in told else []
    while "Detect" in stage.tell(Detected()):
        heard.append(stage.only(Detect))
    assert [each.samples for each in heard] == [base64.b64decode(one) for one in spoken[1:]]


def test_several_segments_of_one_chunk_are_answered_one_after_the_other(stage: Scene) -> None:
    second = Segment(bytes(4 * 8_000))
    assert speak(stage, STARTED, SPOKEN, STARTED, second, STARTED) == [
        "Send(vad_state)",
        *TURN_START,
    ]
    told = stage.tell(GenerateDone())
    assert told == ["Send(chunk)", "Send(turn_done)", "Send(vad_state)", *TURN_START]
    assert stage.only(Generate) == Generate(replace(second, start_samples=FIRST_SAMPLES), 1)
    assert stage.tell(GenerateDone()) == ["Send(chunk)", "Send(turn_done)", *BACK]


def test_of_too_many_segments_the_oldest_are_dropped() -> None:
    stage = scene(max_waiting_segments=2)
    segments = [Segment(bytes(64 * (number + 1))) for number in range(4)]
    speak(stage, *(item for segment in segments for item in (STARTED, segment)))
    answered = [stage.only(Generate).request]
    while "Generate" in stage.tell(GenerateDone()):
        answered.append(stage.only(Generate).request)
    assert answered == [replace(each, start_samples=FIRST_SAMPLES) for each in segments[2:]]


def test_speech_is_placed_in_all_audio_sent(stage: Scene) -> None:
    """The detector counts from its last reset, and hears neither ignored nor dropped audio."""
    second = replace(SPOKEN, start_samples=1_600)
    speak(stage)
    assert start_ms(stage) == 500, "after the ignored half second"
    stage.say("audio_chunk", audio=HALF_SECOND)  # during the reply
    stage.tell(GenerateDone())
    stage.say("audio_chunk", audio=HALF_SECOND)  # from 1.5 s to 2 s, without speech
    stage.tell(Detected())
    speak(stage, STARTED, second)
    assert start_ms(stage) == 1_600


def test_audio_dropped_before_detection_counts_as_sent() -> None:
    stage = scene(max_waiting_chunks=1)
    for _ in range(3):  # from 0.5 s to 2 s; the second of them is dropped
        stage.say("audio_chunk", audio=HALF_SECOND)
    stage.tell(Detected())
    stage.tell(Detected((STARTED, replace(SPOKEN, start_samples=8_000))))
    assert start_ms(stage) == 1_500


def start_ms(stage: Scene) -> int:
    """Return where the transcript of the segment being answered says that it begins."""
    segment = stage.only(Generate).request
    stage.tell(Transcribed(segment, "Hello."))
    return stage.only(UserTranscript).start_ms


# --- interrupt and stop ---


@pytest.mark.parametrize("how", ["interrupt", "http"])
def test_interrupt_ends_only_the_turn(stage: Scene, how: str) -> None:
    speak(stage, STARTED, SPOKEN, STARTED, SPOKEN)
    stage.tell(piece(0, "Half a"))
    told = stage.say("interrupt") if how == "interrupt" else stage.tell(StopRequested())
    assert told == ["Interrupt"]
    told = stage.tell(GenerateDone("Half a", stopped=True))
    assert told == ["Send(chunk)", "Send(turn_done)", *BACK], "the waiting segment is dropped too"
    assert stage.only(TurnDone).interrupted
    assert stage.only(TurnDone).text == "Half a"


def test_interrupt_without_a_reply(stage: Scene) -> None:
    assert stage.say("interrupt") == ["Send(warning)"]
    assert stage.only(WarningMessage).code == "out_of_order"
    assert stage.tell(StopRequested()) == []


# --- what goes wrong ---


def test_a_failed_turn_is_rolled_back_and_the_session_continues(stage: Scene) -> None:
    speak(stage)
    stage.tell(piece(0, "Well, "))
    told = stage.tell(TurnFailed(GenerationFailedError(), can_rollback=True))
    assert told == ["Rollback", "Send(warning)", "Send(chunk)", "Send(turn_done)", *BACK]
    assert stage.only(WarningMessage).code == "generation_failed"
    assert stage.only(TurnDone).interrupted
    assert stage.only(TurnDone).text == "Well, "
    speak(stage)
    assert stage.only(Generate).turn_index == 1


def test_a_turn_that_is_rolled_back_reports_the_cache_before_it() -> None:
    stage, failed = scene(active=False), TurnFailed(GenerationFailedError(), can_rollback=True)
    stage.say("prepare")
    stage.tell(PrefillDone(kv_tokens=30))
    for kv_tokens in (30, 70):
        speak(stage)
        stage.tell(failed)
        assert stage.only(TurnDone).kv_cache_length == kv_tokens
        assert stage.only(TurnDone).token_stats == TokenStats(total_tokens=kv_tokens)
        speak(stage)
        stage.tell(GenerateDone("Hi", kv_tokens=70))


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (TurnFailed(GenerationFailedError(), can_rollback=False), "generation_failed"),
        (TurnFailed(ContextFullError(), can_rollback=True), "context_full"),
    ],
)
def test_a_turn_that_cannot_be_rolled_back_ends_the_session(
    stage: Scene, event: Any, code: str
) -> None:
    speak(stage)
    assert stage.tell(event) == ["Send(error)", "Release", "Close"]
    assert stage.only(ErrorMessage).code == code


def test_the_context_fills_up() -> None:
    stage = scene(max_kv_tokens=1_000, kv_reserve_tokens=100)
    for kv_tokens, warned in ((899, False), (900, True), (950, False)):
        speak(stage)
        told = stage.tell(GenerateDone(kv_tokens=kv_tokens))
        assert ("Send(warning)" in told) is warned
    speak(stage)
    told = stage.tell(GenerateDone(kv_tokens=1_000))
    assert told == ["Send(chunk)", "Send(turn_done)", "Send(error)", "Release", "Close"]
    assert (stage.only(ErrorMessage).code, stage.only(Close).code) == ("context_full", 1000)


# --- silence ---


def test_every_chunk_restarts_the_idle_timer() -> None:
    stage = scene(active=False)
    stage.say("prepare", config={"session": {"timeout_s": 10}})
    stage.tell(PrefillDone())
    assert "StartTimer(idle)" in stage.say("audio_chunk", 5.0, audio=audio(100)), "even ignored"
    assert stage.fire("idle", 10.04) == ["Send(timeout)", "Release", "Close"]
    assert stage.only(Timeout) == Timeout(elapsed_s=10.0, reason="inactivity")
    assert stage.only(Close).code == 1000


def test_the_idle_timer_does_not_run_until_the_reply_was_played() -> None:
    stage = scene(timeout_s=10.0)
    assert "StopTimer(idle)" in speak(stage)
    stage.tell(piece(0, sound_ms=4_000), 1.0)  # sounds from 1 s to 5 s
    stage.tell(piece(1, sound_ms=2_000), 1.0)  # from 5 s to 7 s
    stage.tell(GenerateDone(), 1.0)  # at 3 s
    assert stage.only(StartTimer).delay_s == pytest.approx(4.0 + 10.0)
    stage.say("audio_chunk", 1.0, audio=HALF_SECOND)  # sent before the client knew
    timers = [effect for effect in stage.effects if isinstance(effect, StartTimer)]
    assert timers[0].delay_s == pytest.approx(3.0 + 10.0), "playback still goes on"
    stage.fire("idle", 13.0)
    assert stage.only(Timeout).elapsed_s == 10.0
