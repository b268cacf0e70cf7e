"""Drives many capabilities at once: in each round what they ask for is answered together.

So sessions share forward passes. Knows no threads; whoever runs rounds does so on the one thread
that owns the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from core.processors.gathering import Asking, chosen
from core.processors.portions import MOST_AT_ONCE, first_portion, joined, size_of
from MiniCPMO45.steps import (
    Answers,
    DrawCodes,
    Emit,
    EncodeClips,
    EncodeImages,
    LlmForward,
    OpenVoice,
    Request,
    Steps,
    resume,
)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Emitted:
    """The capability handed out a value and waits to go on."""

    value: Any  # Any: each capability emits a type of its own


@dataclass(frozen=True, eq=False)
class Returned:
    """The capability has ended."""

    value: Any  # Any: as above


@dataclass(frozen=True, eq=False)
class Raised:
    """The capability has failed."""

    error: Exception


@dataclass(frozen=True, eq=False)
class GivenUp:
    """Nobody wants the result; the capability was closed between two forward passes."""


Outcome = Emitted | Returned | Raised | GivenUp


class Course(Generic[T]):
    """One capability under way: its steps, the request they wait for, and what came of it.

    Attributes:
        outcome: set when it stands still: it emitted something, or has ended.
        due_s: when it must have ended, on the rounds' clock; None if nobody listens live.
        request: what it waits for, or what is left of it.
        since_s: when that was asked.
    """

    def __init__(
        self, steps: Steps[T], is_given_up: Callable[[], bool], due_s: float | None = None
    ) -> None:
        """Stand before the first step.

        Args:
            steps: the capability.
            is_given_up: asked before each forward pass.
            due_s: when it must have ended.
        """
        self.outcome: Outcome | None = None
        self.due_s = due_s
        self.request: Request | None = None
        self.since_s = 0.0
        self._steps = steps
        self._is_given_up = is_given_up
        self._answer: Any = None  # Any: of whatever type the request documents
        self._portions: list[Any] = []  # answers to what was asked for first

    @property
    def stands_still(self) -> bool:
        """It needs no round before somebody has looked at its outcome."""
        return self.outcome is not None

    @property
    def has_ended(self) -> bool:
        """Nothing is left to do."""
        return not isinstance(self.outcome, Emitted | None)

    def give(self, answer: Any, rest: Request | None = None) -> None:
        """Take the answer to the request; an exception will be raised inside the capability.

        Args:
            answer: to the request, or to a first portion of it.
            rest: what is still to be answered then.
        """
        self._portions.append(answer)
        if rest is not None and not isinstance(answer, Exception):
            self.request = rest
            return
        self._answer = answer if isinstance(answer, Exception) else joined(self._portions)
        self._portions, self.request = [], None

    def go_on(self, now_s: float = 0.0) -> Request | None:
        """Go on to the next request, unless one waits; None if there is an outcome instead."""
        if self._is_given_up():
            self.outcome = None
            self.close()
            return None
        if self.request is not None:
            return self.request
        answer, self._answer, self.outcome = self._answer, None, None
        try:
            request = resume(self._steps, answer)
        except StopIteration as end:
            self.outcome = Returned(end.value)
            return None
        except Exception as error:
            self.outcome = Raised(error)
            return None
        if isinstance(request, Emit):
            self.outcome = Emitted(request.value)
            return None
        self.request, self.since_s = request, now_s
        return request

    def close(self) -> None:
        """End it where it stands; harmless when it has ended."""
        self._steps.close()
        self.request = None
        if not self.has_ended:
            self.outcome = GivenUp()


class Rounds:
    """Answers what many courses ask for, kind by kind in one pass."""

    def __init__(self, executor: Answers, now_s: Callable[[], float] = time.monotonic) -> None:
        """Take whoever answers requests.

        Args:
            executor: answers them.
            now_s: the clock that courses are due by.
        """
        self._executor = executor
        self._now_s = now_s

    def run(self, courses: Sequence[Course[Any]]) -> None:
        """Let each course go on, and answer what they ask for, as much as one round takes.

        Args:
            courses: of different conversations, beside looks at pictures ahead. Each then waits
                for its next round, or has an outcome.
        """
        now_s = self._now_s()
        asking = [course for course in courses if course.go_on(now_s) is not None]
        if not asking:
            return
        portions = _portions(asking, now_s)
        answers = self._answer([request for _, request, _ in portions])
        for (course, _, rest), answer in zip(portions, answers, strict=True):
            course.give(answer, rest)

    def _answer(self, requests: list[Request]) -> list[Any]:
        """Answer all requests; what fails has its exception for an answer."""
        answers: list[Any] = [None] * len(requests)
        by_kind: dict[type, list[int]] = {}
        for index, request in enumerate(requests):
            by_kind.setdefault(type(request), []).append(index)
        for indices in by_kind.values():
            found = self._answer_kind([requests[index] for index in indices])
            for index, answer in zip(indices, found, strict=True):
                answers[index] = answer
        return answers

    def _answer_kind(self, requests: list[Request]) -> list[Any]:
        before = [_changed_length(request) for request in requests]
        try:
            return self._executor.answer(requests)
        except Exception as error:
            if len(requests) == 1:
                return [error]
            failure = error
        # One of them broke the pass. The others must not suffer for it, if they can be asked again.
        return [
            self._answer_kind([request])[0]
            if length is not None and length == _changed_length(request)
            else failure
            for request, length in zip(requests, before, strict=True)
        ]


def _portions(
    courses: Sequence[Course[Any]], now_s: float
) -> list[tuple[Course[Any], Request, Request | None]]:
    """Return what of whom is answered now, and what is left of it; a lone course gets it all.

    What is long gets the room that the others leave, so that it holds up nobody.
    """
    [first, *others] = courses
    if not others:
        assert first.request is not None
        return [(first, first.request, None)]
    requests = [course.request for course in courses if course.request is not None]
    asking = [
        Asking(type(request), course.since_s, course.due_s)
        for course, request in zip(courses, requests, strict=True)
    ]
    room = dict(MOST_AT_ONCE)
    portions: list[tuple[Course[Any], Request, Request | None]] = []
    long: list[int] = []
    for index in chosen(asking, now_s):
        request, size = requests[index], size_of(requests[index])
        left = room.get(type(request), size)
        if size > max(1, left):
            long.append(index)
            continue
        portions.append((courses[index], request, None))
        room[type(request)] = left - size
    for index in long:
        left = room[type(requests[index])]
        if left > 0:
            now, rest = first_portion(requests[index], left)
            portions.append((courses[index], now, rest))
            room[type(now)] = left - size_of(now)
    return portions


def _changed_length(request: Request) -> int | None:
    """Return the length of the cache that an answer extends; None if that cannot be told."""
    match request:
        case LlmForward(kv=kv) | DrawCodes(kv=kv):
            return kv.length
        case EncodeClips() | EncodeImages() | OpenVoice():
            return 0  # these change nothing
        case _:
            return None
