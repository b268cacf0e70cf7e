"""The backend of the real model: its description of a checkpoint, and its warm-up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, count
from pathlib import Path

import pytest

from core.processors.backend import (
    PUBLISHED_MIN_PARAMETERS,
    ROUNDS,
    kind_of,
    measure_units,
    read_card,
    speak_once,
)
from core.schemas.worker import ModelKind
from MiniCPMO45.engine.steps import Collect, DrawCodes, EncodeImages, Request
from tests.fakes.decoders import held_tokens
from tests.model.views import load

FULL_SIZE = PUBLISHED_MIN_PARAMETERS + 1


@pytest.mark.parametrize(
    ("variant", "parameters", "told", "kind"),
    [
        ("", FULL_SIZE, None, ModelKind.FULL),
        ("", 1_000, None, ModelKind.UNKNOWN),
        ("", 1_000, ModelKind.FULL, ModelKind.UNKNOWN),
        ("tiny", 1_000, None, ModelKind.TINY_RANDOM),
        ("tiny", 1_000, ModelKind.NANO, ModelKind.TINY_RANDOM),
        ("nano", 1_000, None, ModelKind.NANO),
        ("nano", 1_000, ModelKind.FULL, ModelKind.NANO),
        ("other", FULL_SIZE, None, ModelKind.UNKNOWN),
        ("other", 1_000, ModelKind.NANO, ModelKind.NANO),
    ],
)
def test_no_card_turns_a_small_model_into_the_full_one(
    variant: str, parameters: int, told: ModelKind | None, kind: ModelKind
) -> None:
    assert kind_of(variant, parameters, told) is kind


def test_model_card_names_the_model_and_suggestions(tmp_path: Path) -> None:
    assert read_card(tmp_path).name == ""
    card = {"name": "nano", "kind": "nano", "try_saying": ["Hello.", "What do you see?"]}
    (tmp_path / "model_card.json").write_text(json.dumps(card))
    told = read_card(tmp_path)
    assert (told.name, told.kind) == ("nano", ModelKind.NANO)
    assert told.try_saying == ("Hello.", "What do you see?")


@pytest.mark.parametrize(
    "content", ["", "[]", '{"kind": "best"}', '{"try_saying": [""]}', '{"name": "' + "n" * 81]
)
def test_an_unusable_card_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "model_card.json").write_text(content)
    assert read_card(tmp_path) == read_card(tmp_path / "nowhere")


def test_units_of_one_and_of_several_sessions_are_timed_and_leave_nothing_behind(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = load(checkpoint).duplex.context
    executor = context.model.executor
    speak_once(context)
    stores = executor.llm_store, executor.tts_store
    held = [held_tokens(store) for store in stores]
    asked: list[Request] = []
    submit = executor.submit

    def noted(requests: Sequence[Request]) -> Collect:
        asked.extend(requests)
        return submit(requests)

    monkeypatch.setattr(executor, "submit", noted)
    ticks = accumulate(count(1))  # each round takes one second more than the one before
    measured = measure_units(context, 2, now_s=lambda: float(next(ticks)))
    assert measured == {1: 2.0, 2: 2.0 + 2 * ROUNDS}
    looks = [each for each in asked if isinstance(each, EncodeImages)]
    assert len(looks) == 3 * ROUNDS, "every unit sees a picture"
    speaking = {each.kv for each in asked if isinstance(each, DrawCodes)}
    assert len(speaking) == 1, "one of two speaks"
    assert held == [held_tokens(store) for store in stores]
