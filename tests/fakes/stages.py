"""A connection with fakes around it, and whole conversations to run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from config import Settings
from core.endpointing import SpeechStarted
from core.protocols.duplex import DuplexMachine
from core.protocols.effects import Effect
from core.protocols.events import (
    Detected,
    Event,
    Segment,
    ShuttingDown,
)
from core.protocols.half_duplex import HalfDuplexMachine
from core.protocols.machine import SessionIds
from core.protocols.streaming import StreamingMachine
from core.schemas.queue import SocketKind
from core.schemas.worker import WorkerStatus
from core.serving.connection import Connection
from core.serving.session_kinds import endpoint_of
from core.serving.wire import Wire
from tests.fakes.awaits import Awaits
from tests.fakes.clock import settle, timers_left
from tests.fakes.scenes import audio
from tests.fakes.serving import QUIET, FakeHandler, FakeSocket
from tests.fakes.virtual_time import in_virtual_time

NAMES = SessionIds("id_1", "rec_1")
SOUND = audio(100)
TERMINAL = {"stopped", "timeout", "error"}


class Watcher:
    """Records what it observes."""

    def __init__(self) -> None:
        self.seen: list[tuple[Event, Sequence[Effect]]] = []
        self.closes = 0

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        assert not self.closes
        self.seen.append((event, effects))

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closes += 1


class Stage:
    """A connection with fakes around it."""

    def __init__(self, machine: Any = None, kind: SocketKind = SocketKind.DUPLEX) -> None:
        self.socket, self.handler = FakeSocket(), FakeHandler()
        self.watcher = Watcher()
        self.machine = machine or DuplexMachine(NAMES)
        self.connection = Connection(
            Wire(self.socket, endpoint_of(kind, Settings()), unix_time_s=lambda: 1_700_000_000.5),
            self.machine,
            cast(Any, self.handler),
            [self.watcher],
            QUIET,
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.connection.serve())

    async def say(self, message_type: str, **fields: Any) -> None:
        self.socket.say(message_type, **fields)
        await settle()

    async def prepare(self) -> None:
        self.start()
        await self.say("prepare")
        assert self.socket.types == ["prepared"]

    @classmethod
    async def prepared(cls, machine: Any = None) -> Stage:
        stage = cls(machine)
        await stage.prepare()
        return stage

    async def stop(self) -> None:
        await self.say("stop")
        await self.end()

    async def end(self) -> None:
        """Wait in virtual time until it has ended, then check it."""
        assert self.task is not None
        for _ in range(60):
            await settle()
            if self.task.done():
                break
            await asyncio.sleep(5.0)
        assert self.task.done(), "it hangs"
        self.check()

    def check(self) -> None:
        """Check that nothing leaks and everything happened once."""
        assert self.handler.releases == 1
        assert self.machine.is_closed
        assert self.machine.status is WorkerStatus.IDLE
        assert self.connection.released.is_set()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert timers_left() == 0, "a timer is left"
        assert self.socket.is_ended
        assert len(self.socket.closes) <= 1
        assert self.watcher.closes == 1
        terminal = [name for name in self.socket.types if name in TERMINAL]
        assert len(terminal) <= 1
        assert not terminal or self.socket.types[-1] in TERMINAL


# --- three whole conversations ---


async def talk_duplex(stage: Stage) -> None:
    for name, fields in (
        ("audio_chunk", {"audio": SOUND}),
        ("prepare", {"barge_in": {}}),
        ("audio_chunk", {"audio": SOUND, "frame_base64_list": ["a"]}),
        ("video_frame", {"frame": "a"}),
        ("audio_chunk", {"audio": SOUND}),
        ("pause", {}),
        ("resume", {}),
        ("interrupt", {}),
    ):
        await stage.say(name, **fields)
    stage.handler.pause()
    await stage.say("audio_chunk", audio=SOUND)
    await asyncio.sleep(0.5)
    await stage.say("audio_chunk", audio=SOUND)
    await stage.say("stop")


async def talk_half_duplex(stage: Stage) -> None:
    spoken = (SpeechStarted(0), Segment(bytes(6_400)))
    stage.handler.heard = [
        Detected((SpeechStarted(0),)),
        Detected((Segment(bytes(6_400)),)),
        Detected((*spoken, *spoken)),
        Detected(spoken),
    ]
    await stage.say("prepare")
    for _ in range(2):
        await stage.say("audio_chunk", audio=audio(600))
    for ending in ("interrupt", "stop"):
        stage.handler.pause()
        await stage.say("audio_chunk", audio=audio(600))
        await asyncio.sleep(0.5)
        await stage.say("audio_chunk", audio=audio(600))
        await stage.say(ending)


async def talk_streaming(stage: Stage) -> None:
    history = [{"role": "user", "content": "Hello"}]
    for turn in range(2):
        await stage.say("prefill", messages=history, clear_kv_cache=not turn)
        await stage.say("generate")
    stage.handler.pause()
    await stage.say("prefill", messages=history)
    await stage.say("stop")
    await stage.say("close")


CONVERSATIONS: dict[str, tuple[Callable[[], Any], SocketKind, Any]] = {
    "duplex": (lambda: DuplexMachine(NAMES), SocketKind.DUPLEX, talk_duplex),
    "half_duplex": (lambda: HalfDuplexMachine(NAMES), SocketKind.HALF_DUPLEX, talk_half_duplex),
    "streaming": (lambda: StreamingMachine(NAMES), SocketKind.STREAMING, talk_streaming),
}


@in_virtual_time
async def converse(
    name: str, at: int | None = None, act: Callable[[Stage], None] | None = None
) -> tuple[Stage, Awaits]:
    """Run a conversation with an incident at suspension number `at`."""
    build, kind, talk = CONVERSATIONS[name]
    stage = Stage(build(), kind)
    awaits = Awaits(at, (lambda: act(stage)) if act else None)
    awaits.install(asyncio.get_running_loop())
    stage.start()
    await settle()
    await talk(stage)
    try:
        await stage.end()
    finally:
        assert stage.task is not None
        if stage.task.done() and not stage.task.cancelled():
            stage.task.result()
    return stage, awaits


def cancel(stage: Stage) -> None:
    assert stage.task is not None
    stage.task.cancel()


def half_open(stage: Stage) -> None:
    """The connection is half open until the server's pings time out."""
    stage.socket.stop_reading()
    stage.socket.drop(while_sending=True)


ACCIDENTS: dict[str, Callable[[Stage], None]] = {
    "disconnect": lambda stage: stage.socket.drop(),
    "half open": half_open,
    "cancel": cancel,
    "shutdown": lambda stage: stage.connection.post(ShuttingDown()),
    "bad message": lambda stage: stage.socket.say_raw("{"),
}


class Hopeless(DuplexMachine):
    """A machine that fails even at its end."""

    def handle(self, event: Event) -> list[Effect]:
        if self.phase == "active":
            raise KeyError("a mistake")
        return super().handle(event)
