"""Drives many capabilities at once: in each round every one of them gets one answer.

What a round asks for is answered together, so that sessions share forward passes. Knows no threads;
whoever runs rounds does so on the one thread that owns the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from MiniCPMO45.steps import (
    Answers,
    Emit,
    EncodeClips,
    EncodeImages,
    LlmForward,
    OpenVoice,
    Request,
    SpeechForward,
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
    """

    def __init__(self, steps: Steps[T], is_given_up: Callable[[], bool]) -> None:
        """Stand before the first step.

        Args:
            steps: the capability.
            is_given_up: asked before each forward pass.
        """
        self.outcome: Outcome | None = None
        self._steps = steps
        self._is_given_up = is_given_up
        self._answer: Any = None  # Any: of whatever type the request documents

    @property
    def stands_still(self) -> bool:
        """It needs no round before somebody has looked at its outcome."""
        return self.outcome is not None

    @property
    def has_ended(self) -> bool:
        """Nothing is left to do."""
        return not isinstance(self.outcome, Emitted | None)

    def give(self, answer: Any) -> None:
        """Take the answer to the request; an exception will be raised inside the capability."""
        self._answer = answer

    def go_on(self) -> Request | None:
        """Go on to the next request; None if there is an outcome instead."""
        answer, self._answer, self.outcome = self._answer, None, None
        if self._is_given_up():
            self.close()
            return None
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
        return request

    def close(self) -> None:
        """End it where it stands; harmless when it has ended."""
        self._steps.close()
        if not self.has_ended:
            self.outcome = GivenUp()


class Rounds:
    """Answers what many courses ask for, kind by kind in one pass."""

    def __init__(self, executor: Answers) -> None:
        """Take whoever answers requests."""
        self._executor = executor

    def run(self, courses: Sequence[Course[Any]]) -> None:
        """Let each course go on, and answer what they ask for.

        Args:
            courses: of different conversations. Each then waits for its next round, or has an
                outcome.
        """
        asking: list[tuple[Course[Any], Request]] = []
        for course in courses:
            request = course.go_on()
            if request is not None:
                asking.append((course, request))
        answers = self._answer([request for _, request in asking])
        for (course, _), answer in zip(asking, answers, strict=True):
            course.give(answer)

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


def _changed_length(request: Request) -> int | None:
    """Return the length of the cache that an answer extends; None if that cannot be told."""
    match request:
        case LlmForward(kv=kv) | SpeechForward(kv=kv):
            return kv.length
        case EncodeClips() | EncodeImages() | OpenVoice():
            return 0  # these change nothing
        case _:
            return None
