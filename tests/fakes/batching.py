"""Drivers of conversations without an engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from core.engine.passes import Task, TaskState, resume, run_pass
from MiniCPMO45.engine.steps import Answers, Collect, Emit, Request, Steps

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R", bound=Sequence[Any])


def at_once(answer: Callable[[S, R], list[Any]]) -> Callable[[S, R], Collect]:
    """Turn a method that answers requests into the `submit` of an executor."""

    def submit(self: S, requests: R) -> Collect:
        answers = answer(self, requests)
        return lambda: answers

    return submit


def stream_alone(steps: Steps[T], executor: Answers) -> Generator[Any, None, T]:
    """Run one conversation, yielding what it emits; a failed request is raised inside it."""
    task = Task(steps)
    try:
        while not task.has_ended:
            run_pass(executor, [task])
            if task.state is TaskState.EMITTED:
                yield task.take()
        result: T = task.take()
        return result
    finally:
        task.close()


def collect(steps: Steps[T], executor: Answers) -> tuple[list[Any], T]:
    """Run one conversation to its end; return what it emits, and its result."""
    stream, emitted = stream_alone(steps, executor), []
    while True:
        try:
            emitted.append(next(stream))
        except StopIteration as end:
            return emitted, end.value


def run_together(steps: Sequence[Steps[Any]], executor: Answers) -> list[Any]:
    """Drive capabilities side by side to their ends; emitted values are dropped.

    Args:
        steps: one capability per conversation.
        executor: answers all requests that are due at once.

    Returns:
        Their results, in order.
    """
    results: list[Any] = [None] * len(steps)
    answers: dict[int, Any] = dict.fromkeys(range(len(steps)))
    while answers:
        waiting: dict[int, Request] = {}
        for index, answer in answers.items():
            try:
                waiting[index] = _next_request(steps[index], answer)
            except StopIteration as end:
                results[index] = end.value
        answered = answer_by_kind(list(waiting.values()), executor)
        answers = dict(zip(waiting, answered, strict=True))
    return results


def answer_by_kind(requests: Sequence[Request], executor: Answers) -> list[Any]:
    """Answer requests of any kinds, all of a kind at once, as the engine's passes do."""
    answers: list[Any] = [None] * len(requests)
    for kind in dict.fromkeys(type(request) for request in requests):
        mine = [index for index, request in enumerate(requests) if type(request) is kind]
        found = executor.submit([requests[index] for index in mine])()
        for index, answer in zip(mine, found, strict=True):
            answers[index] = answer
    return answers


def _next_request(steps: Steps[Any], answer: Any) -> Request:
    while isinstance(request := resume(steps, answer), Emit):
        answer = None
    return request
