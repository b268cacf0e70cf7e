"""Streaming between gateway and worker, row by row: turns, cache misses, stops, failures."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import BadPayloadError, ContextFullError, GenerationFailedError, UnknownTypeError
from core.protocols.effects import Close, Generate, Prefill, StartTimer
from core.protocols.events import (
    CacheMissed,
    ChunkReady,
    Disconnected,
    EngineFailed,
    GenerateDone,
    Opened,
    PrefillDone,
    Rejected,
    Segment,
    ShuttingDown,
    StopRequested,
    Transcribed,
    TurnFailed,
)
from core.protocols.machine import SessionIds
from core.protocols.streaming import TABLE, StreamingLimits, StreamingMachine
from core.schemas import streaming
from core.schemas.common import TokenStats
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import Chunk, Done, StreamingChunk
from core.schemas.worker import WorkerStatus
from tests.fakes.scenes import STREAMING, Scene

MESSAGES = [{"role": "user", "content": "Hello"}]
DONE = ["Retain", "Send(done)", "StartTimer(idle)"]


def scene(phase: str = "open", **limits: Any) -> Scene:
    machine = StreamingMachine(SessionIds("chat_1", "stm_1"), StreamingLimits(**limits))
    stage = Scene(machine, TABLE, STREAMING)
    stage.tell(Opened())
    steps = {"open": 0, "prefilling": 1, "ready": 2, "generating": 3}[phase]
    if steps > 0:
        prefill(stage)
    if steps > 1:
        stage.tell(PrefillDone(cached_tokens=10, input_tokens=5, kv_tokens=15))
    if steps > 2:
        stage.say("generate")
    assert stage.machine.phase == phase
    return stage


def prefill(stage: Scene, after_s: float = 0.0, **fields: Any) -> list[str]:
    return stage.say("prefill", after_s, messages=MESSAGES, **fields)


def test_a_whole_turn() -> None:
    stage = scene()
    assert prefill(stage, clear_kv_cache=True) == ["StopTimer(idle)", "Prefill"]
    assert stage.only(Prefill).message.clear_kv_cache
    assert stage.only(Prefill).is_first
    done = PrefillDone(
        cached_tokens=10, input_tokens=5, message_count=1, prompt_length=40, kv_tokens=15
    )
    assert stage.tell(done, 0.1) == ["Send(prefill_done)", "StartTimer(idle)"]
    assert stage.only(streaming.PrefillDone) == streaming.PrefillDone(
        cached_tokens=10,
        input_tokens=5,
        message_count=1,
        prompt_length=40,
        cache_hit=True,
        recording_session_id="stm_1",
    )
    assert stage.say("generate", max_new_tokens=9) == ["StopTimer(idle)", "Generate"]
    assert stage.only(Generate).request.max_new_tokens == 9
    stage.tell(ChunkReady(StreamingChunk(chunk_index=0, text_delta="Hi")))
    assert stage.only(Chunk) == Chunk(chunk_index=0, text_delta="Hi")
    stats = TokenStats(generated_tokens=3)
    told = stage.tell(GenerateDone("Hi", token_stats=stats, kv_tokens=18), 0.4)
    assert told == ["Send(chunk)", *DONE]
    assert stage.only(Done) == Done(
        session_id="chat_1",
        text="Hi",
        elapsed_ms=500.0,
        token_stats=TokenStats(
            cached_tokens=10, input_tokens=5, generated_tokens=3, total_tokens=18
        ),
        recording_session_id="stm_1",
    )


def test_several_turns_on_one_socket() -> None:
    stage = scene()
    for _ in range(3):
        assert stage.machine.status is WorkerStatus.IDLE
        assert prefill(stage) == ["StopTimer(idle)", "Prefill"]
        assert stage.only(Prefill).is_first
        assert stage.machine.status is WorkerStatus.BUSY_STREAMING
        stage.tell(PrefillDone())
        assert stage.say("generate") == ["StopTimer(idle)", "Generate"]
        stage.tell(GenerateDone())


def test_a_turn_may_have_several_prefills() -> None:
    stage = scene("ready")
    assert prefill(stage) == ["StopTimer(idle)", "Prefill"]
    assert not stage.only(Prefill).is_first
    stage.tell(PrefillDone(cached_tokens=15, input_tokens=7, kv_tokens=22))
    stage.say("generate")
    stage.tell(GenerateDone(token_stats=TokenStats(generated_tokens=1), kv_tokens=23))
    assert stage.only(Done).token_stats == TokenStats(
        cached_tokens=10, input_tokens=12, generated_tokens=1, total_tokens=23
    )


def test_prefills_may_be_queued() -> None:
    stage = scene("prefilling", max_waiting_prefills=2)
    assert prefill(stage) == prefill(stage) == []
    assert stage.tell(PrefillDone()) == ["Send(prefill_done)", "Prefill"]
    assert stage.tell(PrefillDone()) == ["Send(prefill_done)", "Prefill"]
    assert stage.tell(PrefillDone()) == ["Send(prefill_done)", "StartTimer(idle)"]


def test_too_many_queued_prefills_end_the_connection() -> None:
    stage = scene("prefilling", max_waiting_prefills=1)
    prefill(stage)
    assert prefill(stage) == ["Cancel", "Send(error)", "Release", "Close"]
    assert stage.only(ErrorMessage).code == "out_of_order"


def test_the_prefills_defaults_apply_to_generate() -> None:
    stage = scene()
    prefill(stage, generation={"temperature": 0.1, "max_new_tokens": 7})
    stage.tell(PrefillDone())
    stage.say("generate", max_new_tokens=9)
    request = stage.only(Generate).request
    assert (request.temperature, request.max_new_tokens) == (0.1, 9)


def test_a_cache_miss_requests_the_whole_history() -> None:
    stage = scene("prefilling")
    prefill(stage)
    assert stage.tell(CacheMissed()) == ["Send(cache_miss)", "StartTimer(idle)"]
    assert stage.machine.status is WorkerStatus.BUSY_STREAMING, "the worker stays taken"
    assert stage.say("generate") == ["Send(warning)"]
    assert stage.only(WarningMessage).code == "out_of_order"
    assert prefill(stage, clear_kv_cache=True) == ["StopTimer(idle)", "Prefill"]
    assert stage.only(Prefill).is_first
    told = stage.tell(PrefillDone())
    assert told == ["Send(prefill_done)", "StartTimer(idle)"], "what waited was dropped"


def test_stop_after_a_cache_miss_rolls_nothing_back() -> None:
    stage = scene("prefilling")
    stage.tell(CacheMissed())
    assert stage.say("stop") == DONE


@pytest.mark.parametrize("how", ["stop", "http"])
def test_stop_while_generating(how: str) -> None:
    stage = scene("generating")
    stage.tell(ChunkReady(StreamingChunk(chunk_index=0, text_delta="Half")))
    told = stage.say("stop") if how == "stop" else stage.tell(StopRequested())
    assert told == ["Interrupt"]
    assert stage.tell(GenerateDone("Half", stopped=True)) == ["Send(chunk)", *DONE]
    assert stage.only(Done).stopped
    assert stage.only(Done).text == "Half"
    assert stage.machine.phase == "open"


@pytest.mark.parametrize(
    "event", [PrefillDone(), CacheMissed(), TurnFailed(GenerationFailedError())]
)
def test_stop_while_prefilling_rolls_the_turn_back(event: Any) -> None:
    stage = scene("prefilling")
    prefill(stage)
    assert stage.say("stop") == ["Interrupt"]
    assert stage.say("stop") == []
    assert stage.tell(event) == ["Rollback", *DONE]
    assert stage.only(Done).stopped
    assert stage.only(Done).text == ""
    assert prefill(stage) == ["StopTimer(idle)", "Prefill"]
    told = stage.tell(PrefillDone())
    assert told == ["Send(prefill_done)", "StartTimer(idle)"], "what waited was dropped"


def test_stop_before_generate_rolls_the_turn_back() -> None:
    stage = scene("ready")
    assert stage.say("stop") == ["Rollback", *DONE]
    assert stage.only(Done).stopped


def test_stop_between_turns_has_nothing_to_stop() -> None:
    stage = scene()
    assert stage.say("stop") == ["Send(warning)"]
    assert stage.tell(StopRequested()) == []
    assert not stage.machine.is_closed


@pytest.mark.parametrize("phase", ["open", "prefilling", "generating"])
def test_out_of_order(phase: str) -> None:
    stage = scene(phase)
    assert stage.say("generate") == ["Send(warning)"]
    assert stage.only(WarningMessage).code == "out_of_order"
    if phase == "generating":
        assert prefill(stage) == ["Send(warning)"]


@pytest.mark.parametrize("phase", ["prefilling", "generating"])
@pytest.mark.parametrize("can_rollback", [True, False])
def test_a_failed_turn_is_rolled_back_and_the_connection_ends(
    phase: str, can_rollback: bool
) -> None:
    stage = scene(phase)
    undo = ["Rollback", "Retain"] if can_rollback else []
    told = stage.tell(TurnFailed(GenerationFailedError(), can_rollback))
    assert told == [*undo, "Send(error)", "Release", "Close"]
    assert stage.only(ErrorMessage).code == "generation_failed"


@pytest.mark.parametrize("phase", ["open", "prefilling", "ready", "generating"])
def test_every_phase_can_be_left(phase: str) -> None:
    cancel = ["Cancel"] if phase in ("prefilling", "generating") else []
    for event, told in (
        (Disconnected(), [*cancel, "Release"]),
        (EngineFailed(GenerationFailedError()), [*cancel, "Send(error)", "Release", "Close"]),
        (ShuttingDown(), [*cancel, "Send(error)", "Release", "Close"]),
        (Rejected(BadPayloadError()), [*cancel, "Send(error)", "Release", "Close"]),
        (Rejected(UnknownTypeError()), ["Send(warning)"]),
    ):
        stage = scene(phase)
        assert stage.tell(event) == told
    stage = scene(phase)
    assert stage.say("heartbeat") == []
    assert stage.say("close") == [*cancel, "Release", "Close"]
    assert stage.only(Close).code == 1000


@pytest.mark.parametrize(("phase", "limit_s"), [("open", 300.0), ("ready", 60.0)])
def test_a_client_that_asks_for_nothing_is_disconnected(phase: str, limit_s: float) -> None:
    stage = scene(phase)
    assert stage.only(StartTimer).delay_s == limit_s
    assert stage.fire("idle", limit_s) == ["Send(error)", "Release", "Close"]
    problem = stage.only(ErrorMessage)
    assert problem.code == "timeout"
    assert "no request" in problem.message, "a conversation in text has nothing to hear"


def test_the_context_fills_up() -> None:
    stage = scene("prefilling", max_kv_tokens=100, kv_reserve_tokens=20)
    told = stage.tell(PrefillDone(kv_tokens=80))
    assert told == ["Send(prefill_done)", "Send(warning)", "StartTimer(idle)"]
    assert stage.only(WarningMessage).code == "context_nearly_full"
    prefill(stage)
    told = stage.tell(PrefillDone(kv_tokens=100))
    assert told == [
        "Send(prefill_done)",
        "Rollback",
        "Retain",
        "Send(error)",
        "Release",
        "Close",
    ]
    assert stage.only(ErrorMessage).code == "context_full"
    stage = scene("generating")
    stage.tell(TurnFailed(ContextFullError(), can_rollback=True))
    assert stage.only(Close).code == 1000


SPOKEN = [{"role": "user", "content": [{"type": "audio", "data": "AAAAAA=="}]}]


def say_aloud(stage: Scene) -> Transcribed:
    """Begin a turn with speech; return the transcript that follows at some time."""
    stage.say("prefill", messages=SPOKEN, transcribe=True)
    message = stage.only(Prefill).message
    assert isinstance(message, streaming.WorkerPrefill)
    stage.tell(PrefillDone())
    return Transcribed(Segment(b""), "Hello.", prefill=message)


@pytest.mark.parametrize("comes", ["before", "after"])
def test_the_transcript_of_a_message_is_sent_before_done(comes: str) -> None:
    stage = scene()
    said = say_aloud(stage)
    assert stage.say("generate") == ["StopTimer(idle)", "Generate"]
    if comes == "before":
        assert stage.tell(said) == ["Send(user_transcript)"]
        assert stage.tell(GenerateDone("Hi.")) == ["Send(chunk)", *DONE]
    else:
        assert stage.tell(GenerateDone("Hi.")) == ["Send(chunk)"]
        assert stage.tell(said) == ["Send(user_transcript)", *DONE]
    assert stage.only(Done).text == "Hi."


def test_stop_does_not_wait_for_the_transcript() -> None:
    stage = scene()
    late = say_aloud(stage)
    stage.say("generate")
    stage.tell(GenerateDone("Hi."))
    assert stage.say("stop") == DONE
    assert stage.tell(late) == []
    said = say_aloud(stage)
    assert stage.tell(late) == [], "of the turn before"
    stage.say("generate")
    assert stage.tell(GenerateDone("Hi.")) == ["Send(chunk)"]
    assert stage.tell(late) == [], "of the turn before"
    assert stage.tell(said) == ["Send(user_transcript)", *DONE]


@pytest.mark.parametrize("messages", [MESSAGES, SPOKEN])
def test_done_waits_only_for_requested_transcripts_of_audio(messages: Any) -> None:
    stage = scene()
    stage.say("prefill", messages=messages, transcribe=messages is MESSAGES)
    stage.tell(PrefillDone())
    stage.say("generate")
    assert stage.tell(GenerateDone("Hi.")) == ["Send(chunk)", *DONE]
