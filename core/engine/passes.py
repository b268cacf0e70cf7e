"""Tasks, and the passes that answer the requests of many of them. Knows no threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from core.engine import WorkCancelledError
from core.engine.scheduler import (
    KINDS,
    STAYS_ON_DEVICE,
    Batch,
    Waiting,
    full_batch,
    joined,
    next_batch,
    size_of,
)
from core.errors import ShuttingDownError
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.steps import (
    Answers,
    ChooseToken,
    Collect,
    DrawCodes,
    Emit,
    EncodeClips,
    EncodeImages,
    LlmForward,
    OpenVoice,
    Request,
    Steps,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import EncodeStream

if TYPE_CHECKING:
    from core.engine.engine import InlineEngine

T = TypeVar("T")


class TaskState(Enum):
    RUNNING = auto()
    EMITTED = auto()  # paused with a value until it is resumed
    RETURNED = auto()
    FAILED = auto()
    CANCELLED = auto()


class Task(AsyncIterator[Any], Generic[T]):
    """Running steps of one conversation, as an async iterator over the values they emit.

    They start when the first value is requested and pause at each value. A task that is abandoned
    before its end must be closed. Any: each capability emits values of its own type.
    """

    result: T  # return value of the steps; set when the iterator is exhausted

    def __init__(
        self, steps: Steps[T], due_s: float | None = None, engine: InlineEngine | None = None
    ) -> None:
        self._engine = engine
        self.state = TaskState.RUNNING
        self.due_s = due_s  # deadline, on the clock of the passes; None if it is not live
        self.request: Request | None = None  # the pending one, or the rest of it
        self.since_s = 0.0  # time of that request
        self._steps = steps
        self._value: Any = None  # Any: emitted or returned values, of the steps' own types
        self._answer: Any = None  # Any: of the type that the request documents
        self._answers: list[Any] = []  # to the chunks answered so far
        self.paused: Future[None] = Future()  # done when it pauses; a new one for each resumption

    async def __anext__(self) -> Any:
        """Return the next value, or raise what the steps raise, or as `InlineEngine.call`."""
        if self.has_ended:
            raise StopAsyncIteration
        assert self._engine is not None, "an engine has begun it"
        try:
            done = self._engine.resume(self)
            if not done.done():
                await asyncio.shield(asyncio.wrap_future(done))
            elif error := done.exception():  # on the engine's own thread
                raise error
        except BaseException:
            await self.aclose()  # if cancelled again, the engine closes it later
            raise
        value = self.take()
        if not self.has_ended:
            return value
        self.result = value
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the steps before their next request is answered; harmless when they have ended."""
        if self._engine is not None and not self.has_ended:
            with suppress(ShuttingDownError):  # nothing runs them any more
                await self._engine.call(self.close, is_bounded=False)

    # --- for the passes ---

    @property
    def is_paused(self) -> bool:
        return self.state is not TaskState.RUNNING

    @property
    def has_ended(self) -> bool:
        return self.state not in (TaskState.RUNNING, TaskState.EMITTED)

    def take(self) -> Any:
        """Return the value that a paused task emitted or returned, or raise its exception."""
        if self.state is TaskState.FAILED:
            raise self._value
        if self.state is TaskState.CANCELLED:
            raise WorkCancelledError
        return self._value

    def advance(self, now_s: float = 0.0) -> Request | None:
        """Run to the next request, unless one is pending; None if the task is paused."""
        if self.has_ended:
            return None
        if self.request is not None:
            return self.request
        answer, self._answer, self.state = self._answer, None, TaskState.RUNNING
        try:
            request = resume(self._steps, answer)
        except StopIteration as end:
            self._pause(TaskState.RETURNED, end.value)
        except Exception as error:
            self._pause(TaskState.FAILED, error)
        else:
            if not isinstance(request, Emit):
                self.request, self.since_s = request, now_s
                return request
            self._pause(TaskState.EMITTED, request.value)
        return None

    def answer(self, answer: Any, rest: Request | None = None) -> None:
        """Answer the request or, with a `rest`, its first chunk; the steps raise an exception."""
        self._answers.append(answer)
        is_usable = not isinstance(answer, Exception)
        if is_usable and rest is not None:
            self.request = rest
            return
        if is_usable and len(self._answers) > 1:
            try:
                answer = joined(self._answers)
            except Exception as error:
                answer = error
        self._answer = answer
        self._answers, self.request = [], None

    def close(self) -> None:
        """End it between two passes; harmless when it has ended."""
        self.request = None
        if not self.has_ended:
            self._pause(TaskState.CANCELLED, None)
        self._steps.close()

    def _pause(self, state: TaskState, value: Any) -> None:
        """Pause and notify the caller at once, who need not wait for the rest of the pass."""
        self.state, self._value = state, value
        with suppress(InvalidStateError):  # settled when it was created on the engine's thread
            self.paused.set_result(None)


def run_pass(
    executor: Answers, tasks: Sequence[Task[Any]], now_s: Callable[[], float] = time.monotonic
) -> None:
    """Advance each task, and answer as many of their requests as fit into one pass.

    At most one of the tasks changes a given conversation.
    """
    began_s = now_s()
    pending = [task for task in tasks if task.advance(began_s) is not None]
    if len(pending) == 1 and (request := pending[0].request) is not None:
        pending[0].answer(*_submit(executor, [request])())  # a lone request needs no plan
        return
    waiting: dict[Waiting, Task[Any]] = {}
    for task in pending:
        _add(waiting, task)
    if not waiting:
        return
    has_run = False
    answer_batch: Callable[[], None] | None = None  # one whose answers the host does not have yet
    for kind in KINDS:
        if kind not in STAYS_ON_DEVICE and answer_batch is not None:
            answer_batch()
            answer_batch = None
        if batch := next_batch(kind, list(waiting), now_s()):
            has_run, submitted = True, _submit_batch(executor, batch, waiting, now_s)
            if kind in STAYS_ON_DEVICE:
                submitted()
            else:
                answer_batch = submitted
    if answer_batch is not None:
        answer_batch()
    if waiting and not has_run:  # the device never idles; the other kinds stay delayed
        urgent = min(waiting, key=lambda each: each.deadline_s)
        batch = full_batch(urgent.kind, list(waiting))
        _submit_batch(executor, batch, waiting, now_s)()


def _submit_batch(
    executor: Answers, batch: Batch, waiting: dict[Waiting, Task[Any]], now_s: Callable[[], float]
) -> Callable[[], None]:
    """Remove the requests of a batch from `waiting` and enqueue their work.

    The returned function answers them and adds the requests that follow.
    """
    submitted = [(waiting.pop(chunk.pending), chunk.rest) for chunk in batch]
    collect = _submit(executor, [chunk.request for chunk in batch])

    def answer_batch() -> None:
        for (task, rest), answer in zip(submitted, collect(), strict=True):
            task.answer(answer, rest)
            if task.advance(now_s()) is not None:
                _add(waiting, task)

    return answer_batch


def run_together(executor: Answers, works: Sequence[Steps[T]]) -> list[T]:
    """Run steps concurrently to their ends, discarding emitted values; raise what one raises."""
    tasks = [Task(steps) for steps in works]
    while unfinished := [task for task in tasks if not task.has_ended]:
        run_pass(executor, unfinished)
    return [task.take() for task in tasks]


def resume(steps: Steps[T], answer: Any) -> Request | Emit:
    """Send an answer to a capability, None at first; an exception is raised inside it.

    Tensor operations record no gradients. Raises `StopIteration` with the result at the end.
    """
    with torch.inference_mode():
        if isinstance(answer, Exception):
            return steps.throw(answer)
        return steps.send(answer)


def run_alone(steps: Steps[T], executor: Answers) -> T:
    return run_together(executor, [steps])[0]


def _submit(executor: Answers, requests: list[Request]) -> Collect:
    """Enqueue requests of one kind; the answer to a failed one is its exception."""
    before = [_progress(request) for request in requests]

    def retry(failure: Exception) -> list[Any]:
        """One request failed the batch. Those whose conversations are unchanged are retried."""
        if len(requests) == 1:
            return [failure]
        return [
            _submit(executor, [request])()[0] if _progress(request) == progress else failure
            for request, progress in zip(requests, before, strict=True)
        ]

    def collected() -> list[Any]:
        try:
            with torch.inference_mode():
                return collect()
        except Exception as error:
            return retry(error)

    try:
        collect = executor.submit(requests)
    except Exception as error:
        answers = retry(error)
        return lambda: answers
    return collected


def free_share(executor: Executor) -> float:
    """Free share of the memory for conversations; 0 if the device does not answer."""
    try:
        return executor.free_share
    except RuntimeError:
        return 0.0


def _add(waiting: dict[Waiting, Task[Any]], task: Task[Any]) -> None:
    """Add the request of a pending task, or answer it with why it has no size."""
    request = task.request
    assert request is not None, "the task is pending"
    try:
        waiting[Waiting(request, size_of(request), task.since_s, task.due_s)] = task
    except Exception as error:
        task.answer(error)


def _progress(request: Request) -> int:
    """Return a value that changes with the state of the request's conversation."""
    match request:
        case LlmForward(kv=kv) | DrawCodes(kv=kv):
            return kv.length
        case EncodeStream(cache=cache):
            return cache.length
        case ChooseToken(decision=decision):
            return len(decision.history)
        case Vocode(state=state):
            return state.chunks
        case EncodeClips() | EncodeImages() | OpenVoice():
            return 0  # stateless
