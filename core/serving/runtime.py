"""Shared resources of a worker's sessions: model, threads, slots, retained sessions, health.

One object per worker, passed to the handlers. Knows no socket and no machine.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from core.engine.engine import Engine
from core.errors import ModelError, OmniError, ShuttingDownError
from core.modes import Backend, Mode
from core.schemas.queue import RequestType
from core.schemas.worker import ActionResult, CacheStatus, WorkerHealth, WorkerStatus
from core.serving.slots import Conversation, Owner, SessionStore, Slots
from core.transcription import Transcriber
from core.vad import SileroVad

DETECTOR_STAGE: Final = "loading the voice detector"
CAPABILITIES: Final = (
    RequestType.CHAT,
    RequestType.STREAMING,
    RequestType.HALF_DUPLEX_AUDIO,
    RequestType.AUDIO_DUPLEX,
    RequestType.OMNI_DUPLEX,
)
CLOSE_TRIES: Final = 2
# Ours: for one call or pass of the engine; then the worker counts as broken.
ENGINE_LIMIT_S: Final = 120.0
BOOT_ID_BYTES: Final = 8
FREE_CACHE_MIN: Final = 0.15  # ours: share of the cache memory reserved for running sessions
# Below this free share windows shrink (`MiniCPMO45/engine/session.py`), and nothing is retained.
FREE_CACHE_LOW: Final = 0.3
RELIEF_S: Final = 1.0  # ours: how often that is checked


CALLS: Final = "call"  # pool for blocking calls of sessions
SHORT_CALLS: Final = "short call"  # pool for live input: some milliseconds each
SPARE_THREADS: Final = 2  # beyond one per slot: one session may end while the next one begins
# Of many threads that wait for the interpreter's lock, each delays the engine's thread.
SHORT_CALL_THREADS: Final = 2
HANGING_MAX: Final = 8  # ours: abandoned calls that still run; more keep their sessions


class ThreadPools:
    """A worker's thread pools; the number of sessions bounds the calls that wait for a thread.

    Threads held by abandoned calls are not counted.
    """

    def __init__(self, slots: int) -> None:
        self.failures = 0  # unexpected ones since the device was last checked
        self._sizes = {CALLS: slots + SPARE_THREADS, SHORT_CALLS: SHORT_CALL_THREADS}
        self.pools = {name: ThreadPoolExecutor(size, name) for name, size in self._sizes.items()}
        self._abandoned: list[Future[Any]] = []  # their sessions have ended without them
        self._log = structlog.stdlib.get_logger("thread_pools")

    def abandon(self, pool: str, job: Future[Any]) -> bool:
        """Abandon a call on one of the pools; one that has not begun is cancelled.

        The pool gets new threads, and its old ones finish their queue. Overflow: beyond
        `HANGING_MAX` this returns False, and the call keeps its session and slot until it ends.
        """
        if job.cancel():
            return True
        self._abandoned = [each for each in self._abandoned if not each.done()]
        keeps_slot = len(self._abandoned) >= HANGING_MAX
        if not keeps_slot:
            self._abandoned.append(job)
            self.pools[pool].shutdown(wait=False)
            self.pools[pool] = ThreadPoolExecutor(self._sizes[pool], pool)
        self._log.error("call_hangs", abandoned=len(self._abandoned), keeps_slot=keeps_slot)
        return not keeps_slot

    def failed(self) -> None:
        """Log and count the unexpected failure that is being handled."""
        self.failures += 1
        self._log.exception("model_call_failed")

    def close(self) -> None:
        """End the threads after their current calls, without waiting for them."""
        for pool in self.pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Identity:
    """A worker's name and GPU; `boot_id` identifies its process."""

    worker_id: str = "worker_0"
    gpu_id: int | None = None
    is_supervised: bool = False
    boot_id: str = field(default_factory=partial(secrets.token_hex, BOOT_ID_BYTES))


@dataclass
class Progress:
    """Progress of loading, and the state of the device."""

    is_loaded: bool = False
    stage: str = "starting"
    share: float = 0.0  # of loading that is done, 0 to 1
    error: str | None = None  # why loading or the device has failed
    memory_mb: tuple[float, float] | None = None  # used and total, of the GPU, as last read
    began_s: float = field(default_factory=time.monotonic)


@dataclass
class _Loaded:
    backend: Backend
    detector: SileroVad
    transcriber: Transcriber | None = None


class WorkerRuntime:
    def __init__(
        self,
        make_backend: Callable[[], Backend],
        slots: int,
        identity: Identity | None = None,
        make_transcriber: Callable[[Backend], Transcriber | None] = lambda backend: None,
    ) -> None:
        """Start the engine's thread, without loading.

        Both functions are called on that thread, where the slow import of a model's libraries does
        not block requests.
        """
        self.engine = Engine()
        self.threads = ThreadPools(slots)
        self.slots = Slots(slots, time.monotonic, lambda: self.engine.gauge.value >= FREE_CACHE_MIN)
        self.store = SessionStore(slots)
        self.identity = identity or Identity()
        self.progress = Progress()
        self.is_draining = False  # the program is shutting down: no session may begin
        self.transcripts = 0  # of recordings, under way; a shutdown waits for them
        self._make_backend = make_backend
        self._make_transcriber = make_transcriber
        self._loaded: _Loaded | None = None
        self._log = structlog.stdlib.get_logger("runtime")

    @property
    def backend(self) -> Backend:
        """The loaded backend; as `detector`, raises `ModelError` before loading."""
        return self._require_loaded().backend

    @property
    def detector(self) -> SileroVad:
        return self._require_loaded().detector

    @property
    def transcriber(self) -> Transcriber | None:
        if self._loaded is None:
            return None
        return self._loaded.backend.own_transcriber or self._loaded.transcriber

    @property
    def error(self) -> str | None:
        """Why the worker has failed, or None; one session's failure is never a reason."""
        if self.progress.error is not None or not self.progress.is_loaded:
            return self.progress.error
        if self.slots.lost >= self.slots.count:
            return "The memory of ended sessions could not be freed."
        return self.engine.problem(ENGINE_LIMIT_S)

    async def load(self) -> None:
        """Load all models; a failure is reported by the worker's health, and it keeps running."""
        try:
            await self.engine.call(self._load)
            self.progress.memory_mb = await self.engine.call(self.backend.memory_mb)
        except Exception as error:
            self._log.exception("load_failed")
            name = "" if isinstance(error, OmniError) else f"{type(error).__name__}: "
            self.progress.error = f"{name}{error}"
        else:
            backend = self.backend
            self.slots.measured.expect(backend.unit_s_by_sessions, backend.limit_windows)
            self.progress.share, self.progress.stage = 1.0, "ready"
            self.progress.is_loaded = True

    async def free_all(self, conversations: Iterable[Conversation]) -> None:
        """Free conversations, and retained ones whose memory running sessions need."""
        for conversation in conversations:
            await self.free(conversation.view)
        await self._relieve()

    async def relieve_regularly(self) -> None:
        """Free retained conversations whenever running sessions need their memory; never ends."""
        while True:
            await asyncio.sleep(RELIEF_S)
            await self._relieve()

    async def _relieve(self) -> None:
        """Free retained conversations while memory is scarce, the least recently used first."""
        with suppress(ShuttingDownError):
            while len(self.store) and self.engine.gauge.value < FREE_CACHE_LOW:
                if await self.engine.read_gauge() >= FREE_CACHE_LOW:
                    return  # the value was from before the last one was freed
                if (oldest := self.store.take_oldest()) is not None:
                    await self.free(oldest.view)

    async def evict_surplus(self) -> None:
        """Free the retained conversations that exceed the capacity left by active sessions."""
        await self.free_all(self.store.make_room(len(self.slots.owners)))

    async def end(self, views: Sequence[Mode], owner: Owner) -> None:
        """Free a session's conversations, then its slot, whatever happens."""
        try:
            for view in views:
                await self.free(view)
            with suppress(ShuttingDownError):  # without an engine there is nothing to release
                await self._check()  # first, as the other fails on a broken device
                if views:
                    await self._tidy_up()
        finally:
            self.slots.give_back(owner)

    async def free(self, view: Mode) -> None:
        """Free a conversation; if that fails, its slot is lost with its memory."""
        for _ in range(CLOSE_TRIES):
            try:
                await view.close()
            except ShuttingDownError:
                return  # the process ends, and its memory with it
            except Exception:
                self._log.exception("close_failed")
            else:
                return
        self.threads.failures += 1  # the device will be checked
        self.slots.lost += 1

    # --- health ---

    @property
    def status(self) -> WorkerStatus:
        """The worker's status; with several sessions that of the oldest."""
        if self.error is not None:
            return WorkerStatus.ERROR
        if not self.progress.is_loaded:
            return WorkerStatus.LOADING
        owners = self.slots.owners
        return owners[0].status if owners else WorkerStatus.IDLE

    def health(self) -> WorkerHealth:
        progress, slots, status = self.progress, self.slots, self.status
        names = {WorkerStatus.ERROR: "error", WorkerStatus.LOADING: "initializing"}
        used_mb, total_mb = progress.memory_mb or (None, None)
        owners = slots.owners
        active_tokens = sum(owner.kv_tokens() for owner in owners)
        return WorkerHealth.model_validate(
            {
                "status": names.get(status, "healthy"),
                "worker_status": status,
                **asdict(self.identity),
                "model_loaded": progress.is_loaded,
                "load_progress": progress.share,
                "load_stage": progress.stage,
                "current_session_id": owners[0].session_id if owners else None,
                "total_requests": slots.total_grants,
                "avg_inference_time_ms": round(slots.mean_ms, 1),
                "kv_cache_length": active_tokens + self.store.kv_tokens,
                "error": self.error,
                "vram_used_mb": used_mb,
                "vram_total_mb": total_mb,
                "uptime_s": time.monotonic() - progress.began_s,
                "capabilities": [kind.value for kind in CAPABILITIES],
                "slots": slots.count,
                "capacity": slots.capacity or None,
                "active_sessions": len(owners),
                "model": self.backend.facts() if progress.is_loaded else None,
                "transcribes_by": self.transcriber.kind if self.transcriber else None,
                "is_draining": self.is_draining,
            }
        )

    def cache_info(self) -> CacheStatus:
        store = self.store
        newest = store.newest
        return CacheStatus(
            status=self.status,
            note=f"{len(store)} conversations are retained for their next turn.",
            cached_hash=newest.history_hash if newest else None,
            kv_cache_length=newest.view.kv_cache_length if newest else 0,
        )

    async def clear_cache(self) -> ActionResult:
        """Free the retained conversations; fails, doing nothing, while a slot is held."""
        if self.slots.owners:
            text = "The cache cannot be cleared while a session is running."
            return ActionResult(success=False, message=text)
        evicted = self.store.make_room(self.slots.count)  # all of them
        await self.free_all(evicted)
        await self._tidy_up()
        return ActionResult(success=True, message=f"{len(evicted)} conversations were freed.")

    # --- the end ---

    def close(self) -> None:
        """End the threads and processes; blocks a little."""
        if self._loaded is not None:
            self._loaded.backend.close()
            if self._loaded.transcriber is not None:
                self._loaded.transcriber.close()
        self.threads.close()
        self.engine.close()

    def _require_loaded(self) -> _Loaded:
        if self._loaded is None:
            raise ModelError("The worker is not loaded.")
        return self._loaded

    def _load(self) -> None:
        """On the engine's thread."""
        self._report(DETECTOR_STAGE, 0.0)
        detector = SileroVad()
        self._report("starting the model's libraries", None)
        self._loaded = _Loaded(self._make_backend(), detector)
        self.backend.load(self.engine, self._report)
        self._loaded.transcriber = self._make_transcriber(self.backend)

    def _report(self, stage: str, share: float | None) -> None:
        self.progress.stage = stage
        if share is not None:
            self.progress.share = max(self.progress.share, min(1.0, share))

    async def _tidy_up(self) -> None:
        """Release unused memory, unless it would delay another session or the worker has failed."""
        if len(self.slots.owners) > 1 or self.error is not None:
            return

        def tidy() -> tuple[float, float] | None:
            self.backend.tidy()
            return self.backend.memory_mb()

        self.progress.memory_mb = await self.engine.call(tidy, is_bounded=False)

    async def _check(self) -> None:
        """Check the device after an unexpected failure."""
        if not self.threads.failures:
            return
        self.threads.failures = 0
        try:
            await self.engine.call(self.backend.check, is_bounded=False)
        except ModelError as error:
            self._log.exception("device_broken")
            self.progress.error = error.message
