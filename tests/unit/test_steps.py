"""Drivers of capabilities: what goes in, what comes out, and how errors travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from core.engine.passes import run_alone
from MiniCPMO45.engine.steps import Emit, OpenVoice, Request, Steps
from tests.fakes.batching import at_once, stream_alone


class Echo:
    """Answers a request with a number: how many came before; refuses those it is told to."""

    def __init__(self, refused: frozenset[int] = frozenset()) -> None:
        self.groups: list[int] = []
        self.refused = refused

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        start = sum(self.groups)
        self.groups.append(len(requests))
        if start in self.refused:
            raise RuntimeError(f"request {start} refused")
        return list(range(start, start + len(requests)))


def _ask() -> Request:
    return OpenVoice(None, None)  # type: ignore[arg-type]


def _count(times: int) -> Steps[list[int]]:
    answers = []
    for _ in range(times):
        answers.append((yield _ask()))
        yield Emit(f"got {answers[-1]}")
    return answers


def test_answers_go_back_to_who_asked() -> None:
    echo = Echo()
    assert run_alone(_count(3), echo) == [0, 1, 2]
    assert echo.groups == [1, 1, 1]


def test_emitted_values_reach_the_caller_while_work_goes_on() -> None:
    echo = Echo()
    stream = stream_alone(_count(2), echo)
    assert next(stream) == "got 0"
    assert echo.groups == [1], "nothing is asked ahead"
    assert next(stream) == "got 1"
    with pytest.raises(StopIteration) as end:
        next(stream)
    assert end.value.value == [0, 1]


def test_a_capability_that_asks_nothing_just_returns() -> None:
    echo = Echo()
    assert run_alone(_count(0), echo) == []
    assert echo.groups == []


def test_a_failed_request_is_raised_where_it_was_asked() -> None:
    def careful() -> Steps[str]:
        try:
            yield _ask()
        except RuntimeError as error:
            answer = yield _ask()
            return f"{error}, then {answer}"
        return "no error"

    assert run_alone(careful(), Echo(frozenset({0}))) == "request 0 refused, then 1"


def test_a_failure_nobody_handles_reaches_the_caller() -> None:
    with pytest.raises(RuntimeError, match="request 1 refused"):
        run_alone(_count(3), Echo(frozenset({1})))


def test_work_between_requests_records_no_gradients() -> None:
    def curious() -> Steps[bool]:
        yield _ask()
        return torch.is_inference_mode_enabled()

    assert run_alone(curious(), Echo())
    assert not torch.is_inference_mode_enabled()
