"""State machine of a one-shot chat over a socket."""

from __future__ import annotations

import pytest

from core.errors import GenerationFailedError, WorkerBusyError
from core.protocols.events import (
    ChunkReady,
    GenerateDone,
    Opened,
    PrefillDone,
    StopRequested,
    TurnFailed,
)
from core.protocols.machine import SessionIds
from core.protocols.streaming import CHAT_TABLE, ChatMachine
from core.protocols.tables import Phase
from core.schemas.chat import ChatChunk, ChatDone
from core.schemas.common import TokenStats
from core.schemas.streaming import StreamingChunk
from core.schemas.worker import WorkerStatus
from tests.fakes.scenes import CHAT, Scene

USER = {"role": "user", "content": "Hi"}
FED = PrefillDone(input_tokens=7)
PIECE = ChunkReady(StreamingChunk(chunk_index=0, text_delta="Hello", audio_data=b"AAAA"))
LAST = ChunkReady(StreamingChunk(chunk_index=1, is_final=True))
DONE = GenerateDone("Hello", token_stats=TokenStats(generated_tokens=1))


def scene() -> Scene:
    made = Scene(ChatMachine(SessionIds("s", "chat_x")), CHAT_TABLE, CHAT)
    made.tell(Opened())
    return made


def ask(made: Scene, *, streaming: bool = True) -> list[str]:
    return made.say("chat", messages=[USER], streaming=streaming)


def test_a_streamed_reply() -> None:
    made = scene()
    assert made.machine.status is WorkerStatus.IDLE
    assert ask(made) == ["StopTimer(prepare)", "Prefill"]
    assert made.machine.status is WorkerStatus.BUSY_CHAT
    assert made.tell(FED) == ["Send(prefill_done)", "Generate"]
    assert made.tell(PIECE) == ["Send(chunk)"]
    assert made.only(ChatChunk).audio_data == b"AAAA"
    assert made.tell(LAST) == [], "an empty piece says nothing here"
    assert made.tell(DONE) == ["Send(done)", "Release", "Close"]
    done = made.only(ChatDone)
    assert (done.text, done.input_tokens, done.generated_tokens) == ("Hello", 7, 1)
    assert done.audio_data is None and done.recording_session_id == "chat_x"


def test_a_whole_reply_has_its_audio_in_done() -> None:
    made = scene()
    ask(made, streaming=False)
    made.tell(FED)
    assert made.tell(PIECE) == []
    made.tell(DONE)
    assert made.only(ChatDone).audio_data == b"AAAA"


@pytest.mark.parametrize("stop", ["message", "http"])
@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.GENERATING])
def test_stop_ends_with_the_partial_reply(phase: Phase, stop: str) -> None:
    made = scene()
    ask(made)
    if phase is Phase.GENERATING:
        made.tell(FED)
    told = made.say("stop") if stop == "message" else made.tell(StopRequested())
    assert told == ["Interrupt"]
    assert (made.say("stop") == []) == (phase is Phase.PREFILLING)
    end = FED if phase is Phase.PREFILLING else GenerateDone("He", stopped=True)
    assert made.tell(end) == ["Send(done)", "Release", "Close"]
    assert made.only(ChatDone).stopped


def test_stop_before_the_request_closes() -> None:
    assert scene().say("stop") == ["Release", "Close"]


def test_a_prefill_that_fails_after_stop_is_no_error() -> None:
    made = scene()
    ask(made)
    made.say("stop")
    assert made.tell(TurnFailed(WorkerBusyError())) == ["Send(done)", "Release", "Close"]


def test_a_failed_turn_ends_with_its_error() -> None:
    for fed in (False, True):
        made = scene()
        ask(made)
        if fed:
            made.tell(FED)
        told = made.tell(TurnFailed(GenerationFailedError()))
        assert told == ["Send(error)", "Release", "Close"]


def test_only_one_request() -> None:
    made = scene()
    ask(made)
    assert ask(made) == ["Send(warning)"]


def test_a_missing_request_times_out() -> None:
    assert scene().fire("prepare") == ["Send(error)", "Release", "Close"]
