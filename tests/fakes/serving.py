"""Fakes of a socket and a handler for the serve loop, with injectable faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import structlog

from core.protocols.effects import (
    Detect,
    DetectorEffect,
    Finalize,
    Generate,
    Prefetch,
    Prefill,
    Release,
    Step,
    Transcribe,
    WorkEffect,
)
from core.protocols.events import (
    ChunkReady,
    ClientMessage,
    Detected,
    Event,
    FinalizeDone,
    GenerateDone,
    Prefetched,
    PrefillDone,
    StepDone,
)
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.streaming import StreamingChunk
from core.serving.session_handler import Emit
from core.sockets import ClientGoneError


def _drop(logger: object, name: str, event: structlog.typing.EventDict) -> NoReturn:
    raise structlog.DropEvent


QUIET: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    None, processors=[_drop], wrapper_class=structlog.stdlib.BoundLogger
)
"""A log that drops all events."""


class FakeSocket:
    """A client controlled by the test.

    Attributes:
        sent: parsed messages sent to it.
        closes: (code, reason) of every close.
    """

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closes: list[tuple[int, str]] = []
        self.received = 0
        self._incoming: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._is_gone = False
        self._may_send = asyncio.Event()
        self._may_send.set()

    def say(self, message_type: str, **fields: Any) -> None:
        self.say_raw(json.dumps({"type": message_type, **fields}))

    def say_raw(self, raw: str | bytes) -> None:
        self._incoming.put_nowait(raw)

    def drop(self, *, while_sending: bool = False) -> None:
        """Lose the connection; a waiting send may never notice."""
        self._is_gone = True
        if not while_sending:
            self._may_send.set()
        self._incoming.put_nowait(None)

    def stop_reading(self) -> None:
        self._may_send.clear()

    def read_again(self) -> None:
        self._may_send.set()

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]

    @property
    def is_ended(self) -> bool:
        return self._is_gone or bool(self.closes)

    async def receive(self) -> str | bytes:
        raw = await self._incoming.get()
        if raw is None:
            self._incoming.put_nowait(None)
            raise ClientGoneError()
        self.received += 1
        return raw

    async def send(self, text: str) -> None:
        assert not self.closes, "sent after close"
        await self._may_send.wait()
        await asyncio.sleep(0)
        if self._is_gone:
            raise ClientGoneError()
        self.sent.append(json.loads(text))

    async def close(self, code: int, reason: str) -> None:
        await asyncio.sleep(0)
        self.closes.append((code, reason))


def usual_answers(effect: WorkEffect) -> Sequence[Event]:
    match effect:
        case Prefill():
            return [PrefillDone(input_tokens=5, kv_tokens=5)]
        case Step():
            return [StepDone(DuplexGenerateResult(is_listen=True, kv_cache_length=9))]
        case Finalize():
            return [FinalizeDone(kv_tokens=10)]
        case Generate():
            chunk = StreamingChunk(chunk_index=0, text_delta="Hi")
            return [ChunkReady(chunk), GenerateDone("Hi", kv_tokens=12)]
        case _:
            return []


class FakeHandler:
    """A handler that answers at once, or when the test lets it.

    Attributes:
        answers: events for each effect; may raise.
        heard: events of detection for each chunk.
        log: effects and signals in order.
        releases: number of releases.
    """

    def __init__(self, answers: Callable[[WorkEffect], Sequence[Event]] = usual_answers) -> None:
        self.answers = answers
        self.heard: Sequence[Detected] = ()
        self.log: list[str] = []
        self.releases = 0
        self.ignores_halt = False
        self._go = asyncio.Event()
        self._go.set()
        self._running: set[str] = set()

    def pause(self) -> None:
        self._go.clear()

    def go_on(self) -> None:
        self._go.set()

    async def check(self, message: ClientMessage) -> None:
        pass

    async def perform(self, effect: WorkEffect, emit: Emit) -> None:
        assert "work" not in self._running, "two effects at once"
        assert not self.releases
        self._running.add("work")
        try:
            self.log.append(type(effect).__name__)
            if isinstance(effect, Prefill | Step | Finalize | Generate):
                await self._go.wait()
            await asyncio.sleep(0)
            for event in self.answers(effect):
                await emit(event)
        finally:
            self._running.remove("work")

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        assert "detect" not in self._running
        self._running.add("detect")
        self.log.append(type(effect).__name__)
        await asyncio.sleep(0)
        if isinstance(effect, Detect):
            found, self.heard = (self.heard[:1] or [Detected()])[0], self.heard[1:]
            await emit(found)
        self._running.remove("detect")

    def transcribe(self, effect: Transcribe, emit: Emit) -> None:
        self.log.append(type(effect).__name__)

    async def prefetch(self, effect: Prefetch, emit: Emit) -> None:
        assert "look" not in self._running
        self._running.add("look")
        self.log.append(type(effect).__name__)
        await asyncio.sleep(0)
        await emit(Prefetched())
        self._running.remove("look")

    def expect(self) -> None:
        """Nothing to prepare."""

    def expect_prefetch(self, effect: Prefetch) -> None:
        """Nothing to prepare."""

    def interrupt(self) -> None:
        self.log.append("Interrupt")
        self._go.set()

    def cancel(self) -> None:
        self.log.append("Cancel")
        if not self.ignores_halt:
            self._go.set()

    async def release(self) -> None:
        assert not self._running, f"released while {self._running} runs"
        await asyncio.sleep(0)
        self.releases += 1
        self.log.append(Release.__name__)
