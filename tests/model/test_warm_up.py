"""The worker's measurement of the model at start."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import pytest

from core.processors.backend import ROUNDS, measure_units, speak_once
from MiniCPMO45.engine.steps import DrawCodes, EncodeImages, Request
from tests.fakes.decoders import held_tokens
from tests.model.views import load


def test_units_of_one_and_of_several_sessions_are_timed_and_leave_nothing_behind(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = load(checkpoint).duplex.context
    executor = context.model.executor
    speak_once(context)
    stores = executor.llm_store, executor.tts_store
    held = [held_tokens(store) for store in stores]
    asked: list[Request] = []
    answer = executor.answer

    def noted(requests: Sequence[Request]) -> list[Any]:
        asked.extend(requests)
        return answer(requests)

    monkeypatch.setattr(executor, "answer", noted)
    ticks = accumulate(count(1))  # each round takes one second more than the one before
    measured = measure_units(context, 2, now_s=lambda: float(next(ticks)))
    assert measured == {1: 2.0, 2: 2.0 + 2 * ROUNDS}
    looks = [each for each in asked if isinstance(each, EncodeImages)]
    assert len(looks) == 3 * ROUNDS, "every unit sees a picture"
    speaking = {each.kv for each in asked if isinstance(each, DrawCodes)}
    assert len(speaking) == 1, "one of two speaks"
    assert held == [held_tokens(store) for store in stores]
