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
    ChooseToken,
    DrawCodes,
    Emit,
    EncodeClips,
    EncodeImages,
    EncodeStream,
    LlmForward,
    OpenVoice,
    Request,
    Steps,
    Vocode,
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
        self._answer = answer if isinstance(answer, Exception) else _joined(self._portions)
        self._portions, self.request = [], None

    def go_on(self, now_s: float = 0.0) -> Request | None:
        """Go on to the next request, unless one waits; None if there is an outcome instead."""
        if self._is_given_up():
            self._give_up()
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

    def _give_up(self) -> None:
        """Close it in the middle of a round, where its failure must end no other course."""
        self.outcome = None
        try:
            self.close()
        except Exception as error:
            self.request, self.outcome = None, Raised(error)


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
        measured = _measured(asking)
        portions = _portions(measured, now_s) if measured else []
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
        before = [_progress(request) for request in requests]
        try:
            return self._executor.answer(requests)
        except Exception as error:
            if len(requests) == 1:
                return [error]
            failure = error
        # One of them broke the pass. The others must not suffer for it, if they can be asked again.
        return [
            self._answer_kind([request])[0] if _progress(request) == progress else failure
            for request, progress in zip(requests, before, strict=True)
        ]


Measured = tuple[Course[Any], Request, int]  # a course, what it asks for, and the size of that


def _measured(courses: Sequence[Course[Any]]) -> list[Measured]:
    """Return the courses with their requests; one that has no size gets the error as its answer."""
    measured: list[Measured] = []
    for course in courses:
        request = course.request
        assert request is not None, "it asks"
        try:
            measured.append((course, request, size_of(request)))
        except Exception as error:
            course.give(error)
    return measured


def _portions(
    courses: Sequence[Measured], now_s: float
) -> list[tuple[Course[Any], Request, Request | None]]:
    """Return what of whom is answered now, and what is left of it; a lone course gets it all.

    What is long gets the room that the others leave, so that it delays no other course.
    """
    if len(courses) == 1:
        [(course, request, _)] = courses
        return [(course, request, None)]
    asking = [Asking(type(request), course.since_s, course.due_s) for course, request, _ in courses]
    room = dict(MOST_AT_ONCE)
    portions: list[tuple[Course[Any], Request, Request | None]] = []
    long: list[Measured] = []
    for course, request, size in (courses[index] for index in chosen(asking, now_s)):
        left = room.get(type(request), size)
        if size > max(1, left):
            long.append((course, request, size))
            continue
        portions.append((course, request, None))
        room[type(request)] = left - size
    for course, request, size in long:
        left = room[type(request)]
        if left > 0:
            now, rest = first_portion(request, left)
            portions.append((course, now, rest))
            room[type(now)] = left - min(left, size)
    return portions


def _joined(portions: list[Any]) -> Any:
    """Return one answer; portions that do not fit together are that course's failure alone."""
    try:
        return joined(portions)
    except Exception as error:
        return error


def _progress(request: Request) -> int:
    """Return what differs once an answer has changed the conversation that asked."""
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
            return 0  # these change nothing
