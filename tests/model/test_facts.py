"""The description of a checkpoint follows from its configuration and size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.processors.backend import PUBLISHED_MIN_PARAMETERS, kind_of, read_card
from core.schemas.worker import ModelKind

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
