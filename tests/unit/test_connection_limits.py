"""The serve loop with slow clients, slow engines and invalid messages."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from core.errors import GenerationFailedError
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Generate, Step, WorkEffect
from core.protocols.events import (
    EngineWarning,
    Event,
    ShuttingDown,
)
from core.protocols.realtime import RealtimeMachine
from core.protocols.realtime_items import RealtimeLimits
from core.protocols.streaming import ChatMachine
from core.schemas.duplex import AudioChunk
from core.schemas.limits import LIVE_SOCKET_LIMIT_BYTES, MIB, PREPARE_LIMIT_BYTES
from core.schemas.queue import SocketKind
from core.serving import connection
from core.serving.realtime_handler import realtime_start
from tests.fakes.clock import settle
from tests.fakes.serving import FakeSocket, usual_answers
from tests.fakes.stages import (
    NAMES,
    SOUND,
    Hopeless,
    Stage,
)
from tests.fakes.virtual_time import in_virtual_time

# --- invalid messages ---


@pytest.mark.parametrize(
    ("raw", "code", "close_code"),
    [
        ("{", "bad_json", 1007),
        ("[]", "bad_json", 1007),
        (b"{}", "bad_json", 1003),
        ('{"type": "audio_chunk"}', "bad_audio", 1007),
        ('{"type": "prepare", "config": {"top_p": 7}}', "bad_config", 1007),
        ('{"type": "pause", "x": "' + "a" * LIVE_SOCKET_LIMIT_BYTES + '"}', "too_big", 1009),
        ("é" * (PREPARE_LIMIT_BYTES // 2 + 1), "too_big", 1009),
    ],
    ids=["syntax", "list", "binary", "audio", "config", "too big", "far too big"],
)
@in_virtual_time
async def test_bad_messages_end_the_session(raw: str | bytes, code: str, close_code: int) -> None:
    stage = Stage()
    stage.start()
    stage.socket.say_raw(raw)
    await stage.end()
    assert [message["code"] for message in stage.socket.sent] == [code]
    assert stage.socket.closes == [(close_code, code)]


@in_virtual_time
async def test_a_long_prepare_is_allowed_and_an_unknown_type_is_warned_of() -> None:
    stage = Stage()
    stage.start()
    await stage.say("dance")
    assert stage.socket.sent[0]["code"] == "unknown_type"
    await stage.say("prepare", note="a" * LIVE_SOCKET_LIMIT_BYTES)
    assert stage.socket.types[-1] == "prepared"
    await stage.stop()


class EagerSocket(FakeSocket):
    """Accepts every message at once, so that the loop never pauses."""

    async def send(self, text: str) -> None:
        self.sent.append(json.loads(text))


@in_virtual_time
async def test_audio_that_is_committed_in_a_burst_is_transcribed() -> None:
    start = realtime_start("model", is_beta=False, can_transcribe=True)
    machine = RealtimeMachine(NAMES, start, RealtimeLimits(), len)
    stage = Stage(machine, SocketKind.REALTIME)
    stage.connection.wire.socket = stage.socket = EagerSocket()
    stage.start()
    await settle()
    rules = {"transcription": {"model": "whisper-1"}, "turn_detection": None}
    session = {"type": "realtime", "audio": {"input": rules}}
    await stage.say("session.update", session=session)
    count = connection.INBOX_EVENTS // 2
    for _ in range(count):
        stage.socket.say("input_audio_buffer.append", audio=b64encode(bytes(4_800)).decode())
        stage.socket.say("input_audio_buffer.commit")
    await settle()
    assert stage.handler.log.count("Transcribe") == count
    assert "error" not in stage.socket.types
    stage.socket.drop()
    await stage.end()


# --- slow clients and engines ---


@in_virtual_time
async def test_a_full_inbox_applies_backpressure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "INBOX_EVENTS", 8)
    stage = await Stage.prepared()
    stage.socket.stop_reading()
    await stage.say("interrupt")  # its answer blocks the loop
    before = stage.socket.received
    for _ in range(50):
        stage.socket.say("heartbeat")
    await settle()
    assert stage.socket.received - before == 9, "eight wait, one is in the reader's hand"
    stage.socket.read_again()
    await stage.stop()
    assert stage.socket.types == ["prepared", "interrupted", "stopped"]


@in_virtual_time
async def test_a_session_holds_no_more_bytes_than_its_largest_message_has() -> None:
    stage = await Stage.prepared()
    stage.socket.stop_reading()
    await stage.say("interrupt")
    before = stage.socket.received
    for _ in range(20):
        stage.socket.say("heartbeat", note="a" * MIB)
    await settle()
    whole = PREPARE_LIMIT_BYTES // MIB - 1
    assert stage.socket.received - before == whole + 1, "one is in the reader's hand"
    stage.socket.read_again()
    await stage.stop()


@in_virtual_time
async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    stage = await Stage.prepared()
    stage.socket.stop_reading()
    await stage.say("interrupt")
    await asyncio.sleep(19.0)
    assert not stage.machine.is_closed
    await asyncio.sleep(2.0)
    assert stage.machine.is_closed
    await stage.end()
    assert stage.socket.closes == [(1001, "")]


@in_virtual_time
async def test_a_send_to_a_lost_client_is_aborted() -> None:
    stage = await Stage.prepared()
    stage.socket.stop_reading()
    await stage.say("interrupt")
    stage.socket.drop(while_sending=True)
    await settle()
    assert stage.task is not None and stage.task.done(), "without any time passing"
    stage.check()


def talkative(count: int) -> Callable[[WorkEffect], Sequence[Event]]:
    def answers(effect: WorkEffect) -> Sequence[Event]:
        noise = [EngineWarning(GenerationFailedError("Slow."))] * count
        return [*(noise if isinstance(effect, Step) else ()), *usual_answers(effect)]

    return answers


@pytest.mark.parametrize("ending", ["shutdown", "mistake"])
@in_virtual_time
async def test_an_engine_that_waits_for_a_full_inbox_is_released(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "INBOX_EVENTS", 2)
    machine = Hopeless(NAMES) if ending == "mistake" else DuplexMachine(NAMES)
    stage = Stage(machine)
    stage.handler.answers = talkative(20)
    stage.start()
    await stage.say("prepare")
    stage.socket.stop_reading()
    if ending == "shutdown":
        await stage.say("interrupt")
        await stage.say("audio_chunk", audio=SOUND)
        stage.socket.read_again()
        stage.connection.post(ShuttingDown())
    else:
        stage.connection._work.put_nowait(Step(AudioChunk(audio=SOUND), (), 0, due_s=1.0))
    await settle()
    stage.socket.read_again()
    await settle()
    assert stage.task is not None and stage.task.done(), "without any time passing"
    assert stage.handler.releases == 1


@in_virtual_time
async def test_a_slow_engine_does_not_delay_other_sessions() -> None:
    stage = await Stage.prepared()
    stage.handler.pause()
    await stage.say("audio_chunk", audio=SOUND)
    await stage.say("pause")
    assert stage.socket.types[-1] == "paused", "the step still runs"
    await stage.say("resume")
    stage.handler.go_on()
    await settle()
    assert stage.socket.types[-1] == "result"
    await stage.stop()


@in_virtual_time
async def test_an_engine_that_never_answers_ends_the_session() -> None:
    stage = await Stage.prepared(DuplexMachine(NAMES, DuplexLimits(idle_timeout_s=0)))
    stage.handler.pause()
    stage.handler.ignores_halt = True
    await stage.say("audio_chunk", audio=SOUND)
    await asyncio.sleep(61.0)
    assert stage.socket.sent[-1]["code"] == "generation_failed"
    assert stage.socket.closes == [], "the release is waited for"
    await asyncio.sleep(5.0)
    assert stage.socket.closes == [(1011, "generation_failed")], "but not for long"
    assert not stage.connection.released.is_set(), "the worker is not free"
    stage.handler.go_on()
    await stage.end()


@in_virtual_time
async def test_an_engine_that_emits_events_is_not_stalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(DuplexMachine(NAMES, DuplexLimits(idle_timeout_s=0)))

    async def perform(effect: WorkEffect, emit: Any) -> None:
        for _ in range(4 * isinstance(effect, Step)):
            await asyncio.sleep(50.0)
            await emit(EngineWarning(GenerationFailedError("Slow.")))
        for event in usual_answers(effect):
            await emit(event)

    monkeypatch.setattr(stage.handler, "perform", perform)
    await stage.prepare()
    await stage.say("audio_chunk", audio=SOUND)
    await asyncio.sleep(210.0)
    assert stage.socket.types.count("warning") == 4
    assert stage.socket.types[-1] == "result"
    await asyncio.sleep(210.0)
    await stage.stop()


@pytest.mark.parametrize(("is_streamed", "last"), [(False, "done"), (True, "error")])
@in_virtual_time
async def test_a_reply_that_is_generated_as_a_whole_may_take_minutes(
    monkeypatch: pytest.MonkeyPatch, is_streamed: bool, last: str
) -> None:
    """Nothing is emitted before its end."""
    stage = Stage(ChatMachine(NAMES), SocketKind.CHAT)

    async def perform(effect: WorkEffect, emit: Any) -> None:
        if isinstance(effect, Generate):
            await asyncio.sleep(200.0)
        for event in usual_answers(effect):
            await emit(event)

    monkeypatch.setattr(stage.handler, "perform", perform)
    stage.start()
    hello = [{"role": "user", "content": "Hello"}]
    await stage.say("chat", messages=hello, streaming=is_streamed)
    await stage.end()
    assert stage.socket.types[-1] == last
