"""Full duplex, row by row: replies, and when a unit begins."""

from __future__ import annotations

import pytest

from core.errors import (
    AudioError,
)
from core.protocols.duplex import DuplexMachine
from core.protocols.effects import Close, Finalize, StartTimer, Step
from core.protocols.events import (
    EngineFailed,
    FinalizeDone,
    PrefillDone,
    StepDone,
    StopRequested,
    TimerName,
)
from core.schemas.duplex import Paused, Prepared, Result, Timeout
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.worker import WorkerStatus
from tests.fakes.duplex_scenes import CHUNK, LAST_WORDS, LISTEN, SPEAK, listened, scene, step
from tests.fakes.scenes import Scene, audio


@pytest.fixture
def stage() -> Scene:
    return scene()


def test_preparation() -> None:
    stage = scene(active=False)
    assert stage.history == [StartTimer(TimerName.PREPARE, 60.0)]
    asked = stage.say("prepare", prefix_system_prompt="Be kind.")
    assert asked == ["StopTimer(prepare)", "Prefill"]
    told = stage.tell(PrefillDone(input_tokens=30, prompt_length=8, kv_tokens=31))
    assert told == ["Send(prepared)", "StartTimer(idle)"]
    assert stage.only(Prepared) == Prepared(
        prompt_length=8,
        prompt_tokens=30,
        recording_session_id="rec_1",
        session_id="omni_1",
        chunk_ms=1_000,
        max_kv_tokens=8_192,
        pause_timeout=60.0,
    )


def test_unknown_settings_are_named_in_a_warning_after_prepared() -> None:
    stage = scene(active=False)
    told = stage.say("prepare", config={"top_kk": 3, "magic": 1})
    assert told == ["StopTimer(prepare)", "Prefill"]
    assert stage.tell(PrefillDone())[:2] == ["Send(prepared)", "Send(warning)"]
    assert stage.only(WarningMessage).code == "bad_config"
    assert "magic, top_kk" in stage.only(WarningMessage).message


def test_a_warning_of_unknown_settings_is_short_however_long_they_are() -> None:
    stage = scene(active=False)
    stage.say("prepare", config={"x" * 1_000_000: 1})
    stage.tell(PrefillDone())
    assert len(stage.only(WarningMessage).message) < 400


def test_early_pictures_share_the_warning_of_early_audio() -> None:
    stage = scene(active=False)
    assert stage.say("audio_chunk", audio=CHUNK) == ["Send(warning)"]
    assert stage.say("video_frame", frame="AAAA") == []
    stage.say("prepare")
    stage.tell(PrefillDone())
    assert stage.say("audio_chunk", audio=CHUNK) == ["StartTimer(idle)", "Step"]


def test_the_result_is_sent_first_and_no_unit_begins_before_finalize_ends(stage: Scene) -> None:
    machine = stage.machine
    assert isinstance(machine, DuplexMachine)
    assert stage.say("audio_chunk", 1.0, audio=CHUNK) == ["StartTimer(idle)", "Step"]
    assert isinstance(machine.work, Step)
    assert stage.say("audio_chunk", 1.0, audio=CHUNK) == ["StartTimer(idle)"]
    assert stage.tell(StepDone(LISTEN), 0.1) == ["Send(result)", "Finalize"]
    assert isinstance(machine.work, Finalize)
    assert stage.say("audio_chunk", 0.1, audio=CHUNK) == ["StartTimer(idle)"]
    assert stage.tell(FinalizeDone()) == ["Step"]
    assert stage.only(Step).index == 1
    assert step(stage) == ["Send(result)", "Finalize", "Step"]
    assert step(stage) == ["Send(result)", "Finalize"]
    assert machine.work is None


def test_without_deferred_finalize_the_unit_is_finalized_first() -> None:
    stage = scene(prepare={"deferred_finalize": False})
    stage.say("audio_chunk", audio=CHUNK)
    listen = DuplexGenerateResult(is_listen=True, cost_all_ms=50.0)
    assert stage.tell(StepDone(listen), 0.06) == ["Finalize"]
    assert stage.tell(FinalizeDone(finalize_ms=37.0), 0.04) == ["Send(result)"]
    assert stage.only(Result).cost_all_ms == 87.0
    assert stage.only(Result).wall_clock_ms == pytest.approx(100.0)


def test_a_result_includes_the_preceding_finalize(stage: Scene) -> None:
    listen = DuplexGenerateResult(is_listen=True, cost_all_ms=50.0)
    for expected_ms in (50.0, 80.0):
        stage.say("audio_chunk", audio=CHUNK)
        stage.tell(StepDone(listen))
        assert stage.only(Result).cost_all_ms == expected_ms
        stage.tell(FinalizeDone(finalize_ms=30.0))


def test_the_fields_of_a_result(stage: Scene) -> None:
    stage.say("audio_chunk", 1.0, audio=CHUNK)
    given = DuplexGenerateResult(
        is_listen=False,
        text="Hi",
        audio_data=bytes(4),
        cost_llm_ms=4.0,
        n_tokens=2,
        prefill_ms=3.0,
        kv_cache_length=50,
        vision_slices=2,
        vision_tokens=90,
    )
    stage.tell(StepDone(given), 0.25)
    added = {"current_time": 1_000, "wall_clock_ms": 250.0, "turn_id": 0, "step": 0}
    assert stage.only(Result) == Result(**dict(given) | added)


def test_listening_results_have_neither_text_nor_audio(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.tell(StepDone(DuplexGenerateResult(is_listen=True, text="x", audio_data=bytes(4))))
    assert (stage.only(Result).text, stage.only(Result).audio_data) == ("", b"")


def test_current_time_counts_the_audio_received(stage: Scene) -> None:
    times = []
    for duration_ms in (1_000, 500, 1_035):
        stage.say("audio_chunk", audio=audio(duration_ms))
        stage.tell(StepDone(LISTEN))
        times.append(stage.only(Result).current_time)
        stage.tell(FinalizeDone())
    assert times == [1_000, 1_500, 2_535]


def test_turns_and_barge_in(stage: Scene) -> None:
    units = [LISTEN, SPEAK, LAST_WORDS, LISTEN, SPEAK, LISTEN, SPEAK]
    seen = []
    for unit in units:
        stage.say("audio_chunk", audio=CHUNK)
        stage.tell(StepDone(unit))
        result = stage.only(Result)
        seen.append((result.turn_id, result.barge_in))
        stage.tell(FinalizeDone())
    assert seen == [
        (0, False),
        (0, False),
        (0, False),
        (1, False),
        (1, False),
        (1, True),
        (2, False),
    ]


def test_too_little_audio_is_not_a_barge_in(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    step(stage, SPEAK)
    stage.say("audio_chunk", audio=audio(100))
    stage.tell(StepDone(LISTEN, was_fed=False))
    assert not stage.only(Result).barge_in
    stage.tell(FinalizeDone())
    stage.say("audio_chunk", audio=CHUNK)
    stage.tell(StepDone(LISTEN))
    assert stage.only(Result).barge_in


# --- interrupt, pause, stop ---


def test_interrupt(stage: Scene) -> None:
    assert stage.say("interrupt") == ["Interrupt", "Send(interrupted)"]
    stage.say("pause")
    assert stage.say("interrupt") == ["Interrupt", "Send(interrupted)"]


def test_pause_and_resume(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.say("pause", 1.0) == ["StopTimer(idle)", "StartTimer(pause)", "Send(paused)"]
    assert stage.only(Paused).timeout == 60.0
    assert stage.machine.status is WorkerStatus.DUPLEX_PAUSED
    assert stage.say("audio_chunk", audio=CHUNK) == ["Send(warning)"]
    assert stage.say("audio_chunk", audio=CHUNK) == [], "one warning per pause"
    assert stage.say("video_frame", frame="f") == []
    assert step(stage) == ["Send(result)", "Finalize"], "what was begun is finished"
    assert stage.say("pause") == ["Send(warning)"]
    assert stage.say("resume") == ["StopTimer(pause)", "StartTimer(idle)", "Send(resumed)", "Step"]
    assert stage.machine.status is WorkerStatus.DUPLEX_ACTIVE
    assert stage.say("resume") == ["Send(warning)"]
    assert stage.only(WarningMessage).code == "out_of_order"
    stage.say("pause")
    assert stage.say("audio_chunk", audio=CHUNK) == ["Send(warning)"], "warned anew"


@pytest.mark.parametrize(("asked_s", "granted_s"), [(5.0, 5.0), (600.0, 60.0)])
def test_a_client_may_shorten_a_pause_only(stage: Scene, asked_s: float, granted_s: float) -> None:
    stage.say("pause", timeout=asked_s)
    assert stage.only(Paused).timeout == granted_s
    assert stage.only(StartTimer).delay_s == granted_s


def test_a_pause_that_lasts_too_long_ends_the_session(stage: Scene) -> None:
    stage.say("pause", 10.0)
    assert stage.fire("pause", 60.04) == ["Send(timeout)", "Release", "Close"]
    assert stage.only(Timeout) == Timeout(reason="pause", elapsed_s=60.0, session_id="omni_1")
    assert stage.only(Close).code == 1000


def test_a_pause_timeout_during_a_step_cancels_it(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.say("pause")
    assert stage.fire("pause", 60.0) == ["Cancel", "Send(timeout)", "Release", "Close"]


def test_silence_without_a_pause_ends_the_session(stage: Scene) -> None:
    stage.say("audio_chunk", 3.0, audio=CHUNK)
    step(stage)
    assert stage.fire("idle", 60.0) == ["Send(timeout)", "Release", "Close"]
    assert (stage.only(Timeout).reason, stage.only(Timeout).elapsed_s) == ("inactivity", 60.0)


def test_stop_waits_for_finalize(stage: Scene) -> None:
    stage.say("audio_chunk", audio=CHUNK)
    stage.tell(StepDone(LISTEN))
    assert stage.say("stop") == ["Cancel", "StartTimer(stopping)"]
    assert stage.tell(FinalizeDone()) == ["Send(stopped)", "Release", "Close"]


def test_a_session_can_be_stopped_from_outside() -> None:
    assert scene().tell(StopRequested()) == ["Send(stopped)", "Release", "Close"]
    assert scene(active=False).tell(StopRequested()) == ["Send(stopped)", "Release", "Close"]


# --- what goes wrong ---


def test_a_failed_preparation_ends_the_session() -> None:
    stage = scene(active=False)
    stage.say("prepare")
    told = stage.tell(EngineFailed(AudioError("The voice sample is silent.")))
    assert told == ["Cancel", "Send(error)", "Release", "Close"]
    assert stage.only(ErrorMessage).code == "bad_audio"


def test_diagnostics_are_ignored() -> None:
    assert scene().say("client_diagnostic", metrics={"x": 1}) == []


def test_the_context_fills_up() -> None:
    stage = scene(max_kv_tokens=1_000, kv_reserve_tokens=100)
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.tell(listened(899)) == ["Send(result)", "Finalize"]
    assert stage.tell(FinalizeDone(kv_tokens=900)) == ["Send(warning)"]
    assert stage.only(WarningMessage).code == "context_nearly_full"
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.tell(listened(950)) == ["Send(result)", "Finalize"]
    assert stage.tell(FinalizeDone(kv_tokens=960)) == []
    stage.say("audio_chunk", audio=CHUNK)
    told = stage.tell(listened(1_000))
    assert told == ["Send(result)", "Send(error)", "Release", "Close"]
    assert (stage.only(ErrorMessage).code, stage.only(Close).code) == ("context_full", 1000)


def test_a_window_prevents_a_full_context() -> None:
    stage = scene(max_kv_tokens=1_000, has_window=True)
    stage.say("audio_chunk", audio=CHUNK)
    assert stage.tell(listened(5_000)) == ["Send(result)", "Finalize"]
