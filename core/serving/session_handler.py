"""What the effect handlers of all modes share: slots, interruptions, and the end.

A handler maps a machine's effects to calls of the session's view. It counts the work that was
requested and that has ended, so that an interruption concerns exactly the work that was requested
before it, begun or not.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from core.engine import WorkCancelledError
from core.errors import GenerationFailedError, InternalError, OmniError
from core.modes import Mode, TurnMode
from core.protocols.effects import (
    DetectorEffect,
    Finalize,
    Generate,
    Prefetch,
    Prefill,
    Step,
    WorkEffect,
)
from core.protocols.events import (
    ChunkReady,
    EngineWarning,
    Event,
    FinalizeDone,
    GenerateDone,
    PrefillDone,
    Segment,
    StepDone,
    Transcribed,
    TurnFailed,
)
from core.schemas.common import TokenStats
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.streaming import ReplyEnd, StreamingChunk
from core.serving.runtime import WorkerRuntime
from core.serving.slots import Lease, Owner
from core.serving.threads import SessionThreads
from core.serving.transcribers import transcribe_or_error

T = TypeVar("T")
ViewT = TypeVar("ViewT", bound=Mode)

Emit = Callable[[Event], Awaitable[None]]
"""Posts an event to the machine; waits while the inbox is full."""

SESSION: Final = "session"  # its id inside the view, which has one
NOT_FED: Final = StepDone(DuplexGenerateResult(is_listen=True), was_fed=False)


@dataclass
class _Work:
    """Counts of work effects; `interrupted` is the number of the one to be cut short."""

    requested: int = 0
    ended: int = 0
    interrupted: int = 0


class SessionHandler(ABC, Generic[ViewT]):
    """Carries out what a machine asks of the engine, for one session.

    `perform`, `prefetch` and `detect` run one effect at a time each, in order, and to their end.
    What they raise ends the session: an `OmniError` with its own code, anything else as internal.

    Attributes:
        turn_effects: those whose failure ends a turn; that of any other ends the session.
    """

    turn_effects: ClassVar[tuple[type[WorkEffect], ...]] = ()

    def __init__(self, runtime: WorkerRuntime, owner: Owner, lease: Lease | None = None) -> None:
        self._runtime = runtime
        self._owner = owner
        self._lease = lease
        self._view: ViewT | None = None  # the conversation, if there is one now
        self._threads = SessionThreads(runtime.threads, runtime.backend.media)
        self._work = _Work()
        self._is_cancelled = False
        self._feeding: asyncio.Task[Any] | None = None  # undone afterwards if it is cancelled
        self._running: set[asyncio.Task[Any]] = set()  # calls of the view
        self._slot_wait: asyncio.Timeout | None = None  # while it waits for a slot
        self._hang_watch: asyncio.TimerHandle | None = None
        self._transcripts: set[asyncio.Task[None]] = set()  # bounded by the transcriber's queue

    @property
    def kv_tokens(self) -> int:
        return 0 if self._view is None else self._view.kv_cache_length

    # --- what the serve loop calls ---

    def expect(self) -> None:
        """Count an effect that was requested; `perform` gets it after those before it."""
        self._work.requested += 1

    async def perform(self, effect: WorkEffect, emit: Emit) -> None:
        """Carry out one effect and emit what its docstring promises."""
        try:
            if self._is_cancelled:
                raise WorkCancelledError
            await self._perform(effect, emit)
        except WorkCancelledError:
            for event in self._cancelled(effect):
                await emit(event)
        except OmniError as error:
            if not isinstance(effect, self.turn_effects):
                raise
            can_rollback = self._view is not None and self._view.can_rollback()
            await emit(TurnFailed(error, can_rollback))
        finally:
            self._work.ended += 1

    def expect_prefetch(self, effect: Prefetch) -> None:
        """Take a `Prefetch` when it is requested; a `Step` may come before `prefetch` does."""
        raise InternalError  # sessions without units prefetch nothing

    async def prefetch(self, effect: Prefetch, emit: Emit) -> None:
        """Encode the pictures that `expect_prefetch` was given."""
        raise InternalError

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        """Carry out voice activity detection; never on the event loop's thread."""
        raise InternalError  # a session without a detector

    def interrupt(self) -> None:
        """Cut short, without waiting, the work that is requested now, if any."""
        if self._work.requested > self._work.ended:
            self._work.interrupted = self._work.requested
            self._cut_short()

    def cancel(self) -> None:
        """End running work, without waiting, at its next pass; a call that hangs is abandoned."""
        self._is_cancelled = True
        self._stop_waiting()
        if self._view is not None:
            self._view.stop()
        self._cancel_calls()
        if self._hang_watch is None:
            limit_s = self._runtime.limits.hang_limit_s
            self._hang_watch = asyncio.get_running_loop().call_later(limit_s, self._abandon)

    async def release(self) -> None:
        """Free the conversation, then the slot; once, as the last call, when nothing runs."""
        watch, self._hang_watch = self._hang_watch, None
        if watch is not None:
            watch.cancel()
        for task in self._transcripts:
            task.cancel()
        await asyncio.gather(*self._transcripts, return_exceptions=True)
        lease, self._lease = self._lease, None
        await self._runtime.end(self._view, lease)

    async def free_view(self) -> None:
        """Free the conversation now, and keep the slot."""
        view, self._view = self._view, None
        if view is not None:
            await self._runtime.free(view)

    # --- for the modes ---

    @abstractmethod
    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        """Carry out one effect; one that is cancelled ends as `_cancelled` says."""

    def _cancelled(self, effect: WorkEffect) -> Iterator[Event]:
        match effect:
            case Prefill():
                yield PrefillDone()
            case Step():
                yield NOT_FED
            case Finalize():
                yield FinalizeDone(0.0, self.kv_tokens)
            case Generate():
                yield GenerateDone(stopped=True, kv_tokens=self.kv_tokens)

    @property
    def _is_cut(self) -> bool:
        """The work under way was interrupted or cancelled."""
        return self._is_cancelled or self._work.interrupted == self._work.ended + 1

    async def _call(self, call: Coroutine[Any, Any, T], *, feeds: bool = False) -> T:
        """Await a call of the view; `cancel` cancels it, and if it `feeds`, an interruption.

        Raises:
            OmniError: It failed; an unexpected failure is a `GenerationFailedError`.
            WorkCancelledError: It was cancelled.
        """
        if self._is_cancelled or (feeds and self._is_cut):
            call.close()
            raise WorkCancelledError
        task = asyncio.ensure_future(call)
        self._running.add(task)
        self._feeding = task if feeds else self._feeding
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise WorkCancelledError from None
        except (OmniError, WorkCancelledError):
            raise
        except Exception as error:
            self._runtime.threads.failed()
            raise GenerationFailedError() from error
        finally:
            self._running.discard(task)
            self._feeding = None if feeds else self._feeding

    def _in_background(self, transcribing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(transcribing)
        self._transcripts.add(task)
        task.add_done_callback(self._transcripts.discard)

    async def _transcribe(
        self, segment: Segment, emit: Emit, turn_index: int | None = None
    ) -> None:
        found = await transcribe_or_error(self._runtime.transcriber, segment.pcm)
        if isinstance(found, OmniError):
            await emit(Transcribed(segment, problem=found, turn_index=turn_index))
        else:
            await emit(Transcribed(segment, found.text, found.language, turn_index=turn_index))

    async def _feed(
        self,
        view: Mode,
        call: Coroutine[Any, Any, str],
        count: int,
        emit: Emit,
        *,
        is_undone: bool = True,
    ) -> None:
        """Await a call that feeds `count` messages, and emit the events that describe it.

        The order matters: clients expect `prepared` as the next message after `prepare`. The call
        returns the text fed; if `is_undone`, an interruption cancels it, and it is undone.
        """
        before = view.kv_cache_length
        prompt = await self._call(call, feeds=is_undone)
        after = view.kv_cache_length
        await emit(PrefillDone(before, max(0, after - before), count, len(prompt), after))
        for problem in view.take_notices():
            await emit(EngineWarning(problem))

    async def _reply(
        self, view: TurnMode, reply: AsyncGenerator[StreamingChunk, None], emit: Emit
    ) -> ReplyEnd:
        """Emit a reply's pieces as they come and return its end; raises as `_call`."""

        async def emit_chunks() -> None:
            async with aclosing(reply):
                async for chunk in reply:
                    await emit(ChunkReady(chunk))

        await self._call(emit_chunks())
        assert view.reply_end is not None, "the reply has ended"
        return view.reply_end

    async def _take_slot(self) -> None:
        """Take a slot unless one is held; raises `WorkerBusyError` if none is free in time."""
        if self._lease is not None:
            return
        if self._is_cut:
            raise WorkCancelledError
        runtime = self._runtime
        try:
            async with asyncio.timeout(None) as self._slot_wait:
                self._lease = await runtime.slots.take(self._owner, runtime.limits.busy_wait_s)
        except TimeoutError as error:
            raise WorkCancelledError from error
        finally:
            self._slot_wait = None

    def _cut_short(self) -> None:
        """End a reply under way in order; cancel a prefill, which is undone."""
        self._stop_waiting()
        if self._view is not None:
            self._view.stop()
        if self._feeding is not None:
            self._threads.cancelled.set()
            self._feeding.cancel()

    def _cancel_calls(self) -> None:
        self._threads.cancelled.set()
        for task in tuple(self._running):
            task.cancel()

    def _abandon(self) -> None:
        self._threads.abandon()
        self._cancel_calls()

    def _stop_waiting(self) -> None:
        if self._slot_wait is not None:
            self._slot_wait.reschedule(asyncio.get_running_loop().time())


def turn_done(view: TurnMode, fed: TokenStats, end: ReplyEnd) -> GenerateDone:
    total = view.kv_cache_length
    counts = {"generated_tokens": end.generated_tokens, "total_tokens": total}
    return GenerateDone(end.text, end.stopped, fed.model_copy(update=counts), total)
