"""Engines that run the steps of conversations, on the model's own thread or on the calling one.

If the thread ends, it reports so, and every future is settled. Imports no tensor library.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from core.errors import GenerationFailedError, ShuttingDownError

if TYPE_CHECKING:  # imports the tensor library, which a worker without a model does not need
    from core.engine.passes import Task

T = TypeVar("T")
RunPass = Callable[[Sequence["Task[Any]"]], None]
"""Runs one pass of tasks; see `core.engine.passes.run_pass`."""

# Far above one task and a few small calls per session.
WAITING_MAX: Final = 1_024
JOIN_LIMIT_S: Final = 5.0  # a hanging model must not keep the program from ending
GAUGE_S: Final = 0.25  # ours: interval between two readings of the gauge under load


@dataclass(eq=False)
class InlineEngine:
    """Runs calls and tasks on the calling thread, one at a time."""

    run_pass: RunPass  # answers the tasks' requests; an `Engine` gets it when a model is loaded

    async def call(self, work: Callable[[], T], *, is_bounded: bool = True) -> T:
        """Run `work` between two passes, even if the caller is cancelled; raises what it raises.

        Raises `GenerationFailedError` if the engine is overloaded, unless `is_bounded` is False, as
        for work that releases resources, and `ShuttingDownError` if it was closed.
        """
        return work()

    def resume(self, task: Task[Any]) -> Future[None]:
        """Run a task in passes until it pauses; raises as `call`.

        On the engine's own thread it runs immediately, before everything else.
        """
        self.run_pass([task])
        while not task.is_paused:
            self.run_pass([task])
        return task.paused


def run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but an engine of the calling thread.

    Raises what it raises, or `RuntimeError` if it awaits something else.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("The coroutine awaits something that needs an event loop.")


class Heartbeat:
    """Busy time of one thread, `worked_s` in total; readable from any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.worked_s = 0.0
        self._now_s = now_s
        self._began_s: float | None = None

    @property
    def silent_s(self) -> float:
        """Duration of the current work, or 0."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._now_s() - began_s

    @contextmanager
    def beat(self) -> Iterator[None]:
        began_s = self._began_s = self._now_s()
        try:
            yield
        finally:
            self._began_s = None
            self.worked_s += self._now_s() - began_s


_Call = tuple[Callable[[], Any], Future[Any]]
"""A call and its future result. Any: of the type that the caller expects."""


@dataclass
class Gauge:
    read: Callable[[], float] = lambda: 1.0
    value: float = 1.0
    read_s: float = 0.0


class Engine(InlineEngine):
    """Runs calls in order of arrival, and tasks concurrently, on its own thread.

    Overflow: with `WAITING_MAX` calls and tasks waiting to begin, one more is refused. Calls that
    release resources are never refused; there is at most one per conversation.
    """

    def __init__(self, log: structlog.stdlib.BoundLogger | None = None) -> None:
        self._log = log or structlog.stdlib.get_logger("engine")
        self._changed = threading.Condition()
        self._calls: deque[_Call] = deque()
        self._arriving: deque[Task[Any]] = deque()
        self._running: list[Task[Any]] = []
        self._is_closed = False
        self._failure: str | None = None  # error that ended the thread
        self.gauge = Gauge()
        self._current: _Call | None = None
        self.heartbeat = Heartbeat()  # each call and each pass is one piece of work
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def watch(self, read: Callable[[], float]) -> None:
        """Read `gauge` on the thread, between passes and whenever it becomes idle."""
        self.gauge = Gauge(read)

    async def read_gauge(self) -> float:
        """Read `gauge` now; raises `ShuttingDownError` if the engine was closed."""
        await self.call(self._read_gauge, is_bounded=False)
        return self.gauge.value

    def problem(self, limit_s: float) -> str | None:
        """Return an error text if the thread has ended or a pass takes more than `limit_s`."""
        if self._failure is not None:
            return f"The engine has ended: {self._failure}"
        if self.heartbeat.silent_s > limit_s:
            return "The engine does not answer."
        return None

    async def call(self, work: Callable[[], T], *, is_bounded: bool = True) -> T:
        if self.is_here:
            return work()
        done = self.submit(work, is_bounded=is_bounded)
        return await asyncio.shield(asyncio.wrap_future(done))

    def resume(self, task: Task[Any]) -> Future[None]:
        if self.is_here:
            return super().resume(task)
        with self._changed:
            self._check_capacity(is_bounded=True)
            task.paused = Future()
            self._arriving.append(task)
            self._changed.notify()
        return task.paused

    def close(self) -> None:
        """End the thread after its current work, refuse the rest; blocks up to `JOIN_LIMIT_S`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(JOIN_LIMIT_S)
        if self._thread.is_alive():  # callers must not wait forever
            self._log.error("engine_hangs_at_its_end")
            self._refuse_rest()

    def submit(self, work: Callable[[], T], *, is_bounded: bool = True) -> Future[T]:
        done: Future[T] = Future()
        with self._changed:
            self._check_capacity(is_bounded=is_bounded)
            self._calls.append((work, done))
            self._changed.notify()
        return done

    def _check_capacity(self, *, is_bounded: bool) -> None:
        if self._is_closed:
            raise ShuttingDownError()
        if is_bounded and len(self._calls) + len(self._arriving) >= WAITING_MAX:
            raise GenerationFailedError("The engine is overloaded.")

    # --- on the thread ---

    def _loop(self) -> None:
        try:
            while not self._is_closed:
                self._work_once()
        except BaseException as error:
            self._is_closed = True  # nothing is accepted once `problem` reports it
            self._failure = f"{type(error).__name__}: {error}"
            self._log.exception("engine_ended")
        finally:
            with self._changed:
                self._is_closed = True
            self._refuse_rest()

    def _work_once(self) -> None:
        for _ in range(self._wait_for_work()):
            with self.heartbeat.beat():
                self._current = self._calls.popleft()
                _carry_out(*self._current)
                self._current = None
        if self._running:
            with self.heartbeat.beat():
                self._running = self._run_pass(self._running)
        is_idle = not (self._calls or self._arriving or self._running)
        if is_idle or time.monotonic() >= self.gauge.read_s + GAUGE_S:
            self._read_gauge()

    def _wait_for_work(self) -> int:
        """Wait for work and return the number of calls; arriving tasks start running."""
        with self._changed:
            while not (self._calls or self._arriving or self._running or self._is_closed):
                self._changed.wait()
            self._running.extend(self._arriving)
            self._arriving.clear()
            return len(self._calls)

    def _run_pass(self, running: list[Task[Any]]) -> list[Task[Any]]:
        futures = [task.paused for task in running]  # a paused task may be resumed during the pass
        try:
            self.run_pass(running)
            return [task for task in running if not task.is_paused]
        except BaseException:
            self._log.exception("engine_pass_failed")
            for paused in futures:
                _fail(paused, GenerationFailedError())
            return []

    def _read_gauge(self) -> None:
        gauge = self.gauge
        gauge.read_s = time.monotonic()
        try:
            gauge.value = gauge.read()
        except Exception:
            self._log.exception("engine_gauge_failed")

    def _refuse_rest(self) -> None:
        with self._changed:
            waiting = [task.paused for task in (*self._running, *self._arriving)]
            calls = [*self._calls, *([] if self._current is None else [self._current])]
        for done in (*waiting, *(done for _, done in calls)):
            _fail(done, ShuttingDownError())


def _carry_out(work: Callable[[], Any], done: Future[Any]) -> None:
    try:
        if not done.set_running_or_notify_cancel():
            return
        result = work()
    except BaseException as error:  # also an exit, which is the caller's, not this thread's
        _fail(done, error)
        return
    with suppress(InvalidStateError):  # `close` has refused it meanwhile
        done.set_result(result)


def _fail(done: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):  # as above
        done.set_exception(error)
