"""Base of the effect handlers: slots, interruption, cancellation and release.

A handler maps a machine's effects to calls of the session's view. It counts the work that was
requested and that has ended, so that an interruption applies exactly to the work requested before
it, begun or not.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from core.engine import WorkCancelledError
from core.errors import GenerationFailedError, InternalError, OmniError, PictureError
from core.media import FACTS, Media, MediaContent, from_bytes, read_media
from core.media_process import MediaProcesses
from core.modes import Mode, TurnMode
from core.protocols import effects, events
from core.schemas.common import TokenStats
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.streaming import ReplyEnd, StreamingChunk, WorkerPrefill
from core.serving.runtime import CALLS, SHORT_CALLS, ThreadPools, WorkerRuntime
from core.serving.slots import Owner
from core.serving.transcribers import transcribe_or_error

T = TypeVar("T")
ViewT = TypeVar("ViewT", bound=Mode)

Emit = Callable[[events.Event], Awaitable[None]]
"""Puts an event into the inbox, waiting while it is full."""

# Ours: for a blocking call to end after `cancel`; then the session ends without it.
HANG_LIMIT_S: Final = 60.0


@dataclass
class _Work:
    requested: int = 0
    ended: int = 0
    interrupted: int = 0  # number of the last one that was interrupted


@contextmanager
def counting_failures(pools: ThreadPools) -> Iterator[None]:
    """Log and count an unexpected failure, and raise `GenerationFailedError` instead."""
    try:
        yield
    except (OmniError, WorkCancelledError):
        raise
    except Exception as error:
        pools.failed()
        raise GenerationFailedError() from error


class SessionThreads:
    """The `Threads` of one session's view.

    An unexpected failure becomes a project error. A call that hangs is abandoned when its session
    has ended: it keeps its thread and nothing else.
    """

    def __init__(self, pools: ThreadPools, media: MediaProcesses | None) -> None:
        """Without `media`, pictures are decoded on the calling thread."""
        self.cancelled = threading.Event()  # set to cancel the work under way, which polls it
        self._pools = pools
        self._media = media
        self._is_abandoned = False
        self._calls: dict[asyncio.Future[Any], Callable[[], bool]] = {}  # how to abandon each

    async def run(self, work: Callable[[], T], *, is_short: bool = False) -> T:
        """Run `work` on a thread; if cancelled, wait until it has ended or is abandoned.

        Raises an `OmniError`, or `WorkCancelledError` if it was abandoned.
        """
        if self._is_abandoned:
            raise WorkCancelledError
        pool = SHORT_CALLS if is_short else CALLS
        job = self._pools.pools[pool].submit(contextvars.copy_context().run, work)
        done, was_cancelled = asyncio.wrap_future(job), False
        self._calls[done] = partial(self._pools.abandon, pool, job)
        while not done.done():
            try:
                await asyncio.wait([done])
            except asyncio.CancelledError:
                was_cancelled = True
        del self._calls[done]
        try:
            if done.cancelled():
                raise WorkCancelledError
            with counting_failures(self._pools):
                return done.result()
        finally:
            if was_cancelled:
                raise asyncio.CancelledError

    def abandon(self) -> None:
        """Stop waiting for the calls under way, which hang, unless too many were abandoned."""
        self._is_abandoned = True
        for done, abandon in self._calls.items():
            if not done.done() and abandon():
                done.cancel()

    def read_media(self, items: Sequence[MediaContent]) -> list[Media]:
        """Decode the pictures and videos of one request; blocks.

        Raises `PictureError`, `AudioError`, or `WorkCancelledError` once `cancelled` is set.
        """
        if self._media is None:
            return read_media(items)
        facts, blobs = self._media.run(
            "media",
            [item.model_dump(exclude={"data"}) for item in items],
            [item.data.encode() for item in items],
            problem=PictureError,
            check=self._check,
        )
        try:
            return from_bytes(FACTS.validate_python(facts), blobs)
        except ValueError as error:
            raise PictureError("It could not be decoded.") from error

    def _check(self) -> None:
        if self.cancelled.is_set():
            raise WorkCancelledError


class SessionHandler(ABC, Generic[ViewT]):
    """Carries out the engine effects of one session's machine.

    `perform`, `prefetch` and `detect` each run one effect at a time, in order, to its end. An
    exception ends the session: an `OmniError` with its own code, any other as internal.
    """

    # Effects whose failure ends only the turn.
    turn_effects: ClassVar[tuple[type[effects.WorkEffect], ...]] = ()

    def __init__(self, runtime: WorkerRuntime, owner: Owner) -> None:
        self._runtime = runtime
        self._owner = owner
        self._view: ViewT | None = None  # the present conversation
        self._threads = SessionThreads(runtime.threads, runtime.backend.media)
        self._work = _Work()
        self._is_cancelled = False
        # The call that an interruption cancels: a prefill, or the wait for a slot.
        self._feeding: asyncio.Task[Any] | None = None
        self._replying: TurnMode | None = None
        self._running: set[asyncio.Task[Any]] = set()  # calls of the view
        self._hang_watch: asyncio.TimerHandle | None = None
        self._transcripts: set[asyncio.Task[None]] = set()  # bounded by the transcriber's queue

    @property
    def kv_tokens(self) -> int:
        return sum(view.kv_cache_length for view in self._views())

    # --- what the serve loop calls ---

    async def check(self, message: events.ClientMessage) -> None:
        """Raise an `OmniError` if a message's media cannot be used, so that it is rejected."""

    def expect(self) -> None:
        """Count an effect that `perform` is given later."""
        self._work.requested += 1

    async def perform(self, effect: effects.WorkEffect, emit: Emit) -> None:
        """Carry out one effect and emit the events that its docstring names."""
        try:
            if self._is_cancelled:
                raise WorkCancelledError
            self._threads.cancelled.clear()  # of interrupted work before it
            await self._perform(effect, emit)
        except WorkCancelledError:
            if (event := self._cancelled(effect)) is not None:
                await emit(event)
        except OmniError as error:
            if not isinstance(effect, self.turn_effects):
                raise
            can_rollback = self._view is not None and self._view.can_rollback()
            await emit(events.TurnFailed(error, can_rollback))
        finally:
            self._work.ended += 1

    def expect_prefetch(self, effect: effects.Prefetch) -> None:
        """Register a `Prefetch` when it is requested; a `Step` may overtake `prefetch`."""
        raise InternalError  # only duplex sessions prefetch

    async def prefetch(self, effect: effects.Prefetch, emit: Emit) -> None:
        raise InternalError

    async def detect(self, effect: effects.DetectorEffect, emit: Emit) -> None:
        raise InternalError  # the session has no detector

    def transcribe(self, effect: effects.Transcribe, emit: Emit) -> None:
        raise InternalError  # only Realtime sessions transcribe items

    def interrupt(self) -> None:
        """Interrupt the work requested so far, without waiting.

        A reply ends in order; a prefill is cancelled, and undone.
        """
        if self._work.requested == self._work.ended:
            return
        self._work.interrupted = self._work.requested
        if self._replying is not None:
            self._replying.stop()
        if self._feeding is not None:
            self._threads.cancelled.set()
            self._feeding.cancel()

    def cancel(self) -> None:
        """Cancel running work without waiting; a call that hangs is abandoned later."""
        self._is_cancelled = True
        for view in self._views():
            view.stop()
        self._cancel_calls()
        if self._hang_watch is None:
            self._hang_watch = asyncio.get_running_loop().call_later(HANG_LIMIT_S, self._abandon)

    async def release(self) -> None:
        """Free the conversations, then the slot; the last call, when no work runs."""
        for task in self._transcripts:
            task.cancel()
        await asyncio.gather(*self._transcripts, return_exceptions=True)
        try:
            await self._runtime.end(self._views(), self._owner)
        finally:
            if self._hang_watch is not None:
                self._hang_watch.cancel()

    async def free_view(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            await self._runtime.free(view)

    # --- for subclasses ---

    @property
    def _opened(self) -> ViewT:
        assert self._view is not None, "the session is prepared"
        return self._view

    def _views(self) -> list[Mode]:
        return [] if self._view is None else [self._view]

    @abstractmethod
    async def _perform(self, effect: effects.WorkEffect, emit: Emit) -> None:
        """Carry out one effect; `WorkCancelledError` ends it as `_cancelled` says."""

    def _cancelled(self, effect: effects.WorkEffect) -> events.Event | None:
        match effect:
            case effects.Prefill():
                return events.PrefillDone()
            case effects.Step():
                return events.StepDone(DuplexGenerateResult(is_listen=True), was_fed=False)
            case effects.Finalize():
                return events.FinalizeDone(0.0, self.kv_tokens)
            case effects.Generate():
                return events.GenerateDone(stopped=True, kv_tokens=self.kv_tokens)
        return None

    @property
    def _is_interrupted(self) -> bool:
        """The work under way was interrupted or cancelled."""
        return self._is_cancelled or self._work.interrupted == self._work.ended + 1

    async def _call(self, call: Coroutine[Any, Any, T], *, feeds: bool = False) -> T:
        """Await a call; `cancel` cancels it, and so does `interrupt` if it `feeds`.

        Raises an `OmniError`, or `WorkCancelledError` if it was cancelled.
        """
        if self._is_cancelled or (feeds and self._is_interrupted):
            call.close()
            raise WorkCancelledError
        task = asyncio.ensure_future(call)
        self._running.add(task)
        self._feeding = task if feeds else self._feeding
        try:
            with counting_failures(self._runtime.threads):
                return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise WorkCancelledError from None
        finally:
            self._running.discard(task)
            self._feeding = None if feeds else self._feeding

    def _in_background(self, transcribing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(transcribing)
        self._transcripts.add(task)
        task.add_done_callback(self._transcripts.discard)

    async def _transcribe(
        self,
        segment: events.Segment,
        emit: Emit,
        turn_index: int | None = None,
        prefill: WorkerPrefill | None = None,
    ) -> None:
        runtime = self._runtime
        found, problem = await transcribe_or_error(
            runtime.transcriber, segment.pcm, runtime.threads.failed
        )
        said = (found.text, found.language)
        await emit(events.Transcribed(segment, *said, problem, turn_index, prefill))

    async def _feed(
        self,
        view: Mode,
        call: Coroutine[Any, Any, str],
        count: int,
        emit: Emit,
        *,
        is_undone: bool = True,
    ) -> None:
        """Await a call that feeds `count` messages and returns their text; emit its events.

        The order matters: clients expect `prepared` as the next message after `prepare`. If
        `is_undone`, an interruption cancels the call.
        """
        before = view.kv_cache_length
        prompt = await self._call(call, feeds=is_undone)
        after = view.kv_cache_length
        await emit(events.PrefillDone(before, max(0, after - before), count, len(prompt), after))
        for problem in view.take_notices():
            await emit(events.EngineWarning(problem))

    async def _reply(
        self, view: TurnMode, reply: AsyncGenerator[StreamingChunk, None], emit: Emit
    ) -> ReplyEnd:
        """Emit a reply's chunks and return its outcome; raises as `_call`."""
        self._replying = view
        if self._is_interrupted:
            view.stop()

        async def emit_chunks() -> None:
            async with aclosing(reply):
                async for chunk in reply:
                    await emit(events.ChunkReady(chunk))

        try:
            await self._call(emit_chunks())
        finally:
            self._replying = None
        assert view.reply_end is not None, "the reply has ended"
        return view.reply_end

    async def _take_slot(self) -> None:
        """Take a slot unless one is held; raises `WorkerBusyError` after a while."""
        slots = self._runtime.slots
        if self._owner not in slots.owners:
            await self._call(slots.take(self._owner), feeds=True)

    def _cancel_calls(self) -> None:
        self._threads.cancelled.set()
        for task in tuple(self._running):
            task.cancel()

    def _abandon(self) -> None:
        self._threads.abandon()
        self._cancel_calls()


def turn_done(view: TurnMode, end: ReplyEnd, fed: TokenStats | None = None) -> events.GenerateDone:
    total = view.kv_cache_length
    counts = {"generated_tokens": end.generated_tokens, "total_tokens": total}
    stats = (fed or TokenStats()).model_copy(update=counts)
    return events.GenerateDone(end.text, end.stopped, stats, total)
