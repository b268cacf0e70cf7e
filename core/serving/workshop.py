"""What the sessions of one worker share: the model, the threads, the slots, and keeping order.

Made once per worker; handlers are given it. Knows no socket and no machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from core.engine.engine import Engine
from core.errors import ModelError, OmniError, ShuttingDownError
from core.schemas.worker import ModelFacts
from core.serving.backend import AnyView, Backend
from core.serving.capacity import Capacity
from core.serving.crew import Crew
from core.serving.ownership import Lease, Slots
from core.serving.sessions import Conversation, SessionStore
from core.vad import SileroVad

LISTENER_STAGE: Final = "loading the voice detector"
CLOSE_TRIES: Final = 2
CACHE_ROOM_MIN: Final = 0.15  # ours: of the caches' memory, kept for the sessions there are


@dataclass(frozen=True)
class WorkLimits:
    """How long things may take. Ours, but for the wait.

    Attributes:
        busy_wait_s: for a free slot. Source: docs/specification/service.md#2.3.4 and #2.5.6.
        hang_limit_s: for a session's blocking call to end after it was told to; then the session
            ends without it.
        engine_limit_s: for one call or round of the engine; then the worker counts as broken.
    """

    busy_wait_s: float = 5.0
    hang_limit_s: float = 60.0
    engine_limit_s: float = 120.0


@dataclass
class Progress:
    """How far the worker has come, told to whoever asks for its health.

    Attributes:
        is_loaded: the model is ready.
        stage: what loading does now.
        share: how much of it is done, 0 to 1.
        error: why loading failed, or what is wrong with the device.
        memory_mb: used and total memory of the GPU, when it was last looked at.
        model: what is loaded, once it is.
    """

    is_loaded: bool = False
    stage: str = "starting"
    share: float = 0.0
    error: str | None = None
    memory_mb: tuple[float, float] | None = None
    model: ModelFacts | None = None


class Workshop:
    """The model and everything around it.

    Attributes:
        engine: the model's thread.
        crew: threads for what blocks.
        slots: who occupies the worker.
        store: conversations kept between turns.
        limits: how long things may take.
        progress: how far the worker has come.
        is_draining: the program is about to end: nothing new may begin.
    """

    def __init__(
        self, make_backend: Callable[[], Backend], slots: int, limits: WorkLimits | None = None
    ) -> None:
        """Start the engine's thread; load nothing yet.

        Args:
            make_backend: Makes what makes conversations; called on the engine's thread, since
                importing a model's libraries takes long enough to be noticed.
            slots: Sessions at once.
            limits: How long things may take.
        """
        self.engine = Engine()
        self.crew = Crew(slots)
        now_s = asyncio.get_running_loop().time
        self.slots = Slots(slots, now_s, Capacity(now_s, self._has_memory))
        self.store = SessionStore(slots)
        self.limits = limits or WorkLimits()
        self.progress = Progress()
        self.is_draining = False
        self._make_backend = make_backend
        self._backend: Backend | None = None
        self._detector: SileroVad | None = None
        self._cache_room = 1.0  # as the engine's thread last read it
        self._log = structlog.stdlib.get_logger("workshop")

    @property
    def backend(self) -> Backend:
        """What makes conversations.

        Raises:
            ModelError: The worker is not loaded.
        """
        if self._backend is None:
            raise ModelError("The worker is not loaded.")
        return self._backend

    @property
    def detector(self) -> SileroVad:
        """The voice activity detector, shared by all sessions.

        Raises:
            ModelError: The worker is not loaded.
        """
        if self._detector is None:
            raise ModelError("The worker is not loaded.")
        return self._detector

    @property
    def error(self) -> str | None:
        """Why the worker cannot work, if so; one session's failure is never a reason."""
        if self.progress.error is not None or not self.progress.is_loaded:
            return self.progress.error
        if self.slots.lost >= self.slots.count:
            return "The memory of ended sessions could not be freed."
        return self.engine.problem(self.limits.engine_limit_s)

    async def load(self) -> None:
        """Load everything; a failure is kept for the worker's health, and the worker stays up."""
        try:
            await self.engine.call(self._load)
            self.progress.memory_mb = await self.engine.call(self.backend.memory_mb)
            self.progress.model = await self.engine.call(self.backend.facts)
        except OmniError as error:
            self._log.exception("load_failed")
            self.progress.error = error.message
        except Exception as error:
            self._log.exception("load_failed")
            self.progress.error = f"{type(error).__name__}: {error}"
        else:
            self.progress.share, self.progress.stage = 1.0, "ready"
            self.progress.is_loaded = True

    async def let_go(self, conversations: Iterable[Conversation]) -> None:
        """Free conversations that no client will continue."""
        for conversation in conversations:
            await self.free(conversation.view)

    async def make_room(self) -> None:
        """Free what was kept beside as many active sessions as there are now."""
        await self.let_go(self.store.make_room(len(self.slots.owners)))

    async def end(self, view: AnyView | None, lease: Lease | None) -> None:
        """Free a session's conversation, then its slot; in this order whatever happens.

        Args:
            view: The conversation, if it has one that is not kept.
            lease: Its slot, if it holds one.
        """
        try:
            if view is not None:
                await self.free(view)
                await self._tidy_up()
            await self._check()
        finally:
            if lease is not None:
                lease.give_back()

    async def free(self, view: AnyView) -> None:
        """Free a conversation; where that fails, its slot is lost, because its memory is."""
        for _ in range(CLOSE_TRIES):
            try:
                await self.engine.free(view.cleanup)
            except ShuttingDownError:
                return  # the process ends, and its memory with it
            except Exception:
                self._log.exception("close_failed")
            else:
                return
        self.crew.failures += 1  # so that the device is checked
        self.slots.lost += 1

    async def forget_all(self) -> int:
        """Free everything that is kept; return how many conversations it was."""
        kept = self.store.clear()
        await self.let_go(kept)
        await self._tidy_up()
        return len(kept)

    def close(self) -> None:
        """End the threads and processes; blocks a little."""
        if self._backend is not None:
            self._backend.close()
        self.crew.close()
        self.engine.close()

    def _has_memory(self) -> bool:
        """There is memory left for what one session more would remember."""
        return self._cache_room >= CACHE_ROOM_MIN

    def _read_cache_room(self) -> None:
        """On the engine's thread, since it asks the device."""
        self._cache_room = self.backend.cache_room

    def _load(self) -> None:
        """On the engine's thread."""
        self._report(LISTENER_STAGE, 0.0)
        self._detector = SileroVad()
        self._report("starting the model's libraries", None)
        self._backend = self._make_backend()
        self._backend.load(self.engine, self._report)
        self.engine.watch(self._read_cache_room)

    def _report(self, stage: str, share: float | None) -> None:
        self.progress.stage = stage
        if share is not None:
            self.progress.share = max(self.progress.share, min(1.0, share))

    async def _tidy_up(self) -> None:
        """Give memory back, unless somebody would have to wait for it."""
        if len(self.slots.owners) <= 1:
            await self.engine.free(self.backend.tidy)
            self.progress.memory_mb = await self.engine.call(self.backend.memory_mb)

    async def _check(self) -> None:
        """After an unexpected failure: can the device go on?"""
        if not self.crew.failures:
            return
        self.crew.failures = 0
        try:
            await self.engine.call(self.backend.check)
        except OmniError as error:
            self._log.exception("device_broken")
            self.progress.error = error.message
