"""What the performers of all protocols share: which work a signal means, slots, and the end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from core.engine import WorkCancelledError
from core.errors import InternalError
from core.protocols.effects import DetectorEffect, Look, WorkEffect
from core.protocols.events import ChunkReady, Noticed, PrefillDone
from core.schemas.streaming import StreamingChunk
from core.serving.backend import Fed, Reply, ReplyEnd, Talk
from core.serving.crew import SessionCalls
from core.serving.lanes import Emit
from core.serving.ownership import Lease, Owner
from core.serving.workshop import Workshop


class SessionPerformer(ABC):
    """Carries out one session's effects with its conversation.

    Work is counted as it is asked for and as it ends, so that an interruption concerns exactly the
    work that the machine had in mind, begun or not.
    """

    def __init__(self, workshop: Workshop, owner: Owner, lease: Lease | None = None) -> None:
        """Begin without a conversation.

        Args:
            workshop: The model and everything around it.
            owner: The session.
            lease: Its slot, if it holds one already.
        """
        self._workshop = workshop
        self._owner = owner
        self._lease = lease
        self._asked = 0  # pieces of work the machine has asked for
        self._ended = 0  # and how many of them have ended
        self._cut = 0  # number of the one to be cut short
        self._is_halted = False
        self._is_feeding = False  # what is half fed when it is cut short is undone afterwards
        self._calls = SessionCalls(workshop.crew)
        self._patience: asyncio.Timeout | None = None  # while it waits for a slot
        self._hang_watch: asyncio.TimerHandle | None = None

    @property
    def kv_tokens(self) -> int:
        """Tokens in the cache of its conversation."""
        return 0 if self._talk is None else self._talk.kv_tokens

    # --- what the serve loop calls ---

    def expect(self) -> None:
        """Count a piece of work."""
        self._asked += 1

    async def perform(self, effect: WorkEffect, emit: Emit) -> None:
        """Carry out one effect."""
        try:
            await self._perform(effect, emit)
        finally:
            self._ended += 1

    async def look(self, effect: Look, emit: Emit) -> None:
        """Look at pictures; sessions without units are never asked to."""
        raise InternalError

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        """Listen; sessions without an ear are never asked to."""
        raise InternalError

    def expect_look(self, effect: Look) -> None:
        """See `look`."""
        raise InternalError

    def interrupt(self) -> None:
        """Cut short the work that is asked for now, if any."""
        if self._asked > self._ended:
            self._cut = self._asked
            self._cut_short()

    def halt(self) -> None:
        """End running work at its next forward pass; a call that hangs is not waited for."""
        self._is_halted = True
        self._stop_waiting()
        talk = self._talk
        if talk is not None:
            talk.signals.give_up.set()
            talk.stop()
        if self._hang_watch is None:
            limit_s = self._workshop.limits.hang_limit_s
            loop = asyncio.get_running_loop()
            self._hang_watch = loop.call_later(limit_s, self._calls.leave)

    async def release(self) -> None:
        """Free the conversation, then the slot."""
        watch, self._hang_watch = self._hang_watch, None
        if watch is not None:
            watch.cancel()
        lease, self._lease = self._lease, None
        await self._workshop.end(self._talk, lease)

    # --- for the protocols ---

    @property
    @abstractmethod
    def _talk(self) -> Talk | None:
        """The conversation, if this session has one now."""

    @abstractmethod
    async def _perform(self, effect: WorkEffect, emit: Emit) -> None:
        """Carry out one effect; raises as `Performer.perform`, never `WorkCancelledError`."""

    @property
    def _is_cut(self) -> bool:
        """The work at hand is wanted no more."""
        return self._is_halted or self._cut == self._ended + 1

    def _cut_short(self) -> None:
        """Bring the end of running work near: a reply is ended well, a prefill given up."""
        self._stop_waiting()
        talk = self._talk
        if talk is not None:
            talk.stop()
            if self._is_feeding:
                talk.signals.give_up.set()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def _take_slot(self) -> None:
        """Take a slot, unless one is held.

        Raises:
            WorkerBusyError: None became free in time.
            WorkCancelledError: The work was cut short meanwhile.
        """
        if self._lease is not None:
            return
        if self._is_cut:
            raise WorkCancelledError
        workshop = self._workshop
        try:
            async with asyncio.timeout(None) as self._patience:
                self._lease = await workshop.slots.take(self._owner, workshop.limits.busy_wait_s)
        except TimeoutError as error:
            raise WorkCancelledError from error
        finally:
            self._patience = None

    async def _feed(self, work: Callable[[], Fed]) -> Fed:
        """Run a prefill that is undone, or never used, when it is cut short.

        Raises:
            OmniError: It failed.
            WorkCancelledError: It was cut short.
        """
        if self._is_cut:
            raise WorkCancelledError
        self._is_feeding = True
        try:
            return await self._calls.call(work)
        finally:
            self._is_feeding = False

    async def _tell(self, reply: Reply, emit: Emit) -> ReplyEnd:
        """Emit a reply's pieces as they come and return what it came to.

        Raises:
            OmniError: It failed.
            WorkCancelledError: The session was halted.
        """
        while True:
            made = await self._calls.call(partial(_next, reply))
            if isinstance(made, ReplyEnd):
                return made
            await emit(ChunkReady(made))


async def emit_fed(fed: Fed, message_count: int, emit: Emit) -> None:
    """Emit the end of a prefill, then what was left out of it.

    The order matters: clients expect `prepared` as the next message after `prepare`.
    """
    done = PrefillDone(
        fed.cached_tokens, fed.input_tokens, message_count, fed.prompt_length, fed.kv_tokens
    )
    await emit(done)
    for problem in fed.left_out:
        await emit(Noticed(problem))


def _next(reply: Reply) -> StreamingChunk | ReplyEnd:
    """Make the next piece; blocks."""
    try:
        return next(reply)
    except StopIteration as end:
        done: ReplyEnd = end.value
        return done
